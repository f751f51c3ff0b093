"""Jobs that an LP can't tell apart are one class: exact, for the mean of an optimum over its equals is an optimum."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hs_core.mechanism.gavel.question import Floats, Ints, Question

FEW = 128  # jobs


@dataclass(frozen=True, slots=True)
class Classes:
    of: Ints  # class of each job
    first: Ints  # a job of each class
    count: Ints  # jobs of each class

    def spread(self, total: Floats) -> Floats:
        """What each job gets of its class's total (rows)."""
        each: Floats = (total / self.count.reshape(-1, *[1] * (total.ndim - 1)))[self.of]
        return each


def classes(question: Question, *more: Floats, by_class: bool = True) -> Classes:
    """Equal speeds, gang and weight, and equal `more` (J each). `by_class=False`: every job its own."""
    jobs = len(question.gang)
    if not by_class:
        each = np.arange(jobs)
        return Classes(each, each, np.ones(jobs, np.int64))
    columns = [question.gang, question.weight, *more]
    if question.sharing is not None:
        columns.append(question.sharing.kind)  # one kind has one speed
    else:
        columns.extend(question.speed.T)
    if jobs <= FEW:
        return _of_few(zip(*(column.tolist() for column in columns), strict=True))
    table = np.column_stack(columns).astype(float)
    first, of, count = _equal_rows(table)
    order = np.argsort(first, kind="stable")  # by first appearance
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return Classes(rank[of], first[order], count[order])


def _of_few(jobs: Iterable[tuple[float, ...]]) -> Classes:
    """Each by all that it is told by: for no more, arrays are not worth it."""
    known: dict[tuple[float, ...], int] = {}
    first: list[int] = []
    of: list[int] = []
    for job, said in enumerate(jobs):
        found = known.setdefault(said, len(first))
        if found == len(first):
            first.append(job)
        of.append(found)
    each = np.array(of, dtype=np.int64)
    return Classes(each, np.array(first, dtype=np.int64), np.bincount(each, minlength=len(first)))


def _equal_rows(table: Floats) -> tuple[Ints, Ints, Ints]:
    """np.unique of rows; by one number for each row, four times as fast, unless two different rows happen to share theirs."""
    mix = np.zeros(len(table))
    # Column by column: equal rows must round alike, which a product by BLAS doesn't promise.
    for at, column in enumerate(table.T):
        scale = np.abs(column).max(initial=0.0)
        mix += column * (np.sqrt(2.0 + at) / (scale if scale > 0 else 1.0))
    _, first, of, count = np.unique(mix, return_index=True, return_inverse=True, return_counts=True)
    if (table == table[first][of]).all():
        return first, of, count
    _, first, of, count = np.unique(table, axis=0, return_index=True, return_inverse=True, return_counts=True)
    return first, of.ravel(), count
