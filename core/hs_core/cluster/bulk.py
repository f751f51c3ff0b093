"""What jobs' specs take in memory: each user answers for those that live jobs of theirs need; ended ones that nobody needs are let go of, the oldest first."""

from collections import Counter
from collections.abc import Collection
from collections.abc import Set as AbstractSet

from hs_core.cluster.admission import spec_bytes
from hs_core.model import Job
from hs_core.names import JobId, UserName


class Bulk:
    """Mutable. A row that is held is either needed (it is live, or a live one waits for it) or spare."""

    def __init__(self, most: int, most_bytes: int) -> None:
        """Of spare ones."""
        self._most, self._most_bytes = most, most_bytes
        self._needed: dict[JobId, int] = {}
        self._of_user: Counter[UserName] = Counter()
        self._spare: dict[JobId, int] = {}  # in the order in which they became so
        self._spare_bytes = 0

    def of_user(self, user: UserName) -> int:
        return self._of_user[user]

    @property
    def needed(self) -> AbstractSet[JobId]:
        return self._needed.keys()

    def need(self, row: Job) -> None:
        if row.id in self._needed:
            return
        size = self._drop(row.id)
        self._needed[row.id] = size = spec_bytes(row.spec) if size is None else size
        self._of_user[row.user] += size

    def spare(self, row: Job) -> None:
        if row.id in self._spare:
            return
        size = self._needed.pop(row.id, None)
        if size is None:
            size = spec_bytes(row.spec)
        else:
            self._of_user[row.user] -= size
            if not self._of_user[row.user]:
                del self._of_user[row.user]
        self._spare[row.id] = size
        self._spare_bytes += size

    def _drop(self, job: JobId) -> int | None:
        size = self._spare.pop(job, None)
        self._spare_bytes -= size or 0
        return size

    def evict(self, but: Collection[JobId]) -> list[JobId]:
        """Lets go of the oldest spare ones beyond the limits."""
        gone: list[JobId] = []
        over, over_bytes = len(self._spare) - self._most, self._spare_bytes - self._most_bytes
        for job, size in self._spare.items():
            if over <= 0 and over_bytes <= 0:
                break
            if job not in but:
                gone.append(job)
                over, over_bytes = over - 1, over_bytes - size
        for job in gone:
            self._drop(job)
        return gone
