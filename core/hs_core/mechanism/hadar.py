"""Hadar's round: gangs whose workers may sit on unlike GPUs and servers, admitted while worth more than the GPUs' prices (Algorithms 1, 2).

A gang is as fast as its slowest worker. For a job and the slowest type that it accepts, the cheapest GPUs among the types no slower are
taken, which is never dearer than the fastest ones that the paper takes. At equal price those of the slowest type, then
the server of the least index.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.hadar_servers import Pick, Servers
from hs_core.mechanism.prices import Floats, Ints, Jobs, Utility, effective_throughput, prices


@dataclass(frozen=True, slots=True)
class Holdings:
    """GPUs of jobs: `gpus[i]` of type `kind[i]` on `server[i]` for `job[i]`."""

    job: Ints
    server: Ints
    kind: Ints
    gpus: Ints

    def taken(self, servers: int, types: int) -> Ints:
        """(H, R)"""
        held = np.zeros((servers, types), np.int64)
        np.add.at(held, (self.server, self.kind), self.gpus)
        return held


NOBODY = Holdings(*(np.zeros(0, np.int64) for _ in range(4)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a round is decided."""

    round_s: float = 360.0
    restart_s: float = 10.0  # what a job loses when its GPUs change (section IV)
    apart: float = 0.05  # part of a job's worth that each server beyond the first costs in communication
    preempt: bool = True  # False: who holds GPUs keeps them, and only the rest is decided
    fill: bool = False  # hand out what is left over even to jobs that it is worth less than its price

    def kept(self, servers: int) -> float:
        """The part of a job's worth that communication over so many servers leaves."""
        return max(0.0, 1 - self.apart * (servers - 1))


@dataclass(frozen=True, slots=True)
class Decision:
    holdings: Holdings  # sorted by job, server, type
    payoff: Floats  # (J,) worth above price; 0: waits
    worth: Floats  # (J,) utility of the allocation; 0: waits


