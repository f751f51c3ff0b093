"""Jobs of one place or kind together, and what a decision asks of all of them: looked up once, and kept as jobs come and go."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np

from hs_core.mechanism.floor import Ints
from hs_core.names import JobId, UserName
from hs_core.policy import JobFacts

_id_of, _gang_of, _user_of = attrgetter("id"), attrgetter("gang"), attrgetter("user")
_is_started, _is_sliceable = attrgetter("started"), attrgetter("sliceable")
_per_node_of = attrgetter("per_node")


class _Numbers(dict[UserName, int]):
    """Of users: as long as the process lives each has the same one."""

    def __missing__(self, user: UserName) -> int:
        self[user] = number = len(self)
        return number


NUMBERS = _Numbers()

_BY_JOB: Mapping[str, Callable[[JobFacts], Any]] = {
    "ids": _id_of,
    "gangs": _gang_of,
    "users": _user_of,
    "per_node": _per_node_of,
    "owners": lambda job: NUMBERS[job.user],
}
"""Of a band: what is a tuple of something of each job."""
_STAYS = {*_BY_JOB, "gpus", "widths", "roll"}
"""Of a band: what does not go by anything that may become known of its jobs while they are counted where they were."""


class Band:
    """Jobs of one place or kind, by id before anybody moves. What a decision asks of all of them is looked up once, until one comes or goes."""

    def __init__(self, jobs: list[JobFacts], now: Mapping[JobId, JobFacts] | None = None) -> None:
        """`now`: those of them about whom something has become known since. Most decisions ask few bands for their jobs themselves."""
        self._jobs = jobs
        self._now = now

    @property
    def jobs(self) -> list[JobFacts]:
        if self._now is not None:
            now, self._now = self._now, None
            self._jobs = list(map(now.get, self.ids, self._jobs))
        return self._jobs

    @property
    def first(self) -> JobFacts:
        """By id, before anybody has moved."""
        job = self._jobs[0]
        return job if self._now is None else self._now.get(job.id, job)

    def __iter__(self) -> Iterator[JobFacts]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def copy(self) -> "Band":
        """Another one, that may be changed."""
        band = Band(self.jobs.copy())
        band.__dict__.update(self._known())
        return band

    def add(self, *jobs: JobFacts) -> None:
        known = {name: (*values, *map(_BY_JOB[name], jobs)) for name, values in self._known().items()}
        self.jobs.extend(jobs)
        self._now_is(known)

    def remove(self, job: JobFacts) -> None:
        at = self.ids.index(job.id)
        known = {name: (*values[:at], *values[at + 1 :]) for name, values in self._known().items()}
        del self.jobs[at]
        self._now_is(known)

    def sort(self) -> None:
        self.jobs.sort(key=_id_of)
        self._now_is({})

    def renewed(self, now: Sequence[JobFacts]) -> "Band":
        """The same jobs, by id, these as they are now. What does not go by what has changed of them need not be looked up again."""
        changed = dict(zip(map(_id_of, now), now, strict=True))
        band = Band(self._jobs, changed if self._now is None else {**self._now, **changed})
        known, ours = self.__dict__, band.__dict__
        for name in _STAYS & known.keys():
            ours[name] = known[name]
        band._are(now, known)
        return band

    def changed(self, gone: Collection[JobId], came: Sequence[JobFacts]) -> "Band":
        """Without these and with those, by id as before. What is known of the others is not looked up again."""
        jobs, ids = self.jobs.copy(), list(self.ids)
        known = {name: list(values) for name, values in self._known().items() if name != "ids"}
        columns: list[list[Any]] = [jobs, ids, *known.values()]
        for job_id in gone:
            at = bisect_left(ids, job_id)
            for column in columns:
                del column[at]
        for job in came:
            at = bisect_left(ids, job.id)
            jobs.insert(at, job)
            ids.insert(at, job.id)
            for name, column in known.items():
                column.insert(at, _BY_JOB[name](job))
        band = Band(jobs)
        band.__dict__["ids"] = tuple(ids)
        band._are(came, self.__dict__)
        band.__dict__.update({name: tuple(column) for name, column in known.items()})
        return band

    def _are(self, now: Sequence[JobFacts], known: Mapping[str, Any]) -> None:
        """Of those that are not among `now` as much was known: that nobody of them waits, or is stuck."""
        if known.get("waiting") == () and all(map(_is_started, now)):
            self.__dict__["waiting"] = ()
        if known.get("stuck") == () and all(map(_is_sliceable, now)):
            self.__dict__["stuck"] = ()

    def _known(self) -> dict[str, tuple[Any, ...]]:
        """Of each job, as far as somebody has asked."""
        known = self.__dict__
        return {name: known[name] for name in _BY_JOB if name in known}

    def _now_is(self, known: Mapping[str, tuple[Any, ...]]) -> None:
        """Others are its jobs, of whom this is known."""
        jobs = self.jobs
        self.__dict__.clear()
        self._jobs, self._now = jobs, None
        self.__dict__.update(known)

    @cached_property
    def ids(self) -> tuple[JobId, ...]:
        return tuple(map(_id_of, self._jobs))

    @cached_property
    def gangs(self) -> tuple[int, ...]:
        """GPUs of each."""
        return tuple(map(_gang_of, self._jobs))

    @cached_property
    def users(self) -> tuple[UserName, ...]:
        """Whose each is."""
        return tuple(map(_user_of, self._jobs))

    @cached_property
    def per_node(self) -> tuple[int, ...]:
        """GPUs of each on one server."""
        return tuple(map(_per_node_of, self._jobs))

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """`users`, each by a number that stays the same: for arrays."""
        return tuple(map(NUMBERS.__getitem__, self.users))

    @cached_property
    def roll(self) -> Ints:
        """`ids` and `gangs` as an array."""
        return np.array([self.ids, self.gangs], dtype=np.int64)

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


NOBODY = Band([])


class Columns:
    """What bands of very many jobs are made of: jobs lie all over the memory, and are looked at in order, once."""

    def __init__(self, jobs: Sequence[JobFacts], ids: Sequence[JobId]) -> None:
        self._jobs, self._ids = jobs, ids
        self._gangs = list(map(_gang_of, jobs))
        self._owners = list(map(NUMBERS.__getitem__, map(_user_of, jobs)))

    def of(self, places: Sequence[int], *, owners: bool = False) -> Band:
        """Of the jobs at these places, which ascend. `owners`: they will be asked for."""
        band = Band(list(map(self._jobs.__getitem__, places)))
        known: dict[str, tuple[Any, ...]] = {
            "ids": tuple(map(self._ids.__getitem__, places)),
            "gangs": tuple(map(self._gangs.__getitem__, places)),
        }
        if owners:
            known["owners"] = tuple(map(self._owners.__getitem__, places))
        band.__dict__.update(known)
        return band
