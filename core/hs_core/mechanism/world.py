"""A snapshot as one decision needs it: every job looked at once, everything else by user, pool and class."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.placing import Home, by_arrival, pools_of, takes_new
from hs_core.mechanism.trade import Needs
from hs_core.model import HostName, JobId, Migrate, UserName
from hs_core.policy import HostFacts, JobFacts, Snapshot
from hs_core.shares import Demand

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

At = tuple[UserName, str]
"""A user in a pool."""
Kind = tuple[UserName, str, str]
"""A user's class of jobs in a pool: (user, class, model)."""
Leaving = Mapping[JobId, Home]
"""Jobs that were told to move, and where to."""


class Shape(NamedTuple):
    """What decides where a job fits."""

    per_node: int
    nodes: int
    memory_bytes: int
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Rack:
    """Servers that are alike in all that a job can ask for."""

    model: str
    gpus: int
    memory_bytes: int
    takes_new: bool


class Servers:
    """Those of one model, by name, as arrays."""

    def __init__(self, hosts: Iterable[HostFacts]) -> None:
        there = list(hosts)
        self.names: list[HostName] = [host.name for host in there]
        self.index = {name: at for at, name in enumerate(self.names)}
        self.gpus: Ints = np.array([host.gpus for host in there], dtype=np.int64)
        self.memory: Ints = np.array([host.gpu_memory_bytes for host in there], dtype=np.int64)
        self.accepts: Bools = np.array([takes_new(host) for host in there], dtype=bool)
        self.width: Ints = np.maximum(self.gpus, 1)
        self._fits: dict[Shape, Bools] = {}

    def fits(self, shape: Shape) -> Bools:
        found = self._fits.get(shape)
        if found is None:
            found = (shape.per_node <= self.gpus) & (shape.memory_bytes <= self.memory) & self.accepts
            self._fits[shape] = found
        return found


class Floor:
    """The servers, whatever lives there."""

    def __init__(self, hosts: Sequence[HostFacts]) -> None:
        self.asked = hosts
        self.hosts = {host.name: host for host in sorted(hosts, key=lambda host: host.name)}
        self.pools = pools_of(self.hosts.values())
        self.racks: dict[_Rack, int] = {}
        for host in self.hosts.values():
            rack = _Rack(host.model, host.gpus, host.gpu_memory_bytes, takes_new(host))
            self.racks[rack] = self.racks.get(rack, 0) + 1
        self.calm = {name: host for name, host in self.hosts.items() if takes_new(host)}
        self.servers = {
            model: Servers(host for host in self.hosts.values() if host.model == model)
            for model, _ in self.pools
        }
        self.usable: dict[tuple[int, int, int, tuple[str, ...]], tuple[str, ...]] = {}


_newest: list[Floor] = []
"""From one decision to the next servers are mostly the same."""


def floor(hosts: Sequence[HostFacts]) -> Floor:
    if not _newest or _newest[0].asked != hosts:
        _newest[:] = [Floor(hosts)]
    return _newest[0]


