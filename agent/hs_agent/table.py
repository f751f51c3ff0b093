"""A table of the configuration's TOML, read value by value; every refusal names file, key, value and what was expected."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from hs_core.errors import RefusedError
from hs_daemon import config_file

MOST_BYTES = 1 << 50
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
Word = TypeVar("Word", bound=StrEnum)


class Table:
    """Hands out checked values by key and knows which keys were asked for."""

    def __init__(self, file: str, where: str, data: Mapping[str, Any]) -> None:
        self.file, self.where, self.data = file, where, data
        self.known: set[str] = set()

    def refuse(self, key: str, expected: str, *, found: object = None) -> RefusedError:
        said = shown(found if found is not None else self.data.get(key))
        return RefusedError(f"{self.file}: {self.where}{key} = {said}: expected {expected}")

    def missing(self, key: str, expected: str) -> RefusedError:
        """Looked at before unknown keys are: one of these may be it, mistyped."""
        others = sorted(self.data.keys() - self.known)
        if near := next((other for other in others if config_file.near(other, [key])), ""):
            hint = f"; unknown key {self.where + near!r}: did you mean {key!r}?"
        elif section := config_file.section_with(key, self.data):
            hint = f"; it stands below {section}: expected above every [section]"
        else:
            hint = ""
        return RefusedError(f"{self.file}: {self.where}{key} is not set: expected {expected}{hint}")

    def raw(self, key: str) -> Any:
        self.known.add(key)
        return self.data.get(key)

    def text(self, key: str, default: str, expected: str = "a string") -> str:
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise self.refuse(key, expected)
        return value

    def whole(self, key: str, default: int, *, low: int, high: int) -> int:
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(key, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, default: float, *, low: float, high: float) -> float:
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.refuse(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def size(self, key: str, default: int, *, low: int = 0, high: int = MOST_BYTES) -> int:
        value = self.raw(key)
        if value is None:
            return default
        size = parse_size(value)
        if size is None or size < low:
            least = f" of at least {low} bytes" if low else ""
            raise self.refuse(
                key, f'a size{least} such as "64M" or "16G", or a number of bytes, at most {high}'
            )
        if size > high:
            raise self.refuse(key, f"a size of at most {high} bytes")
        return int(size)

    def word(self, key: str, kind: type[Word], default: Word) -> Word:
        value = self.raw(key)
        if value is None:
            return default
        try:
            return kind(value)
        except ValueError:
            raise self.refuse(key, " or ".join(f'"{word}"' for word in kind)) from None

    def tables(self, key: str) -> list[tuple[str, Any]]:
        """The items of a list, each with its place as it should stand in an error."""
        value = self.raw(key)
        if value is None:
            return []
        if isinstance(value, dict):  # [pace] for the only one
            value = [value]
        if not isinstance(value, list):
            raise self.refuse(key, f"[[{key}]] tables")
        return [(f"{key}[{i}]", item) for i, item in enumerate(value)]

    def finish(self) -> None:
        for key in self.data:
            if key not in self.known:
                if near := config_file.near(key, self.known):
                    hint = f"did you mean {near!r}?"
                elif inside := self._known_below(key):
                    hint = f"there are no sections of that name: expected {inside!r} above every [section]"
                else:
                    hint = f"known keys: {', '.join(sorted(self.known))}"
                raise RefusedError(f"{self.file}: unknown key {self.where + key!r}; {hint}")

    def _known_below(self, key: str) -> str:
        """A key of this table that stands below a section of its own; empty: none does."""
        below = self.data[key]
        return next((name for name in below if name in self.known), "") if isinstance(below, Mapping) else ""


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def parse_size(value: object) -> float | None:
    """Bytes of 1024 or "16G"; None: not a size. Of very many digits: infinite."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if value >= 0 else None
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return None
    return float(match[1]) * _UNITS[match[2].upper()]
