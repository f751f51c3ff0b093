"""Whether a rank is in a call of torch.distributed to others, who may be waiting for it to be let go."""

from __future__ import annotations

import gc
import os
import sys
from typing import Optional, Tuple

_CALLS = f"torch{os.sep}distributed{os.sep}"

At = Optional[Tuple[int, int]]


def at(thread: Optional[int]) -> At:
    """Where in such a call the thread is; None: in none. Twice the same place means that it has got no further in between."""
    collects = gc.isenabled()
    gc.disable()  # Pythons before 3.12.1 may hang where they look for garbage amid the next call
    try:
        frame = sys._current_frames().get(thread or 0)  # noqa: SLF001 — documented so
    finally:
        if collects:
            gc.enable()
    if frame is None or _CALLS not in frame.f_code.co_filename:
        return None
    return id(frame), frame.f_lasti


class Watch:
    """Looked at now and then: whether the rank stays in such a call."""

    def __init__(self) -> None:
        self._at: At = None
        self._told = False

    def forget(self) -> None:
        """Whoever was told is gone."""
        self._told = False

    def news(self, thread: Optional[int]) -> Optional[bool]:
        """Whether it does, where that is another answer than before; None: it is none."""
        before, self._at = self._at, at(thread)
        on = before is not None and before == self._at
        if on == self._told:
            return None
        self._told = on
        return on
