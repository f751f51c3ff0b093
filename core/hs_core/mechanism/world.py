"""A snapshot as one decision needs it: every job counted once (`mechanism.census`), everything else by user, pool and class."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np

from hs_core.mechanism.band import Band
from hs_core.mechanism.census import Ask, Census, Kind, census
from hs_core.mechanism.floor import Floor, Ints, floor
from hs_core.mechanism.placing import Home, by_arrival
from hs_core.mechanism.roll import Roll
from hs_core.mechanism.trade import Needs
from hs_core.model import Migrate
from hs_core.names import HostName, JobId, UserName
from hs_core.policy import HostFacts, JobFacts, Snapshot
from hs_core.shares import Demand

K = TypeVar("K", bound=Hashable)

At = tuple[UserName, str]
"""A user in a pool."""


@dataclass(slots=True)
class World:
    """Mutable while a decision is made: jobs find homes and move."""

    snapshot: Snapshot
    floor: Floor
    jobs: list[JobFacts]  # by id
    ids: Sequence[JobId] = ()  # theirs
    several: list[JobFacts] = field(default_factory=list)  # those of several servers, by id
    homes: dict[JobId, Home] = field(default_factory=dict)  # as they will be in the plan
    going: dict[JobId, Home] = field(default_factory=dict)  # of those that leave, where they will be
    new: list[JobFacts] = field(default_factory=list)  # look for a home
    leavers: list[JobFacts] = field(default_factory=list)  # should leave their servers, and can
    at: dict[HostName, Band] = field(default_factory=dict)  # jobs of one server where they live
    parts: dict[HostName, Band] = field(default_factory=dict)  # of jobs of several servers
    unable: set[JobId] = field(default_factory=set)  # at home on servers that lack GPUs for them now
    gpus: dict[At, int] = field(default_factory=dict)  # that a user's jobs ask for, where they live
    kinds: dict[Kind, Band] = field(default_factory=dict)  # jobs by class where they live
    kind_gpus: dict[Kind, int] = field(default_factory=dict)
    demands: dict[tuple[UserName, tuple[str, ...]], int] = field(default_factory=dict)
    roll: Roll | None = None  # of the jobs as they came; None: they are few
    settled: dict[JobId, str] = field(default_factory=dict)  # pools of those who were settled one by one
    _classes: dict[UserName, set[str]] = field(default_factory=dict)
    _bands: dict[At, list[Band]] | None = None
    _asked_in: dict[str, list[int]] = field(default_factory=dict)  # by model, until anybody moves
    _own: dict[int, Band] = field(default_factory=dict)  # bands that no other decision shares, by identity
    hosts: dict[HostName, HostFacts] = field(init=False)
    models: tuple[str, ...] = field(init=False)  # newest first

    def __post_init__(self) -> None:
        self.hosts, self.models = self.floor.hosts, self.floor.models

    @property
    def pools(self) -> list[tuple[str, int]]:
        """(model, GPUs that jobs can have), newest first."""
        return self.floor.pools(self._asked)

    def _asked(self, name: HostName) -> int:
        """GPUs, of the jobs that live on that server."""
        here, parts = self.at.get(name), self.parts.get(name)
        return (here.gpus if here else 0) + sum(parts.per_node if parts else ())

    def asked_in(self, model: str) -> Sequence[int]:
        """The same of each server of a pool, by name."""
        asked = self._asked_in.get(model)
        if asked is None:
            names, at, several = self.floor.servers[model].names, self.at, self.parts
            asked = self._asked_in[model] = [at[name].gpus for name in names]
            for place, name in enumerate(names) if several else ():
                if name in several:
                    asked[place] += sum(several[name].per_node)
        return asked

    def model(self, home: Home) -> str:
        return self.hosts[home[0]].model

    def mixed(self, job: JobFacts) -> bool:
        """Another policy gave it servers of several models."""
        return job.nodes > 1 and len({self.hosts[name].model for name in job.hosts}) > 1

    def where(self, job: JobFacts) -> Home:
        """Its home, or where it is on its way to."""
        return self.going.get(job.id) or self.homes[job.id]

    def usable(self, job: JobFacts) -> tuple[str, ...]:
        """Pools that could take the job, newest first."""
        return self.floor.usable(job)

    def count(self, kinds: Iterable[tuple[Kind, Band]], both: Mapping[Kind, Band]) -> None:
        """Jobs that live where the census has counted them. `both`: what it has of kinds that are counted twice."""
        of_users, of_kinds, here = self.gpus, self.kind_gpus, self.kinds
        for kind, band in kinds:
            user, _, model = kind
            at, gpus = (user, model), band.gpus
            of_users[at] = of_users.get(at, 0) + gpus
            if (before := here.get(kind)) is None:
                of_kinds[kind], here[kind] = gpus, band
                continue
            of_kinds[kind] += gpus
            if id(before) in self._own:
                before.add(*band)
            else:
                here[kind] = both[kind]

    def settle(self, job: JobFacts, home: Home) -> None:
        """The job lives there from now on (or will, once it has moved)."""
        model, gang = self.hosts[home[0]].model, job.gang
        self._asked_in.clear()
        self.settled[job.id] = model
        at = (job.user, model)
        self.gpus[at] = self.gpus.get(at, 0) + gang
        kind = (job.user, job.job_class, model)
        self.kind_gpus[kind] = self.kind_gpus.get(kind, 0) + gang
        for bands, key in self._places(job, home):
            self._owned(bands, key).add(job)

    def unsettle(self, job: JobFacts, home: Home) -> None:
        model = self.hosts[home[0]].model
        self._asked_in.clear()
        self.gpus[job.user, model] -= job.gang
        self.kind_gpus[job.user, job.job_class, model] -= job.gang
        for bands, key in self._places(job, home):
            self._owned(bands, key).remove(job)

    def _places(self, job: JobFacts, home: Home) -> Iterator[tuple[dict[Any, Band], Hashable]]:
        yield self.kinds, (job.user, job.job_class, self.hosts[home[0]].model)
        for name in home:
            yield (self.at if job.nodes == 1 else self.parts), name

    def _owned(self, bands: dict[Any, Band], key: Hashable) -> Band:
        """To be changed: no longer the census's, which other decisions share."""
        band = bands.get(key)
        if band is None or id(band) not in self._own:
            band = bands[key] = Band([] if band is None else list(band.jobs))
            self._own[id(band)] = band
        return band

    @property
    def bands(self) -> Mapping[At, list[Band]]:
        """Jobs by where their users have them; to be asked once all have found their homes."""
        if self._bands is None:
            self._bands = {}
            for (user, _, model), band in self.kinds.items():
                if band.gangs:
                    self._bands.setdefault((user, model), []).append(band)
        return self._bands

    def in_order(self) -> None:
        """Those that were changed, by id."""
        for band in self._own.values():
            band.sort()

    def pools_of_jobs(self, roll: Roll) -> Ints:
        """Of each of these, who are the world's, the place among the models of where it lives; -1: nowhere."""
        pool, models = roll.pool.copy(), self.models
        pool[roll.places(self.settled)] = list(map(models.index, self.settled.values()))
        if np.count_nonzero(pool >= 0) > len(self.homes):  # as hardly ever
            pool[[job not in self.homes for job in self.ids]] = -1
        return pool

    def classes(self, user: UserName) -> list[str]:
        """Of the user's placed jobs, wherever they are."""
        if not self._classes:
            for of, job_class, _ in self.kind_gpus:
                self._classes.setdefault(of, set()).add(job_class)
        return sorted(self._classes.get(user, ()))

    def ask(self, user: UserName, models: tuple[str, ...], gpus: int) -> None:
        """Jobs could use so many, in any of these pools."""
        if models:
            demand = (user, models)
            self.demands[demand] = self.demands.get(demand, 0) + gpus

    def demand(self) -> list[Demand]:
        """What jobs could use, pool by pool."""
        return [_demand(user, models, gpus) for (user, models), gpus in self.demands.items()]

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
            for model in self.models:
                usable.setdefault((user, model), 0)
        return Needs(usable=usable, pinned=pinned, total=total)


