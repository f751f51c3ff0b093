"""By which tiers a rank can keep its state while others have its GPU, and doing so: without its owner's lock, so that the agent is heard meanwhile."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Callable, Iterator, List, Optional, Tuple

from hs_job import advice
from hs_job.aloud import say
from hs_job.keeper import Keeper

if TYPE_CHECKING:
    from hs_job.stop import Stop
    from hs_job.swap import Swapper


class Tiers:
    """Called with its owner's lock held."""

    def __init__(self, lock: threading.Condition, keeper: Keeper) -> None:
        self.keeper = keeper
        self.swapper: Optional[Swapper] = None  # None: torch is not here
        self._lock = lock

    def can(self, *, by_hand: bool) -> List[str]:
        """`by_hand`: the script counts its steps itself."""
        can = ["hold"]
        if self.swapper is not None and not self.swapper.fixed_why:
            can.append("swap")
        if self.keeper.can(by_hand):
            can.append("checkpoint")
        if self.keeper.single:
            can.append("single")
        return can

    @property
    def device_bytes(self) -> int:
        return self.swapper.device_bytes() if self.swapper is not None else 0

    def needed_bytes(self, asked_bytes: int) -> int:
        """Of its device, where it was refused so much."""
        return self.swapper.needed_bytes(asked_bytes) if self.swapper is not None else asked_bytes

    @property
    def swapped_bytes(self) -> int:
        return self.swapper.parked_bytes if self.swapper is not None else 0

    def swap_out(self) -> str:
        """Why it could not; empty: it has."""
        if self.swapper is None:
            return "the process has no torch"
        with self._unlocked():
            try:
                self.swapper.out()
            except Exception as error:
                return f"{type(error).__name__}: {error}"
        return ""

    def swap_back(self) -> None:
        assert self.swapper is not None
        with self._unlocked():
            self.swapper.back(say)

    def write(
        self, stop: Stop, step: int, abandoned: Callable[[], bool], *, by_hand: bool, restorable: bool
    ) -> Tuple[str, str]:
        """A checkpoint: its part's digest, or why there is none. `restorable`: a new process gets to where it stands."""
        why = self.keeper.why_not(by_hand)
        if not why and not restorable:
            why = advice.NO_PLACE
        if why:
            return "", why
        host_of = self.swapper.host_of if self.swapper is not None else None
        with self._unlocked():
            try:
                return self.keeper.write(stop, step, host_of, abandoned), ""
            except Exception as error:
                return "", str(error) or type(error).__name__

    def clear(self, stop: Stop) -> None:
        with self._unlocked():
            self.keeper.clear(stop)

    @contextlib.contextmanager
    def _unlocked(self) -> Iterator[None]:
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
