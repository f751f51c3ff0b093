"""Jobs on the right servers of a pool: loads alike, and no GPU idle beside a gang (Gandiva_fair, 3.3: balance and packing).

Both are one measure, a server's `time_load`. Each move makes the sum of its squares over the GPUs of the pool less, so neither balance nor
packing undoes what the other did. Servers that nobody waits on are left alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.loads import Pool
from hs_core.mechanism.time_load import time_load
from hs_core.mechanism.world import shape_of
from hs_core.model import JobId, MoveReason, UserName
from hs_core.policy import JobFacts

if TYPE_CHECKING:
    from hs_core.mechanism.moves import Mover

SLACK = 1e-9
Cost = tuple[bool, bool, int, float, JobId]


def cost_of(job: JobFacts) -> Cost:
    """Cheapest first: without a process, not in its turn, the newest (the others have been at it longer)."""
    return job.started, job.running, job.gang, -job.arrival_s, job.id


class _Change(NamedTuple):
    squares: float  # more than before; the best is the most negative
    cost: Cost
    target: int
    source: int
    job: JobFacts


class _Going(NamedTuple):
    job: JobFacts
    saved: float  # squares, times GPUs
    least: float  # that a move has to save


def even_out(mover: "Mover", pool: Pool) -> None:
    if len(pool.names) < 2 or not np.any(pool.asked > pool.gpus):
        return
    total = int(pool.gpus.sum())
    mean = float(pool.tickets.sum()) / total if pool.asked.sum() >= total else 1.0
    if mean <= 0:
        return
    evening = _Evening(mover, pool, mean)
    for _ in range(mover.limits.started_a_quantum + mover.limits.waiting_a_quantum):
        changes = () if mover.spent else evening.best()
        if not changes:
            return
        evening.make(changes)


class _Evening:
    def __init__(self, mover: "Mover", pool: Pool, mean: float) -> None:
        self._mover, self._pool, self._mean = mover, pool, mean
        self._limits = mover.limits
        self._load = self._times()
        self._kinds: dict[int, list[JobFacts]] = {}

    def _jobs(self, at: int) -> list[JobFacts]:
        """Jobs of one node that live there."""
        return self._mover.world.at[self._pool.names[at]]

    def _parts(self, at: int) -> Sequence[JobFacts]:
        """Of gangs over several servers."""
        return self._mover.world.parts.get(self._pool.names[at], ())

    def _times(self) -> NDArray[np.float64]:
        """`_time` of all servers; one by one only where jobs come and went, or fit beside a gang."""
        pool = self._pool
        load, odd = pool.time_loads()
        for at in odd:
            load[at] = self._time(at, self._jobs(at))
        return load

    def _time(self, at: int, jobs: Sequence[JobFacts]) -> float:
        gangs = self._parts(at)
        return time_load(int(self._pool.gpus[at]), [*jobs, *gangs] if gangs else jobs, self._pool.per_gpu)

    def make(self, changes: Sequence[_Change]) -> None:
        names, load = self._pool.names, self._load.copy()
        for change in changes:
            at, to = change.source, change.target
            if len(changes) > 1 or load[to] >= load[at]:
                reason, text = MoveReason.PACKING, f"GPUs idle beside gangs on {names[to]} that it can have"
            else:
                reason = MoveReason.BALANCE
                text = f"{names[at]} carries {load[at]:.2f} tickets per GPU and {names[to]} {load[to]:.2f}"
            self._mover.move(change.job, (names[to],), reason, text)
            for server in (at, to):
                self._kinds.pop(server, None)
                self._load[server] = self._time(server, self._jobs(server))

    def best(self) -> Sequence[_Change]:
        """The best move away from the fullest server that has a good one; else as many as fill the GPUs beside a gang."""
        pool, tried = self._pool, self._limits.servers_tried
        order = np.argsort(self._load, kind="stable").tolist()
        low = [at for at in order if pool.accepts[at]][:tried]
        waits = [at for at in reversed(order) if pool.asked[at] > pool.gpus[at]]
        roomy = [at for at in waits if pool.accepts[at] and self._room(at)][:tried]
        for source in self._sources(waits):
            if change := self._best_of(source, dict.fromkeys([*low, *roomy])):
                return (change,)
        for target in low:
            if self._has_gang(target) and (changes := self._fill(target, waits)):
                return changes
        return ()

    def _sources(self, waits: Sequence[int]) -> list[int]:
        """The fullest servers, and the fullest of those with small jobs that may go."""
        tried = self._limits.servers_tried
        small: list[int] = []
        for at in waits[: self._limits.servers_seen]:
            if len(small) == tried:
                break
            if any(2 * job.gang <= self._pool.gpus[at] for job in self._movable(at)):
                small.append(at)
        return list(dict.fromkeys([*waits[:tried], *small]))

    def _has_gang(self, at: int) -> bool:
        gpus = self._pool.gpus[at]
        return any(2 * job.per_node > gpus for job in (*self._jobs(at), *self._parts(at)))

    def _room(self, at: int) -> int:
        """GPUs that idle while small jobs have their turn beside none of its gangs."""
        gpus = int(self._pool.gpus[at])
        fill = sum(job.gang for job in self._jobs(at) if 2 * job.gang <= gpus)
        return gpus - fill if 0 < fill < gpus and self._has_gang(at) else 0

    def _best_of(self, source: int, targets: Iterable[int]) -> _Change | None:
        going = list(self._going(source))
        if not going:
            return None
        there = [target for target in targets if target != source and self._pool.accepts[target]]
        return min(
            (change for target in there for change in self._changes(going, source, target)), default=None
        )

    def _going(self, source: int) -> Iterator[_Going]:
        """Jobs that the server would be so much better off without."""
        pool, limits, mean = self._pool, self._limits, self._mean
        there = self._jobs(source)
        for job in self._movable(source):
            if not self._mover.may_go(job):
                continue
            after = self._time(source, [other for other in there if other.id != job.id])
            saved = float((self._load[source] ** 2 - after**2) * pool.width[source])
            tickets = job.gang * pool.per_gpu.get(job.user, 0.0)
            least = max(limits.gain_gpus, 2.0 * limits.load_gap * tickets / mean)
            if saved > least * mean**2:
                yield _Going(job, saved, least)

    def _changes(self, going: Sequence[_Going], source: int, target: int) -> Iterator[_Change]:
        pool, mean = self._pool, self._mean
        here, load, width = self._jobs(target), float(self._load[target]), int(pool.width[target])
        for job, saved, least in going:
            if not pool.fits(shape_of(job))[target]:
                continue
            then = self._time(target, [*here, job])
            squares = ((then**2 - load**2) * width - saved) / mean**2
            if squares <= -least:
                yield _Change(round(squares, 9), cost_of(job), target, source, job)

    def _fill(self, target: int, waits: Sequence[int]) -> Sequence[_Change]:
        """Small jobs for the GPUs beside a gang, all at once: one alone would keep the gang from as many."""
        pool, mover = self._pool, self._mover
        gpus, here = int(pool.gpus[target]), list(self._jobs(target))
        room = gpus - sum(job.gang for job in here if 2 * job.gang <= gpus)
        left = {at: list(self._jobs(at)) for at in self._sources(waits) if at != target}
        load = {at: float(self._load[at]) for at in left}
        changes: list[_Change] = []
        saved = 0.0
        for at in sorted(left, key=lambda at: (-load[at], at)):
            for job in sorted(self._movable(at), key=cost_of):
                fits = job.gang <= room and 2 * job.gang <= gpus and pool.fits(shape_of(job))[target]
                if not fits or not mover.may_go(job):
                    continue
                left[at] = [other for other in left[at] if other.id != job.id]
                after = self._time(at, left[at])
                saved += (load[at] ** 2 - after**2) * float(pool.width[at])
                load[at] = after
                changes.append(_Change(0.0, cost_of(job), target, at, job))
                here.append(job)
                room -= job.gang
                break
            if room == 0:
                break
        added = (self._time(target, here) ** 2 - float(self._load[target]) ** 2) * float(pool.width[target])
        tickets = sum(change.job.gang * pool.per_gpu.get(change.job.user, 0.0) for change in changes)
        least = max(self._limits.gain_gpus, 2.0 * self._limits.load_gap * tickets / self._mean)
        good = bool(changes) and added - saved <= -least * self._mean**2
        return changes if good and mover.affords([change.job for change in changes]) else ()

    def _movable(self, at: int) -> list[JobFacts]:
        """One of each kind that could go, the cheapest."""
        if at not in self._kinds:
            found: dict[tuple[int, UserName], JobFacts] = {}
            jobs = self._jobs(at)
            for job in jobs if self._mover.moves_started else [job for job in jobs if not job.started]:
                key = (job.gang, job.user)
                if (key not in found or cost_of(job) < cost_of(found[key])) and self._mover.may_go(job):
                    found[key] = job
            # A small job that should run all the time is the last to go: a move costs it most, and elsewhere it is in the way as much.
            weight, gpus = self._pool.per_gpu, self._pool.gpus[at]
            lighter = [
                job for job in found.values() if 2 * job.gang > gpus or weight.get(job.user, 0.0) < 1.0
            ]
            spared = any(2 * job.gang <= gpus for job in lighter)
            self._kinds[at] = lighter if spared else list(found.values())
        return self._kinds[at]
