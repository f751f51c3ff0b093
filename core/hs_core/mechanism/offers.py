"""What `Worth` finds kind by kind, of all kinds at once: which moves to other pools are worth something where nobody has moved yet."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.loads import Board
from hs_core.mechanism.rates import HOPE, Speeds
from hs_core.mechanism.worth import ENOUGH, SCOUTS, SLACK, Offer
from hs_core.names import UserName

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class _Table(NamedTuple):
    """By users' classes, which are in order, and by pool."""

    classes: list[tuple[UserName, str]]
    users: list[UserName]
    whose: Ints  # of each class: which of the users
    asked: Ints  # GPUs
    gang: Ints  # of the first job; 0: there is none
    speed: Floats  # nan: not known


def find(board: Board, speeds: Speeds, pool_gain: float, fairer: float) -> list[Offer]:
    """All offers, in no order. The same floats as one by one: each is made of the same numbers in the same order."""
    models, kinds = board.world.models, _table(board, speeds)
    part, sums, has = _parts(board, kinds), _sums(kinds), _entitled(board, kinds)
    asks = np.array([[board.world.gpus.get((user, model), 0) for model in models] for user in kinds.users])
    content = (part[:, 0] >= 1) & ~asks[:, 1:].any(axis=1)
    row, source = ((kinds.asked > 0) & (kinds.gang > 0) & ~content[kinds.whose, None]).nonzero()
    idle = np.array([board.level(model).idle for model in models])
    at, target = ((has > 0) | idle)[kinds.whose[row]].nonzero()
    row, source = row[at], source[at]
    may = _may(kinds, part, row, source, target)
    row, source, target = row[may], source[may], target[may]
    whose, gang = kinds.whose[row], kinds.gang[row, source]
    one, other, known = _pair(kinds, row, source, target)
    before, after = part[whose, source], _with(board, kinds.users, whose, target, gang)
    now, then = one * before, other * after
    fair = (then >= now * (1 - SLACK)) & (known | (before <= 0) | (after >= 1 - SLACK))
    here, there = sums[whose, source], sums[whose, target]
    was = here * before + there * part[whose, target]
    rest, more = here - gang * one, there + gang * other
    will = rest * _with(board, kinds.users, whose, source, -gang) + more * after
    gain = np.where(fair, will - was, -np.inf)
    large = gain > pool_gain * gang * now + SLACK
    fairly = (gain > -SLACK) & (then > fairer * now + SLACK)
    scouts = ~known & ~np.isnan(kinds.speed[row, source]) & (target < source)  # as `Worth.scouts` has it
    scouts &= (has[whose, target] * ENOUGH >= gang) & ~_finding_out(kinds)[whose, target]
    some = (large | fairly | scouts).nonzero()[0]
    worth = -np.where(large, gain, np.where(fairly, SLACK * (then - now), SCOUTS))[some]
    rows = zip(worth.tolist(), row[some].tolist(), source[some].tolist(), target[some].tolist(), strict=True)
    return [(less, *kinds.classes[at], models[left], models[taken]) for less, at, left, taken in rows]


def _table(board: Board, speeds: Speeds) -> _Table:
    world, models = board.world, board.world.models
    place = {model: at for at, model in enumerate(models)}
    classes = sorted({(user, job_class) for user, job_class, _ in world.kind_gpus})
    users = list(dict.fromkeys(user for user, _ in classes))
    rows, owners = ({one: at for at, one in enumerate(some)} for some in (classes, users))
    shape = len(classes), len(models)
    asked, gang = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    row = [rows[user, job_class] for user, job_class, _ in world.kind_gpus]
    pool = [place[model] for _, _, model in world.kind_gpus]
    asked[row, pool] = list(world.kind_gpus.values())
    there = map(world.kinds.get, world.kind_gpus)
    gang[row, pool] = [band.gangs[0] if band is not None and band.gangs else 0 for band in there]
    told = [speeds.get(job_class, model) for _, job_class in classes for model in models]
    return _Table(
        classes=classes,
        users=users,
        whose=np.array([owners[user] for user, _ in classes], dtype=np.int64),
        asked=asked,
        gang=gang,
        speed=np.array(told, dtype=np.float64).reshape(shape),
    )


def _entitled(board: Board, kinds: _Table) -> Floats:
    """By user and pool."""
    entitled, models = board.entitled, board.world.models
    return np.array([[entitled.get((user, model), 0.0) for model in models] for user in kinds.users])


def _parts(board: Board, kinds: _Table) -> Floats:
    """Of the time that users' jobs run, pool by pool."""
    every = np.arange(len(kinds.users))
    return np.stack(
        [board.level(model).parts_of(kinds.users, every, every * 0) for model in board.world.models], axis=1
    )


def _with(board: Board, users: list[UserName], whose: Ints, pool: Ints, more: Ints) -> Floats:
    """The same with so many more GPUs asked for."""
    found = np.empty(len(whose), dtype=np.float64)
    for at, model in enumerate(board.world.models):
        here = (pool == at).nonzero()[0]
        found[here] = board.level(model).parts_of(users, whose[here], more[here])
    return found


def _sums(kinds: _Table) -> Floats:
    """Speeds of users' jobs, times their GPUs, as if all ran: as floats do not add up the same otherwise, class by class."""
    speed = np.where(kinds.speed == 0, 1.0, np.nan_to_num(kinds.speed, nan=1.0))
    return np.stack(
        [
            np.bincount(kinds.whose, weights=(kinds.asked * speed)[:, at], minlength=len(kinds.users))
            for at in range(kinds.speed.shape[1])
        ],
        axis=1,
    )


def _may(kinds: _Table, part: Floats, row: Ints, source: Ints, target: Ints) -> Bools:
    """As `Worth.targets` has it."""
    whose = kinds.whose[row]
    one, other, before = kinds.speed[row, source], kinds.speed[row, target], part[whose, source]
    scouted = ~np.isnan(one) & (kinds.asked[row, target] > 0)
    unknown = ((before < 1) | (target < source)) & ~scouted
    better = other * part[whose, target] >= one * before * (1 - SLACK)
    found: Bools = (source != target) & np.where(np.isnan(one) | np.isnan(other), unknown, better)
    return found


def _finding_out(kinds: _Table) -> Bools:
    """By user and pool: a class of the user's is there, and not measured there yet."""
    found = np.zeros((len(kinds.users), kinds.asked.shape[1]), dtype=np.bool_)
    row, pool = ((kinds.asked > 0) & np.isnan(kinds.speed)).nonzero()
    found[kinds.whose[row], pool] = True
    return found


def _pair(kinds: _Table, row: Ints, source: Ints, target: Ints) -> tuple[Floats, Floats, Bools]:
    one, other = kinds.speed[row, source], kinds.speed[row, target]
    known: Bools = ~(np.isnan(one) | np.isnan(other))
    one = np.nan_to_num(one, nan=1.0)
    hoped = one * np.where(target < source, HOPE, 1.0)
    return one, np.where(known, other, hoped), known
