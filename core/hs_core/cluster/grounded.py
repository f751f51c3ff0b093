"""Jobs that could not write their checkpoint when they were to move, or had not in time: they go on where they are, and while one is asked it has no turn."""

from hs_core.cluster.stays import Stays
from hs_core.names import JobId


class Grounded(Stays[JobId]):
    """By what they said of their checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self._fails: dict[JobId, int] = {}  # that had been when the move began which is under way

    def begins(self, job: JobId, fails: int) -> None:
        self._fails[job] = fails

    def failed(self, job: JobId, fails: int) -> bool:
        """Since its move began."""
        return fails > self._fails.get(job, 0)

    def forget(self, who: JobId) -> None:
        super().forget(who)
        self._fails.pop(who, None)
