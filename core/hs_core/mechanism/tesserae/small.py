"""Many small assignment problems at once: the GPUs of pairs of nodes."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from hs_core import solve

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST = 8  # beyond, 2**G sets of columns cost more than one problem after the other


def small_assignments(gains: Floats) -> Ints:
    """(P, G, G) → (P, G) the column of each row, of largest total gain: all P together, by sets of columns used so far."""
    problems, size, _ = gains.shape
    if size > MOST:
        return np.array([solve.assign(gain, most=True)[1] for gain in gains]).reshape(problems, size)
    best = np.zeros((problems, 1))
    choices: list[Ints] = []
    for row in range(size):
        before, column = _steps(size)[row]
        grown = best[:, before] + gains[:, row, column]
        choices.append(grown.argmax(axis=2))
        best = grown.max(axis=2)
    found = np.empty((problems, size), np.int64)
    at = np.zeros(problems, np.int64)  # which set, among those of as many columns
    for row in range(size - 1, -1, -1):
        before, column = _steps(size)[row]
        choice = choices[row][np.arange(problems), at]
        found[:, row] = column[at, choice]
        at = before[at, choice]
    return found


@cache
def _steps(size: int) -> tuple[tuple[Ints, Ints], ...]:
    """For each row (sets of row + 1 columns, row + 1): the set of `row` columns that one came from, by rank, and the column added."""
    sets = [[bits for bits in range(1 << size) if bits.bit_count() == count] for count in range(size + 1)]
    found = []
    for count in range(1, size + 1):
        rank = {bits: at for at, bits in enumerate(sets[count - 1])}
        columns = [[column for column in range(size) if bits >> column & 1] for bits in sets[count]]
        before = [
            [rank[bits ^ 1 << column] for column in row]
            for bits, row in zip(sets[count], columns, strict=True)
        ]
        found.append((np.array(before), np.array(columns)))
    return tuple(found)
