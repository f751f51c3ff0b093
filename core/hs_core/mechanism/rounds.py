"""Gavel's rounds (OSDI'20, 5): fractions of time become "who runs on which GPU type now", so that over rounds everybody gets its fraction.

A unit is what runs as one: a job, or a pair that shares GPUs. Its priority on a type is its fraction over the part of the type's
time that it received. Books are what must be remembered between rounds; they are JSON-able.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hs_core.errors import BrokenError
from hs_core.newest import Newest, Own

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Unit = tuple[int, ...]  # ids of the jobs in it: one, or two that share

UNSEEN = 1e9  # times the fraction: the priority of what has not run yet
RESET_S = 1_920.0  # Gavel's least time between two allocations, and
CREDIT_S = 180.0  # what everybody is taken to have received at a reset


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """U units over T types since the last reset."""

    units: tuple[Unit, ...]
    fraction: Floats  # U x T, of the time; the allocation
    deficit_s: Floats  # U x T: owed from before the last reset
    received_s: Floats  # U x T
    reset_s: float  # when

    def dump(self) -> dict[str, Any]:
        """JSON-able."""
        since_reset = next((said for said, books in _dumped() if books.fraction is self.fraction), None)
        if since_reset is None:
            units = [list(unit) for unit in self.units]
            tables = {"fraction": self.fraction.tolist(), "deficit_s": self.deficit_s.tolist()}
            since_reset = {"units": units, "reset_s": self.reset_s, **tables}
        dumped = {**since_reset, "received_s": self.received_s.tolist()}
        _dumped()[:] = [(dumped, self)]
        return dumped

    @classmethod
    def load(cls, dumped: Mapping[str, Any], types: int) -> "Books":
        for newest, books in _dumped():
            if newest is dumped and books.fraction.shape[1] == types:
                return books
        units = tuple(tuple(unit) for unit in dumped["units"])
        tables = {
            name: np.array(dumped[name], float).reshape(len(units), types)
            for name in ("fraction", "deficit_s", "received_s")
        }
        return cls(units=units, reset_s=dumped["reset_s"], **tables)


_dumped = Own[list[tuple[Mapping[str, Any], Books]]](list)
"""What was dumped last, and from what: a simulation hands it back as it was."""


def units_of(jobs: Sequence[int], pairs: NDArray[np.int64]) -> tuple[Unit, ...]:
    """The rows of an allocation by name: every job alone, then its pairs (P x 2 positions in `jobs`)."""
    alone = [(job,) for job in jobs]
    return (*alone, *((jobs[one], jobs[other]) for one, other in pairs.tolist()))


def reset(
    before: Books | None, units: Sequence[Unit], fraction: Floats, now_s: float, credit_s: float = CREDIT_S
) -> Books:
    """A new allocation. What the old one promised and did not give is a deficit, carried over for units that are still there.

    `credit_s`: taken as received by every unit on every type, so that a new allocation starts near its fractions. It is not counted
    against the deficit.
    """
    if fraction.ndim != 2 or len(fraction) != len(units) or not np.isfinite(fraction).all():
        expected = f"finite numbers, a row for each of {len(units)} units"
        raise BrokenError(f"fraction has shape {fraction.shape}; expected {expected}")
    deficit = np.zeros_like(fraction)
    if before is not None and before.units:
        owed = before.deficit_s + before.fraction * (now_s - before.reset_s) - before.received_s
        # What was received counts the credit of the last reset.
        owed += credit_s
        place = {unit: at for at, unit in enumerate(before.units)}
        kept = [(at, place[unit]) for at, unit in enumerate(units) if unit in place]
        if kept:
            now, then = np.array(kept).T
            deficit[now] = owed[then]
    return Books(
        units=tuple(units),
        fraction=np.maximum(fraction, 0.0),
        deficit_s=deficit,
        received_s=np.full_like(fraction, credit_s),
        reset_s=now_s,
    )


_places: Newest[tuple[Unit, ...], dict[Unit, int]] = Newest(
    lambda units: {unit: at for at, unit in enumerate(units)}
)


def receive(books: Books, ran: Sequence[tuple[Unit, int, float]]) -> Books:
    """Books after a round: (unit, type, seconds) of what ran. A unit without a place in the books is not charged: it has no fraction."""
    place = _places(books.units)
    received = books.received_s.copy()
    for unit, on, seconds in ran:
        if (at := place.get(unit)) is not None:
            received[at, on] += seconds
    return with_received(books, received)


def with_received(books: Books, received_s: Floats) -> Books:
    """So much since the last reset, and all else as it is."""
    return Books(
        units=books.units,
        fraction=books.fraction,
        deficit_s=books.deficit_s,
        received_s=received_s,
        reset_s=books.reset_s,
    )


def priorities(books: Books) -> Floats:
    """U x T: fraction over the part received of the type's time (of all units there, once for each whatever its gang)."""
    received = books.received_s
    total = np.add.reduce(received)
    priority: Floats
    if np.minimum.reduce(received, axis=None, initial=np.inf) > 0:  # as after every reset with a credit
        priority = books.fraction / (received / total)
    else:
        part = np.divide(received, total, out=np.zeros_like(received), where=total > 0)
        known = part > 0
        priority = np.where(known, books.fraction / np.where(known, part, 1.0), books.fraction * UNSEEN)
    return priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Who runs, in the order chosen: positions of units in the books, and their types."""

    unit: tuple[int, ...]
    on: tuple[int, ...]


NOBODY = Round(unit=(), on=())


class Line:
    """What stays from round to round of one allocation about who comes before whom."""

    def __init__(
        self,
        books: Books,
        gang: NDArray[np.int64],
        able: Bools,
        gpus: NDArray[np.int64],
        *,
        skip_zero: bool = False,
    ) -> None:
        """As `pick` has it. What was received is not looked at."""
        shape = books.fraction.shape
        if gang.shape != shape[:1] or able.shape != shape or gpus.shape != shape[1:]:
            shapes = f"gang {gang.shape}, able {able.shape} and gpus {gpus.shape}"
            raise BrokenError(f"{shapes} don't fit books of {shape[0]} units and {shape[1]} types")
        fits = able & (gang[:, None] <= gpus)
        if skip_zero:
            fits &= books.fraction > 0.0  # as their priorities are
        self._units = books.units
        self._sizes, self._gpus = gang.tolist(), gpus.tolist()
        # T x U: units by (deficit, fraction), of equals the first, and where each stands in a U x T table.
        self._order = np.lexsort((-books.fraction.T, -books.deficit_s.T))
        self._at = self._order * shape[1] + np.arange(shape[1])[:, None]
        self._keep(fits.take(self._at))

    def _keep(self, fits: Bools) -> None:
        """Of all in their order. Who does not fit comes behind all others."""
        self._behind = np.where(fits, 0.0, np.inf)
        self._fitting = np.add.reduce(fits, axis=1).tolist()

    def leave(self, units: Sequence[int]) -> None:
        """They are not able to run any more."""
        gone = np.zeros(len(self._units), dtype=np.bool_)
        gone[units] = True
        self._keep((self._behind == 0.0) & ~gone[self._order])

    def pick(
        self,
        books: Books,
        types: Sequence[int] | None = None,
        *,
        kept: Round = NOBODY,
        takes: Callable[[int, int], bool] | None = None,
    ) -> Round:
        """`books`: the same but for what was received. `kept`: those come before all others. `takes`: of the others, whether (unit, type) is to be; None: all are."""
        keys = priorities(books).take(self._at)
        np.negative(keys, out=keys)
        keys += self._behind
        ranks = keys.argsort(axis=1, kind="stable")
        sizes, units = self._sizes, self._units
        chosen, chosen_on = list(kept.unit), list(kept.on)
        placed = {job for unit in chosen for job in units[unit]}
        gpus = self._gpus.copy()
        for unit, on in zip(chosen, chosen_on, strict=True):
            gpus[on] -= sizes[unit]
        for on in range(len(gpus)) if types is None else types:
            left = gpus[on]
            for unit in self._order[on][ranks[on, : self._fitting[on]]].tolist():
                if left == 0:
                    break
                size = sizes[unit]
                fits = size <= left and placed.isdisjoint(units[unit])
                if fits and (takes is None or takes(unit, on)):
                    left -= size
                    placed.update(units[unit])
                    chosen.append(unit)
                    chosen_on.append(on)
        return Round(unit=tuple(chosen), on=tuple(chosen_on))


def pick(
    books: Books,
    gang: NDArray[np.int64],
    able: Bools,
    gpus: NDArray[np.int64],
    *,
    types: Sequence[int] | None = None,
    skip_zero: bool = False,
) -> Round:
    """One round: the types in their order, on each the units by (priority, deficit, fraction), the largest first, then by their place in
    the books. A unit none of whose jobs is placed yet takes its gang if so many GPUs are left there.

    `gang`: U. `able`: U x T, whether it could run there now: fits, has a speed, none of its jobs is gone. `types`: which first. `skip_zero`:
    units without a claim get nothing even where GPUs are left over (Gavel's FIFO).
    """
    return Line(books, gang, able, gpus, skip_zero=skip_zero).pick(books, types)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """When to ask for a new allocation: only after something changed, and not too often."""

    least_s: float = RESET_S
    zero_is_never: bool = False
    """Gavel knows "no reset yet" by a last reset at 0, when its clock starts: its second allocation comes at the first change."""

    def due(self, books: Books | None, now_s: float, *, changed: bool, idle: bool = False) -> bool:
        """`changed`: jobs came or went since the last reset. `idle`: nothing runs and nobody is to come: waiting helps nobody."""
        if books is None:
            return True
        if self.zero_is_never and books.reset_s == 0:
            return changed
        return changed and (idle or now_s - books.reset_s >= self.least_s)

    def in_s(self, books: Books, now_s: float) -> float:
        """Until then at the soonest, where some of its GPUs are in use."""
        return max(0.0, books.reset_s + self.least_s - now_s)
