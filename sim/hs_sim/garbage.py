"""How often a run looks for garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

COLLECT_AFTER = 5_000_000  # objects made and not gone: caches of answers are most of them, and what a decision about 100,000 jobs leaves behind


@contextmanager
def rare_collections() -> Iterator[None]:
    """Hardly anything in a run is garbage in a cycle, and looking for it among a hundred thousand jobs takes as long as many quanta."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