@dataclass(slots=True)
class World:
    """Mutable while a decision is made: jobs find homes and move."""

    snapshot: Snapshot
    floor: Floor
    jobs: list[JobFacts]  # by id
    homes: dict[JobId, Home] = field(default_factory=dict)  # as they will be in the plan
    effective: dict[JobId, Home] = field(default_factory=dict)  # where moves under way end, if not at home
    new: list[JobFacts] = field(default_factory=list)  # look for a home
    leavers: list[JobFacts] = field(default_factory=list)  # should leave their servers, and can
    at: dict[HostName, list[JobFacts]] = field(default_factory=dict)  # jobs of one server where they live
    parts: dict[HostName, list[JobFacts]] = field(default_factory=dict)  # of jobs of several servers
    unable: set[JobId] = field(default_factory=set)  # at home on servers that lack GPUs for them now
    gpus: dict[At, int] = field(default_factory=dict)  # that a user's jobs ask for, where they live
    kinds: dict[Kind, list[JobFacts]] = field(default_factory=dict)  # jobs by class where they live
    kind_gpus: dict[Kind, int] = field(default_factory=dict)
    demands: dict[tuple[UserName, tuple[str, ...]], int] = field(default_factory=dict)
    leaving: dict[JobId, Home] = field(default_factory=dict)  # of those that were told to move, who still are
    _classes: dict[UserName, list[str]] = field(default_factory=dict)

    @property
    def hosts(self) -> dict[HostName, HostFacts]:
        return self.floor.hosts

    @property
    def pools(self) -> list[tuple[str, int]]:
        """(model, GPUs), newest first."""
        return self.floor.pools

    @property
    def models(self) -> list[str]:
        return [model for model, _ in self.pools]

    def model(self, home: Home) -> str:
        return self.hosts[home[0]].model

    def mixed(self, job: JobFacts) -> bool:
        """Another policy gave it servers of several models."""
        return job.nodes > 1 and len({self.hosts[name].model for name in job.hosts}) > 1

    def where(self, job: JobFacts) -> Home:
        """Its home, or where it is on its way to."""
        return self.effective.get(job.id) or self.homes[job.id]

    def usable(self, job: JobFacts) -> tuple[str, ...]:
        """Pools that could take the job, newest first."""
        key = (job.gang, job.nodes, job.gpu_memory_bytes, job.gpu_types)
        found = self.floor.usable.get(key)
        if found is None:
            found = self.floor.usable[key] = self._find(shape_of(job))
        return found

    def _find(self, shape: Shape) -> tuple[str, ...]:
        servers: dict[str, int] = {}
        for rack, count in self.floor.racks.items():
            fits = shape.per_node <= rack.gpus and shape.memory_bytes <= rack.memory_bytes
            if rack.takes_new and fits and (not shape.models or rack.model in shape.models):
                servers[rack.model] = servers.get(rack.model, 0) + count
        return tuple(model for model, _ in self.pools if servers.get(model, 0) >= shape.nodes)

    def settle(self, job: JobFacts, home: Home) -> None:
        """The job lives there from now on (or will, once it has moved)."""
        model, gang = self.hosts[home[0]].model, job.gang
        at = (job.user, model)
        self.gpus[at] = self.gpus.get(at, 0) + gang
        kind = (job.user, job.job_class, model)
        if (there := self.kinds.get(kind)) is None:
            self.kinds[kind], self.kind_gpus[kind] = [job], gang
        else:
            there.append(job)
            self.kind_gpus[kind] += gang
        if job.nodes == 1:
            self.at[home[0]].append(job)
        else:
            for name in home:
                self.parts.setdefault(name, []).append(job)

    def unsettle(self, job: JobFacts, home: Home) -> None:
        model = self.hosts[home[0]].model
        self.gpus[job.user, model] -= job.gang
        kind = (job.user, job.job_class, model)
        self.kind_gpus[kind] -= job.gang
        self.kinds[kind].remove(job)
        if job.nodes == 1:
            self.at[home[0]].remove(job)
        else:
            for name in home:
                self.parts[name].remove(job)

    def classes(self, user: UserName) -> list[str]:
        """Of the user's placed jobs, wherever they are."""
        if not self._classes:
            for of, job_class, _ in sorted(self.kind_gpus):
                mine = self._classes.setdefault(of, [])
                if not mine or mine[-1] != job_class:
                    mine.append(job_class)
        return self._classes.get(user, [])

    def ask(self, user: UserName, models: tuple[str, ...], gpus: int) -> None:
        """Jobs could use so many, in any of these pools."""
        if models:
            demand = (user, models)
            self.demands[demand] = self.demands.get(demand, 0) + gpus

    def demand(self) -> list[Demand]:
        """What jobs could use, pool by pool."""
        return [Demand(user, frozenset(models), gpus) for (user, models), gpus in self.demands.items()]

    def needs(self) -> Needs:
        usable: dict[At, int] = {}
        pinned: dict[At, int] = {}
        total: dict[UserName, int] = {}
        for (user, models), gpus in self.demands.items():
            total[user] = total.get(user, 0) + gpus
            for model in models:
                usable[user, model] = usable.get((user, model), 0) + gpus
            if len(models) == 1:
                pinned[user, models[0]] = pinned.get((user, models[0]), 0) + gpus
        users = dict.fromkeys(user for user, _ in self.demands)
        for user in users:
            for model, _ in self.pools:
                usable.setdefault((user, model), 0)
        return Needs(usable=usable, pinned=pinned, total=total)


def shape_of(job: JobFacts) -> Shape:
    return Shape(job.per_node, job.nodes, job.gpu_memory_bytes, job.gpu_types)


