"""Where newcomers of one kind begin on their stride: as far from one another, and from those who are there, as can be.

Jobs of one user that are all alike and begin at one point would run in one clump in every period, for ever.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from heapq import heapify, heapreplace
from math import floor
from typing import TypeVar

Number = TypeVar("Number", Fraction, float)
FINENESS = 1 << 20  # steps of the circle in which widths are compared


def gaps(taken: Iterable[Number], count: int, one: Number) -> list[Number]:
    """So many places on the circle [0, `one`), as far from one another and from those taken as can be, ascending; the first of all is 0.

    `one`: 1, in the numbers that the answer shall have.
    """
    there: list[Number] = sorted(set(taken))
    if not there:
        return [one * place / count for place in range(count)]
    ends = there[1:]
    ends.append(there[0] + one)
    # One entry per gap: (-size of its parts, where it starts, its width, places in it).
    heap = [(-_size(end - start), start, end - start, 0) for start, end in zip(there, ends, strict=True)]
    heapify(heap)
    for _ in range(count):
        _, start, width, places = heap[0]
        heapreplace(heap, (-_size(width / (places + 2)), start, width, places + 1))
    found = [
        start + width * (place + 1) / (places + 1)
        for _, start, width, places in heap
        for place in range(places)
    ]
    return sorted(phase - floor(phase) for phase in found)


def _size(width: Number) -> int:
    """What floats round away makes none wider than another: the first of those that are alike is the same in both numbers."""
    return round(width * FINENESS)


def come(phases: Sequence[Number], one: Number) -> list[Number]:
    """How far those at these phases move, and last where who comes begins, for all to be equally far from one another on the circle.

    One after the other, each in the middle of the widest gap, leaves gaps of which the widest are twice the narrowest: several turns of a user fall together, and
    then come none. Those who were there move by nothing on average, so it costs nobody but them, and them nothing together. Who comes waits about half a stride: always in the first
    of gaps that are alike, a user whose jobs come one by one would be ahead by half a turn for each.
    """
    at: list[Number] = list(phases)
    at.append(one / 2)
    shifts = _shifts(at, one)
    mean = sum(shifts[:-1], one * 0) / len(phases)
    moved: list[Number] = [shift - mean for shift in shifts]
    moved[-1] += one / 2
    return moved


def apart(phases: Sequence[Number], one: Number) -> list[Number]:
    """How far those at these phases move for all to be equally far from one another on the circle: by nothing on average."""
    shifts = _shifts(phases, one)
    mean = sum(shifts, one * 0) / len(phases)
    return [shift - mean for shift in shifts]


def _shifts(at: Sequence[Number], one: Number) -> list[Number]:
    """To places of a circle divided equally, in the order in which they are."""
    shifts: list[Number] = [one * 0] * len(at)
    for place, which in enumerate(sorted(range(len(at)), key=at.__getitem__)):
        shifts[which] = one * place / len(at) - at[which]
    return shifts
