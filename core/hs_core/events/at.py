"""When it was."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    now_s: float
