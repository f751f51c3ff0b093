"""What is said of a job that is not as it should be: place, field, value and what was expected, for everything that is wrong."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from hs_client import quantities

Path_ = tuple[str | int, ...]
Origins = Mapping[Path_, str]
"""Where a value was written, for messages: ("resources", "gpus") -> "job.yaml:4"."""


class EachError(ValueError):
    """What is wrong with several entries of a field, by their keys or places."""

    def __init__(self, wrong: Mapping[str | int, str]) -> None:
        super().__init__("; ".join(wrong.values()))
        self.wrong = wrong


def raise_each(said: Mapping[str, str] | Mapping[int, str]) -> None:
    """Raises EachError with those that have something said of them."""
    wrong: dict[str | int, str] = {key: text for key, text in said.items() if text}
    if wrong:
        raise EachError(wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaints:
    data: Mapping[str, Any]  # as it was written
    origins: Origins
    source: str  # where a value stands of which `origins` does not know
    flags: Mapping[Path_, str]  # what fields are called on the command line
    fields_at: Callable[[Path_], list[str]]  # names of the fields below one

    def of(self, error: ValidationError) -> Iterable[str]:
        """A line for each field."""
        lines: dict[Path_, str] = {}  # the first about each field: the others are of a union's other members
        for detail in error.errors():
            for path, line in self._each(detail):
                lines.setdefault(path, line)
        return dict.fromkeys(lines.values())

    def _each(self, detail: Any) -> Iterator[tuple[Path_, str]]:
        """Where each is, and what is said of it."""
        path = _real_path(detail["loc"], self.data, missing=detail["type"] == "missing")
        each = detail.get("ctx", {}).get("error")
        if isinstance(each, EachError):
            for key, text in each.wrong.items():
                where = self._where((*path, key))
                yield (*path, key), f"{where}{': ' * bool(where)}{'.'.join(map(str, path))}: {text}"
            return
        line = self._one(detail, path)
        missing = detail["type"] == "missing" and path in self.flags and self._is_of_flags(path)
        yield path, line + (f" ({self.flags[path]})" if missing else "")

    def _where(self, path: Path_) -> str:
        return _where(path, self.origins) or self.source

    def _is_of_flags(self, path: Path_) -> bool:
        """Whether a field beside it was said by a flag: then people type flags."""
        return any(
            here[:-1] == path[:-1] and origin.startswith("--") for here, origin in self.origins.items()
        )

    def _one(self, detail: Any, path: Path_) -> str:
        field = ".".join(str(p) for p in path)
        where = self._where(path)
        prefix = f"{where}: " if where else ""
        if detail["type"] == "extra_forbidden":
            return f"{prefix}unknown field {field!r}{self._meant(path)}"
        expected = _expected(path, detail, self.fields_at)
        if detail["type"] == "missing":
            return f"{prefix}{field}: missing: expected {expected}"
        if not path or _is_group(detail):
            return f"{prefix}{field + ': ' if field else ''}{expected}"
        return f"{prefix}{field} = {_shown(_at(path, self.data))}: {expected}"

    def _meant(self, path: Path_) -> str:
        """What an unknown field may have been meant to be: one of that very name elsewhere, or one of nearly that name, beside it first."""
        name, known = str(path[-1]), self.fields_at(path[:-1])
        everywhere = {".".join(there): there[-1] for there in self._field_paths()}
        named = [field for field, last in everywhere.items() if last == name]
        if word := _OTHER_WORDS.get(name):
            named = [word]
        elif not named and (near := quantities.nearest(name, known)):
            named = [".".join(map(str, (*path[:-1], near)))]
        elif not named and len(path) == 1 and (near := quantities.nearest(name, everywhere.values())):
            named = [field for field, last in everywhere.items() if last == near]
        if named:
            return f"; did you mean {' or '.join(map(repr, named))}?"
        return f"; known here: {', '.join(sorted(known))}"

    def _field_paths(self) -> list[tuple[str, ...]]:
        """Of every field, groups included."""
        top = self.fields_at(())
        return [(name,) for name in top] + [
            (name, below) for name in top for below in self.fields_at((name,))
        ]


# What flags and other systems call a field.
_OTHER_WORDS = {
    "command": "run",
    "cmd": "run",
    "time": "max_duration",
    "timeout": "max_duration",
    "mem": "resources.memory",
    "chdir": "workdir",
    "working_dir": "workdir",
    "dependency": "after",
}


_PLAIN = {
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "string_type": "expected text (put it in quotes)",
    "string_unicode": "expected UTF-8 text",
    "list_type": "expected a list",
    "dict_type": "expected names with values below it",
    "string_too_short": "expected text that is not empty",
    "too_short": "expected at least one value",
    "finite_number": "expected a finite number",
}


def _expected(path: Path_, detail: Any, fields_at: Callable[[Path_], list[str]]) -> str:
    context = detail.get("ctx", {})
    kind = detail["type"]
    if kind == "value_error":
        return str(context["error"])
    if kind == "missing":
        return "a command (`run:` in a job file, CMD on the command line)" if path == ("run",) else "a value"
    if kind == "literal_error":
        return f"expected {context['expected']}"
    if kind in ("string_too_long", "too_long"):
        what = "characters" if kind == "string_too_long" else "values"
        return f"expected at most {context['max_length']} {what}"
    bounds = {"greater_than_equal": "ge", "less_than_equal": "le", "greater_than": "gt", "less_than": "lt"}
    if kind in bounds:
        word = {"ge": "at least", "le": "at most", "gt": "more than", "lt": "less than"}[bounds[kind]]
        limit = context[bounds[kind]]
        return f"expected {word} {int(limit) if float(limit).is_integer() else limit}"
    if path and path[-1] == "run":
        return "expected shell lines or a list of words"
    if kind in {"model_type", "model_attributes_type"}:
        return f"expected fields below it: {', '.join(sorted(fields_at(path)))}"
    return _PLAIN.get(kind, str(detail["msg"]))


def _is_group(detail: Any) -> bool:
    """The complaint is about several fields together: showing a whole mapping would not help."""
    return isinstance(detail.get("input"), Mapping | BaseModel) and detail["type"] == "value_error"


def _real_path(loc: Sequence[str | int], data: Mapping[str, Any], *, missing: bool) -> Path_:
    """pydantic's location without the names of union members that it also lists."""
    path: list[str | int] = []
    here: Any = data
    for place, step in enumerate(loc):
        if isinstance(here, Mapping) and (step in here or (missing and place == len(loc) - 1)):
            path.append(step)
            here = here.get(step)
        elif isinstance(here, list | tuple) and isinstance(step, int):
            path.append(step)
            here = here[step]
    return tuple(path)


def _at(path: Path_, data: Any) -> Any:
    for step in path:
        data = data[step] if not isinstance(data, Mapping) or step in data else None
    return data


def _shown(value: object) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)  # as YAML has it
    return text if len(text) <= 60 else text[:57] + "…"


def _where(path: Path_, origins: Origins) -> str:
    for length in range(len(path), 0, -1):
        if path[:length] in origins:
            return origins[path[:length]]
    return ""
