"""Which GPUs, one by one, for those who have them this round: PAL's places over servers, and the seats that follow.

Pools whose GPUs are all alike for every class are left to `seats`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

import numpy as np

from hs_core.errors import BrokenError
from hs_core.mechanism.pal import Bools, Floats, Place, Pool, Want, binned, large_first, place
from hs_core.mechanism.placing import Home, fits, takes_new
from hs_core.mechanism.seats import Seats
from hs_core.mechanism.spreading import largest, measured, numbers
from hs_core.model import Migrate
from hs_core.names import HostName, JobId
from hs_core.policy import HostFacts, JobFacts, Snapshot, Verdict
from hs_core.wanted import Seat, Turn

ACROSS = 1.5
"""How many times as long a step takes over several servers, where nobody has measured that; the paper has one number for the whole cluster."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A GPU."""

    host: HostName
    index: int


class Scored:
    """Of one GPU model; G GPUs of servers that are connected, C kinds of jobs that feel their differences alike."""

    def __init__(self, snapshot: Snapshot, model: str) -> None:
        hosts = sorted((h for h in snapshot.hosts if h.model == model and h.connected), key=lambda h: h.name)
        self._snapshot = snapshot
        self._model = model
        self.hosts = hosts
        self.spots = [Spot(host.name, index) for host in hosts for index in host.numbers]
        self._at = {spot: at for at, spot in enumerate(self.spots)}
        self._server = np.repeat(np.arange(len(hosts)), [host.gpus for host in hosts])
        self._number = {host.name: at for at, host in enumerate(hosts)}
        self._kinds: dict[tuple[float, ...], int] = {}
        self._kind_of = {
            job_class: self._kinds.setdefault(self._scores(job_class), len(self._kinds))
            for job_class in sorted({job.job_class for job in snapshot.jobs})
        }
        self._score: Floats = np.array([*self._kinds, np.ones(len(self.spots))])

    def _scores(self, job_class: str) -> tuple[float, ...]:
        said = self._snapshot.slowdowns
        found: list[float] = []
        for host in self.hosts:
            times = said.get((job_class, host.name), (1.0,) * host.gpus)
            if len(times) != host.gpus or not all(0.0 < value < inf for value in times):
                raise BrokenError(
                    f"slowdowns of {job_class!r} on {host.name} are {times}; expected {host.gpus} finite numbers above 0"
                )
            found += times
        return grouped(tuple(found))

    @property
    def uneven(self) -> bool:
        """Somebody feels a difference between two of them."""
        return bool(len(self.spots)) and bool((self._score.max(axis=1) > self._score.min(axis=1)).any())

    def score(self, job: JobFacts, spot: Spot) -> float:
        return float(self._score[self._kind_of[job.job_class], self._at[spot]])

    def place(
        self, jobs: Sequence[JobFacts], seats: Seats, bound: Iterable[JobFacts], moves: int
    ) -> dict[JobId, tuple[Spot, ...]]:
        """GPUs of `jobs`, who were chosen, by the order of the policy; who finds none together is left out. `bound`: who has GPUs already."""
        running = self._snapshot.running
        # Of those that feel it alike who runs comes first, and of these who has the best: to change places would gain nothing.
        jobs = sorted(jobs, key=lambda job: (job.id not in running, self._slowed(job)))
        wants = [self._want(job, seats) for job in jobs]
        pool = Pool(host=self._server, score=self._score, free=self._free(seats, bound))
        found = place(pool, wants, moves=moves)
        if None in found:
            by_size = place(pool, wants, moves=moves, order=large_first(pool, wants))
            if _gpus(by_size) > _gpus(found):
                found = by_size
        return {
            job.id: tuple(self.spots[at] for at in there.gpus)
            for job, there in zip(jobs, found, strict=True)
            if there is not None
        }

    def _want(self, job: JobFacts, seats: Seats) -> Want:
        home = tuple(self._number[name] for name in job.hosts if name in self._number)
        whole = len(home) == len(job.hosts)
        return Want(
            gang=job.gang,
            feels=self._kind_of[job.job_class],
            over=self._over(job),
            has=self.has(job) if whole else (),
            home=home if whole else (),
            started=job.started,
            able=self._able(job, seats, home if whole else ()),
        )

    def _over(self, job: JobFacts) -> tuple[tuple[int, float], ...]:
        """Numbers of servers and what each makes of its time: as measured, against the fewest that could hold it; `ACROSS` where that was not."""
        over = numbers(job, largest(self.hosts))
        if not over:
            return ((job.nodes, 1.0),)
        rates = [measured(self._snapshot, job, self._model, nodes) for nodes in over]
        return tuple(
            (nodes, 1.0 if nodes == over[0] else max(1.0, rates[0] / rate) if rates[0] and rate else ACROSS)
            for nodes, rate in zip(over, rates, strict=True)
        )

    def _slowed(self, job: JobFacts) -> float:
        """On the GPUs that it has."""
        kind = self._kind_of[job.job_class]
        return max((float(self._score[kind, at]) for at in self.has(job)), default=inf)

    def has(self, job: JobFacts) -> tuple[int, ...]:
        """Positions of the GPUs that it is bound to, as far as they are known."""
        spots = [Spot(name, at) for name, gpus in zip(job.hosts, job.gpus, strict=False) for at in gpus]
        return tuple(self._at[spot] for spot in spots) if self._at.keys() >= set(spots) else ()

    def _able(self, job: JobFacts, seats: Seats, home: tuple[int, ...]) -> Bools:
        if home and job.rooted and (has := self.has(job)):
            only = np.zeros(len(self.spots), np.bool_)
            only[list(has)] = True
            return only
        part = (
            replace(job, nodes=job.gang) if job.spreads else job
        )  # how many of its GPUs a server can take is asked later
        stays = job.started and (job.migrate is Migrate.NEVER or not job.movable)
        servers = [
            at in home
            if stays
            else takes_new(host) and (at in home or (fits(part, host) and seats.may_go(job, host)))
            for at, host in enumerate(self.hosts)
        ]
        return np.array(servers, dtype=np.bool_)[self._server]

    def _free(self, seats: Seats, bound: Iterable[JobFacts]) -> Bools:
        """Without those of jobs that have theirs whatever is decided; where nobody knows which these are, the last."""
        free = np.ones(len(self.spots), np.bool_)
        for job in bound:
            free[list(self.has(job))] = False
        for at, host in enumerate(self.hosts):
            there = np.flatnonzero(free & (self._server == at))
            free[there[seats.room(host.name) :]] = False
        return free


