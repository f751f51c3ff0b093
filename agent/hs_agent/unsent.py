"""What is to be said over a link between agents and has not been taken from it yet."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from google.protobuf.message import Message

MAX_UNSENT = 4 << 20  # bytes: the other side does not read
OF_EACH = 256  # bytes that a message takes beside its own, about

Said = TypeVar("Said", bound=Message)


class Unsent(Generic[Said]):
    """In order, up to `MAX_UNSENT` bytes. With more it is cut: the link ends at once, and both sides begin anew.

    A peer that is stuck answers pings all the same, so its link does not break by itself.
    """

    def __init__(self) -> None:
        self._waiting: deque[Said] = deque()
        self._size = 0
        self._ended = False
        self._changed, self._cut = asyncio.Event(), asyncio.Event()

    @property
    def is_cut(self) -> bool:
        return self._cut.is_set()

    def put(self, message: Said) -> None:
        if self.is_cut or self._ended:
            return
        self._size += _size(message)
        self._waiting.append(message)
        self._changed.set()
        if self._size > MAX_UNSENT:
            self.cut()

    def drop(self, which: Callable[[Said], bool]) -> None:
        self._waiting = deque(each for each in self._waiting if not which(each))
        self._size = sum(map(_size, self._waiting))

    def end(self) -> None:
        """Once what waits has been sent."""
        self._ended = True
        self._changed.set()

    def cut(self) -> None:
        """At once: what waits is dropped."""
        self._waiting.clear()
        self._cut.set()

    async def send(self, write: Callable[[Said], Awaitable[None]]) -> None:
        """Until it is ended or cut, whatever `write` waits for meanwhile. Errors of `write` come through."""
        writing = asyncio.ensure_future(self._write(write))
        cut = asyncio.ensure_future(self._cut.wait())
        try:
            await asyncio.wait((writing, cut), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            for task in (writing, cut):
                task.cancel()
            await asyncio.gather(writing, cut, return_exceptions=True)

    async def _write(self, write: Callable[[Said], Awaitable[None]]) -> None:
        while True:
            while self._waiting:
                message = self._waiting.popleft()
                self._size -= _size(message)
                await write(message)
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()


def _size(message: Message) -> int:
    return OF_EACH + message.ByteSize()
