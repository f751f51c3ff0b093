"""Entitlements fitted to where jobs live, so that their tickets give users what is due to them there.

jobTickets (Gandiva_fair, eq 3) do so where every server carries alike. Jobs are whole, so servers never quite do: whose jobs are on those that are
a little too full gets less, and who is beside few gets more. What jobs can expect is known as soon as they have a home, for a server's stride
divides its GPUs by tickets, and nobody has more than it asks for. So users' tickets are scaled until what their jobs expect is in proportion to
what is due to them: servers and users in turns, as in iterative proportional fitting (Deming and Stephan, 1940). Servers that share gangs have their
turns together (`mechanism.split`), so they count as one place: looked at one by one, a gang would seem to get the more of a server the fewer others live there. What all that does not foresee
(gangs that take the whole server, turns that fall together) `mechanism.lags` makes good once it is seen.

Departure: the paper leaves this to balance alone.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, repeat
from operator import le

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.band import NOBODY, Band
from hs_core.mechanism.job_weights import Fits, Shares
from hs_core.mechanism.level import Level
from hs_core.mechanism.together import together
from hs_core.mechanism.weights import LEAST
from hs_core.mechanism.world import At, World
from hs_core.names import HostName, UserName
from hs_core.newest import Newest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STEPS = 64  # of a whole: factors are multiples of its inverse, so that tickets stay simple fractions
LEAST_FACTOR, MOST_FACTOR = 0.5, 2.0
_FACTORS = [Fraction(steps, STEPS) for steps in range(round(STEPS * MOST_FACTOR) + 1)]
ROUNDS = 6  # by then most of what can be gained is
EVEN = 0.01  # so far off is near enough
SLACK = 1e-9
TINY = 1e-300
MOST_JOBS = 4_096  # among more they are not fitted
_LEAST = float(LEAST)

_Row = tuple[int, UserName, int, bool]  # place, user, GPUs there, and whether it runs whatever its tickets


@dataclass(frozen=True, slots=True)
class _Asked:
    gpus: tuple[int, ...]  # of places: servers, or those together that share gangs
    rows: Mapping[_Row, int]  # how many there are of each
    users: tuple[UserName, ...]
    due: tuple[float, ...]  # GPUs, by user
    per_gpu: tuple[float, ...]  # tickets, by user


def fitted(world: World, levels: Mapping[str, Level], entitled: Shares) -> Fits:
    """By user and pool. `levels`: of the world as it is now.

    Among very many jobs as they are: there what one server carries too much another carries too little, and it would take long to find out.
    """
    if len(world.jobs) > MOST_JOBS:
        return Fits(entitled, {})
    factors: dict[At, Fraction] = {}
    for model, level in levels.items():
        asked = _ask(world, model, level, entitled)
        if asked is None:
            continue
        for user, steps in zip(asked.users, _fits[model](asked), strict=True):
            if steps != STEPS and (user, model) in entitled:
                factors[user, model] = _FACTORS[steps]
    return Fits(entitled, factors)


def _ask(world: World, model: str, level: Level, entitled: Shares) -> _Asked | None:
    """None: within one server the stride is exact, and where all run at once there is nothing to divide."""
    there = world.floor.servers[model]
    gpus = there.gpus.tolist()
    asked_here = world.asked_in(model)
    if len(gpus) < 2 or all(map(le, asked_here, gpus)):
        return None
    places = _places(world, there.names)
    room = [0] * len(gpus)
    for place, asked, has in zip(places, asked_here, gpus, strict=True):
        room[place] += min(asked, has)
    rows = Counter(
        chain.from_iterable(
            [
                _rows(world, place, band)
                for name, place in zip(there.names, places, strict=True)
                for band in (world.at[name], world.parts.get(name, NOBODY))
            ]
        )
    )
    users = tuple(sorted({row[1] for row in rows}))
    parts_of = level.parts()
    asks = [world.gpus.get((user, model), 0) for user in users]
    shares = [entitled.get((user, model), 0) for user in users]
    return _Asked(
        gpus=tuple(room),
        rows=dict(rows),  # of its own kind: counters are compared one by one
        users=users,
        due=tuple([parts_of.get(user, 0.0) * asked for user, asked in zip(users, asks, strict=True)]),
        per_gpu=tuple([
            max(_LEAST, share.numerator / share.denominator / max(1, asked))
            for share, asked in zip(shares, asks, strict=True)
        ]),
    )  # fmt: skip


def _places(world: World, names: Sequence[HostName]) -> list[int]:
    """Of each server one place, the same for all with which it shares gangs."""
    at = {name: place for place, name in enumerate(names)}
    homes = (tuple(filter(at.__contains__, world.homes.get(job.id, ()))) for job in world.several)
    of = together(filter(None, homes))
    return [at[of.get(name, name)] for name in names]


def _rows(world: World, place: int, band: Band) -> Iterable[_Row]:
    unable, running = world.unable, world.snapshot.running
    if not unable and not band.stuck:
        return zip(repeat(place), band.users, band.per_node, repeat(False))
    return [
        (place, job.user, job.per_node, not job.sliceable and job.id in running)
        for job in band
        if job.id not in unable
    ]


def _fit(asked: _Asked) -> tuple[int, ...]:
    """Factors of users' tickets, in steps."""
    place = {user: at for at, user in enumerate(asked.users)}
    rows = list(asked.rows)
    where: Ints = np.array([row[0] for row in rows], dtype=np.int64)
    owner: Ints = np.array([place[row[1]] for row in rows], dtype=np.int64)
    gpus: Floats = np.array(
        [row[2] * count for row, count in zip(rows, asked.rows.values(), strict=True)], dtype=np.float64
    )
    always: NDArray[np.bool_] = np.array([row[3] for row in rows], dtype=np.bool_)
    room = np.minimum(asked.gpus, np.bincount(where, weights=gpus, minlength=len(asked.gpus)))
    due, plain = np.array(asked.due), gpus * np.array(asked.per_gpu)[owner]
    factors, wanted = np.ones(due.size), due > 0
    for _ in range(ROUNDS):
        gets = np.bincount(
            owner, weights=_expected(where, room, gpus, plain * factors[owner], always), minlength=due.size
        )
        lacks = np.divide(due, gets, out=np.ones(due.size), where=wanted & (gets > 0))
        before, factors = factors, np.minimum(np.maximum(factors * lacks, LEAST_FACTOR), MOST_FACTOR)
        if np.maximum.reduce(np.abs(factors - before)) <= EVEN:
            factors = before
            break
    found: tuple[int, ...] = tuple(np.rint(STEPS * factors).astype(np.int64).tolist())
    return found


def _expected(where: Ints, room: Floats, gpus: Floats, weight: Floats, always: NDArray[np.bool_]) -> Floats:
    """GPUs of each row on average: by weight, and none more than it asks for."""
    full, most = always, gpus * (1 + SLACK)
    left, shared, has = room, weight, np.count_nonzero(full)
    if has:
        left, shared = _beside(where, room, gpus, weight, full)
    while True:
        total = np.bincount(where, weights=shared, minlength=room.size)
        gets: Floats = shared * (left / np.maximum(total, TINY))[where]
        full, had = full | (gets > most), has
        has = np.count_nonzero(full)
        if has == had:  # who has all it asks for gets nothing of the rest
            return np.where(full, gpus, gets)
        left, shared = _beside(where, room, gpus, weight, full)


def _beside(
    where: Ints, room: Floats, gpus: Floats, weight: Floats, full: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """GPUs of each place beside rows that have all they ask for, and the weights that divide them."""
    held = np.bincount(where, weights=gpus * full, minlength=room.size)
    return np.maximum(room - held, 0.0), weight * ~full


_fits = defaultdict[str, Newest[_Asked, tuple[int, ...]]](lambda: Newest(_fit))
"""By model. From one decision to the next hardly anybody lives elsewhere."""
