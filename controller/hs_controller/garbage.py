"""When the daemon looks for garbage, and when not."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_S = 0.2  # from one look at what is new to the next
_NEW = 25_000  # objects more than there were: looked through even within that time, where much is made between two batches
_LOOKS = 20_000  # before what has outlived one is looked through again, more than an hour of a busy controller: that takes the better part of a second


def rarely() -> None:
    """What is there at the start stays, and what lives for long here lives very long: all of it is hardly ever looked through."""
    gc.freeze()
    gc.set_threshold(_NEW, _LOOKS, 10)


class Young:
    """What is new is looked through often, so that each time there is little of it.

    Left to itself the interpreter counts what was made less what went away. Here every report replaces rows, so that this hardly grows however many
    objects are new: a look would come seldom, and take the longer the longer the controller runs, 100 ms and more with 1,000 servers. What there is to be
    found is new as well: gRPC leaves a handful of objects at each call.
    """

    def __init__(self) -> None:
        self._looked_s = time.perf_counter()

    def look(self) -> None:
        """If it is time."""
        now_s = time.perf_counter()
        if now_s - self._looked_s >= YOUNG_S:
            gc.collect(0)
            self._looked_s = now_s


@contextmanager
def later() -> Iterator[None]:
    """Not within this. What a verdict, or a large request, comes to are thousands of objects that are gone a moment later: looked through in its middle they cost most."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
