"""Loads of servers that share gangs (Gandiva_fair, 3.3): each is as full as the fullest of those with which it shares one.

A gang over several servers waits for the fullest of them, and its other servers wait with it: what these carry less is of use to jobs of their own
only. Server by server it looked best to crowd all small jobs on one of two servers that share a gang, and the other one idled out of its turn.
"""

from collections.abc import Iterable, Mapping, Sequence

from hs_core.mechanism.loads import Pool
from hs_core.mechanism.time_load import time_load, weighed
from hs_core.mechanism.world import World
from hs_core.names import JobId, UserName
from hs_core.policy import JobFacts

Step = tuple[JobFacts, int, int]
"""A job, or its part there, with the server that it leaves and the one that it takes."""


class Coupled:
    """The servers of a pool as they are whenever it is asked, and what jobs weigh there."""

    def __init__(self, world: World, pool: Pool, weights: Mapping[UserName, float], mean: float) -> None:
        self.world, self.pool, self.weights = world, pool, weights
        self._mean = mean

    def squares(self, steps: Sequence[Step]) -> float:
        """Of loads, times GPUs: more than before all of these, of the mean load's."""
        before, after = _Servers(self, ()), _Servers(self, steps)
        touched = {at for _, left, taken in steps for at in (left, taken)}
        some = touched.union(
            *[before.beside(at) for at in touched]
        )  # of those after none is new: a gang takes its other servers along
        width = self.pool.width
        more = [width[at] * (after.fullest(at) ** 2 - before.fullest(at) ** 2) for at in sorted(some)]
        return float(sum(more)) / self._mean**2


class _Servers:
    """After these steps."""

    def __init__(self, of: Coupled, steps: Iterable[Step]) -> None:
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

    def fullest(self, at: int) -> float:
        return max(map(self._load, (at, *self.beside(at))))

    def _load(self, at: int) -> float:
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
