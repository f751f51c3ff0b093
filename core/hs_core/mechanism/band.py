"""Jobs of one place or kind together, and what a decision asks of all of them: looked up once, and kept as jobs come and go."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from hs_core.lazy import lazy
from hs_core.mechanism.floor import Ints
from hs_core.names import JobId, UserName
from hs_core.policy import JobFacts

K = TypeVar("K", bound=Hashable)

_id_of, _gang_of, _user_of = attrgetter("id"), attrgetter("gang"), attrgetter("user")
_is_started, _is_sliceable = attrgetter("started"), attrgetter("sliceable")
_per_node_of = attrgetter("per_node")


class _Numbers(dict[UserName, int]):
    """Of users: as long as the process lives each has the same one, on all threads. What one has decided others explain.

    It takes no lock: whoever else gives one at the same time, a list grows at its end. Of two threads that give one to the same user one's is never used.
    """

    def __init__(self) -> None:
        super().__init__()
        self._given: list[tuple[UserName]] = []

    def __missing__(self, user: UserName) -> int:
        mine = (user,)
        given = self._given
        given.append(mine)
        return self.setdefault(user, next(at for at in reversed(range(len(given))) if given[at] is mine))

    def users(self) -> list[UserName]:
        """By number."""
        return [user for (user,) in self._given]

    @property
    def end(self) -> int:
        """All are less."""
        return len(self._given)


NUMBERS = _Numbers()

_BY_JOB: Mapping[str, Callable[[JobFacts], Any]] = {
    "ids": _id_of,
    "gangs": _gang_of,
    "users": _user_of,
    "per_node": _per_node_of,
    "owners": lambda job: NUMBERS[job.user],
}
"""Of a band: what is a tuple of something of each job."""
_STAYS = {*_BY_JOB, "gpus", "widths", "roll", "by_width"}
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

    def add(self, *jobs: JobFacts) -> None:
        self.jobs.extend(jobs)
        self._forget()

    def remove(self, job: JobFacts) -> None:
        del self.jobs[self.ids.index(job.id)]
        self._forget()

    def sort(self) -> None:
        self.jobs.sort(key=_id_of)
        self._forget()

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
        if not self.jobs:
            return Band(sorted(came, key=_id_of))
        jobs, ids = self.jobs.copy(), list(self.ids)
        asked = [name for name in _BY_JOB if name in self.__dict__ and name != "ids"]
        known = {name: list(self.__dict__[name]) for name in asked}
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

    def _forget(self) -> None:
        jobs = self.jobs
        self.__dict__.clear()
        self._jobs, self._now = jobs, None

    @lazy
    def ids(self) -> tuple[JobId, ...]:
        return tuple(map(_id_of, self._jobs))

    @lazy
    def gangs(self) -> tuple[int, ...]:
        """GPUs of each."""
        return tuple(map(_gang_of, self._jobs))

    @lazy
    def users(self) -> tuple[UserName, ...]:
        """Whose each is."""
        return tuple(map(_user_of, self._jobs))

    @lazy
    def per_node(self) -> tuple[int, ...]:
        """GPUs of each on one server."""
        return tuple(map(_per_node_of, self._jobs))

    @lazy
    def owners(self) -> tuple[int, ...]:
        """`users`, each by a number that stays the same: for arrays."""
        return tuple(map(NUMBERS.__getitem__, self.users))

    @lazy
    def roll(self) -> Ints:
        """`ids`, `gangs` and `owners` as an array, (3, jobs)."""
        return np.array([self.ids, self.gangs, self.owners], dtype=np.int64)

    @lazy
    def by_width(self) -> Mapping[int, Ints]:
        """Ids of those whose gangs have so many GPUs."""
        ids, gangs, _ = self.roll
        if len(self.widths) == 1:
            return dict.fromkeys(self.widths, ids)
        return {width: ids[gangs == width] for width in self.widths}

    @lazy
    def gpus(self) -> int:
        return sum(self.gangs)

    @lazy
    def widths(self) -> frozenset[int]:
        """Of gangs, in GPUs."""
        return frozenset(self.gangs)

    @lazy
    def waiting(self) -> tuple[JobFacts, ...]:
        """Those without a process."""
        if all(map(_is_started, self.jobs)):
            return ()
        return tuple(job for job in self.jobs if not job.started)

    @lazy
    def stuck(self) -> tuple[JobFacts, ...]:
        """Those that nothing can suspend once they run."""
        if all(map(_is_sliceable, self.jobs)):
            return ()
        return tuple(job for job in self.jobs if not job.sliceable)


NOBODY = Band([])


class Columns:
    """What bands of very many jobs are made of: these lie all over the memory, so they are looked at in order, once."""

    def __init__(self, jobs: Sequence[JobFacts]) -> None:
        """`jobs`: by id."""
        self._jobs = jobs
        owners = list(map(NUMBERS.__getitem__, map(_user_of, jobs)))
        columns = list(map(_id_of, jobs)), list(map(_gang_of, jobs)), owners
        self._roll: Ints = np.array(columns, dtype=np.int64)

    def bands(self, keys: Sequence[K], which: Ints) -> dict[K, Band]:
        """By key. `which`: of each job, its key's place among those."""
        order = np.argsort(which, kind="stable")
        ends = np.cumsum(np.bincount(which, minlength=len(keys)))
        roll = self._roll[:, order]
        jobs = list(map(self._jobs.__getitem__, order.tolist()))
        columns: dict[str, list[Any]] = dict(zip(("ids", "gangs", "owners"), roll.tolist(), strict=True))
        found: dict[K, Band] = {}
        start = 0
        for key, end in zip(keys, ends.tolist(), strict=True):
            found[key] = band = Band(jobs[start:end])
            known = {name: tuple(column[start:end]) for name, column in columns.items()}
            band.__dict__.update(known, roll=roll[:, start:end])
            start = end
        return found
