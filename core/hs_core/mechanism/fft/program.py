"""FFT's program of one round: a type for each job at the least cost, with as many GPUs busy as can be (equations 1, 6, 7).

Its LP has one price per type and one for using all GPUs; columns far from these prices can't be in a good solution. So: prices by GLOP, jobs
added until no left-out one would be bought at them; then CP-SAT over the jobs that the prices leave undecided, its objective being the
reduced costs: what a choice costs above the LP's bound. The gap to that bound is part of the answer.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hs_core import solve
from hs_core.errors import BrokenError
from hs_core.mechanism.fft.exchange import exchanged
from hs_core.mechanism.fft.most import Most, most_gpus

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

GAP = 2e-4  # of the value; a fifth of what is promised
UNDECIDED = 100  # jobs that CP-SAT gets at first; twice as many when that wasn't enough
EFFORT = 1.0  # CP-SAT's deterministic seconds for the first of these
FINE = 1e9  # the value in CP-SAT's whole numbers
LARGEST = 2.0**52  # sum of all costs there
TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Round:
    choice: Ints  # (J,) type of each job; -1: it waits
    gpus: int  # in use
    value: float  # sum of costs
    bound: float  # no choice that uses as many GPUs costs less
    relaxed: float  # the LP's bound, which holds for mixtures of choices too
    prices: Floats  # (I,): of a GPU of each type in the LP

    @property
    def gap(self) -> float:
        """Of value above bound, relative to the value; 0: proved optimal."""
        above = self.value - self.bound
        return 0.0 if above <= TINY * abs(self.value) else above / max(abs(self.value), TINY)


@dataclass(frozen=True, slots=True)
class _Case:
    costs: Floats  # (J, I)
    gpus: Ints  # (J,)
    capacity: Ints  # (I,)
    least: int  # K: GPUs to use


@dataclass(frozen=True, slots=True)
class _Lp:
    x: Floats  # (J, I)
    bound: float
    reduced: Floats  # (J, I): cost above what the job's slot and its GPUs are worth
    idle: Floats  # (J,): the same for waiting
    slack: Floats  # (I,): of a GPU that isn't used
    surplus: float  # of a GPU that is used beyond K


def decide(costs: Floats, gpus: Ints, capacity: Ints, *, gap: float = GAP, busy: bool = True) -> Round:
    """The round: `costs` (J, I), inf where a job can't run; `gpus` (J,) gang sizes; `capacity` (I,) GPUs of each type.

    At most one type per job, no type oversubscribed, as many GPUs in use as any choice could use (`busy`; else only where that
    lowers the sum of costs). Stops at relative gap `gap`. The same question has the same answer. Raises BrokenError when shapes don't agree.
    """
    if costs.shape != (len(gpus), len(capacity)):
        raise BrokenError(f"costs has shape {costs.shape}; expected {(len(gpus), len(capacity))}")
    eligible = np.isfinite(costs)
    nobody = np.full(len(gpus), -1, np.int64)
    if not eligible.any():
        return Round(nobody, 0, 0.0, 0.0, 0.0, np.zeros(len(capacity)))
    most = most_gpus(gpus, eligible, capacity) if busy else Most(0, nobody, proved=True)
    case = _Case(costs, gpus, capacity, most.gpus)
    lp = _prices(case, most.choice)
    found = _rounded(case, lp, _round(case, lp, most.choice, lp.bound), gap)
    return _round(case, lp, exchanged(costs, gpus, found.choice), found.bound)


def _round(case: _Case, lp: _Lp, choice: Ints, bound: float) -> Round:
    runs = np.flatnonzero(choice >= 0)
    value = float(case.costs[runs, choice[runs]].sum())
    gpus = int(case.gpus[runs].sum())
    return Round(choice, gpus, value, min(bound, value), min(lp.bound, value), lp.slack - lp.surplus)


def _prices(case: _Case, start: Ints) -> _Lp:
    """The LP's optimum over all jobs, by columns of those that matter; `start` keeps the first of these programs feasible."""
    costs, gpus, capacity, least = case.costs, case.gpus, case.capacity, case.least
    active = start >= 0
    density = (costs / gpus[:, None]).min(axis=1)
    order = np.argsort(density, kind="stable")
    active[order[np.cumsum(gpus[order]) <= 1.3 * capacity.sum()]] = True
    active &= np.isfinite(density)
    while True:
        jobs = np.flatnonzero(active)
        at, kind = np.nonzero(np.isfinite(costs[jobs]))
        columns = np.arange(len(at))
        held = gpus[jobs[at]].astype(float)
        types = len(capacity)
        rows = solve.Entries(
            np.concatenate([at, len(jobs) + kind, np.full(len(at), len(jobs) + types)]),
            np.concatenate([columns, columns, columns]),
            np.concatenate([np.ones(len(at)), held, -held]),
            (len(jobs) + types + 1, len(at)),
        )
        limits = np.concatenate([np.ones(len(jobs)), capacity, [-least]])
        answer = solve.lp(costs[jobs[at], kind], a_ub=rows, b_ub=limits)
        slack, surplus = np.maximum(answer.prices[len(jobs) : -1], 0.0), max(float(answer.prices[-1]), 0.0)
        worth = costs + gpus[:, None] * (slack - surplus)
        best = worth.min(axis=1)
        idle = np.maximum(-best, 0.0)
        bound = float(surplus * least - slack @ capacity - idle.sum())
        new = (best < -TINY * max(abs(bound), 1.0) / max(least, 1)) & ~active
        if not new.any():
            x = np.zeros(costs.shape)
            x[jobs[at], kind] = answer.x
            return _Lp(x, bound, worth + idle[:, None], idle, slack, surplus)
        active |= new


