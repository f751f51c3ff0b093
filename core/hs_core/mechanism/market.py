"""A round of a market: who buys, what is for sale, and what becomes of it. What Hadar's policies are made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.estimates import estimated
from hs_core.mechanism.given import given, keep
from hs_core.mechanism.hadar import Decision, Holdings
from hs_core.mechanism.idle_elsewhere import WITHIN_A_ROUND
from hs_core.mechanism.placing import Home, by_arrival, models_of, takes_new
from hs_core.mechanism.prices import Jobs, Laid
from hs_core.mechanism.rows import steps_left
from hs_core.mechanism.slots import Slots
from hs_core.mechanism.spreading import measured, numbers
from hs_core.model import Migrate
from hs_core.names import HostName, JobId
from hs_core.policy import HostFacts, JobFacts, Memory, Snapshot, Verdict

_Kind = tuple[str, int, tuple[JobId, ...]]
"""Of a server: its model and memory, and which of the jobs it cannot start."""


@dataclass(frozen=True, slots=True)
class Market:
    """Who buys, and what is for sale: servers by name, GPUs of one kind on each."""

    jobs: tuple[JobFacts, ...]  # by arrival
    hosts: tuple[HostFacts, ...]
    kind: NDArray[np.int64]  # (H,)
    capacity: NDArray[np.int64]  # (H, R) that are free
    facts: Jobs
    held: Holdings  # homes
    fixed: NDArray[np.bool_]  # (J,) who can only be at home


Buy = Callable[[Market, NDArray[np.bool_], float], Decision]
"""Of a market, who can only be at home, and the length of the round: who gets what."""


def trade(snapshot: Snapshot, memory: Memory, buy: Buy) -> Verdict:
    """Within a round whoever has GPUs keeps them, and who has started moves at its beginning only."""
    slots = Slots(snapshot)
    going_on = bool(memory) and memory["quantum"] == snapshot.quantum
    on_its_way = keep(snapshot, slots, memory["homes"]) if going_on else {}
    why = {job: f"it is on its way to {', '.join(home)}" for job, home in on_its_way.items()}
    jobs = [job for job in sorted(snapshot.jobs, key=by_arrival) if job.id not in on_its_way]
    market = _market(snapshot, slots, jobs, settled=going_on)
    if market is not None:
        found = _within_budget(market, snapshot.quantum_s, slots.moves_left, buy)
        for at, home in _homes(market, found).items():
            job = market.jobs[at]
            where = ", ".join(home)
            if job.spreads:
                slots.spread(job, home, f"its GPUs of this round are on {where}, as it is worth most there")
            else:
                slots.take(job, home, f"its GPUs of this round are on {where}")
        for job, worth in zip(market.jobs, found.worth.tolist(), strict=True):
            if not worth:
                why[job.id] = "other jobs gain more from each GPU that it could have in this round"
    for job in jobs:
        slots.offer(job)
    if market is not None:
        _offer_what_is_left(market, slots)
    stays = WITHIN_A_ROUND if going_on else ""
    verdict = slots.verdict({}, why, mixed=True, spreads=True, stays=stays)
    kept = {"quantum": snapshot.quantum, "homes": given(verdict.plan, on_its_way, snapshot.reserved.keys())}
    return replace(verdict, memory=kept)


def _offer_what_is_left(market: Market, slots: Slots) -> None:
    """GPUs on servers of several models to gangs over as many, by arrival."""
    for at, job in enumerate(market.jobs):
        if not slots.runs(job) and (home := _of_what_is_left(market, slots, at)):
            slots.take(job, home, f"nobody else has use for these GPUs of {', '.join(home)} in this round")


def _of_what_is_left(market: Market, slots: Slots, at: int) -> Home:
    """Fast servers first, of these the fullest; () if there are too few."""
    job, rates = market.jobs[at], market.facts.rates[at]
    if market.fixed[at] or (job.started and not slots.moves_left):
        return ()
    able = [
        (-float(rates[kind]), slots.free(host.name), host.name)
        for host, kind in zip(market.hosts, market.kind.tolist(), strict=True)
        if rates[kind] > 0 and slots.free(host.name) >= job.per_node
    ]
    if len(able) < job.nodes:
        return ()
    return _ranked(job.hosts, [name for *_, name in sorted(able)[: job.nodes]])


def _market(snapshot: Snapshot, slots: Slots, several: Sequence[JobFacts], *, settled: bool) -> Market | None:
    """Of jobs by arrival. `settled`: who has started stays where it is."""
    hosts = tuple(sorted(filter(takes_new, snapshot.hosts), key=lambda host: host.name))
    models = models_of(snapshot.hosts)
    jobs = tuple(job for job in several if not slots.runs(job) and slots.reachable(job))
    kind_of = _kinds(hosts, jobs)
    # At the same speed and price the oldest.
    kinds = sorted(set(kind_of), key=lambda kind: (-models.index(kind[0]), kind))
    if not jobs or not kinds:
        return None
    kind = np.array([kinds.index(of) for of in kind_of], dtype=np.int64)
    capacity = np.zeros((len(hosts), len(kinds)), dtype=np.int64)
    capacity[np.arange(len(hosts)), kind] = [slots.free(host.name) for host in hosts]
    speed = _speed(snapshot, slots, jobs, hosts, kinds)
    held = _held(slots, jobs, hosts, kind)
    fixed = np.array([_stuck(job, slots, settled=settled) for job in jobs], dtype=np.bool_)
    best = speed.max(axis=1, keepdims=True)
    left = steps_left(jobs, best[:, 0].tolist(), estimated(snapshot, models))
    unit = np.where(best > 0, best, 1.0)  # steps are worth the time that they take on the fastest model
    speed, left, done = (
        speed / unit,
        left / unit[:, 0],
        np.array([job.steps_done for job in jobs]) / unit[:, 0],
    )
    gang = np.array([job.gang for job in jobs], dtype=np.int64)
    most = max((host.gpus for host in hosts), default=0)
    over = [numbers(job, most) or (job.nodes,) for job in jobs]
    facts = Jobs(
        rates=speed / gang[:, None],
        workers=gang,
        iterations=left + done,
        left=left,
        age_s=np.array([max(0.0, snapshot.now_s - job.arrival_s) for job in jobs], dtype=float),
        nodes=np.array([nodes for nodes, *_ in over], dtype=np.int64),
        laid=_laid(snapshot, jobs, over, speed / gang[:, None], kinds),
    )
    return Market(jobs, hosts, kind, capacity, facts, held, fixed)


def _laid(
    snapshot: Snapshot,
    jobs: Sequence[JobFacts],
    over: Sequence[tuple[int, ...]],
    rates: NDArray[np.float64],
    kinds: Sequence[_Kind],
) -> Laid | None:
    """Over the fewest servers they are as fast as `rates` (J, R) says; over more as that was measured beside it, else as fast."""
    most = max(map(len, over)) - 1
    if not most:
        return None
    found = Laid(np.zeros((len(jobs), most), np.int64), np.repeat(rates[:, None, :], most, axis=1))
    for at, (job, (fewest, *more)) in enumerate(zip(jobs, over, strict=True)):
        found.nodes[at, : len(more)] = more
        for option, nodes in enumerate(more):
            for kind, (model, *_) in enumerate(kinds):
                tight, loose = (measured(snapshot, job, model, count) for count in (fewest, nodes))
                if tight and loose:
                    found.rates[at, option, kind] *= loose / tight
    return found


def _speed(
    snapshot: Snapshot,
    slots: Slots,
    jobs: Sequence[JobFacts],
    hosts: Sequence[HostFacts],
    kinds: Sequence[_Kind],
) -> NDArray[np.float64]:
    """(J, R) of whole gangs; 0: not there."""
    models = models_of(snapshot.hosts)
    estimates = estimated(snapshot, models)
    example = dict(zip(_kinds(hosts, jobs), hosts, strict=True))
    known: dict[tuple[Any, ...], NDArray[np.float64]] = {}
    here = {host.name: host.model for host in hosts}
    found = np.zeros((len(jobs), len(kinds)))
    for at, job in enumerate(jobs):
        home = slots.home(job)
        own = {here.get(name, "") for name in home} if _pinned(job) and home else set()
        key = (job.job_class, job.gpu_types, job.gpu_memory_bytes, job.barred, tuple(sorted(own)))
        if key not in known:
            speeds = estimates.speeds(job.job_class)
            known[key] = np.array(
                [
                    speeds[models.index(model)]
                    if _allows(job, example[model, memory, barred]) and (not own or own == {model})
                    else 0.0
                    for model, memory, barred in kinds
                ]
            )
        found[at] = known[key]
    return found


def _pinned(job: JobFacts) -> bool:
    return job.started and job.migrate is Migrate.SAME_TYPE


def _kinds(hosts: Sequence[HostFacts], jobs: Sequence[JobFacts]) -> list[_Kind]:
    """Of each server."""
    barred: dict[HostName, list[JobId]] = {}
    for job in jobs:
        for name in job.barred:
            barred.setdefault(name, []).append(job.id)
    return [(host.model, host.gpu_memory_bytes, tuple(barred.get(host.name, ()))) for host in hosts]


def _allows(job: JobFacts, host: HostFacts) -> bool:
    """As far as model and memory go, and whom the server can start."""
    model = not job.gpu_types or host.model in job.gpu_types
    return model and job.gpu_memory_bytes <= host.gpu_memory_bytes and host.name not in job.barred


def _held(
    slots: Slots, jobs: Sequence[JobFacts], hosts: Sequence[HostFacts], kind: NDArray[np.int64]
) -> Holdings:
    row = {host.name: at for at, host in enumerate(hosts)}
    rows = [
        (at, row[name], int(kind[row[name]]), job.per_node)
        for at, job in enumerate(jobs)
        if all(name in row for name in slots.home(job))
        for name in slots.home(job)
    ]
    return Holdings(*np.array(rows, np.int64).reshape(-1, 4).T)


def _stuck(job: JobFacts, slots: Slots, *, settled: bool) -> bool:
    if not slots.home(job) or (job.movable and not job.started):
        return False
    gone = not job.movable or job.migrate is Migrate.NEVER or not slots.moves_left
    return settled or gone


def _within_budget(market: Market, quantum_s: float, moves_left: int, buy: Buy) -> Decision:
    """No more started jobs move than the budget allows: those of largest payoff."""
    found = buy(market, market.fixed, quantum_s)
    moves = [at for at, home in _homes(market, found).items() if _moves(market.jobs[at], home)]
    if len(moves) <= moves_left:
        return found
    moves.sort(key=lambda at: (-found.payoff[at], at))
    may = set(moves[:moves_left])
    fixed = market.fixed | np.array(
        [job.started and bool(job.hosts) and at not in may for at, job in enumerate(market.jobs)]
    )
    return buy(market, fixed, quantum_s)


def _moves(job: JobFacts, home: Home) -> bool:
    return job.started and bool(job.hosts) and home != job.hosts


def _homes(market: Market, found: Decision) -> dict[int, Home]:
    """Servers by node rank: a rank stays where it can."""
    picked: dict[int, list[HostName]] = {}
    for at, server in zip(found.holdings.job.tolist(), found.holdings.server.tolist(), strict=True):
        picked.setdefault(at, []).append(market.hosts[server].name)
    return {at: _ranked(market.jobs[at].hosts, names) for at, names in picked.items()}


def _ranked(before: Home, names: Sequence[HostName]) -> Home:
    new = sorted(set(names) - set(before), reverse=True)
    if not before:
        return tuple(reversed(new))
    return tuple(name if name in names else new.pop() for name in before)
