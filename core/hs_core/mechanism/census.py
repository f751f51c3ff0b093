"""Jobs that live where they can stay, by server, kind and demand: from one decision to the next only what changed is counted anew.

Of a snapshot's jobs most are the same values as in the one before, and nothing is odd about them. A census is taken of those; it is the
same whether it was taken at once or brought up to date. Whether a job could go elsewhere makes it no odder: many never can.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, filterfalse
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from hs_core.mechanism.band import NOBODY, Band, Columns
from hs_core.mechanism.floor import Floor
from hs_core.mechanism.placing import Home
from hs_core.mechanism.roll import Roll
from hs_core.model import Migrate
from hs_core.names import HostName, JobId, UserName
from hs_core.newest import Own
from hs_core.policy import JobFacts

K = TypeVar("K", bound=Hashable)

Kind = tuple[UserName, str, str]
"""A user's class of jobs in a pool: (user, class, model)."""
Ask = tuple[UserName, tuple[str, ...]]
"""A user and the pools, newest first, that jobs of its could use."""

ANEW = 4  # a census is taken anew where more than so large a part has changed: one in so many

_Plain = tuple[UserName, str, str, int, int, tuple[str, ...], frozenset[HostName], bool]
"""Of a job where it lives: user, class, model, gang, memory, the models it may use, the servers it may not, and whether it has to stay."""

_id_of, _hosts_of = attrgetter("id"), attrgetter("hosts")
_counted = attrgetter(
    "hosts", "user", "job_class", "gang", "nodes", "gpu_memory_bytes", "gpu_types", "barred", "movable", "going", "rooted", "migrate"
)  # fmt: skip
"""What says where a job is counted, and whether it is: everything that `_places` and `_is_plain` look at."""


class Shelf:
    """Jobs with one server, or those with several: where they live, and what they ask for. Bands are replaced, never changed: decisions share them."""

    def __init__(self) -> None:
        self.at: dict[HostName, Band] = {}
        self.kinds: dict[Kind, Band] = {}
        self.asks: dict[Ask, Band] = {}


