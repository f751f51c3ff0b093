"""Reading what people wrote: every mistake is named with file, line, field, value and what was expected; bad jobs may be left out and counted."""

import csv
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from stat import S_ISBLK, S_ISCHR
from typing import Any, NoReturn

from hs_core.errors import Kind, RefusedError

MOST_BYTES = 512 << 20
MOST = 1e18  # of any number
LEAST_TICKETS, MOST_TICKETS = 1e-6, 1e9  # more apart than that policies cannot count with
SHOWN = 80  # characters of a value
csv.field_size_limit(MOST_BYTES)  # what is too long for its field is refused by name, not by the csv module

Where = tuple[Path, int]  # file, line


class Sieve:
    """What becomes of a job that is not as it should be: the whole file is refused, or that job is left out and the reason kept."""

    def __init__(self, *, skip_bad: bool = False) -> None:
        self.skip_bad = skip_bad
        self.left_out: list[str] = []

    @contextmanager
    def job(self) -> Iterator[None]:
        """Around the reading of one job."""
        try:
            yield
        except RefusedError as error:
            if not self.skip_bad:
                raise
            self.left_out.append(str(error))


def text_of(path: Path) -> str:
    try:
        about = path.stat()
        if S_ISCHR(about.st_mode) or S_ISBLK(about.st_mode):
            raise RefusedError(f"{path}: a device; expected a file")  # some never end
        if about.st_size > MOST_BYTES:
            raise RefusedError(f"{path}: {about.st_size} bytes; expected at most {MOST_BYTES}")
        return path.read_text(encoding="utf-8-sig")  # spreadsheets begin with a byte order mark
    except FileNotFoundError:
        raise RefusedError(f"{path}: there is no such file", Kind.NOT_FOUND) from None
    except UnicodeDecodeError as error:
        raise RefusedError(f"{path}: byte {error.start} is not UTF-8; expected text in UTF-8") from None
    except OSError as error:
        raise RefusedError(f"{path}: {error.strerror}; expected a file that can be read") from None


def number(
    where: Where,
    field: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float = MOST,
    whole: bool = False,
) -> float:
    expected = "a whole number" if whole else "a number"
    if least is not None:
        expected += f" of at least {exact(least)}"
    if above is not None:
        expected += f" above {exact(above)}"
    expected += f", at most {exact(most)}"
    try:
        found = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = float("nan")
    good = isfinite(found) and -MOST <= found <= most and (not whole or found == int(found))
    good = good and (least is None or found >= least) and (above is None or found > above)
    expect(good, where, field, value, expected)
    return found


def exact(number: float) -> str:
    """As short as it can be without being another number."""
    return next((text for digits in (6, 12) if float(text := f"{number:.{digits}g}") == number), str(number))


def unread(error: ValueError) -> str:
    """Why YAML or JSON could not be built; of Python's own advice that is none for people."""
    if "set_int_max_str_digits" in str(error):
        return f"a number of more than {sys.get_int_max_str_digits()} digits"
    return str(error)


def kind_of(value: object) -> str:
    """What a file has where something else was expected."""
    if value is None:
        return "nothing"
    kinds = {
        bool: "true or false",
        dict: "a mapping",
        list: "a list",
        str: "text",
        int: "a number",
        float: "a number",
    }
    return next(
        (name for kind, name in kinds.items() if isinstance(value, kind)), f"a {type(value).__name__}"
    )


def wording(where: Where, field: str, value: Any) -> str:
    """YAML has `true`, dates and more where people wrote words."""
    good = isinstance(value, str | int | float) and not isinstance(value, bool)
    expect(good, where, field, value, "text, in quotes where it would be something else")
    return str(value)


def known(where: Where, field: Any, names: Iterable[str], *, within: str = "") -> None:
    """`within`: the path of what it is a field of; empty: the file, or one job of it."""
    names = list(names)
    if field not in names:
        path = f"{within}.{field}" if within else str(field)
        expected = f"one of {', '.join(names)}{did_you_mean(field, names)}"
        raise RefusedError(f"{where[0]}:{where[1]}: unknown field {path!r}; expected {expected}")


def did_you_mean(word: object, names: Iterable[str]) -> str:
    close = get_close_matches(str(word), list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def expect(good: bool, where: Where, field: str, value: object, expected: str) -> None:
    if not good:
        refuse(where, field, value, expected)


def refuse(where: Where, field: str, value: object, expected: str, kind: Kind = Kind.INVALID) -> NoReturn:
    shown = repr(value) if len(repr(value)) <= SHOWN else repr(value)[: SHOWN - 3] + "…"
    raise RefusedError(f"{where[0]}:{where[1]}: {field}: {shown}; expected {expected}", kind)
