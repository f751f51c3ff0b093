"""The form of frozen values, as text: another as soon as a field of one, or of what is in it, is another. What is kept on disks is held to a number by it."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints


def digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(set(lines))).encode()).hexdigest()[:12]


def lines(*kinds: Any) -> Iterator[str]:
    seen: set[Any] = set()
    for kind in kinds:
        yield from _of(kind, seen)


def _of(kind: Any, seen: set[Any]) -> Iterator[str]:
    kind = _plain(kind)
    if get_origin(kind) is not None:
        for part in get_args(kind):
            yield from _of(part, seen)
        return
    if not isinstance(kind, type) or kind in seen:
        return
    seen.add(kind)
    if issubclass(kind, Enum):
        yield from (f"{kind.__name__} {one.value!r}" for one in kind)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        for field in fields(kind):
            yield f"{kind.__name__}.{field.name} {_name(hints[field.name])}"
            yield from _of(hints[field.name], seen)
    if hasattr(kind, "_fields"):  # a NamedTuple
        for name, hint in get_type_hints(kind).items():
            yield f"{kind.__name__}.{name} {_name(hint)}"
            yield from _of(hint, seen)


def _plain(kind: Any) -> Any:
    while hasattr(kind, "__supertype__"):  # NewType
        kind = kind.__supertype__
    return kind


def _name(kind: Any) -> str:
    """The same under every Python."""
    kind = _plain(kind)
    origin = get_origin(kind)
    if origin is None:
        return "..." if kind is ... else str(getattr(kind, "__name__", kind))
    parts = [_name(part) for part in get_args(kind)]
    union = "Union" in getattr(origin, "__name__", str(origin))
    return " | ".join(sorted(parts)) if union else f"{origin.__name__}[{', '.join(parts)}]"
