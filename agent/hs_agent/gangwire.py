"""What happens to a gang as a whole, as JSON between the agent of its first node and the others."""

import json
from dataclasses import fields
from enum import Enum
from typing import Any, get_type_hints

from hs_agent.folder import Key
from hs_core.errors import RefusedError
from hs_core.events import (
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

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        JobHooked, JobReady, JobCapable, JobHeld, JobWentOn, JobProgressed, JobCheckpointed, CheckpointFailed,
        JobRestored, SuspendFailed,
    )
}  # fmt: skip
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


def event_of(data: bytes, key: Key, now_s: float) -> HostEvent:
    """Strict: another host's word. The time is when it was heard here; whose it is, is known from the stream."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise RefusedError(f"an event that is no JSON: {data[:100]!r}") from None
    kind = _KINDS.get(str(body.pop("kind", ""))) if isinstance(body, dict) else None
    if kind is None:
        raise RefusedError(f"an event of no known kind: {data[:100]!r}")
    hints = get_type_hints(kind)
    names = {each.name for each in fields(kind)} - _GIVEN
    if set(body) != names:
        raise RefusedError(f"{kind.__name__} with {sorted(body)}: expected {sorted(names)}")
    values = {name: _value(kind, name, hints[name], value) for name, value in body.items()}
    event: HostEvent = kind(now_s=now_s, job=key.job, epoch=key.epoch, **values)
    return event


def _value(kind: type, name: str, hint: Any, value: object) -> object:
    if isinstance(hint, type) and issubclass(hint, Enum):
        if isinstance(value, str) and value in {each.value for each in hint}:
            return hint(value)
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18:
            return float(value)
    elif hint is int:
        if isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 1 << 63:
            return value
    elif type(value) is hint:
        return value[:MAX_TEXT] if isinstance(value, str) else value
    raise RefusedError(f"{kind.__name__}.{name} = {str(value)[:100]!r}: expected {hint.__name__}")
