"""What happens to a gang as a whole, as JSON between the agent of its first node and the others."""

import json
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any, get_type_hints

from hs_agent.folder import Key
from hs_core.errors import RefusedError
from hs_core.events.host import (
    CheckpointFailed,
    HostEvent,
    JobCapable,
    JobCheckpointed,
    JobHeld,
    JobHooked,
    JobProgressed,
    JobReady,
    JobRestored,
    JobWentOn,
    SuspendFailed,
)
from hs_core.gang.messages import HOOK_TIERS
from hs_core.gang.said import MOST

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        JobHooked, JobReady, JobCapable, JobHeld, JobWentOn, JobProgressed, JobCheckpointed, CheckpointFailed,
        JobRestored, SuspendFailed,
    )
}  # fmt: skip
_MAY_BE_NONE = frozenset({"generation", "order"})
_GIVEN = frozenset({"now_s", "job", "epoch"})
MAX_TEXT = 4000


def event_json(event: HostEvent) -> bytes:
    kind = type(event).__name__
    assert kind in _KINDS, f"{event} is nothing of a gang's"
    body = {each.name: getattr(event, each.name) for each in fields(event) if each.name not in _GIVEN}
    body = {
        name: value[:MAX_TEXT] if isinstance(value, str) and not isinstance(value, Enum) else value
        for name, value in body.items()
    }
    return json.dumps({"kind": kind, **body}).encode()


def event_of(data: bytes, key: Key, now_s: float) -> HostEvent | None:
    """Another host's word, whose agent may be of another version: what is not known here is passed over (None: all of it), what is not said is as by default.

    The time is when it was heard here; whose it is, is known from the stream. Raises RefusedError where it makes no sense.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise RefusedError(f"an event that is no JSON: {data[:100]!r}") from None
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        raise RefusedError(f"an event that has no kind: {data[:100]!r}")
    kind = _KINDS.get(body["kind"])
    if kind is None:
        return None
    hints = get_type_hints(kind)
    known = [each for each in fields(kind) if each.name not in _GIVEN]
    missing = sorted(each.name for each in known if each.name not in body and each.default is MISSING)
    if missing:
        raise RefusedError(
            f"{kind.__name__} with {sorted(body.keys() - {'kind'})}: expected {missing} as well"
        )
    values = {
        each.name: _value(kind, each.name, hints[each.name], body[each.name])
        for each in known
        if each.name in body
    }
    event: HostEvent = kind(now_s=now_s, job=key.job, epoch=key.epoch, **values)
    if isinstance(event, JobHeld) and event.tier not in HOOK_TIERS:
        raise RefusedError(
            f"JobHeld.tier = {event.tier.value!r}: expected {', '.join(tier.value for tier in HOOK_TIERS)}"
        )
    return event


def _value(kind: type, name: str, hint: Any, value: object) -> object:
    if isinstance(hint, type) and issubclass(hint, Enum):
        if isinstance(value, str) and value in {each.value for each in hint}:
            return hint(value)
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18:
            return float(value)
    elif hint is int:
        least = -1 if name in _MAY_BE_NONE else 0
        if isinstance(value, int) and not isinstance(value, bool) and least <= value < MOST:
            return value
    elif type(value) is hint:
        return value[:MAX_TEXT] if isinstance(value, str) else value
    raise RefusedError(f"{kind.__name__}.{name} = {str(value)[:100]!r}: expected {hint.__name__}")
