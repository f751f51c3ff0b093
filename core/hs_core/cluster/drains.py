"""Servers that are drained: at the deadline what is left there is ended, and what can writes a checkpoint before."""

from collections.abc import Iterator

from hs_core.cluster.contents import Contents
from hs_core.model import Job
from hs_core.names import HostName
from hs_core.reports import Phase

_UP = frozenset({Phase.HELD, Phase.SWAPPED, Phase.RUNNING, Phase.SUSPENDING})


class Drains:
    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._book = contents.book
        self._connected = contents.connected
        self._evictions = contents.evictions
        self._restless = contents.restless
        self._settings = contents.settings

    def tend(self, now_s: float) -> None:
        """At the deadline what is left is told to end; its exit then queues it again (`Exits.exited`). What can writes a checkpoint before."""
        doomed = self._contents.doomed(now_s)
        there = {row.id: row for name in doomed for row in self._book.at(name)}
        self._evictions.forget_others(there, now_s)
        saving = frozenset(id_ for id_, row in there.items() if self._saves_first(row, doomed, now_s))
        for id_ in self._evictions.saving ^ saving:
            self._restless.update(self._book.jobs[id_].hosts if id_ in self._book.jobs else ())
        self._evictions.saving = saving
        if doomed == self._evictions.doomed:
            return
        for name in doomed - self._evictions.doomed:
            jobs = self._book.at(name)
            self._restless.update(*(row.hosts for row in jobs))
            if jobs:
                left = (
                    "1 job that is left there is"
                    if len(jobs) == 1
                    else f"{len(jobs)} jobs that are left there are"
                )
                text = f"{name} was to be empty by now: {left} ended and queued again"
                self._contents.fact(now_s, "drain-deadline", text, host=name)
        for name in self._evictions.doomed - doomed:
            self._restless.update(*(row.hosts for row in self._book.at(name)))
        self._evictions.doomed = doomed
        self._contents.asking.stale = True

    def deadlines(self, now_s: float) -> Iterator[float]:
        for name in self._book.draining:
            drain = self._book.hosts[name].drain
            if drain is not None and drain.deadline_s is not None and drain.deadline_s > now_s:
                yield drain.deadline_s
        yield from self._evictions.deadlines(self._settings.move_deadline_s)

    def _saves_first(self, row: Job, doomed: frozenset[HostName], now_s: float) -> bool:
        """It has done something on a server that was to be empty since its last checkpoint, and can write one: for that it has as long as one that moves, from when its server could be told."""
        if row.portions or row.cancelled_by:
            return False
        parts = [row.reports.get(name) for name in row.hosts]
        there = [part for part in parts if part is not None and part.phase in _UP and part.can_checkpoint]
        written = [part for part in parts if part is not None and part.phase is Phase.CHECKPOINTED]
        if len(there) + len(written) < len(parts) or all(p.step <= p.checkpoint_step for p in there):
            return False
        begun = self._evictions.has_begun(row.id)
        if not begun and self._connected.isdisjoint(doomed.intersection(row.hosts)):
            return True
        return self._evictions.has_time(row.id, now_s, self._settings.move_deadline_s)
