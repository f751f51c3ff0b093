"""Who looks on: the newest events, and what rings when a job changed or something happened. Only what is durable is told."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Collection, Iterator, Sequence

from hs_controller.rows import Event
from hs_core.names import JobId

LIVE_EVENTS = 8192  # a watcher that is further behind is dropped


class Watch:
    """Rings when a job changed."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._rung.wait(), timeout_s)
        self._rung.clear()


class Onlookers:
    def __init__(self, last_seq: int) -> None:
        self.events: deque[Event] = deque(maxlen=LIVE_EVENTS)
        self.last_seq = last_seq
        """Of all events, also before these."""
        self._watches: dict[JobId, set[Watch]] = {}
        self._bell = asyncio.Event()

    @contextlib.contextmanager
    def watching(self, job: JobId) -> Iterator[Watch]:
        watch = Watch()
        self._watches.setdefault(job, set()).add(watch)
        try:
            yield watch
        finally:
            self._watches[job].discard(watch)
            if not self._watches[job]:
                del self._watches[job]

    async def event_after(self, seq: int) -> None:
        """Returns when there is an event after `seq`."""
        while self.last_seq <= seq:
            await self._bell.wait()

    def event(self, seq: int) -> Event | None:
        """None: it has gone by."""
        oldest = self.events[0].seq
        return None if seq < oldest else self.events[seq - oldest]

    def tell(self, events: Sequence[Event], touched: Collection[JobId]) -> None:
        """What has happened, and to which jobs."""
        if events:
            self.events.extend(events)
            self.last_seq = events[-1].seq
            self._bell.set()
            self._bell = asyncio.Event()
        for job in touched:
            for watch in self._watches.get(job, ()):
                watch.ring()
