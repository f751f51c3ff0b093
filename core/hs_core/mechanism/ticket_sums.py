"""Tickets of servers' jobs together: exact as long as the common denominator is short; many users' odd tickets are added to 2^-48."""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hs_core.job_tickets import Ints, JobTickets
from hs_core.mechanism.split import FINEST

Bools = NDArray[np.bool_]

BITS = 48
ROOMY = 1 << 62  # sums below it fit into 64 bits


def add_up(tickets: Sequence[Fraction], rounded: dict[int, int]) -> Fraction:
    """`rounded`: to 2^-48, by identity. Many jobs share a few numbers, so each is rounded once."""
    unit = 1
    for some in tickets:
        unit = lcm(unit, some.denominator)
        if unit.bit_length() > FINEST:
            which = list(map(id, tickets))
            for at, one in zip(which, tickets, strict=True):
                if at not in rounded:
                    rounded[at] = (one.numerator << BITS) // one.denominator
            return Fraction(sum(map(rounded.__getitem__, which)), 1 << BITS)
    return Fraction(sum(some.numerator * (unit // some.denominator) for some in tickets), unit)


class _Spans(NamedTuple):
    """Server by server, in one row: the numbers that its jobs have."""

    which: Ints
    starts: Ints
    sizes: Ints

    def add(self, numbers: Ints) -> Ints:
        """Up, of each server; `numbers`: one for each of `which`."""
        found = np.zeros(len(self.sizes), dtype=np.int64)
        there = self.sizes > 0
        found[there] = np.add.reduceat(numbers, self.starts[there])
        return found


def sums(jobs: Sequence[Ints], tickets: JobTickets) -> list[Fraction]:
    """The same of many servers at once. `jobs`: of each."""
    sizes = np.array(list(map(len, jobs)), dtype=np.int64)
    which = tickets.which_of(np.concatenate(jobs)) if jobs else np.empty(0, dtype=np.int64)
    spans, ratios = _Spans(which, np.cumsum(sizes) - sizes, sizes), tickets.ratios
    rounded = [(over << BITS) // under for over, under in ratios]
    rough = exact = unit = np.zeros(len(sizes), dtype=np.int64)
    fine = np.zeros(len(sizes), dtype=np.bool_)
    if which.size and max(rounded) * int(sizes.max()) < ROOMY:
        rough = spans.add(np.array(rounded, dtype=np.int64)[which])
        unit, fine = _units(spans, [under for _, under in ratios])
        # Where the whole sum, a little more than the rounded one, fits into 64 bits.
        unit = np.where((rough + sizes) / (1 << BITS) * unit < ROOMY, unit, 0)
        exact = _exact(spans, ratios, unit)
    found = []
    columns = (column.tolist() for column in (rough, exact, unit, fine, spans.starts, sizes))
    for about, over, under, is_fine, start, size in zip(*columns, strict=True):
        if under:
            found.append(Fraction(over, under))
        elif is_fine:
            found.append(Fraction(about, 1 << BITS))
        else:
            found.append(_one_by_one(which[start : start + size].tolist(), ratios, rounded))
    return found


def _one_by_one(which: Sequence[int], ratios: Sequence[tuple[int, int]], rounded: Sequence[int]) -> Fraction:
    here = [ratios[at] for at in which]
    unit = lcm(*{under for _, under in here})
    if unit.bit_length() <= FINEST:
        return Fraction(sum([over * (unit // under) for over, under in here]), unit)
    return Fraction(sum([rounded[at] for at in which]), 1 << BITS)


def _exact(spans: _Spans, ratios: Sequence[tuple[int, int]], unit: Ints) -> Ints:
    """Sums over these common denominators; of a server with 0 nothing is said."""
    over, under = np.array([one if max(one) < ROOMY else (0, 0) for one in ratios], dtype=np.int64).T
    whole = np.repeat(unit, spans.sizes)
    times = np.floor_divide(whole, under[spans.which], out=np.zeros_like(whole), where=whole > 0)
    return spans.add(over[spans.which] * times)


def _units(spans: _Spans, unders: Sequence[int]) -> tuple[Ints, Bools]:
    """Of each server the common denominator, 0 where it is not known; and whether it has more bits than `FINEST` for certain."""
    which, starts, sizes = spans
    known = np.array([under if under < ROOMY else 0 for under in unders], dtype=np.int64)
    unit = np.ones(len(sizes), dtype=np.int64)
    whole, fine = sizes > 0, np.zeros(len(sizes), dtype=np.bool_)
    left = np.flatnonzero(whole)
    for place in range(int(sizes.max())):
        # Job by job; of nearly every server whose denominator is too long that is known after a few.
        other = known[which[starts[left] + place]]
        times = unit[left] // np.gcd(unit[left], other)
        bits = np.log2(np.maximum(times, 1)) + np.log2(np.maximum(other, 1))
        fine[left[bits > FINEST + 1]] = True
        # Of a job whose ticket's denominator makes it too long for 64 bits nothing is made: of the rest it is no longer than of all.
        fits = (other > 0) & (bits < ROOMY.bit_length() - 2)
        unit[left[fits]] = times[fits] * other[fits]
        whole[left[~fits]] = False
        left = left[~fine[left] & (sizes[left] > place + 1)]
        if not left.size:
            break
    return np.where(whole & ~fine, unit, 0), fine