def look(snapshot: Snapshot, *, many: bool = False) -> World:
    """`many`: so many jobs that it is worth it to have a roll of them."""
    there = floor(snapshot.hosts)
    taken = census(there, snapshot.jobs)
    world = World(
        snapshot,
        there,
        list(taken.jobs),
        taken.ids,
        taken.of_several(),
        homes=taken.homes(),
        at=dict(taken.single.at),
        parts=dict(taken.several.at),
        roll=taken.roll() if many else None,
    )
    both = taken.both()
    # In the order of ids: what is added up pool by pool and user by user comes out the same, whatever the census is.
    for job, kind, ask in _several_and_odd(taken):
        if job is not None:
            _look_at(world, job)
        elif kind is not None:
            world.count([(kind, taken.several.kinds[kind])], both)
        elif ask is not None:
            world.ask(*ask, taken.several.asks[ask].gpus)
    world.count(_by_first(taken.single.kinds), both)
    for ask, band in _by_first(taken.single.asks):
        world.ask(*ask, band.gpus)
    world.in_order()
    world.new.sort(key=by_arrival)
    world.leavers.sort(key=by_arrival)
    return world


@lru_cache(maxsize=1 << 12)  # from one decision to the next most are the same
def _demand(user: UserName, models: tuple[str, ...], gpus: int) -> Demand:
    return Demand(user, frozenset(models), gpus)


