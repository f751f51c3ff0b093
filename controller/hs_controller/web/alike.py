"""Answers that are the same for whoever asks: many who look cost what one does."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf

AGAIN = 10  # times as long as it took to make one it is good for others: making them never takes more than so small a part of the time
MOST = 8  # kept

Question = tuple[str, bytes]
Make = Callable[[], Awaitable[bytes]]


@dataclass(slots=True, eq=False)
class _Answer:
    until_s: float = inf  # while it is made: whoever asks waits for it
    made: asyncio.Task[bytes] | None = None


class Alike:
    def __init__(self) -> None:
        self._answers: OrderedDict[Question, _Answer] = OrderedDict()

    def forget(self) -> None:
        """Somebody has changed something, and wants to see it. Who waits for an answer already gets that."""
        self._answers.clear()

    async def answer(self, question: Question, make: Make) -> bytes:
        """As `make` does now, or did a moment ago. Raises what that raises."""
        known = self._answers.get(question)
        if known is None or time.perf_counter() >= known.until_s:
            known = self._answers[question] = _Answer()
            known.made = asyncio.create_task(_make(known, make))
        self._answers.move_to_end(question)
        while len(self._answers) > MOST:
            self._answers.popitem(last=False)
        assert known.made is not None
        # Whoever asked first may go away while others wait.
        return await asyncio.shield(known.made)


async def _make(answer: _Answer, make: Make) -> bytes:
    began_s = time.perf_counter()
    try:
        made = await make()
    except BaseException:
        answer.until_s = began_s  # who asks next has it tried again
        raise
    now_s = time.perf_counter()
    answer.until_s = now_s + AGAIN * (now_s - began_s)
    return made
