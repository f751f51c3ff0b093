"""Jobs that live where they can stay, by server, kind and demand: from one decision to the next only what changed is counted anew.

Of a snapshot's jobs most are the same values as in the one before, and nothing is odd about them. A census is taken of those; it is the
same whether it was taken at once or brought up to date.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any

from hs_core.mechanism.floor import Floor
from hs_core.mechanism.placing import Home
from hs_core.model import Migrate
from hs_core.names import HostName, JobId, UserName
from hs_core.policy import JobFacts

Kind = tuple[UserName, str, str]
"""A user's class of jobs in a pool: (user, class, model)."""
Ask = tuple[UserName, tuple[str, ...]]
"""A user and the pools, newest first, that jobs of its could use."""

ANEW = 4  # a census is taken anew where more than so large a part has changed: one in so many

_Plain = tuple[UserName, str, str, int, int, tuple[str, ...]]
"""Of a job where it lives: user, class, model, gang, memory and the models it may use."""

_id_of, _gang_of, _user_of = attrgetter("id"), attrgetter("gang"), attrgetter("user")
_hosts_of = attrgetter("hosts")
_is_started, _is_sliceable = attrgetter("started"), attrgetter("sliceable")
_counted = attrgetter(
    "hosts", "user", "job_class", "gang", "nodes", "gpu_memory_bytes", "gpu_types", "movable", "rooted", "migrate"
)  # fmt: skip
"""What says where a job is counted, and whether it is: everything that `_places` and `_is_plain` look at."""


class Band:
    """Jobs of one place or kind, by id before anybody moves. What a decision asks of all of them is looked up once, until one comes or goes."""

    def __init__(self, jobs: list[JobFacts]) -> None:
        self.jobs = jobs

    def __iter__(self) -> Iterator[JobFacts]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, *jobs: JobFacts) -> None:
        self.jobs.extend(jobs)
        self._forget()

    def remove(self, job: JobFacts) -> None:
        del self.jobs[self.ids.index(job.id)]
        self._forget()

    def sort(self) -> None:
        self.jobs.sort(key=_id_of)
        self._forget()

    def renewed(self, now: Iterable[JobFacts]) -> "Band":
        """The same jobs, by id, these as they are now. What does not go by what has changed of them need not be looked up again."""
        band = Band(self.jobs.copy())
        for job in now:
            band.jobs[bisect_left(self.ids, job.id)] = job
        stays = ("ids", "gangs", "users", "gpus", "widths")
        band.__dict__.update((name, known) for name, known in vars(self).items() if name in stays)
        return band

    def _forget(self) -> None:
        jobs = self.jobs
        self.__dict__.clear()
        self.jobs = jobs

    @cached_property
    def ids(self) -> tuple[JobId, ...]:
        return tuple(map(_id_of, self.jobs))

    @cached_property
    def gangs(self) -> tuple[int, ...]:
        """GPUs of each."""
        return tuple(map(_gang_of, self.jobs))

    @cached_property
    def users(self) -> tuple[UserName, ...]:
        """Whose each is."""
        return tuple(map(_user_of, self.jobs))

    @cached_property
    def gpus(self) -> int:
        return sum(self.gangs)

    @cached_property
    def widths(self) -> frozenset[int]:
        """Of gangs, in GPUs."""
        return frozenset(self.gangs)

    @cached_property
    def waiting(self) -> tuple[JobFacts, ...]:
        """Those without a process."""
        if all(map(_is_started, self.jobs)):
            return ()
        return tuple(job for job in self.jobs if not job.started)

    @cached_property
    def stuck(self) -> tuple[JobFacts, ...]:
        """Those that nothing can suspend once they run."""
        if all(map(_is_sliceable, self.jobs)):
            return ()
        return tuple(job for job in self.jobs if not job.sliceable)


class Shelf:
    """Jobs with one server, or those with several: where they live, and what they ask for. Bands are replaced, never changed: decisions share them."""

    def __init__(self) -> None:
        self.at: dict[HostName, Band] = {}
        self.kinds: dict[Kind, Band] = {}
        self.asks: dict[Ask, Band] = {}


