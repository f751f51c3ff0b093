"""Words people write for sizes, times, GPUs, arrays and dependencies, parsed once. ValueError says what was expected."""

import difflib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, time, timedelta

from hs_client import zone

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
MAX_BYTES = 2**50
MAX_SECONDS = 366 * 86400.0
MAX_GPUS = 1024  # on each node
MAX_TASKS = 1000
MAX_TASK = 10**6
LEAST_TICKETS, MOST_TICKETS = 1e-3, 1e9
TICKETS_EXPECTED = "tickets from 0.001 to 1e9"

SIZE_EXPECTED = "expected a size with its unit, above 0 and at most 1024T, e.g. 40G or 512M"
SINCE_EXPECTED = (
    "expected how long ago, e.g. 30s, 90m, 2h or 7d, or when, e.g. 14:30, 2026-05-01 or 2026-05-01T14:30:05"
)
DURATION_EXPECTED = "expected a duration above 0 and at most 366 days, e.g. 90m, 2h, 1d12h, 45s or HH:MM:SS"

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])(?:i?B)?", re.IGNORECASE)
_SPAN = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_CLOCK = re.compile(r"(?:(\d{1,4})-)?(\d{1,6})(?::(\d{1,2}))?(?::(\d{1,2}))?")
_GPUS = re.compile(r"(?:([A-Za-z][\w.-]*):)?(-?\d+)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")
_AFTER = re.compile(r"(\d{1,18}(?:_(?:\d{1,18}|all)|-\d{1,18})?)(?::(\w+))?")
CONDITIONS = ("ok", "any", "fail")
DEGREES = ("dp", "tp", "pp")
_DEGREE = re.compile(r"(dp|tp|pp)=([1-9]\d{0,5})|layers=([1-9]\d{0,5}(?:\+[1-9]\d{0,5})*)")


def size(text: str) -> int:
    """`40G`, `512M`, `1.5T`; binary units, so 40G = 40 GiB."""
    match = _SIZE.fullmatch(text.strip())
    value = float(match[1]) * UNITS[match[2].upper()] if match else 0.0
    if not 1 <= value <= MAX_BYTES:
        raise ValueError(SIZE_EXPECTED)
    return int(value)


def duration(text: str) -> float:
    """`90m`, `1d12h`, `45s`, or as sbatch has it: `HH:MM:SS`, `D-HH[:MM[:SS]]`, `MM:SS`; a bare number is minutes."""
    text = text.strip()
    span = _SPAN.fullmatch(text)
    clock = _CLOCK.fullmatch(text)
    if text and span is not None and any(span.groups()):
        seconds = sum(float(n) * u for n, u in zip(span.groups(), (86400, 3600, 60, 1), strict=True) if n)
    elif clock is not None:
        days, *rest = clock.groups()
        parts = [int(p) for p in rest if p is not None]
        by_days = days is not None or len(parts) == 3
        units = (3600, 60, 1) if by_days else (60, 1)
        seconds = int(days or 0) * 86400.0 + sum(p * u for p, u in zip(parts, units, strict=False))
    else:
        seconds = 0.0
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError(DURATION_EXPECTED)
    return float(seconds)


