"""Numbers as people are told them."""

from collections.abc import Sequence

_NAMED = 8  # jobs
_MINUTES_FROM_S = 600.0
_HOURS_FROM_S = 3 * 3600.0


def counted(number: int, thing: str) -> str:
    """`1 GPU`, `4 GPUs`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def listed(jobs: Sequence[object]) -> str:
    """`1, 2, 3`, of many the first."""
    more = f" and {len(jobs) - _NAMED} more" if len(jobs) > _NAMED else ""
    return ", ".join(map(str, jobs[:_NAMED])) + more


def about(seconds: float) -> str:
    """`45 s`, `25 min`, `4 h`."""
    if seconds >= _HOURS_FROM_S:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 60:.0f} min" if seconds >= _MINUTES_FROM_S else f"{seconds:.0f} s"
