"""Hadar's round as a program: the most worth that the cluster's GPUs can have, with its gap to the LP's bound.

The LP needs single-type gangs only: one over several types that moves is, in worth and in GPUs, never better than a mixture of single-type
ones in the same proportions. So FFT's program gives prices, bound and choice; mixed gangs then use what is left over, and where the gap is still too
large (few jobs on few GPUs) a whole program over mixed gangs decides. Servers come after types. A gang that says how many servers it has pays for
communication between them as in the greedy round. One that may be laid over several numbers of them is taken to find the fewest.
Who found none, or more than that, is worth what it got, and the round is decided again; gangs are also seated in other orders, so that who
holds servers is in nobody's way that is worth more. Of a few such rounds and the greedy one the best is taken: this is no optimum, but the
bound holds. Gangs that hold GPUs of several types neither restart nor pay there, which no mixture of others makes good: they have columns of their
own in the whole program, and above it the LP's prices decide who of them stays, and bound them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hs_core import solve
from hs_core.errors import BrokenError
from hs_core.mechanism.fft.program import Round
from hs_core.mechanism.fft.program import decide as single_types
from hs_core.mechanism.hadar import NOBODY, Holdings, Terms
from hs_core.mechanism.hadar import decide as greedily
from hs_core.mechanism.prices import Floats, Ints, Jobs, Utility, effective_throughput

GAP = 1e-3
MIXED_JOBS = 256  # the whole program is for small cases; large ones have small gaps
FINE = 1e7
EFFORT = 4.0
TRIES = 4  # where gangs found no servers, or were laid over more of them than was counted on
TRIES_LARGE = 2  # with more jobs than that
SAME = 1e-9
LEAST_KEPT = 1e-6  # of a worth: who pays all of it for communication may still have what nobody wants


@dataclass(frozen=True, slots=True)
class Exact:
    holdings: Holdings
    each: Floats  # (J,) utility of the running jobs; 0: waits
    worth: float  # their sum
    bound: float  # no choice is worth more

    @property
    def gap(self) -> float:
        return (self.bound - self.worth) / self.worth if self.worth > 0 else 0.0


def exact(
    jobs: Jobs,
    capacity: Ints,
    *,
    held: Holdings = NOBODY,
    utility: Utility | None = None,
    terms: Terms | None = None,
    fixed: NDArray[np.bool_] | None = None,
) -> Exact:
    """The round of most total worth: arguments as in `hadar.decide`; prices and admission follow from the program.

    Where jobs want so many servers, who finds no room on those of its types goes without: `worth` is then what is left.
    """
    terms = terms or Terms()
    utility = utility or effective_throughput(jobs)
    case = _Case(jobs, capacity, held, fixed, _laid(jobs, utility, terms))
    truth = _values(case, utility, terms)
    counts, bound = _round(case, truth)
    if jobs.nodes is None:
        return _best(case, truth, [seat(counts, capacity, held)], bound)
    tried: list[Holdings] = []
    believed, done = truth, False
    small = len(counts) <= MIXED_JOBS or jobs.laid is not None
    for left in reversed(range(TRIES if small else TRIES_LARGE)):
        believes = believed.each(counts)
        tried.append(_seated(case, counts))
        each = _each(case, truth, tried[-1])
        over = np.flatnonzero(each < believes * (1 - SAME))
        orders = _orders(jobs, believes, counts.any(axis=1) & (each == 0))
        while not (done := _is_close(case, truth, tried, bound)) and orders:
            tried.append(_seated(case, counts, orders.pop()))
        if done or not len(over):
            break
        if left:
            believed = believed.but(over, counts, each[over])
            counts, _ = _round(case, believed)
    if not done:
        filled = replace(terms, fill=True)
        tried.append(greedily(jobs, capacity, held=held, utility=utility, terms=filled, fixed=fixed).holdings)
    return _best(case, truth, tried, bound)


@dataclass(frozen=True, slots=True)
class _Case:
    jobs: Jobs
    capacity: Ints
    held: Holdings
    fixed: NDArray[np.bool_] | None
    laid: Floats | None  # (J, K, R) worth over other numbers of servers, with that type as the slowest


def _orders(jobs: Jobs, worth: Floats, out: NDArray[np.bool_]) -> list[list[int]]:
    """Other orders in which to seat, where some are `out` (J,): by worth per GPU, these first, and the widest first."""
    if not out.any() or jobs.nodes is None:
        return []
    dense = -worth / jobs.workers
    keys = ((dense,), (dense, ~out), (dense, -(jobs.workers // jobs.nodes)))  # the last is tried first
    return [np.lexsort(key).tolist() for key in keys]


def _is_close(case: _Case, truth: "_Values", tried: Sequence[Holdings], bound: float) -> bool:
    """Of gangs that may be laid otherwise the bound says too little."""
    return case.jobs.laid is None and _best(case, truth, tried[-1:], bound).gap <= GAP


def _best(case: _Case, truth: "_Values", tried: Sequence[Holdings], bound: float) -> Exact:
    each = [_each(case, truth, holdings) for holdings in tried]
    at = int(np.argmax([worths.sum() for worths in each]))
    worth = float(each[at].sum())
    return Exact(tried[at], each[at], worth, max(bound, worth))


def _counts(jobs: Jobs, holdings: Holdings) -> Ints:
    """(J, R) GPUs."""
    found = np.zeros(jobs.rates.shape, np.int64)
    np.add.at(found, (holdings.job, holdings.kind), holdings.gpus)
    return found


def _round(case: _Case, values: "_Values") -> tuple[Ints, float]:
    """(J, R) who has how many GPUs, and more than what no choice is worth."""
    jobs, free = case.jobs, case.capacity.sum(axis=0)
    counts, bound = _single(case, values, free)
    _leftovers(jobs, values, counts, free)
    if bound - values.of(counts) > GAP * bound and len(jobs.workers) <= MIXED_JOBS:
        counts, tighter = _mixed(jobs, values, free, counts, bound)
        # Gangs that may be laid over more servers than one more have more choices than that program.
        bound = tighter if jobs.laid is None else bound
    return counts, bound


def _single(case: _Case, values: "_Values", free: Ints) -> tuple[Ints, float]:
    """Gangs of one type each, and of several where they hold these and that is worth more at the program's prices.

    Prices that are not those of the best mixture with such gangs bound it all the same, so these need no columns.
    """
    jobs, single, counts = case.jobs, values.single, np.zeros(values.single.shape, np.int64)
    found = _of_one_type(jobs, values, counts, free)
    bound = -found.relaxed
    if not values.stay.any():
        return counts, bound
    alone = (single - jobs.workers[:, None] * found.prices).max(axis=1, initial=0.0)
    more = values.stay - values.holds @ found.prices - alone
    gain = np.where(values.stay > 0, more, 0.0)
    bound += float(gain[gain > 0].sum())
    left, stays = case.capacity.copy(), np.zeros(len(counts), np.bool_)
    for job in np.argsort(-gain / jobs.workers, kind="stable")[: int((gain > 0).sum())].tolist():
        rest = left.copy()
        mine = case.held.job == job
        np.subtract.at(rest, (case.held.server[mine], case.held.kind[mine]), case.held.gpus[mine])
        if (rest >= 0).all():
            left, stays[job] = rest, True
    if not stays.any():
        return counts, bound
    kept = np.where(stays[:, None], values.holds, 0)
    others = replace(values, single=np.where(stays[:, None], 0.0, single))
    _of_one_type(jobs, others, kept, left.sum(axis=0))
    return max(counts, kept, key=values.of), bound


def _of_one_type(jobs: Jobs, values: "_Values", counts: Ints, free: Ints) -> Round:
    """Adds them to `counts`."""
    worth = values.single
    found = single_types(np.where(worth > 0, -worth, np.inf), jobs.workers, free, busy=False)
    runs = np.flatnonzero(found.choice >= 0)
    runs = runs[(values.able * _parts(jobs)[:, None])[runs, found.choice[runs]] >= jobs.workers[runs]]
    counts[runs, found.choice[runs]] = jobs.workers[runs]
    return found


def _seated(case: _Case, counts: Ints, order: Sequence[int] | None = None) -> Holdings:
    nodes, laid = case.jobs.nodes, case.jobs.laid
    assert nodes is not None, "others are seated GPU by GPU"
    over = nodes[:, None] if laid is None else np.column_stack([nodes, laid.nodes])
    return seat_nodes(counts, over, case.capacity, case.held, case.fixed, order=order)


def _laid(jobs: Jobs, utility: Utility, terms: Terms) -> Floats | None:
    """(J, K, R) worth over other numbers of servers, with that type as the slowest."""
    if jobs.laid is None:
        return None
    worth = utility(jobs.laid_ends_s(terms.restart_s)).reshape(jobs.laid.rates.shape)
    kept = _kept(jobs.laid.nodes, terms)
    return np.where(jobs.laid.nodes[:, :, None] > 0, worth * kept[:, :, None], 0.0)


def _kept(nodes: Ints, terms: Terms) -> Floats:
    most = int(nodes.max(initial=1))
    parts = [1.0, *(max(LEAST_KEPT, terms.kept(servers)) for servers in range(1, most + 1))]
    return np.array(parts)[nodes]


def _each(case: _Case, values: "_Values", holdings: Holdings) -> Floats:
    """(J,) worth on those holdings; 0: waits."""
    jobs = case.jobs
    counts = _counts(jobs, holdings)
    each = values.each(counts, _stays(case, holdings))
    if jobs.laid is None or case.laid is None:
        return each
    servers = np.bincount(holdings.job, minlength=len(each))
    for job in np.flatnonzero((jobs.laid.nodes == servers[:, None]).any(axis=1) & (servers > 0)).tolist():
        option = int(np.flatnonzero(jobs.laid.nodes[job] == servers[job])[0])
        each[job] = case.laid[job, option, counts[job] > 0].min()
    return each


def _stays(case: _Case, holdings: Holdings) -> NDArray[np.bool_]:
    """(J,) who has just what it holds."""
    servers, types = case.capacity.shape
    count = len(case.jobs.workers)
    most = int(case.jobs.workers.max(initial=0)) + 1
    now, before = (
        ((of.job * servers + of.server) * types + of.kind) * most + of.gpus for of in (holdings, case.held)
    )
    same = np.bincount(holdings.job[np.isin(now, before)], minlength=count)
    rows, held = (np.bincount(of.job, minlength=count) for of in (holdings, case.held))
    return np.asarray((same == rows) & (rows == held) & (rows > 0))


@dataclass(frozen=True, slots=True)
class _Values:
    rates: Floats  # (J, R)
    single: Floats  # (J, R) worth with the whole gang on that type, which may be home; 0: it can't run there
    move: Floats  # (J, R) the same, elsewhere
    mixed: Floats  # (J, R) with that type as the slowest of several; never more
    holds: Ints  # (J, R) GPUs
    stay: Floats  # (J,) worth there, where these are of several types; 0: they are not, or are gone
    able: Ints  # (J, R) how many of the type's servers could take a part of it

    def of(self, counts: Ints) -> float:
        return float(self.each(counts).sum())

    def but(self, jobs: Ints, counts: Ints, worth: Floats) -> "_Values":
        """These jobs are worth only so much on those GPUs (J, R)."""
        single, stay = self.single.copy(), self.stay.copy()
        home = (counts[jobs] == self.holds[jobs]).all(axis=1) & (stay[jobs] > 0)
        stay[jobs[home]] = worth[home]
        others = jobs[~home]
        single[others, self._slowest(counts, others)] = worth[~home]
        return replace(self, single=single, mixed=np.minimum(self.mixed, single), stay=stay)

    def each(self, counts: Ints, stays: NDArray[np.bool_] | None = None) -> Floats:
        """(J,) `stays`: who has GPUs of the types that it holds at home, too; else all of these."""
        found = np.zeros(len(counts))
        runs = np.flatnonzero(counts.any(axis=1))
        slowest = self._slowest(counts, runs)
        alone = (counts[runs] > 0).sum(axis=1) == 1
        home = np.ones(len(runs), np.bool_) if stays is None else stays[runs]
        single = np.where(home, self.single[runs, slowest], self.move[runs, slowest])
        found[runs] = np.where(alone, single, self.mixed[runs, slowest])
        back = runs[home & (self.stay[runs] > 0) & (counts[runs] == self.holds[runs]).all(axis=1)]
        found[back] = self.stay[back]
        return found

    def _slowest(self, counts: Ints, jobs: Ints) -> Ints:
        found: Ints = np.where(counts[jobs] > 0, self.rates[jobs], np.inf).argmin(axis=1)
        return found


def _values(case: _Case, utility: Utility, terms: Terms) -> _Values:
    """Who stays on what it holds neither restarts nor pays for communication."""
    jobs, laid, able = case.jobs, case.laid, _able(case.jobs, case.capacity)
    runs = (jobs.rates > 0) & (able > 0)
    holds = np.zeros(runs.shape, np.int64)
    np.add.at(holds, (case.held.job, case.held.kind), case.held.gpus)
    home = holds == jobs.workers[:, None]
    can = runs if case.fixed is None else runs & (~case.fixed[:, None] | home)
    move = np.where(can, utility(jobs.ends_s(terms.restart_s)), 0.0)
    if jobs.nodes is not None:
        move *= _kept(jobs.nodes, terms)[:, None]
    here = np.where(runs, utility(jobs.ends_s()), 0.0)
    mixed = move
    if laid is not None and jobs.nodes is not None:
        several = can & np.asarray((jobs.nodes == 1) & (laid > 0).any(axis=(1, 2)))[:, None]
        mixed = np.where(
            several, np.minimum(move, laid.max(axis=1)), move
        )  # on one server all are of one type
    there = case.capacity[case.held.server, case.held.kind] >= case.held.gpus
    whole = (holds.sum(axis=1) == jobs.workers) & ~home.any(axis=1)
    whole[case.held.job[~there]] = False
    stay = np.where(whole, np.where(holds > 0, here, np.inf).min(axis=1), 0.0)
    return _Values(jobs.rates, np.where(home, here, move), move, mixed, holds, stay, able)


def _parts(jobs: Jobs) -> Ints:
    """(J,) GPUs of one type that come together."""
    if jobs.nodes is None:
        return np.ones_like(jobs.workers)
    if jobs.laid is None:
        return jobs.workers // jobs.nodes
    return jobs.workers // np.where(
        (jobs.nodes == 1) & (jobs.laid.nodes[:, 0] > 0), jobs.laid.nodes[:, 0], jobs.nodes
    )


def _able(jobs: Jobs, capacity: Ints) -> Ints:
    """(J, R) servers of the type that are wide enough for a part of the gang; as many as it has workers where it may be laid otherwise."""
    anywhere = np.broadcast_to(jobs.workers[:, None], jobs.rates.shape)
    if jobs.nodes is None:
        return anywhere
    sizes, of = np.unique(_parts(jobs), return_inverse=True)
    servers: Ints = (capacity[None, :, :] >= sizes[:, None, None]).sum(axis=1)[of]
    if jobs.laid is None:
        return servers
    return np.where(jobs.laid.nodes.max(axis=1)[:, None] > 0, anywhere, servers)


def _leftovers(jobs: Jobs, values: _Values, counts: Ints, free: Ints) -> None:
    """Waiting jobs, most worth per GPU first, on what the single-type gangs left; changes `counts`."""
    worth, left = values.single, free - counts.sum(axis=0)
    most = np.maximum(worth.max(axis=1, initial=0.0), values.stay)
    waits = np.flatnonzero(~counts.any(axis=1) & (most > 0))
    order = waits[np.argsort(-most[waits] / jobs.workers[waits], kind="stable")]
    parts = _parts(jobs).tolist()
    for job in order[jobs.workers[order] <= left.sum()].tolist():
        rest = int(jobs.workers[job])
        taken = np.zeros_like(left)
        if values.stay[job] and (values.holds[job] <= left).all():
            counts[job] = values.holds[job]
            left -= counts[job]
            continue
        for kind in np.argsort(-jobs.rates[job], kind="stable").tolist():
            if worth[job, kind] > 0:
                most = min(int(left[kind]) // parts[job], int(values.able[job, kind]))
                taken[kind] = min(rest, most * parts[job])
                rest -= int(taken[kind])
        if rest == 0:
            counts[job] = taken
            left -= taken


def _mixed(jobs: Jobs, values: _Values, free: Ints, counts: Ints, bound: float) -> tuple[Ints, float]:
    """Whole program: x[j, t] job j runs with t as its slowest type, z[j, t] how many times it has GPUs of type t that come together; y[j] it stays on several types."""
    worth = values.single
    at, kind = np.nonzero(worth > 0)
    pairs, types, count = np.arange(len(at)), worth.shape[1], len(worth)
    each = _parts(jobs)[at]
    parts = jobs.workers[at] // each
    allowed = (jobs.rates[at] >= jobs.rates[at, kind][:, None]) & (worth[at] > 0)  # (pairs, R): by x's type
    pair_of = np.full(worth.shape, -1, np.int64)
    pair_of[at, kind] = pairs
    slow, fast = np.nonzero(allowed)
    n = len(at)
    ones = np.ones(n)
    stays = np.flatnonzero(values.stay > 0)
    stay, taken = np.nonzero(values.holds[stays])
    ub = solve.Entries(  # one type a job; z only where x allows; capacity
        np.concatenate(
            [at, count + pairs, count + pair_of[at[slow], fast], count + n + kind, stays, count + n + taken]
        ),
        np.concatenate([pairs, n + pairs, slow, n + pairs, 2 * n + np.arange(len(stays)), 2 * n + stay]),
        np.concatenate(
            [ones, ones, -parts[slow], each, np.ones(len(stays)), values.holds[stays[stay], taken]]
        ).astype(float),
        (count + n + types, 2 * n + len(stays)),
    )
    eq = solve.Entries(  # the whole gang or nothing
        np.concatenate([at, at]),
        np.concatenate([n + pairs, pairs]),
        np.concatenate([ones, -parts]).astype(float),
        (count, 2 * n + len(stays)),
    )
    scale = FINE / bound
    # More than the bound only by rounding, where nothing is free.
    gain = np.minimum(np.concatenate([worth[at, kind], np.zeros(n), values.stay[stays]]), bound)
    answer = solve.ip(
        -np.floor(gain * scale).astype(np.int64),
        a_ub=ub,
        b_ub=np.concatenate([np.ones(count, np.int64), np.zeros(n, np.int64), free]),
        a_eq=eq,
        b_eq=np.zeros(count, np.int64),
        upper=np.concatenate(
            [np.ones(n, np.int64), np.minimum(parts, values.able[at, kind]), np.ones(len(stays), np.int64)]
        ),
        effort=EFFORT,
    )
    if answer is None:
        return counts, bound
    mixed = np.zeros(worth.shape, np.int64)
    mixed[at, kind] = answer.x[n : 2 * n] * each
    mixed[stays] += values.holds[stays] * answer.x[2 * n :, None]
    # Rounding down may have lost a unit for each running job.
    bound = min(bound, (count - answer.bound) / scale)
    best = mixed if values.of(mixed) > values.of(counts) else counts
    return best, max(bound, values.of(best))


def seat(counts: Ints, capacity: Ints, held: Holdings = NOBODY) -> Holdings:
    """Servers for `counts` (J, R): who needs what it holds stays; then the largest gangs first, each in the fullest server that takes it whole.

    A gang that no server takes whole gets the servers with most of what it needs. Raises BrokenError where counts exceed `capacity` (H, R).
    """
    if (counts.sum(axis=0) > capacity.sum(axis=0)).any():
        raise BrokenError(
            f"{counts.sum(axis=0)} GPUs of the types are seated; there are {capacity.sum(axis=0)}"
        )
    free = capacity.copy()
    rows: list[tuple[int, int, int, int]] = []
    holds = np.zeros(counts.shape, np.int64)
    np.add.at(holds, (held.job, held.kind), held.gpus)
    stays = (holds == counts).all(axis=1) & counts.any(axis=1)
    for job, server, kind, gpus in zip(held.job, held.server, held.kind, held.gpus, strict=True):
        if stays[job] and free[server, kind] >= gpus:
            free[server, kind] -= gpus
            rows.append((int(job), int(server), int(kind), int(gpus)))
        elif stays[job]:
            stays[job] = False
            for row in [row for row in rows if row[0] == job]:
                free[row[1], row[2]] += row[3]
                rows.remove(row)
    sizes = counts.sum(axis=1)
    for job in np.argsort(-sizes, kind="stable").tolist():
        if sizes[job] and not stays[job]:
            rows.extend((job, *pick) for pick in _seat_one(counts[job].copy(), free))
    return Holdings(*np.array(sorted(rows), np.int64).reshape(-1, 4).T)


def _seat_one(need: Ints, free: Ints) -> list[tuple[int, int, int]]:
    """(server, type, GPUs); changes both."""
    picks: list[tuple[int, int, int]] = []
    while need.any():
        usable = np.minimum(free, need).sum(axis=1)
        whole = usable == need.sum()
        room = free.sum(axis=1)
        server = int(np.where(whole, room, room.max() + 1).argmin()) if whole.any() else int(usable.argmax())
        taken = np.minimum(free[server], need)
        picks.extend((server, int(kind), int(taken[kind])) for kind in np.flatnonzero(taken))
        free[server] -= taken
        need -= taken
    return picks


def seat_nodes(
    counts: Ints,
    over: Ints,
    capacity: Ints,
    held: Holdings,
    fixed: NDArray[np.bool_] | None,
    *,
    order: Sequence[int] | None = None,
) -> Holdings:
    """Servers for `counts` (J, R): who needs what it holds stays if it can; then the largest on the fullest that take them.

    `over` (J, 1 + K): numbers of servers, with as many GPUs on each, in the order in which they are tried; 0: no more of them. `order`: of
    all jobs; who comes before one that could stay may have its place.
    """
    gangs = counts.sum(axis=1)
    free = capacity.copy()
    rows: list[tuple[int, int, int, int]] = []
    homes: dict[int, list[tuple[int, int, int]]] = {}
    for job, *pick in zip(
        *(column.tolist() for column in (held.job, held.server, held.kind, held.gpus)), strict=True
    ):
        homes.setdefault(job, []).append((pick[0], pick[1], pick[2]))

    def stays(job: int) -> bool:
        home = homes.get(job, [])
        own = np.zeros_like(counts[job])
        for _, kind, gpus in home:
            own[kind] += gpus
        if not home or (own != counts[job]).any() or any(free[at, kind] < gpus for at, kind, gpus in home):
            return False
        for server, kind, gpus in home:
            free[server, kind] -= gpus
            rows.append((job, server, kind, gpus))
        return True

    wants = np.asarray(counts.any(axis=1))
    rest = np.flatnonzero(wants).tolist() if order is None else [job for job in order if wants[job]]
    if order is None:
        rest = [job for job in rest if not stays(job)]
        rest.sort(key=lambda job: (-gangs[job] // over[job, 0], -gangs[job], job))
    for job in rest:
        if (order is not None and stays(job)) or (fixed is not None and fixed[job]):
            continue
        for each in (int(gangs[job]) // nodes for nodes in over[job].tolist() if nodes):
            picks = [] if (counts[job] % each).any() else _nodes(counts[job], each, free)
            for server, kind in picks:
                free[server, kind] -= each
                rows.append((job, server, kind, each))
            if picks:
                break
    return Holdings(*np.array(sorted(rows), np.int64).reshape(-1, 4).T)


def _nodes(need: Ints, each: int, free: Ints) -> list[tuple[int, int]]:
    """(server, type), a server once; empty if there are too few."""
    picks: list[tuple[int, int]] = []
    for kind in np.flatnonzero(need).tolist():
        taken = {server for server, _ in picks}
        able = [server for server in np.flatnonzero(free[:, kind] >= each).tolist() if server not in taken]
        able.sort(key=lambda server: (int(free[server, kind]), server))
        nodes = int(need[kind]) // each
        if len(able) < nodes:
            return []
        picks.extend((server, kind) for server in able[:nodes])
    return picks
