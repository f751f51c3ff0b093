"""What an agent is asked over its link, and who waits for the answers."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Questions(Generic[Answer]):
    """Of one kind, each by its number on that link."""

    def __init__(self) -> None:
        self._open: dict[int, asyncio.Future[Answer]] = {}

    def __len__(self) -> int:
        """That wait for an answer."""
        return len(self._open)

    async def ask(self, number: int, put: Callable[[], None]) -> Answer:
        """`put` sends it. Waits for as long as the answer takes: how long that may be is the caller's."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[number] = answer
        try:
            put()
            return await answer
        finally:
            del self._open[number]

    def answered(self, number: int, answer: Answer) -> None:
        """To nobody, where nobody waits for it (any more)."""
        asked = self._open.get(number)
        if asked is not None and not asked.done():
            asked.set_result(answer)
