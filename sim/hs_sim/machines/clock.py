"""The heap: what happens next. Things of one time happen in the order in which they were put there."""

import heapq
from collections.abc import Callable
from typing import Any

from hs_core.errors import BrokenError

_MOST_AT_ONCE = 200_000


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.happened = 0
        self._sequence = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, at_s: float, act: Callable[..., None], *args: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (max(at_s, self.now_s), self._sequence, act, args))

    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        self._sequence += 1
        now_s = self.now_s
        heapq.heappush(self._heap, (max(now_s + seconds, now_s), self._sequence, act, args))

    def run(self, until_s: float, finished: Callable[[], bool]) -> None:
        """Until then, or until it is finished, or nothing is left to happen."""
        heap, pop = self._heap, heapq.heappop
        at_once = 0
        while heap and heap[0][0] <= until_s:
            at_s, _, act, args = pop(heap)
            at_once = at_once + 1 if at_s == self.now_s else 0
            if at_once > _MOST_AT_ONCE:
                raise BrokenError(f"time stands still at {at_s}")
            self.now_s = at_s
            self.happened += 1
            act(*args)
            if finished():
                return
        if heap and until_s < float("inf"):
            self.now_s = max(self.now_s, until_s)
