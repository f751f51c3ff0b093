"""Hosts that are away: how long they are waited for, and what becomes of their jobs then."""

from collections.abc import Iterable
from dataclasses import replace

from hs_core.cluster.contents import Contents
from hs_core.cluster.lives import Lives
from hs_core.cluster.sources import Sources
from hs_core.model import Job, OnPartition
from hs_core.names import HostName


class Fences:
    def __init__(self, contents: Contents, lives: Lives, sources: Sources) -> None:
        self._contents = contents
        self._absent = contents.absent
        self._asking = contents.asking
        self._backup = contents.backup
        self._book = contents.book
        self._put = contents.put
        self._lives = lives
        self._sources = sources

    def watch_away(self, now_s: float) -> None:
        if self._absent.since_s is None:
            unheard = (name for name in self._book.hosts if name not in self._contents.connected)
            self._absent.begin(unheard, now_s)
            self._backup.begins(now_s, self._contents.settings.lease_s)
        any_late, silent = self._absent.expect_no_more(now_s)
        self._asking.stale = self._asking.stale or any_late
        for name in sorted(silent):
            self._away_all_along(name, now_s)

    def _away_all_along(self, name: HostName, now_s: float) -> None:
        """Nothing was heard of it since this term began: so what failed elsewhere of gangs that have a part there failed while it was away."""
        for row in self._book.at(name):
            said = {host: self._lives.blamed(row, host, part) for host, part in row.reports.items()}
            if said != row.reports:
                self._put(replace(row, reports=said), now_s)

    def tend_backup(self, now_s: float) -> None:
        if not self._backup.awaits:
            return
        if self._backup.heard(now_s, all_here=self._book.hosts.keys() <= self._contents.connected):
            self._contents.event.meta = self._asking.stale = True

    def confirmed(self, host: HostName, now_s: float, rows: Iterable[Job] | None = None) -> None:
        """What was taken from it before it had a process there will never have one there."""
        jobs = sorted(self._book.unconfirmed.get(host, ()))
        for row in [self._book.live[job] for job in jobs] if rows is None else rows:
            left = tuple(name for name in row.unconfirmed if name != host)
            if left != row.unconfirmed:
                self._put(replace(row, unconfirmed=left), now_s)

    def tend(self, now_s: float) -> None:
        for name, away_s in self._absent.give_up(now_s):
            self._fence(name, away_s, now_s)

    def _fence(self, name: HostName, away_s: float, now_s: float) -> None:
        """By now the host itself has ended what said `fence`; the rest stays its own until it is back or removed."""
        why = f"{name} has been away for {away_s:.0f} s, and it asked to be fenced"
        lent = [
            job for job in sorted(self._book.lent.get(name, ())) if name not in self._book.live[job].hosts
        ]
        for row in self._book.at(name):
            if row.spec.on_partition is OnPartition.FENCE:
                self._lives.lost_at(row, name, why, now_s)
        awaited = [self._book.live[job] for job in sorted(self._book.unconfirmed.get(name, ()))]
        self.confirmed(name, now_s, [row for row in awaited if row.spec.on_partition is OnPartition.FENCE])
        for row in map(self._book.live.__getitem__, lent):
            if row.spec.on_partition is OnPartition.FENCE:
                self._sources.give_up(row, why, now_s)
