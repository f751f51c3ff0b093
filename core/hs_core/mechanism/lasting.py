"""What jobs weigh once nobody lacks anything (`mechanism.lags`): of a change of homes, what lasts.

Lags come and go: whoever is short where it lives becomes heavier there until it is short no more. So of several ways to live that are as good, each
has its time, and nobody is short for long. A way in which more is lost than that one gains helps it for some quanta,
and is left again at the next lag: jobs would go to and fro for as long as they live.
"""

from collections.abc import Iterable, Mapping

from hs_core.mechanism.loads import Board, Pool
from hs_core.mechanism.time_load import time_load, weighed
from hs_core.names import UserName
from hs_core.policy import JobFacts

Step = tuple[JobFacts, int, int]
"""A job, or its part there, with the server that it leaves and the one that it takes."""


class Lasting:
    """Of the servers of a pool."""

    def __init__(self, board: Board, pool: Pool) -> None:
        self._world, self._pool = board.world, pool
        self._due: Mapping[UserName, float] = {user: board.due(user, pool.model) for user in pool.per_gpu}
        self.alike = self._due == pool.per_gpu  # nobody lacks anything
        gpus = self._world.gpus
        self._mean = pool.mean(sum([gpus[user, pool.model] * weight for user, weight in self._due.items()]))

    def squares(self, steps: Iterable[Step]) -> float:
        """More than before all of these, of the mean load's."""
        there: dict[int, list[JobFacts]] = {}
        before: dict[int, float] = {}
        for job, left, taken in steps:
            for at in (left, taken):
                if at not in there:
                    there[at] = self._jobs(at)
                    before[at] = self._load(at, there[at])
            there[left] = [other for other in there[left] if other.id != job.id]
            there[taken].append(job)
        width = self._pool.width
        more = [width[at] * (self._load(at, jobs) ** 2 - before[at] ** 2) for at, jobs in there.items()]
        return float(sum(more)) / self._mean**2

    def _jobs(self, at: int) -> list[JobFacts]:
        name = self._pool.names[at]
        parts = self._world.parts.get(name)
        return [*self._world.at[name].jobs, *(parts.jobs if parts is not None else ())]

    def _load(self, at: int, jobs: list[JobFacts]) -> float:
        return time_load(int(self._pool.gpus[at]), weighed(jobs, self._due))
