"""The thread on which policies are asked, one question after the other: they share what they keep between decisions."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

Answer = TypeVar("Answer")


class Thinker:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="policy")
        self._closed = False

    def ask(self, question: Callable[[], Answer], answered: Callable[[Answer], None]) -> None:
        """`answered` is called in the event loop this is called in, unless that is closed by then. A question must not raise."""
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        self._thread.submit(question).add_done_callback(partial(_tell, loop, answered))

    async def answer(self, question: Callable[[], Answer]) -> Answer:
        """Raises what the question raises."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, question)

    def close(self) -> None:
        """What is being thought about is thought to its end, and nobody hears of it."""
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)


def _tell(
    loop: asyncio.AbstractEventLoop, answered: Callable[[Answer], None], future: "Future[Answer]"
) -> None:
    if not future.cancelled():
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(answered, future.result())