@lru_cache(maxsize=4096)
def grouped(score: tuple[float, ...]) -> tuple[float, ...]:
    """As `binned`."""
    return tuple(binned(np.array(score)).tolist()) if score else ()


def _gpus(places: Iterable[Place | None]) -> int:
    return sum(len(found.gpus) for found in places if found is not None)


def homes_of(jobs: Mapping[JobId, JobFacts], spots: Mapping[JobId, Sequence[Spot]]) -> dict[JobId, Home]:
    """Servers by node rank; who keeps its servers keeps their order."""
    homes: dict[JobId, Home] = {}
    for job, there in spots.items():
        servers = tuple(dict.fromkeys(spot.host for spot in there))
        old = jobs[job].hosts
        homes[job] = old if set(old) == set(servers) else servers
    return homes


def seated(
    verdict: Verdict,
    snapshot: Snapshot,
    pools: Mapping[str, Scored],
    spots: Mapping[JobId, Sequence[Spot]],
) -> Verdict:
    """The verdict with a seat for every gang in its turns on servers of uneven pools: those that were found, else the best that are left."""
    jobs = {job.id: job for job in snapshot.jobs}
    turns = dict(verdict.plan.turns)
    for host in snapshot.hosts:
        pool, turn = pools.get(host.model), turns.get(host.name)
        if pool is not None and turn is not None and turn.gangs and host.connected:
            per_node = {job: verdict.plan.per_node(jobs[job]) for job in turn.gangs}
            turns[host.name] = _seat(turn, host, pool, jobs, per_node=per_node, spots=spots)
    return replace(verdict, plan=replace(verdict.plan, turns=turns))


def _seat(
    turn: Turn,
    host: HostFacts,
    pool: Scored,
    jobs: Mapping[JobId, JobFacts],
    *,
    per_node: Mapping[JobId, int],
    spots: Mapping[JobId, Sequence[Spot]],
) -> Turn:
    left = dict.fromkeys(host.numbers)
    found: dict[JobId, tuple[int, ...]] = {}
    known = {
        job: tuple(spot.index for spot in spots.get(job, ()) if spot.host == host.name) for job in turn.gangs
    }
    has = {
        job: tuple(pool.spots[at].index for at in pool.has(jobs[job]) if pool.spots[at].host == host.name)
        for job in turn.gangs
    }
    for said in (known, has):
        for job in turn.gangs:
            gpus = said[job]
            if job not in found and len(gpus) == per_node[job] and left.keys() >= set(gpus):
                found[job] = gpus
                for gpu in gpus:
                    del left[gpu]
    for job in turn.gangs:
        if job not in found:
            best = sorted(left, key=lambda gpu: (pool.score(jobs[job], Spot(host.name, gpu)), gpu))
            found[job] = tuple(sorted(best[: per_node[job]]))
            for gpu in found[job]:
                del left[gpu]
    return replace(turn, seats=tuple(Seat(job=job, gpus=found[job]) for job in sorted(found)))
