"""Data sets that lie on a server because a job has read them there: the system moves no data, it remembers where some is warm."""

from collections.abc import Sequence

from hs_core.model import Dataset

MOST = 256  # remembered of one server: their names are made up by users


def after_use(here: Sequence[Dataset], used: Dataset, cache_bytes: int = 0) -> tuple[Dataset, ...]:
    """What lies there once `used` has been read, newest last: those read longest ago make room, within `cache_bytes` (0: not limited).

    One that is larger than all of it is not kept.
    """
    found = [*(one for one in here if one.name != used.name), used]
    if cache_bytes:
        if used.bytes > cache_bytes:
            return tuple(found[:-1])
        while sum(one.bytes for one in found) > cache_bytes:
            del found[0]
    return tuple(found[-MOST:])
