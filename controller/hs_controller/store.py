"""The journal from inside an event loop: writes on one thread, reads on another, so that neither waits for the other."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hs_controller.journal import Journal
from hs_controller.rows import Batch, Loaded

Answer = TypeVar("Answer")


class Store:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._writes = ThreadPoolExecutor(1, thread_name_prefix="journal-write")
        self._reads = ThreadPoolExecutor(1, thread_name_prefix="journal-read")

    async def commit(self, batch: Batch) -> None:
        await self.write(lambda journal: journal.commit(batch))

    async def begin_term(self) -> int:
        return await self.write(Journal.begin_term)

    async def load(self) -> Loaded:
        return await self.read(Journal.load)

    async def write(self, what: Callable[[Journal], Answer]) -> Answer:
        # A cancelled caller must not leave a commit running that nobody waits for: what it did is known, always.
        done = asyncio.get_running_loop().run_in_executor(self._writes, what, self._journal)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait({done})
            raise

    async def read(self, what: Callable[[Journal], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._reads, what, self._journal)

    def close(self) -> None:
        self._writes.shutdown()
        self._reads.shutdown()
        self._journal.close()
