"""Gandiva_fair (EuroSys'20): entitlements by tickets, trades upon them, placement, migration, and split stride.

Pool by pool users are entitled to what max-min by tickets gives them; they trade fast GPUs for slow ones; jobs are placed and moved so that
every server carries alike; and gangs over several servers take turns with what else is there. The rest, gang-aware stride within
a server, is the agents' (`mechanism.stride`). Departures are named in the modules of `mechanism` and in docs/policies/gandiva-fair.md.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from hs_core.job_tickets import Ints, JobTickets
from hs_core.mechanism import crowd, split, trade, trading
from hs_core.mechanism.band import NUMBERS, Band
from hs_core.mechanism.lags import WHOLE, Lags, had_in_turn
from hs_core.mechanism.loads import Board, find_levels
from hs_core.mechanism.moves import Limits, Mover, settle_all
from hs_core.mechanism.place import place
from hs_core.mechanism.rates import speeds_of
from hs_core.mechanism.roll import Roll
from hs_core.mechanism.sequel import Decided, FairSequel, pace
from hs_core.mechanism.ticket_sums import add_up, sums
from hs_core.mechanism.waiting import Waiting
from hs_core.mechanism.weights import LEAST
from hs_core.mechanism.world import At, World, look
from hs_core.names import HostName, JobId
from hs_core.policy import JobFacts, Memory, Needs, Plan, Policy, Snapshot, Verdict
from hs_core.shares import entitle_pools
from hs_core.wanted import Turn

LIMITS = Limits()
SPARSE = 64  # so many numbers for each job are counted in a table yet
FEW_JOBS = 4_096  # up to so many, arrays are not worth it
_LEAST = LEAST.as_integer_ratio()


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    told = {JobId(int(job)): tuple(home) for job, home in memory.get("leaving", {}).items()}
    world = look(snapshot, told, many=len(snapshot.jobs) > FEW_JOBS)
    speeds = speeds_of(snapshot.rates, world.models)
    base = entitle_pools(world.pools, world.demand(), snapshot.tickets)
    traded = trading.settle(world, base, speeds, memory.get("trades", ()))
    # As `float` does, at half its cost: there is one for every user in every pool.
    shares = {at: share.numerator / share.denominator for at, share in traded.entitled.items()}
    levels = find_levels(world, shares)
    lags = Lags(world, levels, memory.get("lags", {}))
    again = memory.get("quantum") == snapshot.quantum
    if not again:
        lags = lags.observe(had_in_turn(world))
    factors = lags.factors()
    board = Board(world, shares, levels, factors)
    place(board, speeds)
    mover = settle_all(board, speeds, _limits(world, memory), calm=again)
    moved = mover.done
    leaving = world.leaving | {move.job.id: move.to for move in moved if move.job.started}
    tickets = _tickets(world, traded.entitled, factors)
    books: split.Books = memory.get("books", {})
    played = None if again else _play(world, tickets, books)  # nobody is charged twice for a quantum
    turns = _keep_turns(world, memory) if played is None else played.turns
    kept = _remember(
        snapshot.quantum,
        memory.get("moved", snapshot.quantum) if again else snapshot.quantum,
        {
            "trades": trade.dump(traded.trades),
            "leaving": {str(job): list(home) for job, home in sorted(leaving.items())},
            "turns": split.dump_turns(turns),
            "books": books if played is None else played.table.books(),
            "lags": lags.dump(),
        },
    )
    sequel = None
    if played is not None and _are_settled(world, played, mover):
        decided = Decided(
            world=world,
            shares=shares,
            lags=None if world.new or mover.done else lags,
            factors=factors,
            tickets=tickets,
            wakes_s=mover.awaits_s,
            held_back=mover.held_back,
            weigh=partial(_tickets_of, world, traded.entitled),
            retell=partial(_retell, world, {server.name for server in played.servers}),
        )
        sequel = FairSequel(decided, kept, played.table)
    return Verdict(
        plan=Plan(
            homes=world.homes,
            turns=turns,
            tickets=tickets,
            moves={move.job.id: (move.reason, move.text) for move in moved},
        ),
        memory=kept,
        why=Waiting(world, board, turns),
        entitled=traded.entitled,
        base=base if traded.trades else {},
        trades=traded.trades,
        news=traded.news,
        sequel=sequel,
    )


def _limits(world: World, memory: Memory) -> Limits:
    """Where quanta went on without a decision, their moves are made in this one."""
    since = world.snapshot.quantum - memory.get("moved", world.snapshot.quantum)
    quanta = min(since, pace(len(world.jobs)))
    if quanta <= 1:
        return LIMITS
    return replace(
        LIMITS,
        started_a_quantum=quanta * LIMITS.started_a_quantum,
        waiting_a_quantum=quanta * LIMITS.waiting_a_quantum,
    )


def _remember(quantum: int, moved: int, kept: Mapping[str, Any]) -> Memory:
    """`moved`: the quantum in which moves were made last."""
    return {"quantum": quantum, "moved": moved, **{name: value for name, value in kept.items() if value}}


def _tickets(
    world: World, entitled: Mapping[At, Fraction], factors: Mapping[At, Fraction]
) -> Mapping[JobId, Fraction]:
    """jobTickets (eq 3), made good for what users lack; the least there is for jobs whose server cannot run them just now, or whose user has no share there."""
    unable = (
        {job.id: LEAST * job.gang for job in world.jobs if job.id in world.unable} if world.unable else {}
    )
    if world.roll is not None and not unable:
        return _tickets_at_once(world, world.roll, entitled, factors)
    return _tickets_of(world, entitled, factors, world.gpus.keys()) | unable


def _tickets_of(
    world: World, entitled: Mapping[At, Fraction], factors: Mapping[At, Fraction], users: Collection[At]
) -> dict[JobId, Fraction]:
    """Of these users' jobs in these pools."""
    tickets: dict[JobId, Fraction] = {}
    for at in users:
        if (bands := world.bands.get(at)) is None:
            continue
        by_gang = _by_gang(world, entitled, factors, at, bands)
        for jobs in bands:
            tickets.update(zip(jobs.ids, map(by_gang.__getitem__, jobs.gangs), strict=True))
    return tickets


