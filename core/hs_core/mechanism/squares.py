"""Squares of servers' loads, and how much more they are after jobs have moved (Gandiva_fair, 3.3).

A gang over several servers waits for the fullest of them, and its other servers wait with it: what these carry less is of use to jobs of their own
only. Server by server it looked best to crowd all small jobs on one of two servers that share a gang, and the other one idled out of its turns. So where
gangs are shared a server is looked at in two ways: apart, and with the others, as full as the fullest of those with which it shares one. Where all run at once nobody
waits, so there tickets make nothing fuller: jobs went to and fro between what was even and what nobody waited for.
"""

from collections.abc import Iterable, Mapping, Sequence

from hs_core.mechanism.loads import Pool
from hs_core.mechanism.time_load import time_load, weighed
from hs_core.mechanism.world import World
from hs_core.names import JobId, UserName
from hs_core.policy import JobFacts

Step = tuple[JobFacts, int, int]
"""A job, or its part there, with the server that it leaves and the one that it takes."""


class Squares:
    """Of the servers of a pool as they are whenever it is asked, by what jobs weigh there; of the mean load's, times GPUs."""

    def __init__(self, world: World, pool: Pool, weights: Mapping[UserName, float], mean: float) -> None:
        self._width: list[int] = pool.width.tolist()
        self._mean = mean
        self._now = _Servers(world, pool, weights)

    def moved(self, servers: Iterable[int]) -> None:
        """Somebody has left these or come to them: all servers of who moved, as it was and as it is."""
        self._now.forget(servers)

    def apart(self, steps: Sequence[Step]) -> float:
        """More than before all of these, each server by itself."""
        before, after, touched = self._now, _After(self._now, steps), sorted(_touched(steps))
        return self._more(touched, map(before.load, touched), map(after.load, touched))

    def waited(self, steps: Sequence[Step]) -> float:
        """The same, each server as full as the fullest of those with which it shares a gang; those on which all run at once as if they were empty: there nobody waits for anybody."""
        return self._waited(_After(self._now, steps), _touched(steps))

    def without(self, gone: Iterable[JobFacts], steps: Sequence[Step] = ()) -> float:
        """As `waited` has it, were these gone besides: no homes for them save more."""
        after, touched = _After(self._now, steps), _touched(steps)
        for job in gone:
            home = self._now.home(job)
            after.remove(job, home)
            touched.update(home)
        return self._waited(after, touched)

    def waits_with(self, at: int) -> set[int]:
        """Itself, and servers with which it shares gangs."""
        return self._now.beside(at)

    def _waited(self, after: "_After", touched: Iterable[int]) -> float:
        before, some = self._now, set(touched)
        # No others later: a gang takes its servers along.
        order = sorted(some.union(*map(before.beside, some)))
        return self._more(order, before.fullest(order), after.fullest(order))

    def _more(self, servers: Iterable[int], before: Iterable[float], after: Iterable[float]) -> float:
        width = self._width
        more = [width[at] * (then**2 - now**2) for at, now, then in zip(servers, before, after, strict=True)]
        return float(sum(more)) / self._mean**2


def _touched(steps: Iterable[Step]) -> set[int]:
    return {at for _, left, taken in steps for at in (left, taken)}


class _Servers:
    """As they are."""

    def __init__(self, world: World, pool: Pool, weights: Mapping[UserName, float]) -> None:
        self.world, self.pool, self.weights = world, pool, weights
        self._jobs: dict[int, list[JobFacts]] = {}
        self._loads: dict[int, float] = {}
        self._waited: dict[int, float] = {}
        self._beside: dict[int, set[int]] = {}
        self._fullest: dict[int, float] = {}

    def forget(self, servers: Iterable[int]) -> None:
        for at in servers:
            for known in (self._jobs, self._loads, self._waited, self._beside):
                known.pop(at, None)
        self._fullest.clear()

    def jobs(self, at: int) -> list[JobFacts]:
        """Of one node, and parts."""
        found = self._jobs.get(at)
        if found is None:
            world, name = self.world, self.pool.names[at]
            parts = world.parts.get(name)
            found = self._jobs[at] = [*world.at[name].jobs, *(parts.jobs if parts is not None else ())]
        return found

    def home(self, job: JobFacts) -> list[int]:
        """Its servers of the pool."""
        index = self.pool.index
        return [index[name] for name in self.world.homes[job.id] if name in index]

    def beside(self, at: int) -> set[int]:
        """Itself, and servers with which it shares gangs."""
        found = self._beside.get(at)
        if found is None:
            found = self._beside[at] = {at}.union(*[self.home(job) for job in self.jobs(at) if job.nodes > 1])
        return found

    def fullest(self, servers: Sequence[int]) -> list[float]:
        """Of each what the fullest `beside` it has `waited`."""
        known, waited = self._fullest, self.waited
        for at in servers:
            if at not in known:
                known[at] = max(map(waited, self.beside(at)))
        return list(map(known.__getitem__, servers))

    def waited(self, at: int) -> float:
        """Its load; nothing where all run at once."""
        found = self._waited.get(at)
        if found is None:
            asked = sum([job.per_node for job in self.jobs(at)])
            found = self._waited[at] = self.load(at) if asked > self.pool.gpus[at] else 0.0
        return found

    def load(self, at: int) -> float:
        found = self._loads.get(at)
        if found is None:
            jobs = weighed(self.jobs(at), self.weights)
            found = self._loads[at] = time_load(int(self.pool.gpus[at]), jobs)
        return found


class _After(_Servers):
    """As they are after these steps; whatever these leave as it was, as it is."""

    def __init__(self, before: _Servers, steps: Iterable[Step]) -> None:
        super().__init__(before.world, before.pool, before.weights)
        self._before = before
        self._homes: dict[JobId, list[int]] = {}  # of those that went
        self._others: set[int] = set()  # servers that share gangs with others than before
        for job, left, taken in steps:
            home = self.home(job)
            self._jobs[left] = [other for other in self.jobs(left) if other.id != job.id]
            self._jobs[taken] = [*self.jobs(taken), job]
            self._homes[job.id] = [taken if at == left else at for at in home]
            if job.nodes > 1:
                self._others.update(home, (taken,))

    def remove(self, job: JobFacts, home: Iterable[int]) -> None:
        """From all of its servers."""
        for at in home:
            self._jobs[at] = [other for other in self.jobs(at) if other.id != job.id]
            self._others.add(at)

    def jobs(self, at: int) -> list[JobFacts]:
        return self._jobs[at] if at in self._jobs else self._before.jobs(at)

    def home(self, job: JobFacts) -> list[int]:
        return self._homes[job.id] if job.id in self._homes else self._before.home(job)

    def beside(self, at: int) -> set[int]:
        return super().beside(at) if at in self._others else self._before.beside(at)

    def fullest(self, servers: Sequence[int]) -> list[float]:
        before, changed = self._before.waited, {at: self.waited(at) for at in self._jobs}
        most = max(changed.values(), default=0.0)
        found: list[float] = []
        for at, was in zip(servers, self._before.fullest(servers), strict=True):
            beside = self.beside(at)
            # Where the fullest is none of those that changed, and stays it, nothing is new.
            new = (
                at in self._others or most > was or any(before(one) == was for one in beside & changed.keys())
            )
            now = max([changed[one] if one in changed else before(one) for one in beside]) if new else was
            found.append(now)
        return found

    def waited(self, at: int) -> float:
        return super().waited(at) if at in self._jobs else self._before.waited(at)

    def load(self, at: int) -> float:
        return super().load(at) if at in self._jobs else self._before.load(at)