class Census:
    def __init__(self, floor: Floor, jobs: Sequence[JobFacts]) -> None:
        self.floor = floor
        self.jobs, self.ids = _in_order(jobs)
        self._known: dict[JobId, JobFacts] = dict(zip(self.ids, self.jobs, strict=True))  # in that order …
        self._homes: dict[JobId, Home] = dict(zip(self.ids, map(_hosts_of, self.jobs), strict=True))  # … too
        self.odd: dict[JobId, JobFacts] = {}  # a decision looks at them itself
        self.single, self.several = Shelf(), Shelf()
        self._both: dict[Kind, tuple[Band, Band, Band]] = {}  # of several servers, of one, and together
        self._roll: Roll | None = None  # until somebody asks
        self._recount(self._take(), ())

    def update(self, jobs: Sequence[JobFacts]) -> bool:
        """Whether it was worth it; else nothing has changed."""
        now = list(jobs)
        changes = _changes(now, self.jobs)
        if changes is None:
            now.sort(key=_id_of)
            changes = _changes(now, self.jobs)
        assert changes is not None, "jobs are not in order"
        came, gone = changes
        if ANEW * max(len(gone), len(came)) > len(self.jobs):
            return False
        if self._roll is not None:
            self._roll = self._roll.changed([job.id for job in gone], Roll.of(came, self.floor))
        self._take_in(now, came, gone)
        renewed = self._renew(came, gone)
        self._recount(
            [job for job in came if job.id not in renewed], [job for job in gone if job.id not in renewed]
        )
        return True

    def _take_in(self, now: list[JobFacts], came: Sequence[JobFacts], gone: Sequence[JobFacts]) -> None:
        """From now on it is about these."""
        known, homes = self._known, self._homes
        new = [job.id for job in came if job.id not in known]
        left = set(map(_id_of, gone)).difference(map(_id_of, came))
        if new and self.ids and new[0] < self.ids[-1]:
            self.ids = list(map(_id_of, now))
            self._known = dict(zip(self.ids, now, strict=True))
            self._homes = dict(zip(self.ids, map(_hosts_of, now), strict=True))
        else:
            if new or left:
                self.ids = [*filterfalse(left.__contains__, self.ids), *new]
            for job in came:
                known[job.id], homes[job.id] = job, job.hosts
            for job_id in left:
                del known[job_id], homes[job_id]
        self.jobs = now

    def _renew(self, came: Sequence[JobFacts], gone: Sequence[JobFacts]) -> Mapping[JobId, JobFacts]:
        """Those that are counted where they were: of most that have changed, only whether they are in their turn."""
        before = {job.id: job for job in gone}
        renewed = {
            job.id: job
            for job in came
            if (old := before.get(job.id)) is not None and _counted(old) == _counted(job)
        }
        self.odd |= {job_id: renewed[job_id] for job_id in renewed.keys() & self.odd.keys()}
        for shelf, single in ((self.single, True), (self.several, False)):
            at: defaultdict[HostName, list[JobFacts]] = defaultdict(list)
            kinds: defaultdict[Kind, list[JobFacts]] = defaultdict(list)
            asks: defaultdict[Ask, list[JobFacts]] = defaultdict(list)
            for job in renewed.values():
                if (job.nodes == 1) is not single or job.id in self.odd:
                    continue
                kind, ask = self._kind_and_ask(job)
                kinds[kind].append(job)
                asks[ask].append(job)
                for name in job.hosts:
                    at[name].append(job)
            _renew(shelf.at, at)
            _renew(shelf.kinds, kinds)
            _renew(shelf.asks, asks)
        return renewed

    def homes(self) -> dict[JobId, Home]:
        """Of all that have one, by id."""
        homes = self._homes.copy()
        for job in self.odd.values():
            if not job.hosts:
                del homes[job.id]
        return homes

    def roll(self) -> Roll:
        """Of all of them."""
        if self._roll is None:
            self._roll = Roll.of(self.jobs, self.floor)
        return self._roll

    def of_several(self) -> list[JobFacts]:
        """All jobs of several servers, by id."""
        found = [job for job in self.odd.values() if job.nodes > 1]
        return sorted(chain(found, *self.several.kinds.values()), key=_id_of)

    def both(self) -> Mapping[Kind, Band]:
        """Kinds of whom some live on one server and others on several, together."""
        before, self._both = self._both, {}
        for kind, several in self.several.kinds.items():
            if (single := self.single.kinds.get(kind)) is not None:
                kept = before.get(kind)
                if kept is None or kept[0] is not several or kept[1] is not single:
                    kept = several, single, Band(sorted([*several.jobs, *single.jobs], key=_id_of))
                self._both[kind] = kept
        return {kind: together for kind, (_, _, together) in self._both.items()}

    # --- counting ---------------------------------------------------------------------------------------------------

    def _take(self) -> list[JobFacts]:
        """All jobs with one server, by the shortest way; returns the others."""
        auto = Migrate.AUTO
        servers = {name: number for number, name in enumerate(self.floor.hosts)}
        calm = {name: (servers[name], host.model, host.gpus) for name, host in self.floor.calm.items()}
        numbers: dict[_Plain, int] = {}
        first: list[JobFacts] = []  # of each of those
        jobs: list[JobFacts] = []
        at: list[int] = []  # of each of these: which of the servers …
        plain: list[int] = []  # … and which of `numbers`
        others: list[JobFacts] = []
        for job in self.jobs:
            home = job.hosts
            if (
                home
                and job.nodes == 1
                and (here := calm.get(home[0])) is not None
                and job.gang <= here[2]
                and job.migrate is auto
                and job.going is None
            ):  # as `_is_plain`
                server, model, _ = here
                shape = job.gang, job.gpu_memory_bytes, job.gpu_types, job.barred
                kind = (job.user, job.job_class, model, *shape, job.rooted)
                number = numbers.get(kind)
                if number is None:
                    number = numbers[kind] = len(numbers)
                    first.append(job)
                jobs.append(job)
                at.append(server)
                plain.append(number)
            else:
                others.append(job)
        kinds: dict[Kind, int] = {}
        asks: dict[Ask, int] = {}
        of = [
            (
                kinds.setdefault((user, job_class, model), len(kinds)),
                asks.setdefault((user, self._usable(job, model)), len(asks)),
            )
            for (user, job_class, model, *_), job in zip(numbers, first, strict=True)
        ]
        of_kinds, of_asks = np.array(of, dtype=np.int64).reshape(-1, 2).T
        columns, which = Columns(jobs), np.array(plain, dtype=np.int64)
        self.single.at = columns.bands(list(servers), np.array(at, dtype=np.int64))
        self.single.kinds = columns.bands(list(kinds), of_kinds[which])
        self.single.asks = columns.bands(list(asks), of_asks[which])
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
        for name in job.hosts:
            yield shelf.at, name
        kind, ask = self._kind_and_ask(job)
        yield shelf.kinds, kind
        yield shelf.asks, ask

    def _kind_and_ask(self, job: JobFacts) -> tuple[Kind, Ask]:
        model = self.floor.hosts[job.hosts[0]].model
        return (job.user, job.job_class, model), (job.user, self._usable(job, model))

    def _usable(self, job: JobFacts, own: str) -> tuple[str, ...]:
        """Pools that it is demand for; one that cannot go elsewhere yet, already where it could be: else shares would waver as it starts."""
        return (own,) if job.rooted else self.floor.wanted_from(job, own)


