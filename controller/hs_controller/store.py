"""The journal from inside an event loop: writes on one thread, reads on another, so that neither waits for the other.

What is committed lies in the write-ahead log; a third thread takes it into the file, so that no commit has to.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

from hs_controller.journal import Journal
from hs_controller.rows import Batch, Loaded
from hs_controller.sqlite import StoreBrokenError, StoreUnavailableError

log = structlog.get_logger("hs_controller.store")

CHECKPOINT_S = (
    2.0  # at least between two: a busy controller writes tens of MB of log a second, mostly the same pages
)

Answer = TypeVar("Answer")


class Store:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._writes = ThreadPoolExecutor(1, thread_name_prefix="journal-write")
        self._reads = ThreadPoolExecutor(1, thread_name_prefix="journal-read")
        self._keeps = ThreadPoolExecutor(1, thread_name_prefix="journal-checkpoint")
        self._keeping: asyncio.Task[None] | None = None
        self._kept_s = 0.0
        self._broken: StoreBrokenError | None = None

    async def commit(self, batch: Batch) -> None:
        await self.write(lambda journal: journal.commit(batch))
        if self._keeping is None and time.monotonic() - self._kept_s >= CHECKPOINT_S:
            self._keeping = asyncio.create_task(self._checkpoint())

    async def _checkpoint(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._keeps, Journal.checkpoint, self._journal)
            await self.write(Journal.checkpoint_rest)
        except StoreUnavailableError as error:  # nothing is lost by it: the log holds what was committed
            log.warning("checkpoint-failed", why=str(error))
        except StoreBrokenError as error:  # nobody waits for this task: who writes next is told
            log.error("checkpoint-failed", why=str(error))
            self._broken = error
        finally:
            self._keeping, self._kept_s = None, time.monotonic()

    async def begin_term(self) -> int:
        return await self.write(Journal.begin_term)

    async def load(self) -> Loaded:
        return await self.read(Journal.load)

    async def write(self, what: Callable[[Journal], Answer]) -> Answer:
        """Raises StoreError: that of a checkpoint too, where what is on the disk is not known since."""
        if self._broken is not None:
            raise self._broken
        # A cancelled caller must not leave a commit running that nobody waits for: what it did is known, always.
        done = asyncio.get_running_loop().run_in_executor(self._writes, what, self._journal)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait({done})
            raise

    async def read(self, what: Callable[[Journal], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._reads, what, self._journal)

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        await asyncio.to_thread(self._shut)

    def _shut(self) -> None:
        for pool in (self._keeps, self._writes, self._reads):
            pool.shutdown()
        self._journal.close()
