"""What ranks and agent say to one another (docs/job-protocol.md), read with care."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, TypeAlias

from hs_core.reports import Tier

PROTOCOL = 1
MAX_RANKS = 4096
HOOK_TIERS = (Tier.HOLD, Tier.SWAP, Tier.CHECKPOINT)

Message = Mapping[str, Any]
Connection: TypeAlias = Any
"""An opaque hashable that the driver chose: a number on one host, (node rank, number) on several."""


class MalformedError(Exception):
    """A message that its sender should not have sent; never leaves this package."""


def whole_number(message: Message, name: str, default: int | None = None, *, least: int = 0) -> int:
    value = message.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 63:
        raise MalformedError
    return value


def place(message: Message) -> tuple[int, int]:
    rank, world = whole_number(message, "rank"), whole_number(message, "world", least=1)
    if not rank < world <= MAX_RANKS:
        raise MalformedError
    return rank, world


def amount(message: Message, name: str, default: float | None = None) -> float:
    value = message.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise MalformedError
    return float(value)


def abilities(message: Message) -> frozenset[str]:
    can = message.get("can", [])
    if not isinstance(can, list | tuple) or not all(isinstance(word, str) for word in can):
        raise MalformedError
    return frozenset(can)


def tier_of(message: Message) -> Tier:
    tier = message.get("tier")
    if tier not in {each.value for each in HOOK_TIERS}:
        raise MalformedError
    return Tier(tier)
