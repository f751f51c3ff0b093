"""An emulated device's pace: a step takes so long at least."""

from __future__ import annotations

import time


class Pace:
    def __init__(self) -> None:
        self.step_s = 0.0  # 0: a real device, or as fast as this one is
        self._due_s = 0.0

    def begin(self, now_s: float) -> None:
        """Time spent standing is no slack for a burst."""
        self._due_s = now_s

    def keep(self, now_s: float, steps: int) -> float:
        """Until so many steps may have been done; the time then. What sleep overshoots the next step makes up for, a slow step nobody does."""
        due_s = self._due_s + self.step_s * steps
        if now_s < due_s:
            time.sleep(due_s - now_s)
            now_s = due_s
        self._due_s = now_s
        return now_s