def _tickets_at_once(
    world: World, roll: Roll, entitled: Mapping[At, Fraction], factors: Mapping[At, Fraction]
) -> JobTickets:
    """The same of all jobs, where they are many: most share a few numbers, one for each user, pool and width of gangs."""
    models, whose, pool = world.models, list(NUMBERS), world.pools_of_jobs(roll)
    there = pool >= 0
    ids, gang, owner, pool = roll.ids[there], roll.gang[there], roll.owner[there], pool[there]
    widths = np.flatnonzero(np.bincount(gang))
    shape = len(whose), len(models), len(widths)
    kinds, which = _numbered(np.ravel_multi_index((owner, pool, np.searchsorted(widths, gang)), shape))
    owners, pools, places = (numbers.tolist() for numbers in np.unravel_index(kinds, shape))
    numbers: list[Fraction] = []
    before, over, under = (-1, -1), 1, 1
    for of, gpus in zip(zip(owners, pools, strict=True), widths[places].tolist(), strict=True):
        if of != before:
            before = of
            over, under = _per_gpu(world, entitled, factors, (whose[of[0]], models[of[1]]))
        numbers.append(_ratio(over * gpus, under))
    return JobTickets(ids, which, numbers)


def _numbered(keys: Ints) -> tuple[Ints, Ints]:
    """Those that there are, in order; and which of these each is."""
    if keys.max(initial=0) > SPARSE * keys.size:
        return np.unique(keys, return_inverse=True)
    there = np.bincount(keys) > 0
    return np.flatnonzero(there), (np.cumsum(there) - 1)[keys]


def _per_gpu(
    world: World, entitled: Mapping[At, Fraction], factors: Mapping[At, Fraction], at: At
) -> tuple[int, int]:
    """Tickets of a user's job in a pool for each of its GPUs: a ratio, not in lowest terms."""
    share, factor = entitled.get(at), factors.get(at, WHOLE)
    over, under = share.as_integer_ratio() if share else _LEAST
    if share:
        under *= world.gpus[at]
    if factor is not WHOLE:
        times, parts = factor.as_integer_ratio()
        over, under = over * times, under * parts
    return over, under


def _by_gang(
    world: World,
    entitled: Mapping[At, Fraction],
    factors: Mapping[At, Fraction],
    at: At,
    bands: Sequence[Band],
) -> Mapping[int, Fraction]:
    """Tickets of a user's jobs in a pool, by their GPUs."""
    over, under = _per_gpu(world, entitled, factors, at)
    widths = bands[0].widths.union(*[jobs.widths for jobs in bands[1:]])
    return {gang: _ratio(over * gang, under) for gang in widths}


@lru_cache(maxsize=1 << 15)
def _ratio(numerator: int, denominator: int) -> Fraction:
    """In lowest terms, which takes longer to find than to remember."""
    return Fraction(numerator, denominator)


# --- turns ------------------------------------------------------------------------------------------------------------


