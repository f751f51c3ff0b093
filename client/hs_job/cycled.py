"""What goes through a loader. `itertools.cycle` asks that for the batches of one epoch and keeps them: in a new process it would go round those that were left of it. `enumerate` counts those from the beginning."""

from __future__ import annotations

import gc
import itertools
import sys
from types import GeneratorType
from typing import Any, List, Set, Tuple

_BETWEEN = (map, filter, enumerate, zip, itertools.islice, itertools.chain, itertools.starmap)
_DEEP = 4


def goes_through(iterator: Any) -> bool:
    """Called where it is asked for a batch: also where generators are between, as these run then."""
    running = _running()
    return any(
        _feeds(each, iterator, running, _DEEP)
        for one in _all(itertools.cycle)
        for each in gc.get_referents(one)
    )


def counts_less(iterator: Any, done: int) -> bool:
    """Called there, too: one that counts batches is not as far as those that were done."""
    running = _running()
    return any(at < done and _feeds(by, iterator, running, _DEEP) for by, at in map(_counts, _all(enumerate)))


def _counts(one: Any) -> Tuple[Any, int]:
    """What it goes through, and the number of what comes next."""
    _, (by, at, *_) = one.__reduce__()
    return by, at


def _all(kind: type) -> List[Any]:
    return [each for each in gc.get_objects() if type(each) is kind]


def _running() -> Set[int]:
    """Frames, by identity: kept themselves they would keep what is in them."""
    found: Set[int] = set()
    frame: Any = sys._getframe()  # noqa: SLF001 - there is no public way to it
    while frame is not None:
        found.add(id(frame))
        frame = frame.f_back
    return found


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
