"""What ranks say (docs/job-protocol.md), read with care: one type for each word, and nothing of it believed before all of it makes sense."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, TypeVar

from hs_core.gang.bound import Bound
from hs_core.gang.messages import HOOK_TIERS, MAX_RANKS, PROTOCOL, MalformedError, Message
from hs_core.reports import Tier

MOST = 10**15
"""Of any number: beyond is nonsense, and sums of them would not fit on the wire."""
MAX_TEXT = 1000
_LARGEST = sys.float_info.max


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    rank: int
    world: int  # ranks on all nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    pid: int
    place: Place
    step: int
    state: Literal["new", "running", "held"]
    tier: Tier  # where it is held
    can: frozenset[str]
    id: int  # of the last stop that it heard of
    generation: int  # highest on disk or asked for; -1: none
    bound: Bound | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    step: int
    can: frozenset[str]
    place: Place | None  # None: as in its hello


@dataclass(frozen=True, slots=True, kw_only=True)
class Able:
    can: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Before it arrives: it is in a call to other ranks, or is not any more."""

    place: Place
    on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """To a stop or save that was proposed."""

    id: int
    at_step: int
    step: int


class Accepted(Answer):
    __slots__ = ()


class Rejected(Answer):
    """It is past that step already."""

    __slots__ = ()


Answered = TypeVar("Answered", Accepted, Rejected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    id: int
    step: int
    tier: Tier
    parked_bytes: int
    generation: int  # with tier checkpoint; else -1
    portion: bool  # stopped of its own accord


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    id: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    id: int
    what: Literal["swap", "checkpoint"]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Going:
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    step: int
    steps: int  # since it said so last, in
    seconds: float  # of training
    device_bytes: int
    noise_scale: float  # examples; 0: not known
    noise_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    step: int
    generation: int  # -1: none held, it starts afresh
    note: str
    place: Place | None  # None: as in its hello


Said: TypeAlias = (
    Hello
    | Arrived
    | Able
    | Blocked
    | Accepted
    | Rejected
    | Held
    | Saved
    | Failed
    | Going
    | Progress
    | Restored
)


def read(message: Message) -> Said | None:
    """None: of a kind that is not known. Raises MalformedError."""
    kind = message.get("type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    return reader(message) if reader is not None else None


def _hello(message: Message) -> Hello:
    state = message.get("state")
    if _count(message, "protocol") != PROTOCOL or state not in ("new", "running", "held"):
        raise MalformedError
    return Hello(
        pid=_count(message, "pid"),
        place=_place(message),
        step=_count(message, "step"),
        state=state,
        tier=_tier(message) if state == "held" else Tier.HOLD,
        can=_abilities(message),
        id=_count(message, "id", 0),
        generation=_count(message, "generation", -1, least=-1),
        bound=_bound(message),
    )


def _arrived(message: Message) -> Arrived:
    placed = "rank" in message or "world" in message
    return Arrived(
        step=_count(message, "step"),
        can=_abilities(message),
        place=_place(message) if placed else None,
    )


def _able(message: Message) -> Able:
    return Able(can=_abilities(message))


def _blocked(message: Message) -> Blocked:
    return Blocked(place=_place(message), on=message.get("on") is True)


def _answer(kind: type[Answered], message: Message) -> Answered:
    return kind(id=_count(message, "id"), at_step=_count(message, "at_step"), step=_count(message, "step"))


def _held(message: Message) -> Held:
    tier = _tier(message)
    return Held(
        id=_count(message, "id"),
        step=_count(message, "step"),
        tier=tier,
        parked_bytes=_count(message, "bytes", 0),
        generation=_count(message, "generation", -1, least=-1) if tier is Tier.CHECKPOINT else -1,
        portion=message.get("portion") is True,
    )


def _saved(message: Message) -> Saved:
    return Saved(id=_count(message, "id"), step=_count(message, "step"))


def _failed(message: Message) -> Failed:
    what = message.get("what")
    if what not in ("swap", "checkpoint"):
        raise MalformedError
    return Failed(id=_count(message, "id"), what=what, why=_text(message, "why"))


def _going(message: Message) -> Going:
    return Going(step=_count(message, "step"))


def _progress(message: Message) -> Progress:
    steps, seconds = _count(message, "steps"), _amount(message, "seconds")
    if steps >= MOST * seconds > 0:
        raise MalformedError
    return Progress(
        step=_count(message, "step"),
        steps=steps,
        seconds=seconds,
        device_bytes=_count(message, "device_bytes", 0),
        noise_scale=min(_amount(message, "noise_scale", 0.0), MOST),
        noise_samples=_count(message, "noise_samples", 0),
    )


def _restored(message: Message) -> Restored:
    return Restored(
        step=_count(message, "step"),
        generation=_count(message, "generation", least=-1),
        note=_text(message, "note", ""),
        place=_place(message) if "rank" in message else None,
    )


_READERS: dict[str, Callable[[Message], Said]] = {
    "hello": _hello,
    "arrived": _arrived,
    "can": _able,
    "blocked": _blocked,
    "accept": partial(_answer, Accepted),
    "reject": partial(_answer, Rejected),
    "held": _held,
    "saved": _saved,
    "failed": _failed,
    "going": _going,
    "progress": _progress,
    "restored": _restored,
}


# --- fields -----------------------------------------------------------------------------------------------------------


def _count(message: Message, name: str, default: int | None = None, *, least: int = 0) -> int:
    value = message.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < MOST:
        raise MalformedError
    return value


def _amount(message: Message, name: str, default: float | None = None) -> float:
    value = message.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        raise MalformedError
    return float(value)


def _text(message: Message, name: str, default: str | None = None) -> str:
    """Half of a surrogate pair, as Python has for bytes of a path that are no UTF-8, would go over no wire."""
    value = message.get(name, default)
    if not isinstance(value, str):
        raise MalformedError
    return value.encode(errors="replace").decode()[:MAX_TEXT]


def _place(message: Message) -> Place:
    rank, world = _count(message, "rank"), _count(message, "world", least=1)
    if not rank < world <= MAX_RANKS:
        raise MalformedError
    return Place(rank=rank, world=world)


def _abilities(message: Message) -> frozenset[str]:
    can = message.get("can", [])
    if not isinstance(can, list | tuple) or not all(isinstance(word, str) for word in can):
        raise MalformedError
    return frozenset(can)


def _tier(message: Message) -> Tier:
    tier = message.get("tier")
    if tier not in [each.value for each in HOOK_TIERS]:
        raise MalformedError
    return Tier(tier)


def _bound(message: Message) -> Bound | None:
    value = message.get("bound")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise MalformedError
    return Bound(
        id=_count(value, "id"),
        at_step=_count(value, "at_step"),
        generation=_count(value, "generation"),
        committed=value.get("committed") is True,
    )
