"""Leases of jobs that end without the controller's word (`fence`): written while it is heard, read by the jobs' shims.

They run out a little later than the agent's own mind would end the job, never earlier, and say how long its end may take: the
controller waits longer than both together (its `lease_s`) before it starts such a job elsewhere.
"""

from hs_agent.folder import Key
from hs_agent.launch import Launcher
from hs_core import fencing
from hs_core.model import OnPartition
from hs_core.wanted import Wanted
from hs_daemon.there import exists

EVERY_S = 2.0


class Leases:
    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._after_s = self._lease_s = 0.0
        self._jobs: frozenset[Key] = frozenset()
        self._heard_s: float | None = None
        self._written_s = float("-inf")

    def wanted(self, wanted: Wanted, said_s: float, now_s: float) -> None:
        jobs = frozenset(
            Key(job.job, job.epoch) for job in wanted.jobs if job.spec.on_partition is OnPartition.FENCE
        )
        news = jobs, wanted.fence_after_s, wanted.lease_s
        if news != (self._jobs, self._after_s, self._lease_s):
            self._jobs, self._after_s, self._lease_s = news
            self._written_s = float("-inf")
        self.heard(said_s, now_s)

    def heard(self, said_s: float, now_s: float) -> None:
        """The controller said something, then."""
        self._heard_s = max(said_s, self._heard_s or said_s)
        if now_s - self._written_s >= EVERY_S:
            self._written_s = now_s
            for key in self._jobs:
                self.write(key)

    def write(self, key: Key) -> None:
        """Also right before a launch."""
        if key not in self._jobs or self._heard_s is None:
            return
        folder = self._launcher.folder(key)
        if exists(folder.path):
            until_s = self._heard_s + self._after_s + EVERY_S if self._after_s > 0 else float("inf")
            grace_s = fencing.grace_s(self._launcher.config.kill_grace_s, self._lease_s, EVERY_S)
            folder.write_lease(until_s, grace_s)
