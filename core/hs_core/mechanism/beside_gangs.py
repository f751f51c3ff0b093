"""What gangs over several servers leave to jobs of one server on theirs.

A job of one server goes to another one of its pool when its own is to run jobs for longer than it can. A gang over several servers has all of these at
once or none, so who runs nearly all the time on one of them keeps it from its turns, and the other servers with it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import fsum

import numpy as np

from hs_core.mechanism.band import NOBODY, NUMBERS, Band
from hs_core.mechanism.world import World
from hs_core.names import HostName, UserName


def most_beside(world: World, model: str, parts: Mapping[UserName, float]) -> dict[UserName, float]:
    """GPUs that users' jobs of a pool could have on average, where gangs run for these parts of the time; none: no gang there has several servers."""
    names = [name for name in world.floor.servers[model].names if world.parts.get(name)]
    if not names:
        return {}
    asked = {user: float(gpus) for (user, of), gpus in world.gpus.items() if of == model}
    return (_one_by_one if world.roll is None else _at_once)(world, names, parts, asked)


def _one_by_one(
    world: World, names: Sequence[HostName], parts: Mapping[UserName, float], asked: Mapping[UserName, float]
) -> dict[UserName, float]:
    """Among few jobs. `names`: servers with gangs; `asked`: GPUs, by user."""
    gangs = {name: _load(parts, world.parts[name]) for name in names}
    found = defaultdict[UserName, float](float, asked)
    for name in names:
        here, gpus, load = world.at.get(name, NOBODY), world.hosts[name].gpus, gangs[name]
        every = fsum(load.values())
        alike: dict[int, float] = {}  # by width, of users without a gang there
        for user, gang in zip(here.users, here.gangs, strict=True):
            if user in load:
                found[user] -= gang * _out(gpus, every - load[user], gang)
                continue
            less = alike.get(gang)
            if less is None:
                less = alike[gang] = gang * _out(gpus, every, gang)
            found[user] -= less
    return found


def _at_once(
    world: World, names: Sequence[HostName], parts: Mapping[UserName, float], asked: Mapping[UserName, float]
) -> dict[UserName, float]:
    """The same among very many, over arrays."""
    gangs = [world.parts[name] for name in names]
    there = np.repeat(np.arange(len(names)), list(map(len, gangs)))
    owner = np.concatenate([band.roll[2] for band in gangs])
    whose = [NUMBERS[user] for user in (*parts, *asked)]
    users = NUMBERS.end
    part = np.zeros(users)
    part[whose[: len(parts)]] = list(parts.values())
    gpus = np.concatenate([band.per_node for band in gangs]) * part[owner]
    every = np.bincount(there, weights=gpus, minlength=len(names))
    keys, which = np.unique(there * users + owner, return_inverse=True)
    of_users = np.bincount(which, weights=gpus)  # of those, on that server

    small = [world.at.get(name, NOBODY) for name in names]
    there = np.repeat(np.arange(len(names)), list(map(len, small)))
    _, width, owner = np.concatenate([band.roll for band in small], axis=1)
    at = there * users + owner
    place = np.minimum(np.searchsorted(keys, at), keys.size - 1)
    others = every[there] - np.where(keys[place] == at, of_users[place], 0.0)
    has = np.array([world.hosts[name].gpus for name in names])[there]
    out = np.clip(1.0 - (has - others) / width, 0.0, 1.0)  # as `_out`
    less = np.bincount(owner, weights=width * out, minlength=users)
    return dict(zip(asked, (list(asked.values()) - less[whose[len(parts) :]]).tolist(), strict=True))


def _load(parts: Mapping[UserName, float], band: Band) -> Mapping[UserName, float]:
    """GPUs of a server that users' gangs have on average."""
    found = defaultdict[UserName, float](float)
    for user, gpus in zip(band.users, band.per_node, strict=True):
        found[user] += gpus * parts.get(user, 0.0)
    return found


def _out(gpus: int, others: float, width: int) -> float:
    """Part of the time in which others' gangs, which have so many of a server's GPUs, leave a job of so many no room there."""
    return min(1.0, max(0.0, 1.0 - (gpus - others) / width))
