"""Where newcomers of one kind begin on their stride: as far from one another, and from those who are there, as can be.

Jobs of one user that are all alike and begin at one point would run in one clump in every period, for ever.
"""

from collections.abc import Iterable
from fractions import Fraction
from heapq import heapify, heapreplace
from math import floor
from typing import TypeVar

Number = TypeVar("Number", Fraction, float)


def gaps(taken: Iterable[Number], count: int, one: Number) -> list[Number]:
    """So many places on the circle [0, `one`), as far from one another and from those taken as can be, ascending; the first of all is 0.

    `one`: 1, in the numbers that the answer shall have.
    """
    there: list[Number] = sorted(set(taken))
    if not there:
        return [one * place / count for place in range(count)]
    ends = there[1:]
    ends.append(there[0] + one)
    # One entry per gap: (-width of its parts, where it starts, its width, places in it).
    heap = [(start - end, start, end - start, 0) for start, end in zip(there, ends, strict=True)]
    heapify(heap)
    for _ in range(count):
        _, start, width, places = heap[0]
        heapreplace(heap, (-width / (places + 2), start, width, places + 1))
    found = [
        start + width * (place + 1) / (places + 1)
        for _, start, width, places in heap
        for place in range(places)
    ]
    return sorted(phase - floor(phase) for phase in found)