_id_of, _gang_of = attrgetter("id"), attrgetter("gang")
_Plain = tuple[UserName, str, str, int, int, tuple[str, ...]]
"""Of a job where it lives: user, class, model, gang, memory and the models it may use."""


def look(snapshot: Snapshot, leaving: Leaving) -> World:
    there = floor(snapshot.hosts)
    jobs = sorted(snapshot.jobs, key=_id_of)
    world = World(snapshot, there, jobs, at={name: [] for name in there.hosts})
    calm, auto, homes, at = there.calm, Migrate.AUTO, world.homes, world.at
    plain: dict[_Plain, list[JobFacts]] = {}
    for job in jobs:
        home = job.hosts
        if (
            home
            and job.nodes == 1
            and (here := calm.get(home[0])) is not None
            and job.gang <= here.gpus
            and job.movable
            and job.migrate is auto
        ):  # nothing is odd about it, as about most: by far the shortest way
            homes[job.id] = home
            at[home[0]].append(job)
            kind = (job.user, job.job_class, here.model, job.gang, job.gpu_memory_bytes, job.gpu_types)
            if kind in plain:
                plain[kind].append(job)
            else:
                plain[kind] = [job]
        else:
            if home:
                models = _seat(world, job, leaving)
            else:
                world.new.append(job)
                models = world.usable(job)
            world.ask(job.user, models, job.gang)
    _count_plain(world, plain)
    for of, alike in world.kinds.items():
        user, _, model = of
        world.kind_gpus[of] = count = sum(map(_gang_of, alike))
        world.gpus[user, model] = world.gpus.get((user, model), 0) + count
    world.new.sort(key=by_arrival)
    world.leavers.sort(key=by_arrival)
    return world


def _count_plain(world: World, plain: Mapping[_Plain, list[JobFacts]]) -> None:
    kinds = world.kinds
    mixed: set[Kind] = set()
    for (user, job_class, model, gang, _, _), alike in plain.items():
        kind = (user, job_class, model)
        if kind in kinds:
            kinds[kind] += alike
            mixed.add(kind)
        else:
            kinds[kind] = alike
        world.ask(user, world.usable(alike[0]), gang * len(alike))
    for kind in mixed:
        kinds[kind].sort(key=_id_of)


def _seat(world: World, job: JobFacts, leaving: Leaving) -> tuple[str, ...]:
    """Where a job that has a home stands; the pools that it is demand for."""
    hosts, home = world.hosts, job.hosts
    there = [hosts[name] for name in home if name in hosts]
    known = len(there) == len(home)
    stays = all(host.accepts or not host.connected for host in there)
    if not known and (job.started or not job.movable):
        return ()
    reached = all(host.connected for host in there)
    if not known or (not job.started and job.movable and reached and not stays):
        world.new.append(job)
        return world.usable(job)
    world.homes[job.id] = home
    model = there[0].model
    able = all(job.per_node <= host.gpus for host in there)
    target = leaving.get(job.id)
    if target is not None and _under_way(world, job, target):
        world.leaving[job.id] = world.effective[job.id] = target
        _count(world, job, target)
        return _with(world.usable(job), model if able else None, world)
    if able:
        _count(world, job, home)
    else:
        world.unable.add(job.id)
    fixed = job.rooted or (job.started and job.migrate is Migrate.NEVER)
    if fixed or not reached:
        return (model,) if able else ()
    # One that is just starting is demand wherever it could be, as it was before: else shares and trades would waver with every move.
    if job.movable and (not stays or not able):
        world.leavers.append(job)
    if job.started and job.migrate is Migrate.SAME_TYPE:
        return (model,) if able or model in world.usable(job) else ()
    return _with(world.usable(job), model if able else None, world)


def _count(world: World, job: JobFacts, home: Home) -> None:
    """As `settle`; sums of GPUs are made once, after all jobs."""
    world.kinds.setdefault((job.user, job.job_class, world.model(home)), []).append(job)
    if job.nodes == 1:
        world.at[home[0]].append(job)
    else:
        for name in home:
            world.parts.setdefault(name, []).append(job)


def _under_way(world: World, job: JobFacts, target: Home) -> bool:
    return not job.movable and job.started and job.hosts != target and world.hosts.keys() >= set(target)


def _with(models: tuple[str, ...], own: str | None, world: World) -> tuple[str, ...]:
    if own is None or own in models:
        return models
    return tuple(model for model, _ in world.pools if model in models or model == own)