class Census:
    def __init__(self, floor: Floor, jobs: Sequence[JobFacts]) -> None:
        self.floor = floor
        self.jobs: list[JobFacts] = sorted(jobs, key=_id_of)
        self.ids: list[JobId] = list(map(_id_of, self.jobs))
        self.hosts: list[Home] = [job.hosts for job in self.jobs]
        self.odd: dict[JobId, JobFacts] = {}  # a decision looks at them itself
        self.single, self.several = Shelf(), Shelf()
        self._known = dict(zip(map(id, self.jobs), self.jobs, strict=True))
        self._recount(self._take(), ())

    def update(self, jobs: Sequence[JobFacts]) -> bool:
        """Whether it was worth it; else nothing has changed."""
        known, now = self._known, dict(zip(map(id, jobs), jobs, strict=True))
        lost, new = known.keys() - now.keys(), now.keys() - known.keys()
        if ANEW * max(len(lost), len(new)) > len(known):
            return False
        self._known = now
        gone, came = [known[key] for key in lost], [now[key] for key in new]
        # As they are nearly in order, sorting them is one walk; to put thousands in their places one by one is a walk for each.
        self.jobs = [job for job in self.jobs if id(job) not in lost] + came
        self.jobs.sort(key=_id_of)
        self.ids, self.hosts = list(map(_id_of, self.jobs)), list(map(_hosts_of, self.jobs))
        renewed = self._renew(came, gone)
        self._recount(
            [job for job in came if job.id not in renewed], [job for job in gone if job.id not in renewed]
        )
        return True

    def _renew(self, came: Sequence[JobFacts], gone: Sequence[JobFacts]) -> Mapping[JobId, JobFacts]:
        """Those that are counted where they were: of most that have changed, only whether they are in their turn."""
        before = {job.id: job for job in gone}
        renewed = {
            job.id: job
            for job in came
            if (old := before.get(job.id)) is not None and _counted(old) == _counted(job)
        }
        self.odd |= {job_id: renewed[job_id] for job_id in renewed.keys() & self.odd.keys()}
        now: dict[tuple[int, Hashable], tuple[dict[Any, Band], Hashable, list[JobFacts]]] = {}
        for job in renewed.values():
            for bands, key in self._places(job) if job.id not in self.odd else ():
                now.setdefault((id(bands), key), (bands, key, []))[2].append(job)
        for bands, key, jobs in now.values():
            bands[key] = bands[key].renewed(jobs)
        return renewed

    def homes(self) -> dict[JobId, Home]:
        """Of all that have one, by id."""
        homes = dict(zip(self.ids, self.hosts, strict=True))
        for job in self.odd.values():
            if not job.hosts:
                del homes[job.id]
        return homes

    # --- counting ---------------------------------------------------------------------------------------------------

    def _take(self) -> list[JobFacts]:
        """All jobs with one server, by the shortest way; returns the others."""
        calm, auto = self.floor.calm, Migrate.AUTO
        at: dict[HostName, list[JobFacts]] = {name: [] for name in self.floor.hosts}
        plain: dict[_Plain, list[JobFacts]] = {}
        others: list[JobFacts] = []
        for job in self.jobs:
            home = job.hosts
            if (
                home
                and job.nodes == 1
                and (here := calm.get(home[0])) is not None
                and job.gang <= here.gpus
                and job.movable
                and job.migrate is auto
            ):  # as `_is_plain`
                at[home[0]].append(job)
                kind = (job.user, job.job_class, here.model, job.gang, job.gpu_memory_bytes, job.gpu_types)
                if kind in plain:
                    plain[kind].append(job)
                else:
                    plain[kind] = [job]
            else:
                others.append(job)
        kinds: dict[Kind, list[list[JobFacts]]] = {}
        asks: dict[Ask, list[list[JobFacts]]] = {}
        for (user, job_class, model, *_), alike in plain.items():
            kinds.setdefault((user, job_class, model), []).append(alike)
            asks.setdefault((user, self.floor.usable(alike[0])), []).append(alike)
        self.single.at = {name: Band(jobs) for name, jobs in at.items()}
        self.single.kinds = {kind: _merged(alike) for kind, alike in kinds.items()}
        self.single.asks = {ask: _merged(alike) for ask, alike in asks.items()}
        return others

    def _recount(self, came: Sequence[JobFacts], gone: Sequence[JobFacts]) -> None:
        changes: dict[tuple[int, Hashable], _Change] = {}
        for job in gone:
            if self.odd.pop(job.id, None) is None:
                for bands, key in self._places(job):
                    changes.setdefault((id(bands), key), _Change(bands, key)).gone.add(job.id)
        for job in came:
            if not _is_plain(job, self.floor):
                self.odd[job.id] = job
                continue
            for bands, key in self._places(job):
                changes.setdefault((id(bands), key), _Change(bands, key)).came.append(job)
        for change in changes.values():
            change.make(keeps=change.bands is self.single.at)

    def _places(self, job: JobFacts) -> Iterator[tuple[dict[Any, Band], Hashable]]:
        """Where a plain job is counted."""
        shelf = self.single if job.nodes == 1 else self.several
        model = self.floor.hosts[job.hosts[0]].model
        for name in job.hosts:
            yield shelf.at, name
        yield shelf.kinds, (job.user, job.job_class, model)
        # One with one server asks for what it fits; one with several also for what it has.
        models = self.floor.usable(job) if job.nodes == 1 else self.floor.usable_from(job, model)
        yield shelf.asks, (job.user, models)


@dataclass(slots=True)
class _Change:
    """Of one band."""

    bands: dict[Any, Band]
    key: Hashable
    gone: set[JobId] = field(default_factory=set)
    came: list[JobFacts] = field(default_factory=list)

    def make(self, *, keeps: bool) -> None:
        """`keeps`: also a band in which nobody is left."""
        old = self.bands.get(self.key, ())
        jobs = [job for job in old if job.id not in self.gone] if self.gone else [*old]
        jobs += self.came
        jobs.sort(key=_id_of)
        if jobs or keeps:
            self.bands[self.key] = Band(jobs)
        else:
            del self.bands[self.key]


def _is_plain(job: JobFacts, floor: Floor) -> bool:
    """It lives where it may stay and could go anywhere, as most do."""
    if not job.hosts or not job.movable or job.migrate is not Migrate.AUTO:
        return False
    if job.nodes > 1 and job.rooted:
        return False
    there = [floor.calm.get(name) for name in job.hosts]
    return all(host is not None and job.per_node <= host.gpus for host in there)


def _merged(parts: Sequence[list[JobFacts]]) -> Band:
    if len(parts) == 1:
        return Band(parts[0])
    return Band(sorted(chain.from_iterable(parts), key=_id_of))


# Nothing comes of it but time: it is taken again only for the same jobs. Decisions of a process are taken one after another.
_newest: list[Census] = []


def census(floor: Floor, jobs: Sequence[JobFacts]) -> Census:
    if not _newest or _newest[0].floor is not floor or not _newest[0].update(jobs):
        _newest[:] = [Census(floor, jobs)]
    return _newest[0]
