"""The linear program that all of Gavel's policies share: columns of time, rows that keep every job's time and every type's GPUs.

A column is the time that a class of jobs spends on a type, alone or beside jobs of a kind. Of a pair each side has its own column, with half
of the GPUs; both sides of a pair of kinds spend the same time together. So 2,000 jobs that share have as many columns as there are
pairs of kinds, not of jobs. Sharing that time-slicing beats (both would do better alone, in turns on the same GPUs) has no column.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hs_core.mechanism.gavel.kinds import Classes
from hs_core.mechanism.gavel.partners import settle
from hs_core.mechanism.gavel.question import Allocation, Floats, Ints, Question
from hs_core.solve import Entries, LpAnswer, Method, lp

ALONE = -1
MANY_ROWS = 1_000  # above this an interior point is faster than GLOP's simplex
SMALL_KIND = 8  # classes of one kind
SLACK = 1e-7
NOWHERE = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)  # rows, columns and values of no entries


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows `matrix @ [x, extra] <= bound`."""

    matrix: Entries
    bound: Floats


@dataclass(frozen=True, slots=True)
class Found:
    x: Floats  # time of each class in each column
    extra: Floats  # the columns of the policy's own
    value: float
    prices: Floats  # of the policy's own rows
    lps: int


class Program:
    def __init__(self, question: Question, classes: Classes) -> None:
        self.question = question
        self.classes = classes
        first = classes.first
        of, on = np.nonzero(question.can[first])
        self.of: Ints = of  # class of each column
        self.on: Ints = on  # its type
        self.beside: Ints = np.full(len(of), ALONE)  # kind of the partner
        self.speed: Floats = question.speed[first[of], on]  # steps/s of one job all the time there
        self.kind: Ints = np.arange(len(first)) if question.sharing is None else question.sharing.kind[first]
        if question.sharing is not None:
            self._pair_up()
        gang = question.gang[first[self.of]].astype(float)
        self.gpus = np.where(self.beside == ALONE, gang, gang / 2)
        # Which columns have a row that keeps them to half of their kind's time: at once where kinds are small, else when it is needed.
        self.within = np.flatnonzero((self.beside != ALONE) & (self.beside == self.kind[self.of]))
        self.place = self.beside[self.within] * len(question.gpus) + self.on[self.within]
        classes_there = np.bincount(self.place)[self.place]
        self.halved = (classes_there > 1) & (classes_there <= SMALL_KIND)

    def _pair_up(self) -> None:
        sharing = self.question.sharing
        assert sharing is not None
        first, kind = self.classes.first, self.kind
        kinds, types = sharing.speed.shape[1:]
        heads = np.bincount(kind, self.classes.count, kinds)
        gang = np.zeros(kinds, np.int64)
        speed, can = np.zeros((kinds, types)), np.zeros((kinds, types), bool)
        gang[kind], speed[kind] = self.question.gang[first], self.question.speed[first]
        can[kind] = self.question.can[first]
        mine, yours = sharing.speed, sharing.speed.transpose(1, 0, 2)
        good = (mine > 0) & (yours > 0) & can[:, None] & can[None, :]
        good &= (gang[:, None] == gang[None, :])[..., None]
        alone = np.where(speed > 0, speed, 1.0)
        good &= mine / alone[:, None] + yours / alone[None, :] > 1.0 + SLACK
        good &= (heads[:, None] > 0)[..., None] & (heads[None, :] > 0)[..., None]
        own = np.arange(kinds)
        good[own, own] &= (heads > 1)[:, None]
        of, beside, on = np.nonzero(good[kind])
        self.of = np.concatenate([self.of, of])
        self.on = np.concatenate([self.on, on])
        self.beside = np.concatenate([self.beside, beside])
        self.speed = np.concatenate([self.speed, mine[kind[of], beside, on]])

    def rate(self, per_class: Floats, extra: int = 0) -> Entries:
        """Classes x columns: each class's mean steps/s of a job, times `per_class`; `extra` empty columns after them."""
        count = self.classes.count[self.of]
        value = self.speed * per_class[self.of] / count
        return Entries(
            self.of, np.arange(len(self.of)), value, (len(self.classes.count), len(self.of) + extra)
        )

    def reached(self, x: Floats) -> Floats:
        """Each class's mean steps/s of a job, with x (time of each class in each column) as far as there are time and GPUs for it: solvers take a little more."""
        classes, types = self.classes.count, self.question.gpus
        time = np.bincount(self.of, x, len(classes)) / classes
        used = np.bincount(self.on, self.gpus * x, len(types))
        over = np.divide(used, types, out=np.zeros(len(types)), where=types > 0)
        total: Floats = np.bincount(self.of, self.speed * x, len(classes)) / classes
        return total / max(1.0, float(time.max(initial=0.0)), float(over.max(initial=0.0)))

    def solve(
        self,
        costs: Floats,
        own: Rows | None = None,
        *,
        method: Method | None = None,
        upper: Floats | None = None,
    ) -> Found:
        """Minimizes costs @ [x, extra]; `costs` is as long as there are columns, the policy's own included."""
        columns = len(self.of)
        method = method or (Method.INTERIOR if len(self.classes.count) > MANY_ROWS else Method.GLOP)
        limit = np.full(len(costs), np.inf)
        if upper is not None:
            limit[columns:] = upper
        equal = self._together(len(costs))
        lps = 0
        while True:
            rows = [self._base(len(costs)), *([own] if own is not None else [])]
            if len(self.within):
                rows.append(self._half_rows(len(costs)))
            stacked = stack(rows)
            answer = lp(
                costs,
                a_ub=stacked.matrix,
                b_ub=stacked.bound,
                a_eq=equal,
                b_eq=np.zeros(equal.shape[0]),
                lower=np.concatenate([np.zeros(columns), np.full(len(costs) - columns, -np.inf)]),
                upper=limit,
                method=method,
            )
            lps += 1
            if not self._find_halves(answer.x[:columns]):
                return self._found(answer, own, lps)

    def _found(self, answer: LpAnswer, own: Rows | None, lps: int) -> Found:
        columns, base = len(self.of), len(self.classes.count) + len(self.question.gpus)
        prices = answer.prices[base : base + (len(own.bound) if own else 0)]
        return Found(answer.x[:columns], answer.x[columns:], answer.value, prices, lps)

    def _base(self, width: int) -> Rows:
        """Every class's time, every type's GPUs."""
        column, classes, types = np.arange(len(self.of)), len(self.classes.count), len(self.question.gpus)
        matrix = Entries(
            np.concatenate([self.of, classes + self.on]),
            np.concatenate([column, column]),
            np.concatenate([np.ones(len(column)), self.gpus]),
            (classes + types, width),
        )
        return Rows(matrix, np.concatenate([self.classes.count, self.question.gpus]).astype(float))

    def _together(self, width: int) -> Entries:
        """Kind a beside b spends the time that b spends beside a."""
        if self.question.sharing is None:
            return Entries(*NOWHERE, (0, width))
        mine = self.kind[self.of]
        at = np.flatnonzero((self.beside != ALONE) & (self.beside != mine))
        if not len(at):
            return Entries(at, at, np.zeros(0), (0, width))
        low, high = np.minimum(mine[at], self.beside[at]), np.maximum(mine[at], self.beside[at])
        keys, row = np.unique(np.stack([low, high, self.on[at]]), axis=1, return_inverse=True)
        sign = np.where(mine[at] == low, 1.0, -1.0)
        return Entries(row.ravel(), at, sign, (keys.shape[1], width))

    def _find_halves(self, x: Floats) -> bool:
        """Adds the rows that are missing: nobody shares with itself, so no job has more than half of the time within its kind."""
        if not len(self.within):
            return False
        mine = x[self.within]
        total = np.bincount(self.place, mine)[self.place] if len(mine) else mine
        missing = ~self.halved & (mine / self.classes.count[self.of[self.within]] > total / 2 + SLACK)
        # All of a kind at once: what one gives up its fellows take, and then they have too much.
        self.halved |= np.isin(self.place, self.place[missing])
        return bool(missing.any())

    def _half_rows(self, width: int) -> Rows:
        """time of a job - half of the time of its kind <= 0."""
        mine = np.flatnonzero(self.halved)
        row, fellow = np.nonzero(self.place[mine][:, None] == self.place[None, :])
        own = mine[row] == fellow
        value = np.where(own, 1.0 / self.classes.count[self.of[self.within[fellow]]], 0.0) - 0.5
        return Rows(Entries(row, self.within[fellow], value, (len(mine), width)), np.zeros(len(mine)))

    def allocation(self, x: Floats, *, value: float, lps: int) -> Allocation:
        """Per job: every job of a class gets the same time alone, and partners of the kinds that its class has."""
        jobs, types = self.question.speed.shape
        alone = np.zeros((len(self.classes.count), types))
        single = self.beside == ALONE
        alone[self.of[single], self.on[single]] = x[single]
        each = np.minimum(np.maximum(self.classes.spread(alone), 0.0), 1.0)
        if self.question.sharing is None or single.all():
            return Allocation(alone=each, paired=np.empty((0, types)), value=value, lps=lps)
        kinds = len(self.question.sharing.speed)
        shared = np.zeros((len(self.classes.count), kinds, types))
        np.add.at(shared, (self.of[~single], self.beside[~single], self.on[~single]), x[~single])
        pairs, paired = settle(self.question.sharing.kind, self.classes.spread(shared))
        assert each.shape == (jobs, types)
        return Allocation(alone=each, pairs=pairs, paired=paired, value=value, lps=lps)


def stack(rows: Sequence[Rows]) -> Rows:
    starts = np.cumsum([0, *(part.matrix.shape[0] for part in rows)])
    matrix = Entries(
        np.concatenate([part.matrix.row + start for part, start in zip(rows, starts[:-1], strict=True)]),
        np.concatenate([part.matrix.col for part in rows]),
        np.concatenate([part.matrix.value for part in rows]),
        (int(starts[-1]), rows[0].matrix.shape[1]),
    )
    return Rows(matrix, np.concatenate([part.bound for part in rows]))
