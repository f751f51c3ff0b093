"""What has become of jobs since it was last decided about them: what a sequel is told (`policy.JobsNow`)."""

from collections.abc import Sized

from hs_core.cluster.budget import Budget
from hs_core.names import JobId
from hs_sim.quanta.fleet import Fleet
from hs_sim.quanta.rows import Bools, Floats, Ints


class Since:
    def __init__(self, fleet: Fleet, budget: Budget, *on_their_way: Sized) -> None:
        """`on_their_way`: jobs that leave their homes, and those that have no process yet."""
        self._fleet = fleet
        self._budget = budget
        self._on_their_way = on_their_way
        self.came = False
        self.gone: list[JobId] = []
        self.users_left = False  # somebody had no job any more
        self.now_s = 0.0

    @property
    def turnover(self) -> bool:
        """Jobs have come or ended."""
        return self.came or bool(self.gone)

    def ends(self, job: int) -> None:
        """It has ended."""
        self.gone.append(JobId(job + 1))
        self.users_left = self.users_left or not self._fleet.jobs_of[self._fleet.user[job]]

    def told(self) -> None:
        """The policy knows."""
        self.came = self.users_left = False
        self.gone.clear()

    @property
    def on_their_way(self) -> bool:
        return any(self._on_their_way)

    @property
    def migrations_left(self) -> int:
        return self._budget.left(self.now_s)

    def running(self, jobs: Ints) -> Bools:
        found: Bools = self._fleet.running[jobs - 1]
        return found

    def attained_gpu_s(self, jobs: Ints) -> Floats:
        return self._fleet.attained(jobs - 1, self.now_s)