def since(text: str, asked: Callable[[], datetime]) -> float:
    """How many seconds ago, where it matters by the time that is `asked` for: `90m`, `14:30` (the last time that a clock here showed it), `2026-05-01T14:30:05` (here, where it does not say otherwise: `Z`, `+02:00`)."""
    text = text.strip()
    span, clock = _SPAN.fullmatch(text), _TIME_OF_DAY.fullmatch(text)
    try:
        if text and span is not None and any(span.groups()):
            return duration(text)
        if clock is not None:
            hour, minute, second = (int(part or 0) for part in clock.groups())
            of_day, now = time(hour, minute, second), asked()
            then = datetime.combine(now.astimezone().date(), of_day)
            if then.astimezone() > now:
                then -= timedelta(days=1)
        else:
            # A bare number would be a day, 20260501, or nothing.
            then = datetime.fromisoformat("" if text.isdecimal() else text)
            now = asked()
        here = then.tzinfo is None
        ago_s = (now - then.astimezone()).total_seconds()
    except (ValueError, OverflowError):
        raise ValueError(SINCE_EXPECTED) from None
    if here and (lost := zone.unknown()):
        raise ValueError(f"TZ = {lost!r}: expected {zone.EXPECTED}")
    if not 0 < ago_s <= MAX_SECONDS:
        raise ValueError(f"{SINCE_EXPECTED}; within the last 366 days, not in the future")
    return ago_s


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a script lays a model over its GPUs: degrees by name, and the layers of each stage where they are said."""

    degrees: tuple[int, int, int]  # dp, tp, pp
    layers: tuple[int, ...] = ()

    @property
    def gpus(self) -> int:
        return math.prod(self.degrees)

    def __str__(self) -> str:
        words = [f"{name}={degree}" for name, degree in zip(DEGREES, self.degrees, strict=True) if degree > 1]
        layers = [f"layers={'+'.join(map(str, self.layers))}"] if self.layers else []
        return ",".join([*(words or ["dp=1"]), *layers])


def strategy(text: str) -> Strategy:
    """`dp=4`, `tp=2,pp=2`, `pp=2,layers=10+14`; degrees that are left out are 1."""
    said: dict[str, str] = {}
    for word in text.replace(" ", "").split(","):
        match = _DEGREE.fullmatch(word)
        name = word.partition("=")[0]
        if match is None or name in said:
            raise ValueError(
                "expected degrees from 1 to 999999, each once, e.g. dp=4 or tp=2,pp=2 or pp=2,layers=10+14"
            )
        said[name] = match[2] or match[3]
    dp, tp, pp = (int(said.get(name, "1")) for name in DEGREES)
    layers = tuple(map(int, said["layers"].split("+"))) if "layers" in said else ()
    if layers and len(layers) != pp:
        raise ValueError(f"expected the layers of {pp} stages, as pp says, not of {len(layers)}")
    return Strategy((dp, tp, pp), layers)


def gpus(text: str) -> tuple[str, int]:
    """`4`, `H100:4` or `any:4` to (model or "", count)."""
    match = _GPUS.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected a number of GPUs or MODEL:NUMBER, e.g. 4 or H100:4")
    if len(match[2]) > 9:
        raise ValueError(f"expected 1 to {MAX_GPUS} GPUs per node")
    model = match[1] or ""
    return ("" if model == "any" else model), int(match[2])


def array(text: str) -> tuple[tuple[int, ...], int]:
    """`0-15`, `1,3,7`, `0-15:4`, each with `%LIMIT`, to (indices, limit or 0)."""
    expected = f"expected task numbers up to {MAX_TASK}, e.g. 0-15, 1,3,7 or 0-15%4 (at most 4 at once)"
    body, percent, limit_text = text.strip().partition("%")
    if percent and (not limit_text.isdecimal() or not 0 < int(limit_text[:9]) <= MAX_TASK):
        raise ValueError(expected)
    indices: list[int] = []
    for part in body.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(expected)
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if not low <= high <= MAX_TASK or step < 1:
            raise ValueError(expected)
        span = range(low, high + 1, step)
        if len(indices) + len(span) > MAX_TASKS:
            raise ValueError(f"expected at most {MAX_TASKS} tasks in one array")
        indices.extend(span)
    if len(set(indices)) != len(indices):
        raise ValueError("expected every task number once")
    return tuple(indices), int(limit_text or 0)


def after(text: str) -> tuple[str, str]:
    """The job, as people name it, and the condition."""
    match = _AFTER.fullmatch(text.strip())
    condition = match[2] or "ok" if match else ""
    if match is None or condition not in CONDITIONS:
        conditions = ", ".join(CONDITIONS)
        raise ValueError(
            f"expected JOB or JOB:CONDITION, a job's number of at most 18 digits with a condition of {conditions}"
        )
    return match[1], condition


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'gpus'?`, or nothing."""
    near = nearest(word, known)
    return f"; did you mean {near!r}?" if near else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """The one of `known` that is most like it, in capitals or not; empty: none is."""
    folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else ""


def span_text(seconds: float) -> str:
    """For people: `0.5s`, `45s`, `3m 20s`, `2h 05m`, `4d 03h`."""
    if not math.isfinite(seconds) or seconds < 0:
        return "-"
    if 0 < seconds < 1:
        return f"{seconds:.1g}s"
    if seconds < 60:
        return f"{seconds:.0f}s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def counted(number: int, thing: str) -> str:
    """For people: `1 job`, `3 jobs`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def size_text(count: int) -> str:
    """For people: `16G`, `1.5T`."""
    value, unit = float(count), "B"
    for following in ("K", "M", "G", "T"):
        if value < 1024:
            break
        value, unit = value / 1024, following
    return f"{value:.0f}{unit}" if value >= 10 or value == int(value) else f"{value:.1f}{unit}"
