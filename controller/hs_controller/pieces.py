"""Large answers are made on the event loop in small pieces, so that what one costs keeps nobody else waiting: a submit, a report, a decision.

On the loop and not in a thread: that would take the interpreter from it for milliseconds at each of its system calls.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

PIECE_S = 0.002


class Pieces:
    """Of one answer. `settled`: what is looked at may have changed in between; this is awaited until it is in the journal again.

    `rest_s`: that others have between two pieces; longer for what nobody sits in front of.
    """

    def __init__(
        self, settled: Callable[[], Awaitable[object]] | None = None, *, rest_s: float = PIECE_S
    ) -> None:
        self._settled = settled
        self._rest_s = rest_s
        self._until_s = time.perf_counter() + PIECE_S

    async def rest(self) -> None:
        """Where this piece has taken long enough, others have at least as long to themselves: a submit goes through the event loop several times, and would wait
        for a piece of every such answer each time."""
        if time.perf_counter() < self._until_s:
            return
        await asyncio.sleep(self._rest_s)
        if self._settled is not None:
            await self._settled()
        self._until_s = time.perf_counter() + PIECE_S