@dataclass(frozen=True, slots=True)
class Choice:
    job: int
    picks: tuple[Pick, ...]
    payoff: float
    worth: float


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that ask for the same GPUs, most worth first: the first one still open is the best of them at any price."""

    kinds: tuple[int, ...]  # allowed types, the slowest first: faster ones are left to those whom they serve
    gpus: int
    nodes: int  # servers with as many each; 0: anywhere
    jobs: tuple[tuple[float, int], ...]  # (worth, job)


@dataclass(frozen=True, slots=True)
class Table:
    """What each job is worth, by what it asks for. A job is in one group for each type that may be its slowest."""

    groups: tuple[Group, ...]
    held: tuple[tuple[float, int, tuple[Pick, ...], float], ...]  # (worth/GPU, job, picks, worth), most first
    terms: Terms


def _table(
    jobs: Jobs, held: Holdings, utility: Utility, terms: Terms, fixed: NDArray[np.bool_] | None = None
) -> Table:
    nodes, of_job, rates, ends_s = _asks(jobs, terms)
    can = rates > 0
    if fixed is not None:
        can &= ~fixed[of_job, None]
    move = np.where(can, utility(ends_s).reshape(can.shape), 0.0)
    # Jobs alike in their slowest type, those no slower and the gang ask for the same: as bits, instead of tuples for each job.
    types = can.shape[1]
    no_slower = (rates[:, None, :] >= rates[:, :, None]) & can[:, None, :]
    masks = no_slower @ (1 << np.arange(types, dtype=np.int64))
    rows, slowest = np.nonzero(can)
    keys = np.column_stack([masks[rows, slowest], slowest, jobs.workers[of_job[rows]], nodes[rows]])
    alike, of = np.unique(keys, axis=0, return_inverse=True)
    values = move[rows, slowest]
    who = of_job[rows]
    order = np.lexsort((who, -values, of))
    ends = np.cumsum(np.bincount(of, minlength=len(alike))).tolist()
    groups = []
    for (mask, kind, workers, servers), begin, end in zip(alike.tolist(), [0, *ends], ends, strict=False):
        others = [other for other in range(types) if mask >> other & 1 and other != kind]
        mine = order[begin:end]
        asks = tuple(zip(values[mine].tolist(), who[mine].tolist(), strict=True))
        groups.append(Group((kind, *others), workers, servers, asks))
    return Table(tuple(groups), _stays(jobs, held, utility), terms)


def _asks(jobs: Jobs, terms: Terms) -> tuple[Ints, Ints, Floats, Floats]:
    """Each number of servers of each job: (A,) servers, (A,) job, (A, R) rates; (J, A/J * R) ends."""
    count, types = jobs.rates.shape
    nodes = np.zeros_like(jobs.workers) if jobs.nodes is None else jobs.nodes
    ends_s = jobs.ends_s(terms.restart_s)
    if jobs.laid is None:
        return nodes, np.arange(count), jobs.rates, ends_s
    over = np.column_stack([nodes, jobs.laid.nodes])
    others = np.where(jobs.laid.nodes[:, :, None] > 0, jobs.laid.rates, 0.0)
    rates = np.concatenate([jobs.rates[:, None, :], others], axis=1)
    ends_s = np.column_stack([ends_s, jobs.laid_ends_s(terms.restart_s)])
    return over.ravel(), np.repeat(np.arange(count), over.shape[1]), rates.reshape(-1, types), ends_s


def _stays(
    jobs: Jobs, held: Holdings, utility: Utility
) -> tuple[tuple[float, int, tuple[Pick, ...], float], ...]:
    picks: dict[int, list[Pick]] = {}
    slowest = np.full(len(jobs.workers), np.inf)
    rows = zip(held.job.tolist(), held.server.tolist(), held.kind.tolist(), held.gpus.tolist(), strict=True)
    for job, server, kind, gpus in rows:
        picks.setdefault(job, []).append((server, kind, gpus))
        slowest[job] = min(slowest[job], float(jobs.rates[job, kind]))
    rate = jobs.workers * np.where(np.isfinite(slowest), slowest, 0.0)
    rest_s = np.divide(jobs.left, rate, out=np.full(len(rate), np.inf), where=rate > 0)
    worth = np.where(rate > 0, utility((jobs.age_s + rest_s)[:, None])[:, 0], 0.0)
    found = [
        (float(worth[job] / jobs.workers[job]), job, tuple(picks[job]), float(worth[job])) for job in picks
    ]
    return tuple(sorted(found, key=lambda stay: (-stay[0], stay[1])))


def decide(
    jobs: Jobs,
    capacity: Ints,
    *,
    held: Holdings = NOBODY,
    utility: Utility | None = None,
    terms: Terms | None = None,
    fixed: NDArray[np.bool_] | None = None,
) -> Decision:
    """Algorithm 1, greedily: the job of largest payoff per GPU at today's prices, prices raised by what it takes, until nobody gains.

    `capacity` (H, R) healthy GPUs; `held`: the last round's holdings of these jobs; `fixed` (J,) who can only stay on them. O((J + states) * admitted).
    """
    terms = terms or Terms()
    utility = utility or effective_throughput(jobs)
    servers = Servers.of(capacity, np.zeros_like(capacity), prices(jobs, capacity, utility, terms.round_s))
    table = _table(jobs, held, utility, terms, fixed)
    auction = Auction(servers, table, np.ones(len(jobs.workers), bool).tolist())
    chosen: list[Choice] = []
    if not terms.preempt:
        for _, job, picks, worth in table.held:
            if servers.cost(picks) < np.inf:  # a server may be gone
                chosen.append(Choice(job, picks, worth - servers.cost(picks), worth))
                auction.admit(chosen[-1])
    while True:
        best = auction.best()
        if best is None or (best.payoff <= 0 and not terms.fill):
            return _decision(chosen, len(jobs.workers))
        auction.admit(best)
        chosen.append(best)


@dataclass(slots=True)
class Auction:
    """Who would gain most per GPU at today's prices."""

    servers: Servers
    table: Table
    open: list[bool]  # (J,)
    _begin: list[int] = field(default_factory=list)  # of each group's jobs, those before it are admitted
    _stay: int = 0  # the same for those that hold GPUs

    def __post_init__(self) -> None:
        self._begin = [0] * len(self.table.groups)

    def admit(self, choice: Choice) -> None:
        self.servers.take(choice.picks)
        self.open[choice.job] = False

    def best(self) -> Choice | None:
        """Of largest payoff per GPU; who can stay does so at equal payoff, then the first job. None: nobody fits."""
        best, choice = (-np.inf, 0, 0), None
        for at, group in enumerate(self.table.groups):
            job, worth = self._first(at, group)
            # No price is below 0: what even a gift would not make the best needs no offer.
            if job < 0 or worth / group.gpus < best[0]:
                continue
            for offer in self.servers.offers(group.kinds, group.gpus, group.nodes):
                payoff = worth * self.table.terms.kept(offer.servers) - offer.cost
                rank = (payoff / group.gpus, 0, -job)
                if rank > best:
                    best, choice = rank, Choice(job, offer.picks, payoff, worth)
        return self._stayer(best, choice)

    def _first(self, at: int, group: Group) -> tuple[int, float]:
        begin = self._begin[at]
        while begin < len(group.jobs) and not self.open[group.jobs[begin][1]]:
            begin += 1
        self._begin[at] = begin
        return (group.jobs[begin][1], group.jobs[begin][0]) if begin < len(group.jobs) else (-1, 0.0)

    def _stayer(self, best: tuple[float, int, int], choice: Choice | None) -> Choice | None:
        held = self.table.held
        while self._stay < len(held) and not self.open[held[self._stay][1]]:
            self._stay += 1
        for each, job, picks, worth in held[self._stay :]:
            if each < best[0]:
                break
            if self.open[job]:
                cost = self.servers.cost(picks)
                rank = (each - cost / sum(pick[2] for pick in picks), 1, -job)
                if rank > best and cost < np.inf:
                    best, choice = rank, Choice(job, picks, worth - cost, worth)
        return choice


def _decision(chosen: Sequence[Choice], jobs: int) -> Decision:
    payoff, worth = np.zeros(jobs), np.zeros(jobs)
    rows: list[tuple[int, int, int, int]] = []
    for choice in sorted(chosen, key=lambda choice: choice.job):
        payoff[choice.job], worth[choice.job] = choice.payoff, choice.worth
        rows.extend((choice.job, *pick) for pick in sorted(choice.picks))
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    return Decision(Holdings(*columns), payoff, worth)
