"""Weighted max-min with caps over many users at once: floats find about where the line is, whole numbers say it exactly."""

from collections import Counter
from collections.abc import Collection, Sequence
from fractions import Fraction
from functools import lru_cache
from math import inf, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hs_core.errors import BrokenError

ZERO = Fraction(0)
BAND = 1e-9  # of the line, within which floats are not believed
WHOLE = float(1 << 53)  # below, floats are exact
ALIGNED = 16  # bytes: where objects begin
ROUNDS = 64  # in which the line is nearly always found

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Waterline:
    """Each user gets its demand, or the line times its tickets where that is less; all get the capacity, or all they ask for."""

    def __init__(
        self, capacity: Fraction, demands: Collection[Fraction | int], tickets: Sequence[Fraction]
    ) -> None:
        self._unit, self._demands = _whole(demands, capacity.denominator)
        self._capacity = capacity.numerator * (self._unit // capacity.denominator)
        self._kind, weights = _kinds(tickets)
        if min(weights) <= 0:
            raise BrokenError(f"{min(weights)} tickets; expected more than 0")
        weight_unit = lcm(*{weight.denominator for weight in weights})
        self._weights = [weight.numerator * (weight_unit // weight.denominator) for weight in weights]

    def shares(self) -> list[Fraction]:
        """In the order of users."""
        asked = self._demands.astype(np.float64)
        weights = np.array([float(weight) for weight in self._weights], dtype=np.float64)[self._kind]
        ratio: Floats = asked / weights
        capacity = float(self._capacity)
        line = _line(capacity, asked, weights, ratio)
        slack = BAND * (line + capacity / float(weights.sum()))
        dry, left, open_ = self._settle(ratio, line, slack)
        if left < 0 or (open_ and abs(left / open_ - line) > slack):  # not found, or floats have misled
            dry, left, open_ = self._settle(ratio, 0.0, inf)
        return self._say(dry, left, open_)

    def _settle(self, ratio: Floats, line: float, slack: float) -> tuple[Bools, int, int]:
        """Who does not get all it asks for, what is left for them, and their tickets; exact within the slack."""
        dry = ratio > line - slack
        left = self._capacity - int(self._demands[~dry].sum())
        open_ = self._sum(dry)
        near = np.flatnonzero(dry & (ratio <= line + slack))
        pairs = list(zip(self._demands[near].tolist(), self._kind[near].tolist(), strict=True))
        classes = Counter(pairs)
        met: set[tuple[int, int]] = set()
        for demand, kind in sorted(classes, key=lambda one: Fraction(one[0], self._weights[one[1]])):
            weight, members = self._weights[kind], classes[demand, kind]
            if demand * open_ > left * weight:
                break
            left -= demand * members
            open_ -= weight * members
            met.add((demand, kind))
        dry[near] = [pair not in met for pair in pairs]
        return dry, left, open_

    def _sum(self, users: Bools) -> int:
        """Of their tickets."""
        counts = np.bincount(self._kind[users], minlength=len(self._weights))
        return sum(self._weights[kind] * int(counts[kind]) for kind in np.flatnonzero(counts).tolist())

    def _say(self, dry: Bools, left: int, open_: int) -> list[Fraction]:
        """The same few numbers for many users: each is made once."""
        said: NDArray[Any] = np.empty(len(dry), dtype=object)
        wet = np.flatnonzero(~dry)
        values, which = _told_apart(self._demands[wet])
        known: NDArray[Any] = np.empty(len(values), dtype=object)
        known[:] = [Fraction(value, self._unit) for value in values]
        said[wet] = known[which]
        short = np.flatnonzero(dry)
        if short.size:
            counts = np.bincount(self._kind[short], minlength=len(self._weights))
            shared: NDArray[Any] = np.empty(len(self._weights), dtype=object)
            for kind in np.flatnonzero(counts).tolist():
                shared[kind] = Fraction(left * self._weights[kind], open_ * self._unit)
            said[short] = shared[self._kind[short]]
        found: list[Fraction] = said.tolist()
        return found


def one_by_one(
    capacity: Fraction | int, demands: Sequence[Fraction | int], tickets: Sequence[Fraction]
) -> list[Fraction]:
    """The same for a few users."""
    unit = lcm(capacity.denominator, *{demand.denominator for demand in demands})
    left = capacity.numerator * (unit // capacity.denominator)
    asked = [demand.numerator * (unit // demand.denominator) for demand in demands]
    if len(set(map(id, tickets))) == 1:  # as most often
        weights = [tickets[0].numerator] * len(asked)
    else:
        fine = lcm(*{weight.denominator for weight in tickets})
        weights = [weight.numerator * (fine // weight.denominator) for weight in tickets]
    if min(weights) <= 0:
        raise BrokenError(f"{min(tickets)} tickets; expected more than 0")
    if min(asked) < 0:
        raise BrokenError(f"demands of {min(demands)} GPUs; expected 0 or more")
    if sum(asked) <= left:
        return [fraction_of(one, unit) for one in asked]
    open_ = sum(weights)
    shares = [ZERO] * len(asked)
    if len(set(weights)) == 1:
        order = sorted(range(len(asked)), key=asked.__getitem__)
    else:
        order = _by_ratio(asked, weights)
    for place, user in enumerate(order):
        if asked[user] * open_ > left * weights[user]:
            said = {weight: fraction_of(left * weight, open_ * unit) for weight in {*weights}}
            for dry in order[place:]:
                shares[dry] = said[weights[dry]]
            break
        shares[user] = fraction_of(asked[user], unit)
        left -= asked[user]
        open_ -= weights[user]
    return shares


def _by_ratio(asked: Sequence[int], weights: Sequence[int]) -> list[int]:
    ratios = [one / weight for one, weight in zip(asked, weights, strict=True)]
    if len(set(ratios)) == len(ratios):  # rounded, none changes places with another
        return sorted(range(len(asked)), key=ratios.__getitem__)
    return sorted(range(len(asked)), key=lambda user: Fraction(asked[user], weights[user]))


@lru_cache(maxsize=4096)
def fraction_of(numerator: int, denominator: int) -> Fraction:
    """In lowest terms, which takes longer to find than to remember: most users ask for the same few numbers."""
    return Fraction(numerator, denominator)


def _line(capacity: float, asked: Floats, weights: Floats, ratio: Floats) -> float:
    """About what a ticket gets: as soon as somebody gets all, what is left for the others is more."""
    left, open_, line = capacity, float(weights.sum()), 0.0
    for _ in range(ROUNDS):
        line = left / open_ if open_ > 0 else line
        met = ratio <= line
        if not met.any():
            break
        left, open_ = left - float(asked[met].sum()), open_ - float(weights[met].sum())
        rest = ~met
        asked, weights, ratio = asked[rest], weights[rest], ratio[rest]
    return line


def _told_apart(numbers: NDArray[Any]) -> tuple[list[int], Ints]:
    """The values that occur, and which of them each is."""
    if numbers.dtype != object and numbers.size and int(numbers.max()) <= 4 * numbers.size:
        there = np.bincount(numbers) > 0
        values: list[int] = np.flatnonzero(there).tolist()
        return values, (np.cumsum(there) - 1)[numbers]
    found, which = np.unique(numbers, return_inverse=True)
    return found.tolist(), which


def _whole(numbers: Collection[Fraction | int], unit: int) -> tuple[int, NDArray[Any]]:
    """In whole parts of what suits the unit and all of them: what that is, and they. Of 64 bits where sums fit as well, else Python's own."""
    found: NDArray[Any] = np.array([*numbers])
    if found.dtype.kind != "i" or unit > 1:  # else all were integers
        unit = lcm(unit, *{number.denominator for number in numbers})
        whole = [number.numerator * (unit // number.denominator) for number in numbers]
        found = np.array(whole, dtype=np.int64 if float(max(whole)) < WHOLE else object)
    if found.min() < 0:
        raise BrokenError(f"demands of {Fraction(int(found.min()), unit)} GPUs; expected 0 or more")
    if float(found.max()) * len(found) >= WHOLE:
        found = found.astype(object)
    return unit, found


def _kinds(tickets: Sequence[Fraction]) -> tuple[Ints, list[Fraction]]:
    """Which of these every user holds: most hold the same few, told apart by identity first."""
    first, which = _same(np.fromiter(map(id, tickets), dtype=np.int64, count=len(tickets)))
    values: dict[tuple[int, int], int] = {}
    weights: list[Fraction] = []
    at = np.empty(len(first), dtype=np.int64)
    for number, user in enumerate(first.tolist()):
        weight = tickets[user]
        key = (weight.numerator, weight.denominator)
        if key not in values:
            values[key] = len(weights)
            weights.append(weight)
        at[number] = values[key]
    return at[which], weights


def _same(ids: Ints) -> tuple[Ints, Ints]:
    """One place of each that occurs, and which of them each is: by a table without sorting, where no two of them fall into one slot."""
    slots = 1 << (2 * len(ids)).bit_length()
    slot = (ids // ALIGNED) % slots
    there = np.full(slots, -1, dtype=np.int64)
    there[slot] = np.arange(len(ids))
    if not np.array_equal(ids[there[slot]], ids):
        _, first, which = np.unique(ids, return_index=True, return_inverse=True)
        return first, which
    taken = there >= 0
    return there[taken], (np.cumsum(taken) - 1)[slot]
