"""What gangs over several servers leave to those who live on their servers.

Jobs of one server go to another one of their pool when theirs is to run for longer than it can. A gang over several servers has all of these at
once or none, so who runs nearly all the time on one of them keeps it from its turns, and the other servers with it.
"""

from collections import defaultdict
from collections.abc import Mapping
from math import fsum

from hs_core.mechanism.band import NOBODY, Band
from hs_core.mechanism.world import World
from hs_core.names import HostName, UserName

_Load = dict[HostName, tuple[float, Mapping[UserName, float]]]
"""GPUs of servers that are in use on average: all, and by user."""


def most_beside(world: World, model: str, parts: Mapping[UserName, float]) -> dict[UserName, float]:
    """GPUs that users' jobs of a pool could have on average, where others run for these parts of the time; none: no gang there has several servers."""
    names = [name for name in world.floor.servers[model].names if world.parts.get(name)]
    if not names:
        return {}
    gangs = {name: _load(parts, world.parts[name]) for name in names}
    every = {name: _load(parts, world.parts[name], world.at.get(name, NOBODY)) for name in names}
    found = defaultdict[UserName, float](float)
    found.update({user: float(gpus) for (user, of), gpus in world.gpus.items() if of == model})
    for name in names:
        here = world.at.get(name, NOBODY)
        for user, gang in zip(here.users, here.gangs, strict=True):
            found[user] -= gang * _taken(world, gangs, name, user)
    for job in world.several:
        if (home := world.homes.get(job.id)) and world.model(home) == model:
            taken = [_taken(world, every, name, job.user) for name in home if name in every]
            found[job.user] -= job.gang * max(taken, default=0.0)
    return found


def _load(parts: Mapping[UserName, float], *bands: Band) -> tuple[float, Mapping[UserName, float]]:
    found = defaultdict[UserName, float](float)
    for band in bands:
        for user, gpus in zip(band.users, band.per_node, strict=True):
            found[user] += gpus * parts.get(user, 0.0)
    return fsum(found.values()), found


def _taken(world: World, load: _Load, name: HostName, user: UserName) -> float:
    """Part of the time that others have of the server."""
    whole, of_users = load[name]
    return min(1.0, (whole - of_users.get(user, 0.0)) / max(1, world.hosts[name].gpus))
