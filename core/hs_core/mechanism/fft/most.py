"""K(t), exactly: the largest number of GPUs that gangs on single types can use (FFT, equation 7)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hs_core import solve
from hs_core.errors import BrokenError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
EFFORT = 1.0  # CP-SAT's deterministic seconds; what it is asked is small or hopeless


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

    def used(self, counts: Ints) -> int:
        return int(counts.sum(axis=1) @ self.gpus)


def most_gpus(gpus: Ints, eligible: Bools, capacity: Ints) -> Most:
    """`gpus` (J,) gang sizes, `eligible` (J, I), `capacity` (I,) free GPUs of each type.

    Two fills are proof enough where they use every job, or of every type as many GPUs as sums of gangs can make up: largest gangs first, and
    type by type to its largest sum. Else a small whole program over classes decides.
    """
    classes = _classes(gpus, eligible)
    types = _scarcest_first(classes, capacity)
    room = sum(
        _sums(classes, classes.count, int(capacity[kind]), kind)[-1].bit_length() - 1 for kind in types
    )
    bound = min(int((classes.count * classes.gpus).sum()), room)
    counts = _fill(classes, capacity, types)
    if classes.used(counts) < bound:
        other = _fill_by_sums(classes, capacity, types)
        counts = max(counts, other, key=classes.used)
    proved = classes.used(counts) == bound
    if not proved:
        counts, proved = _search(classes, capacity, counts, bound)
    return Most(classes.used(counts), _spread(classes, counts), proved)


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


def _scarcest_first(classes: _Classes, capacity: Ints) -> list[int]:
    """Types by how much is wanted of them for each GPU."""
    wanted = (classes.count * classes.gpus) @ classes.eligible / np.maximum(capacity, 1)
    order: list[int] = np.argsort(wanted, kind="stable").tolist()
    return order


def _fill(classes: _Classes, capacity: Ints, types: list[int]) -> Ints:
    """Jobs of each class on each type, (C, I): the largest gangs first, on the least wanted types."""
    free = capacity.copy()
    counts = np.zeros(classes.eligible.shape, np.int64)
    for at, (gang, left) in enumerate(zip(classes.gpus.tolist(), classes.count.tolist(), strict=True)):
        rest = left
        for kind in types:
            if rest and classes.eligible[at, kind]:
                taken = min(rest, int(free[kind]) // gang)
                counts[at, kind] = taken
                free[kind] -= taken * gang
                rest -= taken
    return counts


def _parts(classes: _Classes, left: Ints, kind: int) -> list[tuple[int, int]]:
    """(gang, jobs) in powers of two, so that any number of jobs is a sum; small gangs first."""
    found = []
    may = classes.eligible[:, kind]
    for gang in np.unique(classes.gpus[may]).tolist():
        rest, step = int(left[may & (classes.gpus == gang)].sum()), 1
        while rest:
            found.append((gang, min(step, rest)))
            rest -= min(step, rest)
            step *= 2
    return found


def _sums(classes: _Classes, left: Ints, room: int, kind: int) -> list[int]:
    """Sums of gangs up to `room` as the bits of a number: with none of the parts, with the first, the first two, …"""
    found, mask = [1], (1 << room + 1) - 1
    for gang, jobs in _parts(classes, left, kind):
        found.append(found[-1] | found[-1] << gang * jobs & mask)
    return found


def _fill_by_sums(classes: _Classes, capacity: Ints, types: list[int]) -> Ints:
    """Jobs of each class on each type: type by type the largest sum that the jobs left can make, of large gangs where there is a choice."""
    left = classes.count.copy()
    counts = np.zeros(classes.eligible.shape, np.int64)
    later = classes.eligible.sum(axis=1)
    for kind in types:
        later = later - classes.eligible[:, kind]
        sums = _sums(classes, left, int(capacity[kind]), kind)
        rest = sums[-1].bit_length() - 1
        taken: dict[int, int] = {}
        for part, (gang, jobs) in reversed(list(enumerate(_parts(classes, left, kind)))):
            if rest >= gang * jobs and sums[part] >> rest - gang * jobs & 1:
                rest -= gang * jobs
                taken[gang] = taken.get(gang, 0) + jobs
        for gang, jobs in taken.items():
            may = np.flatnonzero(classes.eligible[:, kind] & (classes.gpus == gang))
            may = may[np.argsort(later[may], kind="stable")]  # who has fewest other types to go to
            ends = np.minimum(np.cumsum(left[may]), jobs)
            counts[may, kind] = np.diff(ends, prepend=0)
            left[may] -= counts[may, kind]
    return counts


def _search(classes: _Classes, capacity: Ints, hint: Ints, bound: int) -> tuple[Ints, bool]:
    at, kind = np.nonzero(classes.eligible)
    columns = np.arange(len(at))
    gangs = classes.gpus[at]
    shape = classes.eligible.shape
    rows = solve.Entries(
        np.concatenate([at, shape[0] + kind, np.full(len(at), sum(shape))]),
        np.concatenate([columns, columns, columns]),
        np.concatenate([np.ones(len(at)), gangs, gangs]).astype(float),
        (sum(shape) + 1, len(at)),
    )
    found = solve.ip(
        -gangs,
        a_ub=rows,
        b_ub=np.concatenate([classes.count, capacity, [bound]]),
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
