"""How often the daemon looks for garbage, and when not."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def rarely() -> None:
    """What lives for long here lives very long: looked through less often, it costs no pauses of half a second.

    The young are looked through a little at a time: under the load of 1,000 servers each search takes some 60 ms. What one decision leaves behind
    until the next is fewer objects than the first threshold, so most decisions are followed by no search.
    """
    gc.freeze()
    gc.set_threshold(25_000, 80, 50)


@contextmanager
def later() -> Iterator[None]:
    """Not within this. A decision makes tens of thousands of objects that are gone when it is made: looked through in its middle they cost most."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
