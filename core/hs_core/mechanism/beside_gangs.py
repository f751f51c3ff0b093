"""What gangs over several servers leave to jobs of one server on theirs.

A job of one server goes to another one of its pool when its own is to run jobs for longer than it can. A gang over several servers has all of these at
once or none, so who runs nearly all the time on one of them keeps it from its turns, and the other servers with it.
"""

from collections import defaultdict
from collections.abc import Mapping
from math import fsum

from hs_core.mechanism.band import NOBODY, Band
from hs_core.mechanism.world import World
from hs_core.names import UserName


def most_beside(world: World, model: str, parts: Mapping[UserName, float]) -> dict[UserName, float]:
    """GPUs that users' jobs of a pool could have on average, where gangs run for these parts of the time; none: no gang there has several servers."""
    names = [name for name in world.floor.servers[model].names if world.parts.get(name)]
    if not names:
        return {}
    gangs = {name: _load(parts, world.parts[name]) for name in names}
    found = defaultdict[UserName, float](float)
    found.update({user: float(gpus) for (user, of), gpus in world.gpus.items() if of == model})
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


def _load(parts: Mapping[UserName, float], band: Band) -> Mapping[UserName, float]:
    """GPUs of a server that users' gangs have on average."""
    found = defaultdict[UserName, float](float)
    for user, gpus in zip(band.users, band.per_node, strict=True):
        found[user] += gpus * parts.get(user, 0.0)
    return found


def _out(gpus: int, others: float, width: int) -> float:
    """Part of the time in which others' gangs, which have so many of a server's GPUs, leave a job of so many no room there."""
    return min(1.0, max(0.0, 1.0 - (gpus - others) / width))