@dataclass(slots=True)
class _Change:
    """Of one band."""

    bands: dict[Any, Band]
    key: Hashable
    gone: set[JobId] = field(default_factory=set)
    came: list[JobFacts] = field(default_factory=list)

    def make(self, *, keeps: bool) -> None:
        """`keeps`: also a band in which nobody is left."""
        band = self.bands.get(self.key, NOBODY).changed(self.gone, self.came)
        if band or keeps:
            self.bands[self.key] = band
        else:
            del self.bands[self.key]


def _changes(
    now: Sequence[JobFacts], before: Sequence[JobFacts]
) -> tuple[list[JobFacts], list[JobFacts]] | None:
    """Those that are not the very same as before, as they are and as they were. Most are, and are not looked at. None: `now` is not by id."""
    came: list[JobFacts] = []
    gone: list[JobFacts] = []
    last: JobFacts | None = None
    rest = iter(before)
    old = next(rest, None)
    for job in now:
        if job is not old:
            if last is not None and last.id >= job.id:
                return None
            while old is not None and old.id < job.id:
                gone.append(old)
                old = next(rest, None)
            if old is not job:
                came.append(job)
                if old is None or old.id > job.id:
                    last = job
                    continue
                gone.append(old)
        old, last = next(rest, None), job
    if old is not None:
        gone += [old, *rest]
    return came, gone


def _in_order(jobs: Sequence[JobFacts]) -> tuple[list[JobFacts], list[JobId]]:
    """By id, and the ids; they nearly always are."""
    ids = list(map(_id_of, jobs))
    ordered = sorted(ids)
    return (list(jobs), ids) if ids == ordered else (sorted(jobs, key=_id_of), ordered)


def _renew(bands: dict[K, Band], now: Mapping[K, Sequence[JobFacts]]) -> None:
    for key, jobs in now.items():
        bands[key] = bands[key].renewed(jobs)


def _is_plain(job: JobFacts, floor: Floor) -> bool:
    """It lives where it may stay, does stay there, and its user lets it go anywhere, as most do."""
    if not job.hosts or job.migrate is not Migrate.AUTO or job.going is not None:
        return False
    there = [floor.calm.get(name) for name in job.hosts]
    return all(host is not None and job.per_node <= host.gpus for host in there)


# Nothing comes of it but time: it is taken again only for the same jobs.
_newest = Own[list[Census]](list)


def census(floor: Floor, jobs: Sequence[JobFacts]) -> Census:
    newest = _newest()
    taken = newest.pop() if newest else None  # one in which a decision stopped half-way is none to go on from
    if taken is None or taken.floor is not floor or not taken.update(jobs):
        taken = Census(floor, jobs)
    newest.append(taken)
    return taken
