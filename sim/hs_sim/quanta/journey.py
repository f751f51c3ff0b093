"""A job's way out of its home: its checkpoint is being written."""

from dataclasses import dataclass

from hs_core.forms import Form


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    home: tuple[int, ...]  # where to: rows, by node rank
    copies: tuple[int, ...]  # steps for each copy there; empty: it is one
    shape: Form | None  # there; None: as it is
