"""Gandiva_fair (EuroSys'20): entitlements by tickets, trades upon them, placement, migration, and split stride.

Pool by pool users are entitled to what max-min by tickets gives them; they trade fast GPUs for slow ones; jobs are placed and moved so that
every server carries alike; and gangs over several servers take turns with what else is there. The rest, gang-aware stride within
a server, is the agents' (`mechanism.stride`). Departures are named in the modules of `mechanism` and in docs/policies/gandiva-fair.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, compress
from typing import Any, NamedTuple

from hs_core.job_tickets import JobTickets
from hs_core.mechanism import crowd, exchange, split, trade, trading, until_edge, user_turns
from hs_core.mechanism.amends import amended
from hs_core.mechanism.fitting import fitted
from hs_core.mechanism.job_weights import Factors, Fits, Shares, Weighed, of_small, weigh
from hs_core.mechanism.lags import Lags, had_in_turn
from hs_core.mechanism.level import Level
from hs_core.mechanism.loads import Board, find_levels
from hs_core.mechanism.mover import Limits, Mover
from hs_core.mechanism.moves import drain, settle_all
from hs_core.mechanism.place import place
from hs_core.mechanism.rates import Speeds, speeds_of
from hs_core.mechanism.reweighing import AtOnce, OneByOne, Scales
from hs_core.mechanism.sequel import Decided, FairSequel, pace
from hs_core.mechanism.turns_ahead import turns_ahead
from hs_core.mechanism.waiting import Waiting
from hs_core.mechanism.world import At, World, look
from hs_core.names import HostName, JobId
from hs_core.policy import JobFacts, Memory, Needs, Plan, Policy, Snapshot, Trade, Verdict
from hs_core.shares import entitle_pools
from hs_core.wanted import Turn

LIMITS = Limits()
FEW_JOBS = 4_096  # up to so many, arrays are not worth it


def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
    world = look(snapshot, many=len(snapshot.jobs) > FEW_JOBS)
    speeds = speeds_of(snapshot, world.models)
    base = entitle_pools(world.pools, world.demand(), snapshot.tickets)
    within = memory.get("quantum") == snapshot.quantum
    return (_meanwhile if within else _at_edge)(world, speeds, base, memory)


def _at_edge(world: World, speeds: Speeds, base: Shares, memory: Memory) -> Verdict:
    """All there is to decide."""
    traded = trading.settle(world, base, speeds, memory.get("trades", ()))
    shares = _floats(traded.entitled)
    mended, due, levels = _levels(world, shares, traded.entitled, speeds, {})
    lags = Lags(world, levels, memory.get("lags", {})).observe(had_in_turn(world))
    factors = lags.factors()
    board = Board(world, shares, levels, factors, due)
    place(board, speeds)
    still = exchange.stillness(world, traded.entitled, speeds) if exchange.is_small(world) else ""
    held = still != "" and still == memory.get("held")
    mover = settle_all(board, speeds, _limits(world, memory), held=held)
    if world.new or mover.done:
        mended, due, levels = _levels(world, shares, traded.entitled, speeds, levels)
    fits = exchange.fits(mover, mended) if mover.held else fitted(world, levels, mended)
    weighed = weigh(world, fits, factors)
    tickets = weighed.tickets
    stands = not (world.new or mover.done)  # else what is due to users is another matter
    played = _play(
        world, tickets, memory.get("books", {}), lags if stands else Lags(world, levels, lags.dump())
    )
    quantum = world.snapshot.quantum
    kept = _remember(
        {
            "quantum": quantum,
            "moved": quantum,
            "trades": trade.dump(traded.trades),
            "turns": split.dump_turns(played.turns),
            "books": played.table.books(),
            "lags": lags.dump(),
            "held": still if mover.held else "",
            "weights": until_edge.dump(traded.entitled, fits, factors),
        },
    )
    sequel = None
    if _are_settled(world, played, mover):
        decided = Decided(
            world=world,
            levels=levels,
            lags=lags if stands else None,
            factors=factors,
            jobs=len(tickets),
            scales=_scales(world, fits, factors, weighed, played),
            wakes_s=mover.awaits_s,
            held_back=mover.held_back,
        )
        sequel = FairSequel(decided, kept, played.table)
    return Verdict(
        plan=_plan(world, mover, tickets, played.turns, played.by_users),
        memory=kept,
        why=Waiting(world, board, played.turns),
        ahead=turns_ahead(lambda: (played.gangs, played.servers), kept.get("books", {})),
        entitled=traded.entitled,
        base=base if traded.trades else {},
        trades=traded.trades,
        news=traded.news,
        sequel=sequel,
    )


def _meanwhile(world: World, speeds: Speeds, base: Shares, memory: Memory) -> Verdict:
    """Within a quantum: who has no home is placed, and who must leave its server leaves. The rest is a matter of the next edge."""
    traded = trading.hold(world, base, speeds, memory.get("trades", ()))
    fits, factors = until_edge.load(memory.get("weights", {}), traded.entitled, world.models)
    due = _floats(fits.shares)
    board = Board(world, _floats(traded.entitled), find_levels(world, due), factors, due)
    place(board, speeds)
    mover = drain(board, speeds, LIMITS)
    tickets = weigh(world, fits, factors).tickets
    turns = _keep_turns(world, memory, tickets)
    kept = _remember({**memory, "trades": trade.dump(traded.trades), "turns": split.dump_turns(turns)})
    return Verdict(
        plan=_plan(world, mover, tickets, turns, user_turns.servers_of(world)),
        memory=kept,
        why=Waiting(world, board, turns),
        ahead=turns_ahead(lambda: _entities(world, tickets), memory.get("books", {})),
        entitled=traded.entitled,
        base=base if traded.trades else {},
        trades=traded.trades,
        news=traded.news,
    )


def _plan(
    world: World,
    mover: Mover,
    tickets: Mapping[JobId, Fraction],
    turns: Mapping[HostName, Turn],
    in_step: Iterable[HostName],
) -> Plan:
    moves = {move.job.id: (move.reason, move.text) for move in mover.done}
    return Plan(homes=world.homes, turns=turns, tickets=tickets, moves=moves, in_step=frozenset(in_step))


def _levels(
    world: World, shares: Mapping[At, float], entitled: Shares, speeds: Speeds, known: Mapping[str, Level]
) -> tuple[Shares, Mapping[At, float], dict[str, Level]]:
    """Shares with amends made, the same as floats, and the levels of these; `known`: as they were before anybody has found a home, or another one."""
    levels = find_levels(world, shares, known)
    mended = amended(world, levels, entitled, shares, speeds)
    if mended is entitled:
        return mended, shares, levels
    due = _floats(mended)
    return mended, due, find_levels(world, due, levels)


def _floats(shares: Shares) -> dict[At, float]:
    """As `float` does, at half its cost: there is one for every user in every pool."""
    return {at: over / under for at, share in shares.items() for over, under in [share.as_integer_ratio()]}


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


def _remember(kept: Mapping[str, Any]) -> Memory:
    """`moved`: the quantum in which moves were made last."""
    return {name: value for name, value in kept.items() if value or name in ("quantum", "moved")}


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


def _keep_turns(world: World, memory: Memory, tickets: Mapping[JobId, Fraction]) -> Mapping[HostName, Turn]:
    """Those of a quantum that was decided about before, as far as they still go, and whom that leaves idle GPUs."""
    # Who leaves a server on which turns go by users is counted where it will be: its GPUs here are idle, or a gang's.
    leave = {job for job in world.going if len(world.homes.get(job, ())) == 1}
    homes = {job: home for job, home in world.homes.items() if job not in leave} if leave else world.homes
    turns = split.keep_turns(memory.get("turns", {}), homes)
    named = {job_id for turn in turns.values() for job_id in turn.gangs}
    takes = {job.id: job.per_node for job in compress(world.jobs, map(named.__contains__, world.ids))}
    fit = split.that_fit(turns, takes, {name: host.gpus for name, host in world.hosts.items()})
    return split.with_idle(fit, *_entities(world, tickets))


class _Played(NamedTuple):
    """A quantum of those who take turns."""

    gangs: Sequence[split.Gang]
    servers: Sequence[split.Server]
    table: split.Few | crowd.Crowd | user_turns.Both
    turns: Mapping[HostName, Turn]
    by_users: Mapping[HostName, int]  # servers whose turns go by users
    whole: bool = True  # all that live on these take part


def _play(world: World, tickets: Mapping[JobId, Fraction], books: split.Books, lags: Lags) -> _Played:
    gangs, servers = _entities(world, tickets)
    if not (by_users := user_turns.servers_of(world)):
        table = crowd.table(gangs, servers, books)
        return _Played(gangs, servers, table, table.play(), {})
    members = user_turns.members_of(world, by_users, tickets)
    users = user_turns.UserTurns(members, by_users, books)
    both = user_turns.Both(split.Few(gangs, servers, books), users, lags.dues())
    whole = user_turns.are_all(members, world, by_users)
    return _Played(gangs, servers, both, both.play(), by_users, whole)


def _are_settled(world: World, played: _Played, mover: Mover) -> bool:
    """Of those who take turns with gangs nobody is about to begin a run that nothing can suspend, and no gang leaves: in a large cluster that one misses
    turns of its new home until it is there."""
    shared = {*(server.name for server in played.servers), *played.by_users}
    there = chain.from_iterable(world.at[name].stuck for name in sorted(shared) if name in world.at)
    parts = (
        job
        for gang in played.gangs
        if (band := world.parts.get(gang.servers[0])) is not None
        for job in band.stuck
        if job.id == gang.job
    )
    starts = any(job.id not in world.snapshot.running for job in chain(there, parts))
    leaves = pace(len(world.jobs)) == 1 and any(moved.job.nodes > 1 for moved in mover.done)
    return played.whole and not starts and not leaves


def _scales(world: World, fits: Fits, factors: Factors, weighed: Weighed, played: _Played) -> Scales:
    if isinstance(weighed.tickets, JobTickets):
        return AtOnce(world, weighed.tickets, weighed.ats, factors, played.table)
    shared = [server.name for server in played.servers]
    return OneByOne(world, fits, weighed.tickets, played.table, shared)


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
            able=job.id not in unable
            and not job.held_up
            and not (away and any(not hosts[name].connected for name in home)),
        )
        for job, has in zip(jobs, tickets, strict=True)
    ]


def _servers(world: World, shared: set[HostName], tickets: Mapping[JobId, Fraction]) -> list[split.Server]:
    running = world.snapshot.running
    whose = [(name, width) for name in sorted(shared) for width in sorted(world.at[name].widths)]
    small: dict[HostName, list[split.Small]] = {name: [] for name in sorted(shared)}
    for (name, width), has in zip(whose, of_small(world, whose, tickets), strict=True):
        jobs = world.at[name]
        stuck = sum([job.gang for job in jobs.stuck if job.gang == width and job.id in running])
        small[name].append(split.Small(width, jobs.gangs.count(width), has, stuck))
    return [split.Server(name, world.hosts[name].gpus, tuple(jobs)) for name, jobs in small.items()]


def _standing(memory: Memory) -> tuple[Trade, ...]:
    return tuple(trade.load(memory.get("trades", ())))


GANDIVA_FAIR = Policy(
    name="gandiva-fair",
    needs=Needs(every_quantum=True, fair=True, starts=False, ends=False, progress=False, bindings=True),
    decide=decide,
    trades=_standing,
)
