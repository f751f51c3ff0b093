"""What of the cluster a job can have now: servers that could hold it, and those that have its checkpoint."""

from collections.abc import Collection

from hs_core.cluster import checkpoints
from hs_core.cluster.absent import Absent
from hs_core.cluster.book import Book
from hs_core.cluster.fits import Fits, could_hold
from hs_core.model import Job, Migrate, OnPartition
from hs_core.names import HostName


class Reach:
    def __init__(self, book: Book, connected: Collection[HostName], absent: Absent) -> None:
        self._book = book
        self._connected = connected
        self._absent = absent
        self.fits = Fits()

    def short_of_gpus(self, row: Job) -> bool:
        """A server of its home has too few GPUs that it could have."""
        hosts = self._book.hosts
        return any(name in hosts and len(hosts[name].healthy_gpus) < row.gpus for name in row.hosts)

    def fits_somewhere(self, row: Job) -> bool:
        book = self._book
        return self.fits.misfit(row.laid, book.hosts, book.hosts_version, healthy_only=True) is None

    def source_away(self, row: Job) -> tuple[HostName, ...]:
        """Servers that have its checkpoint and are not here, where it needs one of theirs to start."""
        if row.stored is None or row.stored.is_at(row.hosts) or row.stored.in_folder:
            return ()
        if row.portions or row.stored.copies:
            return tuple(host for host in row.stored.hosts if host not in self._connected)
        there = row.stored.hosts
        if not row.hosts:
            there = checkpoints.at_hand(row.stored, self._connected).hosts
        pairs = zip(row.hosts, checkpoints.taken(row), strict=True)
        needed = {part for home, part in pairs if there[part] != home} if row.hosts else range(len(there))
        return tuple(there[part] for part in sorted(needed) if there[part] not in self._connected)

    def out_of_reach(self, row: Job) -> bool:
        """It has no place yet, and asked not to wait for servers that are cut off: without theirs its checkpoint is none."""
        stored, gone = row.stored, self._absent.fenced
        if not gone or stored is None or stored.copies or row.hosts:
            return False
        left = self._book.hosts.keys() - gone
        return row.spec.on_partition is OnPartition.FENCE and checkpoints.within(row, left) is None

    def may_leave_checkpointed(self, row: Job) -> bool:
        reachable = all(self._book.hosts[name].peer for name in row.hosts)
        return reachable and row.spec.migrate is Migrate.AUTO and checkpoints.left(row) is not None

    def has_place(self, hosts: Collection[HostName]) -> bool:
        """That it need not leave."""
        return bool(hosts) and all(self._book.hosts[name].schedulable for name in hosts)

    def could_go_elsewhere(self, row: Job, failed: Collection[HostName]) -> bool:
        """Than where it failed at its start: to servers that are there, or will be at once, and empty as they may be."""
        here = {*self._connected, *self._absent.expected}.difference(failed)
        others = [h for name, h in self._book.hosts.items() if name in here and h.schedulable]
        return could_hold(row.laid, others, mixed=self.fits.mixed)