def _by_first(bands: Mapping[K, Band]) -> list[tuple[K, Band]]:
    """By the lowest id in each; nobody is in two of them."""
    firsts = [band.ids[0] for band in bands.values()]
    return [item for _, item in sorted(zip(firsts, bands.items(), strict=True))]


def _several_and_odd(taken: Census) -> Iterator[tuple[JobFacts | None, Kind | None, Ask | None]]:
    """Odd jobs one by one, gangs over several servers together, by the lowest id."""
    found: list[tuple[JobId, int, tuple[JobFacts | None, Kind | None, Ask | None]]] = []
    found += [(job.id, 0, (job, None, None)) for job in taken.odd.values()]
    found += [(band.ids[0], 1, (None, kind, None)) for kind, band in taken.several.kinds.items()]
    found += [(band.ids[0], 2, (None, None, ask)) for ask, band in taken.several.asks.items()]
    found.sort(key=itemgetter(0, 1))
    return (one for _, _, one in found)


def _look_at(world: World, job: JobFacts) -> None:
    if not job.hosts:
        world.new.append(job)
        world.ask(job.user, world.floor.wanted(job), job.gang)
    elif (goes := _as_it_goes(world, job)) is not None:
        going, home = goes
        world.going[job.id] = home
        world.settle(going, home)
        world.ask(job.user, world.floor.wanted_from(going, world.model(home)), going.gang)
    else:
        world.ask(job.user, _seat(world, job), job.gang)


def _as_it_goes(world: World, job: JobFacts) -> tuple[JobFacts, Home] | None:
    """Where a job will be that leaves its home, and the job with the GPUs that it will have there. Nothing comes of it while a server of its home is away."""
    hosts, going = world.hosts, job.going
    if going is None or not hosts.keys() >= set(going.hosts):
        return None
    if not all(name in hosts and hosts[name].connected for name in job.hosts):
        return None
    nodes, gang = len(going.hosts), len(going.hosts) * going.gpus
    same = (nodes, gang) == (job.nodes, job.gang)
    return job if same else replace(job, nodes=nodes, gang=gang), going.hosts


def _seat(world: World, job: JobFacts) -> tuple[str, ...]:
    """Where a job that has a home stands; the pools that it is demand for."""
    hosts, home = world.hosts, job.hosts
    there = [hosts[name] for name in home if name in hosts]
    known = len(there) == len(home)
    stays = all(host.accepts or not host.connected for host in there)
    if not known and (job.started or not job.movable):
        del world.homes[job.id]
        return ()
    reached = all(host.connected for host in there)
    if not known or (not job.started and job.movable and reached and not stays):
        del world.homes[job.id]
        world.new.append(job)
        return world.floor.wanted(job)
    model = there[0].model
    able = all(job.per_node <= host.gpus for host in there)
    if able:
        world.settle(job, home)
    else:
        world.unable.add(job.id)
    fixed = job.rooted or (job.started and job.migrate is Migrate.NEVER)
    if fixed or not all(host.connected or host.expected for host in there):
        return (model,) if able else ()
    # One that is just starting is demand wherever it could be, as it was before: else shares and trades would waver with every move.
    if job.movable and (not stays or not able):
        world.leavers.append(job)
    if job.started and job.migrate is Migrate.SAME_TYPE:
        return (model,) if able or model in world.floor.wanted(job) else ()
    return world.floor.wanted_from(job, model) if able else world.floor.wanted(job)
