"""Whether a rank waits for others, who may be waiting for it to be let go: in a call of torch.distributed, or, in the script itself, for what it has asked for (`irecv(…).wait()`, a GPU that is read from)."""

from __future__ import annotations

import gc
import os
import sys
import time
from typing import Optional, Tuple

STUCK_S = 30.0  # at one place outside of such calls, where it may compute as well

_CALLS = f"torch{os.sep}distributed{os.sep}"

At = Optional[Tuple[int, int, bool]]


def at(thread: Optional[int]) -> At:
    """Where the thread is, and whether that is in such a call; None: nowhere. Twice the same place means that it has got no further in between."""
    collects = gc.isenabled()
    gc.disable()  # Pythons before 3.12.1 may hang where they look for garbage amid the next call
    try:
        frame = sys._current_frames().get(thread or 0)  # noqa: SLF001 — documented so
    finally:
        if collects:
            gc.enable()
    if frame is None:
        return None
    return id(frame), frame.f_lasti, _CALLS in frame.f_code.co_filename


class Watch:
    """Looked at now and then: whether the rank stays at such a place."""

    def __init__(self) -> None:
        self._at: At = None
        self._since_s = 0.0
        self._told = False

    def forget(self) -> None:
        """Whoever was told is gone."""
        self._told = False

    def news(self, thread: Optional[int]) -> Optional[bool]:
        """Whether it does, where that is another answer than before; None: it is none."""
        before, self._at = self._at, at(thread)
        now_s = time.monotonic()
        if before != self._at:
            self._since_s = now_s
        on = before is not None and before == self._at and (before[2] or now_s - self._since_s >= STUCK_S)
        if on == self._told:
            return None
        self._told = on
        return on
