"""How far training is in this process: the thread that trains counts, others read."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Optional, Tuple

from hs_job.pace import Pace
from hs_job.untold import Mark

if TYPE_CHECKING:
    from hs_job.noise import Meter


class Steps:
    """`last`: a copy's portion ends there; -1: none."""

    def __init__(self, last: int) -> None:
        self.count = 0  # mini-batches done
        self.mark: Mark = (0, 0.0)
        self.by_hand = False  # the script counts with hs_job.step
        self.meter: Optional[Meter] = None  # of the gradients of an elastic job
        self.pace = Pace()
        self.last = last if last >= 0 else sys.maxsize

    def take(self, n: int = 1) -> None:
        """Counts, and keeps an emulated device's pace."""
        now = time.monotonic()
        if self.pace.step_s:
            now = self.pace.keep(now, n)
        self.count += n
        self.mark = (self.count, now)

    def restart(self, step: int, *, by_hand: bool) -> None:
        """From a checkpoint of a process that counted so."""
        self.count, self.mark, self.by_hand = step, (step, 0.0), by_hand

    def trust(self, start: int) -> None:
        """Until now optimizer steps were counted; from here on the script's word is taken. `start`: at which this process began."""
        self.by_hand, self.count = True, start

    def go_on(self) -> float:
        """Time spent standing is nobody's step. The time now."""
        now = time.monotonic()
        self.pace.begin(now)
        self.mark = (self.count, now)
        return now

    @property
    def noise(self) -> Optional[Tuple[float, int]]:
        """As `said.progress` has it."""
        return self.meter.told if self.meter is not None else None

    @property
    def are_portioned(self) -> bool:
        """Those of a copy."""
        return self.last < sys.maxsize

    @property
    def are_done(self) -> bool:
        """The portion is."""
        return self.count >= self.last

    def forget_portion(self) -> None:
        """No agent has a say any more."""
        self.last = sys.maxsize
