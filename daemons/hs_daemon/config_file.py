"""A daemon's configuration as it lies on the disk: one table of TOML."""

import codecs
import difflib
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 20  # a thousand times what there is to say: what is larger is some other file
MOST_SHOWN = 80  # characters of a line


class ConfigFileError(Exception):
    """What is wrong with it, without its name."""


def table(path: Path) -> dict[str, Any]:
    try:
        text = _read(path).removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except OSError as error:
        raise ConfigFileError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigFileError(f"is not UTF-8 text (byte {error.start})") from None
    try:
        return tomllib.loads(text)
    except ValueError as error:  # also a number of more digits than Python reads
        raise ConfigFileError(f"is not TOML: {error}{_line(text, str(error))}") from None
    except RecursionError:
        raise ConfigFileError("is not TOML: lists or tables in one another without end") from None


def near(key: str, known: Iterable[str]) -> str:
    """Which of these is meant, most likely; empty: none of them. Case counts in TOML, and not for who writes it."""
    by_case = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(key.casefold(), by_case, n=1)
    return by_case[found[0]] if found else ""


def section_with(key: str, data: Mapping[str, Any]) -> str:
    """The first section, as its line says it, below which this key of the top stands; empty: none."""
    for name, value in data.items():
        inside = value if isinstance(value, list) else [value]
        if any(isinstance(table, Mapping) and key in table for table in inside):
            return f"[[{name}]]" if isinstance(value, list) else f"[{name}]"
    return ""


def _line(text: str, error: str) -> str:
    """The line that is wrong; of a key that is there twice nothing else says which. Empty: none is named."""
    place = re.search(r"\(at line (\d+), column \d+\)$", error)
    lines = text.splitlines()
    number = int(place[1]) if place is not None else 0
    return f": {lines[number - 1].strip()[:MOST_SHOWN]}" if 0 < number <= len(lines) else ""


def _read(path: Path) -> bytes:
    """Opened without waiting: a pipe into which nobody writes would hold the daemon up, and a device never ends."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ConfigFileError("cannot be read: a plain file was expected")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ConfigFileError(f"cannot be read: at most {MOST_BYTES >> 20} MiB were expected")
    return content
