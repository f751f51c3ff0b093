"""Frozen values to JSON-able ones and back, for the memory that survives the agent."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

_AS_IT_IS = frozenset({str, int, float, bool, NoneType})
"""Of nearly all that is kept."""


@cache
def _names(kind: type) -> tuple[str, ...] | None:
    """Of a dataclass' fields."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None


def plain(value: Any) -> Any:
    """JSON-able; dataclasses become objects by field name, fractions "n/d"."""
    kind: type = type(value)
    if kind in _AS_IT_IS:
        return value
    if (names := _names(kind)) is not None:
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    return value


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _unlike(kind: type, value: Mapping[str, Any]) -> int:
    """Fields that only one of the two has."""
    return len({field.name for field in fields(kind)} ^ value.keys())


def revive(kind: Any, value: Any) -> Any:
    """What `plain` made, as `kind` again. Unknown fields are left out, absent ones take their default: agents get upgraded."""
    kind = getattr(kind, "__supertype__", kind)  # NewType
    kind = getattr(kind, "__supertype__", kind)
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in args:
            return None
        # Of several dataclasses the one whose fields these are, as nearly as can be.
        able = [a for a in args if a is not NoneType]
        return revive(min(able, key=lambda a: _unlike(a, value)) if len(able) > 1 else able[0], value)
    if origin is tuple:
        return tuple(revive(args[0], v) for v in value)
    if origin is not None and issubclass(origin, Mapping):
        return {revive(args[0], k): revive(args[1], v) for k, v in value.items()}
    if is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        return kind(**{f.name: revive(hints[f.name], value[f.name]) for f in fields(kind) if f.name in value})
    if isinstance(kind, type) and issubclass(kind, Enum | Fraction | int | float | str) and kind is not bool:
        return kind(value)
    return value
