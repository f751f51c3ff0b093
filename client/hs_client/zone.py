"""The time zone that the environment names: one that this machine does not know would be UTC, without a word."""

import os
import re
from pathlib import Path
from zoneinfo import TZPATH

EXPECTED = "a time zone of this machine, e.g. Europe/Berlin, or none for its own"

# As POSIX has them: CET-1CEST,M3.5.0,M10.5.0/3 or <+03>-3.
_RULE = re.compile(
    r"([A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)[+-]?\d{1,2}(:\d{2}){0,2}([A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)?.*"
)


def unknown() -> str:
    """What `TZ` says, where that is no time zone here; empty: it is one, or says nothing."""
    said = os.environ.get("TZ", "")
    name = said.removeprefix(":")
    return "" if not name or _is_file(name) or _RULE.fullmatch(name) else said


def _is_file(name: str) -> bool:
    if name.startswith("/"):
        return Path(name).is_file()
    if any((Path(folder) / name).is_file() for folder in TZPATH):
        return True
    return name in {"UTC", "GMT"}
