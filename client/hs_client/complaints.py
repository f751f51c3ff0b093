"""What is said of a job that is not as it should be: place, field, value and what was expected, for everything that is wrong."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from hs_client import quantities

Path_ = tuple[str | int, ...]
Origins = Mapping[Path_, str]
"""Where a value was written, for messages: ("resources", "gpus") -> "job.yaml:4"."""


def complaints(
    error: ValidationError,
    data: Mapping[str, Any],
    origins: Origins,
    *,
    source: str,
    fields_at: Callable[[Path_], list[str]],
) -> Iterable[str]:
    """A line for each field. `source`: where a value stands of which `origins` does not know; `fields_at`: names of the fields below one."""
    lines: dict[Path_, str] = {}  # the first about each field: the others are of a union's other members
    for detail in error.errors():
        path = _real_path(detail["loc"], data, missing=detail["type"] == "missing")
        lines.setdefault(path, _complaint(detail, path, data, _where(path, origins) or source, fields_at))
    return dict.fromkeys(lines.values())


def _complaint(
    detail: Any, path: Path_, data: Mapping[str, Any], where: str, fields_at: Callable[[Path_], list[str]]
) -> str:
    field = ".".join(str(p) for p in path)
    prefix = f"{where}: " if where else ""
    if detail["type"] == "extra_forbidden":
        known = fields_at(path[:-1])
        hint = quantities.did_you_mean(str(path[-1]), known) or f"; known here: {', '.join(sorted(known))}"
        return f"{prefix}unknown field {field!r}{hint}"
    if detail["type"] == "missing":
        return f"{prefix}{field}: missing: expected {_expected(path, detail)}"
    if not path or _is_group(detail):
        return f"{prefix}{field + ': ' if field else ''}{_expected(path, detail)}"
    return f"{prefix}{field} = {_shown(_at(path, data))}: {_expected(path, detail)}"


_PLAIN = {
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "string_type": "expected text (put it in quotes)",
    "list_type": "expected a list",
    "dict_type": "expected fields below it",
    "model_type": "expected fields below it",
    "model_attributes_type": "expected fields below it",
    "string_too_short": "expected text that is not empty",
    "too_short": "expected at least one value",
    "finite_number": "expected a finite number",
}


def _expected(path: Path_, detail: Any) -> str:
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
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _where(path: Path_, origins: Origins) -> str:
    for length in range(len(path), 0, -1):
        if path[:length] in origins:
            return origins[path[:length]]
    return ""
