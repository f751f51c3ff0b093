"""Squares of servers' loads, and how much more they are after jobs have moved (Gandiva_fair, 3.3).

A gang over several servers waits for the fullest of them, and its other servers wait with it: what these carry less is of use to jobs of their own
only. Server by server it looked best to crowd all small jobs on one of two servers that share a gang, and the other one idled out of its turns. So where
gangs are shared a server is looked at in two ways: apart, and together, as full as the fullest of those with which it shares one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

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
        self.world, self.pool, self.weights = world, pool, weights
        self._mean = mean

    def apart(self, steps: Sequence[Step]) -> float:
        """More than before all of these, each server by itself."""
        before, after = _Servers(self, ()), _Servers(self, steps)
        return self._more({at: (before.load(at), after.load(at)) for at in _touched(steps)})

    def together(self, steps: Sequence[Step]) -> float:
        """The same, each server as full as the fullest of those with which it shares a gang."""
        return self._together(steps, _Servers.load)

    def waited(self, steps: Sequence[Step]) -> float:
        """The same, those on which all run at once as if they were empty: there nobody waits for anybody."""
        return self._together(steps, _Servers.waited)

    def _together(self, steps: Sequence[Step], load: Callable[["_Servers", int], float]) -> float:
        before, after, touched = _Servers(self, ()), _Servers(self, steps), _touched(steps)
        some = touched.union(*map(before.beside, touched))  # no others later: a gang takes its servers along
        return self._more({at: (before.fullest(at, load), after.fullest(at, load)) for at in some})

    def _more(self, loads: Mapping[int, tuple[float, float]]) -> float:
        width = self.pool.width
        more = [width[at] * (after**2 - before**2) for at, (before, after) in sorted(loads.items())]
        return float(sum(more)) / self._mean**2


def _touched(steps: Iterable[Step]) -> set[int]:
    return {at for _, left, taken in steps for at in (left, taken)}


class _Servers:
    """After these steps."""

    def __init__(self, of: Squares, steps: Iterable[Step]) -> None:
        self._of = of
        self._jobs: dict[int, list[JobFacts]] = {}
        self._homes: dict[JobId, list[int]] = {}  # of those that went, servers of the pool
        self._loads: dict[int, float] = {}
        for job, left, taken in steps:
            home = self._home(job)
            self._jobs[left] = [other for other in self.jobs(left) if other.id != job.id]
            self._jobs[taken] = [*self.jobs(taken), job]
            self._homes[job.id] = [taken if at == left else at for at in home]

    def jobs(self, at: int) -> list[JobFacts]:
        """Of one node, and parts."""
        found = self._jobs.get(at)
        if found is None:
            world, name = self._of.world, self._of.pool.names[at]
            parts = world.parts.get(name)
            found = self._jobs[at] = [*world.at[name].jobs, *(parts.jobs if parts is not None else ())]
        return found

    def beside(self, at: int) -> set[int]:
        """Servers with which it shares gangs."""
        return {other for job in self.jobs(at) if job.nodes > 1 for other in self._home(job)} - {at}

    def fullest(self, at: int, load: Callable[["_Servers", int], float]) -> float:
        return max([load(self, one) for one in (at, *self.beside(at))])

    def waited(self, at: int) -> float:
        """Its load; nothing where all run at once."""
        asked = sum([job.per_node for job in self.jobs(at)])
        return self.load(at) if asked > self._of.pool.gpus[at] else 0.0

    def load(self, at: int) -> float:
        found = self._loads.get(at)
        if found is None:
            jobs = weighed(self.jobs(at), self._of.weights)
            found = self._loads[at] = time_load(int(self._of.pool.gpus[at]), jobs)
        return found

    def _home(self, job: JobFacts) -> list[int]:
        found = self._homes.get(job.id)
        if found is None:
            index = self._of.pool.index
            found = [index[name] for name in self._of.world.homes[job.id] if name in index]
        return found
