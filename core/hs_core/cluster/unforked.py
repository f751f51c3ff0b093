"""Servers on which a copy of a job failed as it was started: for a while none is made there, and each time for longer."""

from hs_core.cluster.stays import Stays
from hs_core.names import HostName, JobId


class Unforked(Stays[tuple[JobId, HostName]]):
    """By how the copy ended."""

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[JobId, set[HostName]] = {}

    def stays(self, who: tuple[JobId, HostName], now_s: float, quantum_s: float, why: str = "") -> None:
        super().stays(who, now_s, quantum_s, why)
        self._of.setdefault(who[0], set()).add(who[1])

    def forget(self, who: tuple[JobId, HostName]) -> None:
        super().forget(who)
        left = self._of.get(who[0], set())
        left.discard(who[1])
        if not left:
            self._of.pop(who[0], None)

    def forget_job(self, job: JobId) -> None:
        for name in sorted(self._of.get(job, ())):
            self.forget((job, name))

    def jobs(self) -> set[JobId]:
        return set(self._of)

    def barring(self, job: JobId) -> frozenset[HostName]:
        """Where none of its copies is made now."""
        return frozenset([name for name in self._of.get(job, ()) if (job, name) in self])
