"""The time of day that never jumps: the wall clock as it was at the start, carried on by the boot clock."""

import time

from hs_daemon import boot_s


class Clock:
    """A step of the wall clock, by an hour or a year, changes nothing; it shows after the next start.

    It starts no earlier than `floor_s`, the newest moment in the journal, so that jobs' order of arrival holds even if
    the wall clock was set back in between.
    """

    def __init__(self, floor_s: float = 0.0) -> None:
        self._start_s = max(time.time(), floor_s)
        self._boot_s = boot_s()
        self._newest_s = self._start_s

    def now_s(self) -> float:
        self._newest_s = max(self._newest_s, self._start_s + boot_s() - self._boot_s)
        return self._newest_s

    def off_s(self) -> float:
        """How far the wall clock is ahead of it: it was moved since the start, or the journal knows of a later moment."""
        return time.time() - self.now_s()
