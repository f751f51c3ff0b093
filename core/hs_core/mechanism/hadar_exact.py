"""Hadar's round as a program: the most worth that the cluster's GPUs can have, with its gap to the LP's bound.

The LP needs single-type gangs only: one over several types is, in worth and in GPUs, never better than a mixture of single-type ones in the
same proportions. So FFT's program gives prices, bound and choice; mixed gangs then use what is left over, and where the gap is still too
large (few jobs on few GPUs) a whole program over mixed gangs decides. Servers come after types. A gang that says how many servers it has pays for
communication between them as in the greedy round. One that may be laid over several numbers of them is taken to find the fewest; those that did not are worth what
they got, and the round is decided again. Of a few such rounds and the greedy one the best is taken: with such gangs this is no optimum, but the bound holds.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hs_core import solve
from hs_core.errors import BrokenError
from hs_core.mechanism.fft.program import decide as single_types
from hs_core.mechanism.hadar import NOBODY, Seats, Terms
from hs_core.mechanism.hadar import decide as greedily
from hs_core.mechanism.prices import Floats, Ints, Jobs, Utility, effective_throughput

GAP = 1e-3
MIXED_JOBS = 256  # the whole program is for small cases; large ones have small gaps
FINE = 1e7
EFFORT = 4.0
TRIES = 4  # where gangs were laid over more servers than was counted on
SAME = 1e-9
LEAST_KEPT = 1e-6  # of a worth: who pays all of it for communication may still have what nobody wants


@dataclass(frozen=True, slots=True)
class Exact:
    seats: Seats
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
    held: Seats = NOBODY,
    utility: Utility | None = None,
    terms: Terms | None = None,
    fixed: NDArray[np.bool_] | None = None,
) -> Exact:
    """The round of most total worth: arguments as in `hadar.decide`; prices and admission follow from the program.

    Where jobs want so many servers, who finds no room on those of its types goes without: `worth` is then what is left.
    """
    terms = terms or Terms()
    utility = utility or effective_throughput(jobs)
    laid = _laid(jobs, utility, terms)
    truth = _values(jobs, held, utility, terms, fixed, able=_able(jobs, capacity))
    seats, bound = _round(jobs, capacity, held, truth, fixed)
    counts = _counts(jobs, seats)
    if laid is None:
        return Exact(seats, truth.each(counts), truth.of(counts), bound)
    tried = [(seats, _each(jobs, seats, truth, laid))]
    believed = truth
    for _ in range(1, TRIES):
        seats, each = tried[-1]
        counts = _counts(jobs, seats)
        over = np.flatnonzero(each < believed.each(counts) * (1 - SAME))
        if not len(over):
            break
        believed = believed.but(over, counts[over].argmax(axis=1), each[over])
        seats, _ = _round(jobs, capacity, held, believed, fixed)
        tried.append((seats, _each(jobs, seats, truth, laid)))
    seats = greedily(
        jobs, capacity, held=held, utility=utility, terms=replace(terms, fill=True), fixed=fixed
    ).seats
    tried.append((seats, _each(jobs, seats, truth, laid)))
    seats, each = max(tried, key=lambda found: float(found[1].sum()))
    return Exact(seats, each, float(each.sum()), max(bound, float(each.sum())))


def _counts(jobs: Jobs, seats: Seats) -> Ints:
    """(J, R) GPUs."""
    found = np.zeros(jobs.rates.shape, np.int64)
    np.add.at(found, (seats.job, seats.kind), seats.gpus)
    return found


def _round(
    jobs: Jobs, capacity: Ints, held: Seats, values: "_Values", fixed: NDArray[np.bool_] | None
) -> tuple[Seats, float]:
    """Who has which GPUs, and more than what no choice is worth."""
    worth = values.single
    free = capacity.sum(axis=0)
    found = single_types(np.where(worth > 0, -worth, np.inf), jobs.workers, free, busy=False)
    counts = np.zeros(worth.shape, np.int64)
    runs = np.flatnonzero(found.choice >= 0)
    runs = runs[(values.able * _parts(jobs)[:, None])[runs, found.choice[runs]] >= jobs.workers[runs]]
    counts[runs, found.choice[runs]] = jobs.workers[runs]
    _leftovers(jobs, values, counts, free)
    bound = -found.relaxed
    if bound - values.of(counts) > GAP * bound and len(worth) <= MIXED_JOBS:
        counts, tighter = _mixed(jobs, values, free, counts, bound)
        # Gangs that may be laid over more servers than one more have more choices than that program.
        bound = tighter if jobs.laid is None else bound
    if jobs.nodes is None:
        return seat(counts, capacity, held), bound
    over = jobs.nodes[:, None] if jobs.laid is None else np.column_stack([jobs.nodes, jobs.laid.nodes])
    return seat_nodes(counts, over, capacity, held, fixed), bound


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


def _each(jobs: Jobs, seats: Seats, values: "_Values", laid: Floats) -> Floats:
    """(J,) worth on those seats; 0: waits."""
    counts = _counts(jobs, seats)
    each = values.each(counts)
    if jobs.laid is None:
        return each
    servers = np.bincount(seats.job, minlength=len(each))
    for job in np.flatnonzero((jobs.laid.nodes == servers[:, None]).any(axis=1) & (servers > 0)).tolist():
        option = int(np.flatnonzero(jobs.laid.nodes[job] == servers[job])[0])
        each[job] = laid[job, option, counts[job] > 0].min()
    return each


@dataclass(frozen=True, slots=True)
class _Values:
    rates: Floats  # (J, R)
    single: Floats  # (J, R) worth with the whole gang on that type; 0: it can't run there
    mixed: Floats  # (J, R) with that type as the slowest of several; never more
    able: Ints  # (J, R) how many of the type's servers could take a part of it

    def of(self, counts: Ints) -> float:
        return float(self.each(counts).sum())

    def but(self, jobs: Ints, kinds: Ints, worth: Floats) -> "_Values":
        """These jobs are worth only so much on these types."""
        single = self.single.copy()
        single[jobs, kinds] = worth
        return _Values(self.rates, single, np.minimum(self.mixed, single), self.able)

    def each(self, counts: Ints) -> Floats:
        found = np.zeros(len(counts))
        runs = np.flatnonzero(counts.any(axis=1))
        slowest = np.where(counts[runs] > 0, self.rates[runs], np.inf).argmin(axis=1)
        alone = (counts[runs] > 0).sum(axis=1) == 1
        found[runs] = np.where(alone, self.single[runs, slowest], self.mixed[runs, slowest])
        return found


def _values(
    jobs: Jobs,
    held: Seats,
    utility: Utility,
    terms: Terms,
    fixed: NDArray[np.bool_] | None,
    *,
    able: Ints,
) -> _Values:
    """Who stays on the one type that it holds doesn't restart."""
    can = (jobs.rates > 0) & (able > 0)
    holds = np.zeros(can.shape, np.int64)
    np.add.at(holds, (held.job, held.kind), held.gpus)
    if fixed is not None:  # of several types: as if it could not run
        can &= ~fixed[:, None] | (holds == jobs.workers[:, None])
    move = np.where(can, utility(jobs.ends_s(terms.restart_s)), 0.0)
    if jobs.nodes is not None:
        move *= _kept(jobs.nodes, terms)[:, None]
    stay = np.where(can, utility(jobs.ends_s()), 0.0)
    mixed = move
    if (laid := _laid(jobs, utility, terms)) is not None and jobs.nodes is not None:
        several = can & np.asarray((jobs.nodes == 1) & (laid > 0).any(axis=(1, 2)))[:, None]
        mixed = np.where(
            several, np.minimum(move, laid.max(axis=1)), move
        )  # on one server all are of one type
    return _Values(jobs.rates, np.where(holds == jobs.workers[:, None], stay, move), mixed, able)


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
    waits = np.flatnonzero(~counts.any(axis=1) & (worth > 0).any(axis=1))
    order = waits[np.argsort(-worth[waits].max(axis=1) / jobs.workers[waits], kind="stable")]
    parts = _parts(jobs).tolist()
    for job in order[jobs.workers[order] <= left.sum()].tolist():
        rest = int(jobs.workers[job])
        taken = np.zeros_like(left)
        for kind in np.argsort(-jobs.rates[job], kind="stable").tolist():
            if worth[job, kind] > 0:
                most = min(int(left[kind]) // parts[job], int(values.able[job, kind]))
                taken[kind] = min(rest, most * parts[job])
                rest -= int(taken[kind])
        if rest == 0:
            counts[job] = taken
            left -= taken


def _mixed(jobs: Jobs, values: _Values, free: Ints, counts: Ints, bound: float) -> tuple[Ints, float]:
    """Whole program: x[j, t] job j runs with t as its slowest type, z[j, r] how many times it has GPUs of type r that come together."""
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
    ub = solve.Entries(  # one type a job; z only where x allows; capacity
        np.concatenate([at, count + pairs, count + pair_of[at[slow], fast], count + n + kind]),
        np.concatenate([pairs, n + pairs, slow, n + pairs]),
        np.concatenate([ones, ones, -parts[slow], each]).astype(float),
        (count + n + types, 2 * n),
    )
    eq = solve.Entries(  # the whole gang or nothing
        np.concatenate([at, at]),
        np.concatenate([n + pairs, pairs]),
        np.concatenate([ones, -parts]).astype(float),
        (count, 2 * n),
    )
    scale = FINE / bound
    gain = np.minimum(worth[at, kind], bound)  # more only by rounding, where nothing is free
    answer = solve.ip(
        np.concatenate([-np.floor(gain * scale), np.zeros(n)]).astype(np.int64),
        a_ub=ub,
        b_ub=np.concatenate([np.ones(count, np.int64), np.zeros(n, np.int64), free]),
        a_eq=eq,
        b_eq=np.zeros(count, np.int64),
        upper=np.concatenate([np.ones(n, np.int64), np.minimum(parts, values.able[at, kind])]),
        effort=EFFORT,
    )
    if answer is None:
        return counts, bound
    mixed = np.zeros(worth.shape, np.int64)
    mixed[at, kind] = answer.x[n:] * each
    # Rounding down may have lost a unit for each running job.
    bound = min(bound, (count - answer.bound) / scale)
    best = mixed if values.of(mixed) > values.of(counts) else counts
    return best, max(bound, values.of(best))


def seat(counts: Ints, capacity: Ints, held: Seats = NOBODY) -> Seats:
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
    return Seats(*np.array(sorted(rows), np.int64).reshape(-1, 4).T)


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
    counts: Ints, over: Ints, capacity: Ints, held: Seats, fixed: NDArray[np.bool_] | None
) -> Seats:
    """Servers for `counts` (J, R): who needs what it holds stays if it can; then the largest on the fullest that take them.

    `over` (J, 1 + K): numbers of servers, with as many GPUs on each, in the order in which they are tried; 0: no more of them.
    """
    gangs = counts.sum(axis=1)
    free = capacity.copy()
    rows: list[tuple[int, int, int, int]] = []
    homes: dict[int, list[tuple[int, int, int]]] = {}
    for job, *pick in zip(
        *(column.tolist() for column in (held.job, held.server, held.kind, held.gpus)), strict=True
    ):
        homes.setdefault(job, []).append((pick[0], pick[1], pick[2]))
    rest = []
    for job in np.flatnonzero(counts.any(axis=1)).tolist():
        home = homes.get(job, [])
        own = np.zeros_like(counts[job])
        for _, kind, gpus in home:
            own[kind] += gpus
        if (
            home
            and (own == counts[job]).all()
            and all(free[server, kind] >= gpus for server, kind, gpus in home)
        ):
            for server, kind, gpus in home:
                free[server, kind] -= gpus
                rows.append((job, server, kind, gpus))
        elif fixed is None or not fixed[job]:
            rest.append(job)
    rest.sort(key=lambda job: (-gangs[job] // over[job, 0], -gangs[job], job))
    for job in rest:
        for each in (int(gangs[job]) // nodes for nodes in over[job].tolist() if nodes):
            picks = [] if (counts[job] % each).any() else _nodes(counts[job], each, free)
            for server, kind in picks:
                free[server, kind] -= each
                rows.append((job, server, kind, each))
            if picks:
                break
    return Seats(*np.array(sorted(rows), np.int64).reshape(-1, 4).T)


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
