"""K(t), exactly: the largest number of GPUs that gangs on single types can use (FFT, equation 7)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hs_core import solve
from hs_core.errors import BrokenError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
EFFORT = 10.0


@dataclass(frozen=True, slots=True)
class Most:
    gpus: int
    choice: Ints  # (J,) a type for each job that uses as many; -1: it waits
    proved: bool  # False: the search ended early, more might be possible


@dataclass(frozen=True, slots=True)
class _Classes:
    """Jobs of equal gang and equal eligible types, largest gang first, then fewest types."""

    gpus: Ints  # (C,)
    eligible: Bools  # (C, I)
    count: Ints  # (C,)
    of_job: Ints  # (J,) class of each job; -1: it can run nowhere


def most_gpus(gpus: Ints, eligible: Bools, capacity: Ints) -> Most:
    """`gpus` (J,) gang sizes, `eligible` (J, I), `capacity` (I,) free GPUs of each type.

    Filling the largest gangs first is proof enough where it uses every GPU or every job; else a small whole program over classes decides.
    """
    classes = _classes(gpus, eligible)
    counts = _fill(classes, capacity)
    used = int((counts.sum(axis=1) * classes.gpus).sum())
    wanted = int((classes.count * classes.gpus).sum())
    # No type can be filled beyond the sum of the gangs that may run on it.
    room = (
        np.minimum(capacity, (classes.count * classes.gpus) @ classes.eligible).sum()
        if len(classes.gpus)
        else 0
    )
    if used == min(wanted, int(room)):
        return Most(used, _spread(classes, counts), proved=True)
    better, proved = _search(classes, capacity, counts)
    return Most(int((better.sum(axis=1) * classes.gpus).sum()), _spread(classes, better), proved)


def _classes(gpus: Ints, eligible: Bools) -> _Classes:
    types = eligible.shape[1]
    if types > 32:
        raise BrokenError(f"{types} types of GPU; expected at most 32")
    masks = eligible @ (1 << np.arange(types, dtype=np.int64))
    can = (masks > 0) & (gpus > 0)
    key = (gpus << 32) | masks
    found, first, inverse, count = np.unique(
        key[can], return_index=True, return_inverse=True, return_counts=True
    )
    some = np.flatnonzero(can)[first]
    order = np.lexsort((found, eligible[some].sum(axis=1), -gpus[some]))
    rank = np.empty(len(found), np.int64)
    rank[order] = np.arange(len(found))
    of_job = np.full(len(gpus), -1, np.int64)
    of_job[can] = rank[inverse]
    return _Classes(gpus[some][order], eligible[some][order], count[order].astype(np.int64), of_job)


def _fill(classes: _Classes, capacity: Ints) -> Ints:
    """Jobs of each class on each type, (C, I): least wanted types first."""
    free = capacity.copy()
    counts = np.zeros(classes.eligible.shape, np.int64)
    wanted = (classes.count * classes.gpus) @ classes.eligible / np.maximum(capacity, 1)
    types = np.argsort(wanted, kind="stable").tolist()
    for at, (gang, left) in enumerate(zip(classes.gpus.tolist(), classes.count.tolist(), strict=True)):
        rest = left
        for kind in types:
            if rest and classes.eligible[at, kind]:
                taken = min(rest, int(free[kind]) // gang)
                counts[at, kind] = taken
                free[kind] -= taken * gang
                rest -= taken
    return counts


def _search(classes: _Classes, capacity: Ints, hint: Ints) -> tuple[Ints, bool]:
    at, kind = np.nonzero(classes.eligible)
    columns = np.arange(len(at))
    gangs = classes.gpus[at]
    shape = classes.eligible.shape
    rows = solve.Entries(
        np.concatenate([at, shape[0] + kind]),
        np.concatenate([columns, columns]),
        np.concatenate([np.ones(len(at)), gangs]).astype(float),
        (sum(shape), len(at)),
    )
    found = solve.ip(
        -gangs,
        a_ub=rows,
        b_ub=np.concatenate([classes.count, capacity]),
        upper=np.minimum(classes.count[at], capacity[kind] // gangs),
        hint=hint[at, kind],
        effort=EFFORT,
    )
    if found is None:
        return hint, False
    counts = np.zeros(shape, np.int64)
    counts[at, kind] = found.x
    return counts, found.proved


def _spread(classes: _Classes, counts: Ints) -> Ints:
    """Which job goes where: within a class the first ones to its first types."""
    choice = np.full(len(classes.of_job), -1, np.int64)
    order = np.argsort(classes.of_job, kind="stable")
    begins = np.searchsorted(classes.of_job[order], np.arange(len(counts)))
    for at, row in enumerate(counts):
        kinds = np.repeat(np.arange(len(row)), row)
        choice[order[begins[at] : begins[at] + len(kinds)]] = kinds
    return choice
