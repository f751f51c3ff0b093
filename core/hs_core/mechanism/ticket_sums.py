"""Tickets of servers' jobs together: exact as long as the common denominator is short; many users' odd tickets are added to 2^-48."""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

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


def sums(jobs: Sequence[Ints], tickets: JobTickets) -> list[Fraction]:
    """The same of many servers at once. `jobs`: of each."""
    sizes = np.array(list(map(len, jobs)), dtype=np.int64)
    which = tickets.which_of(np.concatenate(jobs)) if jobs else np.empty(0, dtype=np.int64)
    ratios = tickets.ratios
    rounded = [(over << BITS) // under for over, under in ratios]
    fits = max(rounded, default=0) * int(sizes.max(initial=0)) < ROOMY
    together = np.zeros(len(sizes), dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    if fits and which.size:
        there = sizes > 0
        together[there] = np.add.reduceat(np.array(rounded, dtype=np.int64)[which], starts[there])
    odd = (
        _too_fine(which, starts, sizes, [under for _, under in ratios])
        if fits
        else np.zeros(len(sizes), dtype=np.bool_)
    )
    found = []
    spans = zip(together.tolist(), starts.tolist(), sizes.tolist(), odd.tolist(), strict=True)
    for rough, start, size, fine in spans:
        if fine:
            found.append(Fraction(rough, 1 << BITS))
            continue
        here = [ratios[at] for at in which[start : start + size].tolist()]
        unit = lcm(*{under for _, under in here})
        if unit.bit_length() <= FINEST:
            found.append(Fraction(sum([over * (unit // under) for over, under in here]), unit))
        elif fits:
            found.append(Fraction(rough, 1 << BITS))
        else:
            found.append(
                Fraction(sum([rounded[at] for at in which[start : start + size].tolist()]), 1 << BITS)
            )
    return found


def _too_fine(which: Ints, starts: Ints, sizes: Ints, unders: Sequence[int]) -> Bools:
    """Servers whose common denominator has more bits than `FINEST` for certain. Of the others it has to be found."""
    known = np.array([under if under < ROOMY else 0 for under in unders], dtype=np.int64)
    unit = np.ones(len(sizes), dtype=np.int64)
    found = np.zeros(len(sizes), dtype=np.bool_)
    left = np.flatnonzero(sizes > 0)
    for place in range(int(sizes.max(initial=0))):
        # Job by job; nearly every server is known after a few.
        other = known[which[starts[left] + place]]
        times = unit[left] // np.gcd(unit[left], other)
        bits = np.log2(np.maximum(times, 1)) + np.log2(np.maximum(other, 1))
        found[left[bits > FINEST + 1]] = True
        # Of a job whose ticket's denominator makes it too long for 64 bits nothing is made: of the rest it is no longer than of all.
        fits = (other > 0) & (bits < ROOMY.bit_length() - 2)
        unit[left[fits]] = times[fits] * other[fits]
        left = left[~found[left] & (sizes[left] > place + 1)]
        if not left.size:
            break
    return found
