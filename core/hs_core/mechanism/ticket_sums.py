"""Tickets of servers' jobs together: exact as long as the common denominator is short; many users' odd tickets are added to 2^-48."""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

import numpy as np

from hs_core.job_tickets import Ints, JobTickets
from hs_core.mechanism.split import FINEST

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
    ratios = [number.as_integer_ratio() for number in tickets.numbers]
    rounded = [(over << BITS) // under for over, under in ratios]
    fits = max(rounded, default=0) * int(sizes.max(initial=0)) < ROOMY
    together = np.zeros(len(sizes), dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    if fits and which.size:
        there = sizes > 0
        together[there] = np.add.reduceat(np.array(rounded, dtype=np.int64)[which], starts[there])
    overs, unders = [over for over, _ in ratios], [under for _, under in ratios]
    has = which.tolist()
    found = []
    for rough, start, size in zip(together.tolist(), starts.tolist(), sizes.tolist(), strict=True):
        here = has[start : start + size]
        unit = lcm(*set(map(unders.__getitem__, here)))
        if unit.bit_length() <= FINEST:
            found.append(Fraction(sum([overs[at] * (unit // unders[at]) for at in here]), unit))
        elif fits:
            found.append(Fraction(rough, 1 << BITS))
        else:
            found.append(Fraction(sum([rounded[at] for at in here]), 1 << BITS))
    return found
