"""Jobs that change homes together, on servers of all models (departure from Gandiva_fair, 3.3, which balances job by job).

All other moves are of one job, or of a few that go to one server, and each of them is a gain by itself. Where jobs of several widths share few servers
that is not enough: everybody is in somebody's way, GPUs idle in each other's turns, and a user lacks a fifth of what its shares are worth as long as
they live, though other homes would give everybody theirs. So homes are thought of as a whole, from those that are there step by step (one job that
goes elsewhere, or two that change places) to where users lack least; turns are played ahead (`mechanism.played`), and who lacks something weighs more in them, as amends, fits
and lags make it. If that is worth the moves they are made all at once.

After that nobody moves by another measure until somebody comes or leaves, or shares or speeds have changed (`stillness`): pool by pool and server by server it looks
best to undo it. Only to GPUs that would idle all the time, and to where a class was not measured, jobs go all the same.

For few jobs on few servers: among many there is always one for which a single move is a gain.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from hashlib import blake2b
from math import fsum, log
from operator import sub

from hs_core.mechanism.better_homes import ENOUGH, LEAST, Table, better, weighed
from hs_core.mechanism.job_weights import Fits, Shares
from hs_core.mechanism.mover import Mover
from hs_core.mechanism.rates import Speeds
from hs_core.mechanism.spare import Spare
from hs_core.mechanism.world import At, World
from hs_core.model import Migrate, MoveReason
from hs_core.names import HostName, UserName
from hs_core.policy import JobFacts

MOST_JOBS, MOST_SERVERS = 64, 16
A_MOVE = 0.001  # less in the squares of what users lack, beyond `ENOUGH`, for each job that moves: once it costs a start
STEPS_OF_WEIGHT = 1024  # of a ticket per GPU: so tickets stay simple fractions
A_LITTLE = Fraction(1, 64)  # of a GPU, of who has no share where it lives
COARSE = 1.25  # times as fast: so much is another speed


def stillness(world: World, entitled: Shares, speeds: Speeds) -> str:
    """Of a world in which nothing changes but time, and where jobs live: the same word."""
    models = world.models if len(world.models) > 1 else ()  # else speeds are all the same to it
    rates = [
        (kind, [None if (one := speeds.get(kind, model)) is None else _coarsely(one) for model in models])
        for kind in sorted({job.job_class for job in world.jobs})
    ]
    servers = [(host.name, host.gpus, host.accepts) for host in world.hosts.values()]
    shares = sorted((user, model, str(share)) for (user, model), share in entitled.items())
    return blake2b(repr((rates, servers, shares, [*world.ids])).encode(), digest_size=8).hexdigest()


def _coarsely(speed: float) -> int:
    return round(log(speed) / log(COARSE)) if speed > 0 else -1


def is_small(world: World) -> bool:
    """Enough for its homes to be thought of as a whole."""
    return len(world.jobs) <= MOST_JOBS and len(world.hosts) <= MOST_SERVERS and not world.several


def settle_together(mover: Mover) -> bool:
    """Whether it was worth it, and jobs have moved."""
    world = mover.world
    if not is_small(world) or mover.done or world.going or world.unable or world.floor.away or mover.spent:
        return False
    jobs, names = _who_and_where(world)
    place = {name: at for at, name in enumerate(names)}
    may_use = tuple([frozenset([place[name] for name in _could_go_to(mover, job)]) for job in jobs])
    if not any(may_use):
        return False
    table = _table(mover, jobs, names)
    found = better(table, may_use)
    moved = [at for at, home in enumerate(found.homes) if home != table.homes[at]]
    worth_it = found.gain >= ENOUGH + A_MOVE * sum(jobs[at].started for at in moved)
    if not moved or not worth_it or not mover.affords([jobs[at] for at in moved]):
        return False
    users = _users(jobs)
    worst = max(range(len(users)), key=lambda user: found.before[user] - found.after[user])
    text = (
        f"{len(moved)} jobs change homes together: {users[worst]} would lack {max(0.0, found.before[worst]):.0%} of its share"
        if len(moved) > 1
        else f"where it is {users[worst]} would lack {max(0.0, found.before[worst]):.0%} of its share"
    )
    for at in moved:
        job, to = jobs[at], names[found.homes[at]]
        same = world.hosts[to].model == world.model(world.homes[job.id])
        mover.move(job, (to,), MoveReason.BALANCE if same else MoveReason.POOL, text)
    return True


def fits(mover: Mover, shares: Shares) -> Fits:
    """Of jobs that are held: shares, fitted so that everybody weighs as was thought when they changed homes."""
    world = mover.world
    jobs, names = _who_and_where(world)
    table = _table(mover, jobs, names)
    given, factors = dict(shares), dict[At, Fraction]()
    for user, weight, factor in zip(_users(jobs), table.weight, weighed(table).factors, strict=True):
        per_gpu = Fraction(max(1, round(STEPS_OF_WEIGHT * weight * factor)), STEPS_OF_WEIGHT)
        for model in world.models:
            at = user, model
            if gpus := world.gpus.get(at, 0):
                share = given.get(at) or A_LITTLE
                given[at], factors[at] = share, per_gpu * gpus / share
    return Fits(given, factors)


def _who_and_where(world: World) -> tuple[list[JobFacts], list[HostName]]:
    return [job for job in world.jobs if job.id in world.homes], sorted(world.hosts)


def _users(jobs: Sequence[JobFacts]) -> list[UserName]:
    return sorted({job.user for job in jobs})


def _table(mover: Mover, jobs: Sequence[JobFacts], names: Sequence[HostName]) -> Table:
    world, speeds, entitled = mover.world, mover.speeds, mover.board.entitled
    models, users = world.models, _users(jobs)
    number = {user: at for at, user in enumerate(users)}
    place = {name: at for at, name in enumerate(names)}
    value = [tuple([speed * job.gang for speed in speeds.hoped(job.job_class)]) for job in jobs]
    shares = [[entitled.get((user, model), 0.0) for model in models] for user in users]
    asked, worth = [0] * len(users), [[0.0] * len(models) for _ in users]
    for job, values in zip(jobs, value, strict=True):
        at = number[job.user]
        asked[at] += job.gang
        worth[at] = [had + one for had, one in zip(worth[at], values, strict=True)]
    return Table(
        gpus=tuple([world.hosts[name].gpus for name in names]),
        pool=tuple([models.index(world.hosts[name].model) for name in names]),
        owner=tuple([number[job.user] for job in jobs]),
        width=tuple([job.gang for job in jobs]),
        value=tuple(value),
        stays=tuple([_stays(world, job) for job in jobs]),
        due=tuple([
            fsum([share * one / gpus for share, one in zip(has, all_, strict=True)])
            for has, all_, gpus in zip(shares, worth, asked, strict=True)
        ]),
        weight=tuple([
            min(1.0, max(LEAST, fsum(has) / gpus)) for has, gpus in zip(shares, asked, strict=True)
        ]),
        homes=tuple([place[world.homes[job.id][0]] for job in jobs]),
    )  # fmt: skip


def _stays(world: World, job: JobFacts) -> bool:
    return not job.sliceable and job.id in world.snapshot.running


def _could_go_to(mover: Mover, job: JobFacts) -> Iterator[HostName]:
    """Servers of models on which its class was measured: what nobody knows is nothing to go by."""
    world = mover.world
    if _stays(world, job) or not mover.may_go(job):
        return
    own = world.model(world.homes[job.id])
    for model in world.usable(job):
        known = model == own or mover.speeds.measured(job.job_class, (own, model))
        if known and (not job.started or _may_take(job, own, model)):
            yield from world.floor.names_fitting(job, model)


def _may_take(job: JobFacts, own: str, model: str) -> bool:
    """Who has a process."""
    return job.migrate is Migrate.AUTO or (job.migrate is Migrate.SAME_TYPE and model == own)


# --- what ends it -----------------------------------------------------------------------------------------------------


def wastes(mover: Mover) -> bool:
    """GPUs idle all the time for which a job waits that would come to more of its mini-batches there."""
    world, spare = mover.world, Spare(mover)
    left: dict[HostName, int] = {}
    for model in world.models:
        there = world.floor.servers[model]
        left.update(zip(there.names, map(sub, there.gpus.tolist(), world.asked_in(model)), strict=True))
    free = {name: gpus for name, gpus in left.items() if gpus > 0 and world.hosts[name].accepts}
    waiting = [job for name, gpus in left.items() if gpus < 0 for job in world.at[name]] if free else []
    return any(
        gpus >= job.per_node and _gains(mover, job, spare.part(job), to)
        for job in waiting
        for to, gpus in free.items()
    )


def _gains(mover: Mover, job: JobFacts, part: float, to: HostName) -> bool:
    world, speeds = mover.world, mover.speeds
    own, model = world.model(world.homes[job.id]), world.hosts[to].model
    if not job.movable or (job.started and not _may_take(job, own, model)):
        return False
    if model not in world.usable(job) or to not in world.floor.names_fitting(job, model):
        return False
    one, other = speeds.get(job.job_class, own), speeds.get(job.job_class, model)
    faster = 1.0 if own == model or one is None or other is None else other / max(one, LEAST)
    return faster >= (1.0 + mover.limits.spare_gain) * part