def _entities(world: World, tickets: Mapping[JobId, Fraction]) -> tuple[list[split.Gang], list[split.Server]]:
    """Gangs over several servers, and the servers that have a part of one."""
    jobs = [job for job in world.several if job.id in world.homes]
    ids = [job.id for job in jobs]
    if isinstance(tickets, JobTickets):
        has = map(tickets.numbers.__getitem__, tickets.which_of(ids).tolist())
    else:
        has = map(tickets.__getitem__, ids)
    gangs = _gangs(world, jobs, has)
    return gangs, _servers(world, {name for gang in gangs for name in gang.servers}, tickets)


def _retell(
    world: World,
    shared: Collection[HostName],
    tickets: Mapping[JobId, Fraction],
    changed: Collection[JobId],
) -> Mapping[split.Key, Fraction]:
    """What those that take turns have now, where these jobs have other tickets than before. `shared`: servers with a part of a gang."""
    if not shared:
        return {}
    homes = [(job, world.homes[job]) for job in changed]
    gangs = {job: tickets[job] for job, home in homes if len(home) > 1}
    servers = {home[0] for _, home in homes if len(home) == 1 and home[0] in shared}
    rounded: dict[int, int] = {}
    return gangs | {name: _tickets_on(world, name, tickets, rounded) for name in servers}


def _keep_turns(world: World, memory: Memory) -> Mapping[HostName, Turn]:
    """Those of a quantum that was decided about before, as far as they still go."""
    turns = split.keep_turns(memory.get("turns", {}), world.homes)
    takes = {job.id: job.per_node for job in world.jobs}
    return split.that_fit(turns, takes, {name: host.gpus for name, host in world.hosts.items()})


class _Played(NamedTuple):
    """A quantum of those who take turns."""

    gangs: Sequence[split.Gang]
    servers: Sequence[split.Server]
    table: split.Few | crowd.Crowd
    turns: Mapping[HostName, Turn]


def _play(world: World, tickets: Mapping[JobId, Fraction], books: split.Books) -> _Played:
    gangs, servers = _entities(world, tickets)
    table = crowd.table(gangs, servers, books)
    return _Played(gangs, servers, table, table.play())


def _are_settled(world: World, played: _Played, mover: Mover) -> bool:
    """Of those who take turns with gangs nobody is about to begin a run that nothing can suspend, and no gang leaves."""
    there = chain.from_iterable(world.at[server.name].stuck for server in played.servers)
    parts = (
        job
        for gang in played.gangs
        if (band := world.parts.get(gang.servers[0])) is not None
        for job in band.stuck
        if job.id == gang.job
    )
    starts = any(job.id not in world.snapshot.running for job in chain(there, parts))
    return not starts and all(moved.job.nodes == 1 for moved in mover.done)


def _gangs(world: World, jobs: Sequence[JobFacts], tickets: Iterable[Fraction]) -> list[split.Gang]:
    """`tickets`: of each."""
    homes, hosts, running, unable = world.homes, world.hosts, world.snapshot.running, world.unable
    away = world.floor.away
    return [
        split.Gang(
            job=job.id,
            arrival_s=job.arrival_s,
            servers=(home := homes[job.id]),
            per_node=job.per_node,
            tickets=has,
            user=job.user,
            forced=not job.sliceable and job.id in running,
            able=job.id not in unable and not (away and any(not hosts[name].connected for name in home)),
        )
        for job, has in zip(jobs, tickets, strict=True)
    ]


def _servers(world: World, shared: set[HostName], tickets: Mapping[JobId, Fraction]) -> list[split.Server]:
    servers = []
    names = sorted(shared)
    running = world.snapshot.running
    for name, has in zip(names, _tickets_on_all(world, names, tickets), strict=True):
        gpus, jobs = world.hosts[name].gpus, world.at[name]
        stuck = sum([job.gang for job in jobs.stuck if job.id in running])
        servers.append(
            split.Server(name=name, gpus=gpus, small=jobs.gangs, stuck=min(gpus, stuck), tickets=has)
        )
    return servers


def _tickets_on_all(
    world: World, names: Sequence[HostName], tickets: Mapping[JobId, Fraction]
) -> list[Fraction]:
    """Of the own jobs of each of these servers."""
    if isinstance(tickets, JobTickets):
        return sums([world.at[name].roll[0] for name in names], tickets)
    rounded: dict[int, int] = {}
    return [_tickets_on(world, name, tickets, rounded) for name in names]


def _tickets_on(
    world: World, name: HostName, tickets: Mapping[JobId, Fraction], rounded: dict[int, int]
) -> Fraction:
    """Of the server's own jobs. `rounded`: as `add_up` has it."""
    return add_up(list(map(tickets.__getitem__, world.at[name].ids)), rounded)


GANDIVA_FAIR = Policy(
    name="gandiva-fair",
    needs=Needs(every_quantum=True, fair=True, starts=False, ends=False, progress=False),
    decide=decide,
)
