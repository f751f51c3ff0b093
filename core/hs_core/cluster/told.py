"""Incarnations of which a host knows, or is told with the next Wanted, that it is to have them no more: mentioned once more, they need no word."""

from collections import OrderedDict
from collections.abc import Iterable

from hs_core.model import Job
from hs_core.names import HostName, JobId

MOST = 1024  # of a host, the newest: it soon has nothing to say of them, and agents stay connected for months


class Told:
    """Mutable."""

    def __init__(self) -> None:
        self._of: dict[HostName, OrderedDict[tuple[JobId, int], None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def add(self, host: HostName, job: JobId, epoch: int) -> bool:
        """Whether it had not been told."""
        known = self._of.setdefault(host, OrderedDict())
        if (job, epoch) in known:
            return False
        known[job, epoch] = None
        if len(known) > MOST:
            known.popitem(last=False)
        return True

    def over(self, row: Job, hosts: Iterable[HostName]) -> None:
        """Its incarnation is over there."""
        for host in hosts:
            self.add(host, row.id, row.epoch)

    def forget(self, host: HostName) -> None:
        """It is to be told anew."""
        self._of.pop(host, None)
