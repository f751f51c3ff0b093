"""Numbers as people are told them."""

from collections.abc import Sequence

_NAMED = 8  # jobs


def counted(number: int, thing: str) -> str:
    """`1 GPU`, `4 GPUs`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def listed(jobs: Sequence[object]) -> str:
    """`1, 2, 3`, of many the first."""
    more = f" and {len(jobs) - _NAMED} more" if len(jobs) > _NAMED else ""
    return ", ".join(map(str, jobs[:_NAMED])) + more
