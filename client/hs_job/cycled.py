"""Whether `itertools.cycle` goes through a loader. It asks that for the batches of one epoch and keeps them: in a new process it would go round those that were left of it."""

from __future__ import annotations

import gc
import itertools
import sys
from types import GeneratorType
from typing import Any, Set

_BETWEEN = (map, filter, enumerate, zip, itertools.islice, itertools.chain, itertools.starmap)
_DEEP = 4


def goes_through(iterator: Any) -> bool:
    """Called where it is asked for a batch: also where generators are between, as these run then."""
    running: Set[int] = set()  # frames, by identity: kept themselves they would keep what is in them
    frame: Any = sys._getframe()  # noqa: SLF001 - there is no public way to it
    while frame is not None:
        running.add(id(frame))
        frame = frame.f_back

    cycles = [each for each in gc.get_objects() if type(each) is itertools.cycle]
    return any(_feeds(each, iterator, running, _DEEP) for cycle in cycles for each in gc.get_referents(cycle))


def _feeds(by: Any, iterator: Any, running: Set[int], deep: int) -> bool:
    # No function inside the other: one that calls itself is a cycle, and would keep the iterator, and its workers, after the script has let it go.
    if by is iterator:
        return True
    if isinstance(by, GeneratorType):
        return id(by.gi_frame) in running
    return (
        deep > 0
        and isinstance(by, _BETWEEN)
        and any(_feeds(each, iterator, running, deep - 1) for each in gc.get_referents(by))
    )
