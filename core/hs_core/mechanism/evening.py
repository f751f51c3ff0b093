"""Jobs on the right servers of a pool: loads alike, and no GPU idle beside a gang (Gandiva_fair, 3.3: balance and packing).

Both are one measure, in GPUs that are *misplaced*: of every server what idles there while jobs wait, and its GPUs times the square of how
far its load is from the pool's mean, in means. Each move makes the sum less, so neither undoes what the other did. (An empty server
beside full ones is worth all its GPUs by the second term.) Where all jobs of a pool could run at once, the mean is one ticket per GPU, and
servers that nobody waits on are left alone.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hs_core.mechanism.loads import Pool
from hs_core.mechanism.world import shape_of
from hs_core.model import JobId, MoveReason, UserName
from hs_core.policy import JobFacts

if TYPE_CHECKING:
    from hs_core.mechanism.moves import Mover

SLACK = 1e-9


def cost_of(job: JobFacts) -> tuple[bool, bool, int, float, JobId]:
    """Cheapest first: without a process, not in its turn, the newest (the others have been at it longer)."""
    return job.started, job.running, job.gang, -job.arrival_s, job.id


class _Change(NamedTuple):
    gpus: float  # misplaced, more than before; the best is the most negative
    cost: tuple[bool, bool, int, float, JobId]
    target: int
    source: int
    waste: float
    job: JobFacts


def even_out(mover: "Mover", pool: Pool) -> None:
    if len(pool.names) < 2 or not np.any(pool.asked > pool.gpus):
        return
    total = int(pool.gpus.sum())
    mean = float(pool.tickets.sum()) / total if pool.asked.sum() >= total else 1.0
    if mean <= 0:
        return
    evening = _Evening(mover, pool, mean)
    for _ in range(mover.limits.started_a_quantum + mover.limits.waiting_a_quantum):
        change = None if mover.spent else evening.best()
        if change is None:
            return
        evening.make(change)


class _Evening:
    def __init__(self, mover: "Mover", pool: Pool, mean: float) -> None:
        self._mover, self._pool, self._mean = mover, pool, mean
        self._limits = mover.limits
        self._waste = {int(at): self._waste_at(int(at)) for at in np.flatnonzero(pool.asked > pool.gpus)}
        self._kinds: dict[int, list[JobFacts]] = {}

    def _jobs(self, at: int) -> list[JobFacts]:
        """Jobs of one node that live there."""
        return self._mover.world.at[self._pool.names[at]]

    def _waste_at(self, at: int) -> float:
        return waste(int(self._pool.gpus[at]), self._jobs(at), self._pool.per_gpu)

    def make(self, change: _Change) -> None:
        pool, names = self._pool, self._pool.names
        load = pool.load()
        at, to = change.source, change.target
        packs = change.gpus - change.waste >= -SLACK or change.waste < -self._limits.idle_gpus
        if packs:
            reason = MoveReason.PACKING
            text = f"about {-change.waste:.1f} fewer GPUs idle beside gangs once it is on {names[to]}"
        else:
            reason = MoveReason.BALANCE
            text = f"{names[at]} carries {load[at]:.2f} tickets per GPU and {names[to]} {load[to]:.2f}"
        self._mover.move(change.job, (names[to],), reason, text)
        for server in (at, to):
            self._kinds.pop(server, None)
            self._waste[server] = self._waste_at(server)

    def best(self) -> _Change | None:
        """The best move away from the fullest server that has a good one, else the best with a server where GPUs idle."""
        pool, tried = self._pool, self._limits.servers_tried
        load = pool.load()
        order = np.argsort(load, kind="stable").tolist()
        low = [at for at in order if pool.accepts[at]][:tried]
        high = [at for at in reversed(order) if pool.asked[at] > pool.gpus[at]][:tried]
        for source in high:
            if change := self._best_of(load, ((source, target) for target in low)):
                return change
        idle = sorted((-gpus, at) for at, gpus in self._waste.items() if gpus > self._limits.gain_gpus)
        others = list(dict.fromkeys([*(at for _, at in idle[: 2 * tried]), *low, *order[-tried:]]))
        return self._best_of(
            load,
            (
                pair
                for _, at in idle[:tried]
                for other in others
                if other != at
                for pair in ((at, other), (other, at))
            ),
        )

    def _best_of(
        self, load: "np.typing.NDArray[np.float64]", pairs: Iterable[tuple[int, int]]
    ) -> _Change | None:
        return min((c for source, target in pairs for c in self._changes(load, source, target)), default=None)

    def _changes(self, load: "np.typing.NDArray[np.float64]", source: int, target: int) -> Iterator[_Change]:
        pool, limits, mean = self._pool, self._limits, self._mean
        if source == target or not pool.accepts[target]:
            return
        gap = float(load[source] - load[target])
        most = self._waste.get(source, 0.0) + self._waste.get(target, 0.0)  # that a move could save
        if gap <= limits.load_gap * mean and most <= limits.idle_gpus:
            return
        widths = 1.0 / float(pool.width[source]) + 1.0 / float(pool.width[target])
        for job in self._movable(source):
            tickets = job.gang * pool.per_gpu.get(job.user, 0.0)
            uneven = tickets * (tickets * widths - 2.0 * gap) / mean**2
            least = max(limits.gain_gpus, 2.0 * limits.load_gap * tickets / mean)
            if uneven - most > -least or not pool.fits(shape_of(job))[target]:
                continue
            saved = self._waste_change(job, source, target)
            if uneven + saved <= -least and (uneven < 0 or saved < -limits.idle_gpus):
                yield _Change(round(uneven + saved, 9), cost_of(job), target, source, saved, job)

    def _movable(self, at: int) -> list[JobFacts]:
        """One of each kind that could go, the cheapest."""
        if at not in self._kinds:
            found: dict[tuple[object, ...], JobFacts] = {}
            for job in self._jobs(at):
                key = (job.gang, job.user, shape_of(job))
                if self._mover.may_go(job) and (key not in found or cost_of(job) < cost_of(found[key])):
                    found[key] = job
            self._kinds[at] = list(found.values())
        return self._kinds[at]

    def _waste_change(self, job: JobFacts, source: int, target: int) -> float:
        gpus, per_gpu = self._pool.gpus, self._pool.per_gpu
        there = [other for other in self._jobs(source) if other.id != job.id]
        here = [*self._jobs(target), job]
        after = waste(int(gpus[source]), there, per_gpu) + waste(int(gpus[target]), here, per_gpu)
        return after - self._waste.get(source, 0.0) - self._waste.get(target, 0.0)


def waste(gpus: int, jobs: list[JobFacts], per_gpu: dict[UserName, float]) -> float:
    """About how many GPUs of a server idle on average while jobs wait for them.

    Of gangs larger than half of it only one runs at a time; beside it run small ones as far as they fit. Those gangs, and the
    small ones if they do not fit beside them, take turns by their tickets per GPU.
    """
    asked = ones = 0
    for job in jobs:
        asked += job.gang
        ones += job.gang == 1
    if asked <= gpus or ones >= gpus:
        return 0.0
    big = [job for job in jobs if 2 * job.gang > gpus]
    small = [job for job in jobs if 2 * job.gang <= gpus]
    fill = sum(job.gang for job in small)
    if fill >= gpus or not big:
        return 0.0 if fill >= gpus else float(gpus - fill)
    turns = [
        (per_gpu.get(job.user, 0.0), max(0, gpus - job.gang - _beside(small, gpus - job.gang))) for job in big
    ]
    if any(fill > gpus - job.gang for job in big):
        turns.append((max((per_gpu.get(job.user, 0.0) for job in small), default=0.0), gpus - fill))
    total = sum(weight for weight, _ in turns)
    return sum(weight * idle for weight, idle in turns) / total if total > 0 else 0.0


def _beside(small: Iterable[JobFacts], room: int) -> int:
    """GPUs that small jobs fill of those beside a gang, largest first."""
    filled = 0
    for gang in sorted((job.gang for job in small), reverse=True):
        if filled + gang <= room:
            filled += gang
    return filled
