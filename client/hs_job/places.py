"""At which steps training was where it could be saved, and how far apart these were."""

from __future__ import annotations

_TIMES_AS_FAR = 2


class Places:
    """Of one process."""

    def __init__(self) -> None:
        self._last = -1  # step; -1: it has come to none
        self._times = 0
        self._farthest = 0

    def came(self, step: int) -> None:
        if self._times:
            self._farthest = max(self._farthest, step - self._last)
        self._last, self._times = step, self._times + 1

    def are_left_behind(self, step: int) -> bool:
        """It never came to one, or trains for much longer than ever before without. After the first nobody knows how far the next one is: some scripts train on a batch for long."""
        if self._times == 1:
            return False
        return not self._times or step - self._last > _TIMES_AS_FAR * self._farthest