def _rounded(case: _Case, lp: _Lp, best: Round, gap: float) -> Round:
    """Whole numbers: CP-SAT over more and more jobs until the gap is small enough or nothing is left to add."""
    wanted = np.where(lp.x.sum(axis=1) > 0.5, lp.x.argmax(axis=1), -1)
    broken = (np.abs(lp.x - np.rint(lp.x)) > 1e-6).any(axis=1)
    other = np.where(broken, -1.0, _second(lp, wanted))
    order = np.argsort(other, kind="stable")
    undecided, effort = max(UNDECIDED, 2 * int(broken.sum())), EFFORT
    while True:
        free = _undecided(order, other, wanted * (int(case.gpus.max()) + 1) + case.gpus, undecided)
        beyond = float(other[order[undecided]]) if undecided < len(order) else np.inf
        found = _core(case, lp, wanted, free, beyond=beyond, effort=effort, within=gap / 2 * abs(lp.bound))
        if found is not None:
            choice, above = found
            bound = max(best.bound, lp.bound + min(above, beyond))
            best = min(
                _round(case, lp, choice, bound),
                _round(case, lp, best.choice, bound),
                key=lambda round_: round_.value,
            )
        if best.gap <= gap or undecided >= len(order):
            return best
        undecided, effort = undecided * 2, effort * 2


def _undecided(order: Ints, other: Floats, kind: Ints, count: int) -> Ints:
    """The first `count` of `order`, ascending; of those tied for the last places some of each kind, as many alike open no new choices."""
    if count >= len(order):
        return np.sort(order)
    last = other[order[count - 1]]
    first, end = np.searchsorted(other[order], [last, np.nextafter(last, np.inf)])
    tied = order[first:end]
    by_kind = np.argsort(kind[tied], kind="stable")
    ordered = kind[tied][by_kind]
    rank = np.empty(len(tied), np.int64)
    rank[by_kind] = np.arange(len(tied)) - np.searchsorted(ordered, ordered)
    chosen = tied[np.argsort(rank, kind="stable")][: count - first]
    return np.sort(np.concatenate([order[:first], chosen]))


def _second(lp: _Lp, wanted: Ints) -> Floats:
    """(J,) what the best alternative of a job to its `wanted` one costs above the bound."""
    other: Floats = lp.reduced.min(axis=1)
    runs = np.flatnonzero(wanted >= 0)
    rest = lp.reduced[runs].copy()
    rest[np.arange(len(runs)), wanted[runs]] = np.inf
    other[runs] = np.minimum(rest.min(axis=1), lp.idle[runs])
    return other


def _core(
    case: _Case, lp: _Lp, wanted: Ints, free: Ints, *, beyond: float, effort: float, within: float
) -> tuple[Ints, float] | None:
    """The choice when only the jobs in `free` are open, and what any such choice costs above the LP's bound at least; None: none found.

    Columns: one per open alternative, the unused GPUs of each type, and those used beyond K. They are what the bound's proof is made of,
    so the objective is small where the choice is good, and CP-SAT's work is short.
    """
    gpus, capacity = case.gpus, case.capacity
    types = len(capacity)
    fixed = wanted.copy()
    fixed[free] = -1
    runs = np.flatnonzero(fixed >= 0)
    left = capacity - np.bincount(fixed[runs], gpus[runs], types).astype(np.int64)
    reduced = np.column_stack([lp.reduced[free], lp.idle[free]])
    waits = fixed < 0
    waits[free] = False
    sunk = float(lp.reduced[runs, fixed[runs]].sum() + lp.idle[waits].sum())
    at, kind = np.nonzero(np.isfinite(reduced) & (reduced <= max(beyond, TINY)))
    columns = len(at) + types + 1
    prices = np.concatenate([reduced[at, kind], lp.slack, [lp.surplus]])
    total = int(capacity.sum()) - case.least
    upper = np.concatenate([np.ones(len(at), np.int64), capacity, [total]])
    fine = FINE / max(abs(lp.bound), float(reduced[at, kind].max(initial=0.0)), TINY)
    scale = min(fine, LARGEST / max(float(prices @ upper), float(prices.max()), TINY))
    works = np.flatnonzero(kind < types)
    spare = len(at) + np.arange(types)
    rows = solve.Entries(
        np.concatenate(
            [at, len(free) + kind[works], len(free) + np.arange(types), np.full(types + 1, len(free) + types)]
        ),
        np.concatenate([np.arange(len(at)), works, spare, np.arange(len(at), columns)]),
        np.concatenate([np.ones(len(at)), gpus[free[at[works]]], np.ones(2 * types + 1)]),
        (len(free) + types + 1, columns),
    )
    try:
        answer = solve.ip(
            np.floor(prices * scale).astype(np.int64),
            a_eq=rows,
            b_eq=np.concatenate([np.ones(len(free), np.int64), left, [total]]),
            upper=upper,
            within=within * scale,
            effort=effort,
        )
    except solve.InfeasibleError:
        return None
    if answer is None:
        return None
    chosen = np.flatnonzero(answer.x[: len(at)])
    fixed[free[at[chosen]]] = np.where(kind[chosen] < types, kind[chosen], -1)
    return fixed, sunk + answer.bound / scale
