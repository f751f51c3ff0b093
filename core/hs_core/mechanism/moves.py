"""Who leaves its servers for others (Gandiva_fair, 3.3, 3.5): drains, better pools, idle GPUs beside gangs, unequal loads, idle GPUs of other models.

Nothing moves to and fro: a job stays for its cool-down; a move to another pool makes its user's sum of effective rates grow, one within
a pool makes its loads more equal (`mechanism.evening`), and one to idle GPUs gives the job more of its own (`mechanism.spare`). In a world that stands still all come to an end.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from math import inf
from typing import Any

from hs_core.mechanism import exchange, offers
from hs_core.mechanism.census import Kind
from hs_core.mechanism.changes import Cost
from hs_core.mechanism.evening import even_out
from hs_core.mechanism.loads import Board
from hs_core.mechanism.place import pool_for
from hs_core.mechanism.placing import Home
from hs_core.mechanism.rates import Speeds
from hs_core.mechanism.spare import Spare
from hs_core.mechanism.worth import SCOUTS, SLACK, Offer, Worth
from hs_core.model import Migrate, MoveReason
from hs_core.names import JobId, UserName
from hs_core.newest import Own
from hs_core.policy import JobFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What keeps moves few."""

    started_a_quantum: int = 8  # moves of jobs that have a process; drains besides
    waiting_a_quantum: int = 64  # of jobs that have none: they cost nothing but words
    cool_down_quanta: float = 15.0  # since a job was placed or last moved
    urgent_cool_down_quanta: float = 3.0  # where loads are `urgent_gap` of the pool's mean load apart
    urgent_gap: float = 0.5
    pool_gain: float = 0.1  # of a job's effective rate now, that its user's sum must grow by
    fairer: float = (
        1.5  # times its effective rate now, for a move that costs its user nothing and gains it nothing
    )
    spare_gain: float = (
        0.25  # of what it gets now, for a move to idle GPUs: they idle as turns happen to fall
    )
    load_gap: float = 0.1  # of the pool's mean load, between two servers, half of the job's own taken off
    gain_gpus: float = 0.01  # of any move within a pool, in squared loads
    servers_tried: int = 8  # most and least loaded ones, when a pair is looked for
    servers_seen: int = 64  # of the most loaded, when those with small jobs are looked for


FEW_KINDS = 128  # up to so many, it is not worth it to find the offers of all at once
# Those of a world in which nobody has moved yet, and what they go by. Nothing comes of it but time.
_offered = Own[list[tuple[tuple[Any, ...], list[Offer]]]](list)


@dataclass(frozen=True, slots=True)
class Moved:
    job: JobFacts
    to: Home
    reason: MoveReason
    text: str


class Mover:
    def __init__(self, board: Board, speeds: Speeds, limits: Limits, *, held: bool = False) -> None:
        """`held`: jobs have changed homes together (`mechanism.exchange`), and nothing is another since but the time."""
        self.held = held
        self.board = board
        self.world = board.world
        self.speeds = speeds
        self.limits = limits
        self.done: list[Moved] = []
        self._moved: set[JobId] = set()
        self._fresh = {job.id for job in self.world.new}  # placed in this decision: nobody was told yet
        self.awaits_s = inf  # somebody may not go before, for it has just come
        self._budget = self.world.snapshot.migrations_left
        self._started_left = limits.started_a_quantum
        self._waiting_left = limits.waiting_a_quantum
        self._now_s, self._running = self.world.snapshot.now_s, self.world.snapshot.running
        self._ready: dict[tuple[Kind, bool], list[JobFacts]] = {}  # by whether jobs with a process may go
        self._cool_down_s = limits.cool_down_quanta * self.world.snapshot.quantum_s
        self._urgent_s = limits.urgent_cool_down_quanta * self.world.snapshot.quantum_s

    # --- what all have in common ------------------------------------------------------------------------------------

    def may_go(self, job: JobFacts, *, urgent: bool = False) -> bool:
        """Not for a drain: those go at once."""
        if job.id in self._moved or job.id in self.world.going:
            return False
        if job.id in self._fresh:
            return self._waiting_left > 0
        if not job.movable:
            return False
        cool_down_s = self._urgent_s if urgent else self._cool_down_s
        if self._now_s - job.settled_s < cool_down_s:
            self.awaits_s = min(self.awaits_s, job.settled_s + cool_down_s)
            return False
        if job.started and (job.migrate is Migrate.NEVER or not self._connected(job.hosts)):
            return False
        if job.started and job.migrate is Migrate.SAME_TYPE and self.world.mixed(job):
            return False
        return self.moves_started if job.started else self._waiting_left > 0

    def cost_of(self, job: JobFacts) -> Cost:
        """Cheapest first: without a process, not in its turn, the newest (the others have been at it longer)."""
        return job.started, job.id in self._running, job.gang, -job.arrival_s, job.id

    def affords(self, jobs: Sequence[JobFacts]) -> bool:
        """All of them, which `may_go` one by one."""
        started = sum(job.started for job in jobs)
        return started <= min(self._budget, self._started_left) and len(jobs) - started <= self._waiting_left

    @property
    def moves_started(self) -> bool:
        """There is budget left for jobs that have a process."""
        return min(self._budget, self._started_left) > 0

    @property
    def spent(self) -> bool:
        return self._waiting_left <= 0 and not self.moves_started

    @property
    def held_back(self) -> bool:
        """In the next quantum there may be moves that there was no budget left for."""
        return self._waiting_left <= 0 or not self.moves_started

    @cached_property
    def _some_wait(self) -> bool:
        """There are jobs without a process that live somewhere."""
        return any(band.waiting for band in self.world.kinds.values())

    def _connected(self, home: Home) -> bool:
        hosts = self.world.hosts
        return not self.world.floor.away or all(hosts[name].connected for name in home)

    def move(self, job: JobFacts, to: Home, reason: MoveReason, text: str) -> None:
        old = self.world.homes[job.id]
        if job.id in self.world.unable:
            self.world.unable.discard(job.id)
        else:
            self.board.remove(job, old)
        self.board.add(job, to)
        self.world.homes[job.id] = to
        self._moved.add(job.id)
        if not job.started:
            self._waiting_left -= 1
        elif reason is not MoveReason.DRAIN:  # an administrator's word is not budgeted
            self._budget -= 1
            self._started_left -= 1
        if job.id not in self._fresh:
            self.done.append(Moved(job, to, reason, text))

    # --- servers that should be empty, or can no longer run the job -------------------------------------------------

    def drain(self) -> None:
        """First, and outside the thresholds."""
        for job in self.world.leavers:
            leaves = next((name for name in job.hosts if not self.world.hosts[name].accepts), None)
            if leaves is None and job.started and not self.moves_started:
                continue
            to = self._elsewhere(job)
            if to and to != job.hosts:
                if leaves is not None:
                    text = f"{leaves} is drained; it goes to {', '.join(to)}"
                    self.move(job, to, MoveReason.DRAIN, text)
                else:
                    text = f"its server has too few GPUs in health; it goes to {', '.join(to)}"
                    self.move(job, to, MoveReason.BALANCE, text)

    def _elsewhere(self, job: JobFacts) -> Home:
        models = self.world.usable(job)
        own = self.world.model(job.hosts)
        if job.started and job.migrate is Migrate.SAME_TYPE:
            models = (own,) if own in models and not self.world.mixed(job) else ()
        if not models:
            return ()
        model = own if own in models else pool_for(self.board, self.speeds, job, models)
        comes = model != own or job.id in self.world.unable
        return self.board.find(job, model, comes=comes)

    # --- better pools -----------------------------------------------------------------------------------------------

    def change_pools(self) -> None:
        """The largest gain over all (user, class, from, to) first."""
        if len(self.world.models) < 2 or self.spent:
            return
        worth, spare = Worth(self.board, self.speeds), Spare(self)
        heap = self._all_offers(worth)
        heapify(heap)
        while heap and (self.moves_started or self._some_wait) and not self.spent:
            offer = heappop(heap)
            if heap and heap[0] == offer:  # made again since, as others of its kind went elsewhere
                continue
            _, user, job_class, source, target = offer
            able = self._able((user, job_class, source), target)
            if (first := next(able, None)) is None:
                continue
            gain = self._gain(worth, first, source, target)
            if gain is None:
                continue
            if heap and -gain > heap[0][0] + SLACK / 1e3:  # it was worth more before others moved
                heappush(heap, (-gain, user, job_class, source, target))
                continue
            # What it gets where it is takes longer to find: of those that are next alone.
            job = self._not_worse_off(chain([first], able), source, target, spare)
            if job is None or (job.gang != first.gang and self._gain(worth, job, source, target) is None):
                continue
            to = self.board.find(job, target)
            if not to:
                continue
            self.move(job, to, MoveReason.POOL, worth.explain(job, source, target))
            worth.forget(user)
            spare.forget(user)
            for offer in self._offers(worth, user, job_class, source):
                heappush(heap, offer)

    def _all_offers(self, worth: Worth) -> list[Offer]:
        """Found anew only where something that they go by is another than when they were found last."""
        world = self.world
        if world.new or self.done:  # jobs have found homes, or others, in this decision
            return self._find_offers(worth)
        goes_by: tuple[Any, ...] = (
            *(world.floor, self.speeds, self.limits.pool_gain, self.limits.fairer, self.held),
            *(self.board.entitled, world.gpus, world.kind_gpus),
            {kind: band.first.gang for kind, band in world.kinds.items() if band},
        )
        offered = _offered()
        if not offered or offered[0][0] != goes_by:
            # Copies of what the world has: that is about to change.
            kept = (*goes_by[:5], *map(dict, goes_by[5:]))
            offered[:] = [(kept, self._find_offers(worth))]
        return list(offered[0][1])

    def _find_offers(self, worth: Worth) -> list[Offer]:
        if len(self.world.kind_gpus) > FEW_KINDS:
            return offers.find(self.board, self.speeds, self.limits.pool_gain, self.limits.fairer)
        return list(self._one_by_one(worth))

    def _one_by_one(self, worth: Worth) -> Iterator[Offer]:
        by_user: dict[UserName, list[tuple[str, str]]] = {}
        for (user, job_class, model), gpus in self.world.kind_gpus.items():
            if gpus > 0:
                by_user.setdefault(user, []).append((job_class, model))
        for user in sorted(by_user):
            if worth.content(user):
                continue
            for job_class, source in sorted(by_user[user]):
                yield from self._offers(worth, user, job_class, source)

    def _offers(self, worth: Worth, user: UserName, job_class: str, source: str) -> Iterator[Offer]:
        jobs = self.world.kinds.get((user, job_class, source))
        if not jobs:
            return
        for target in worth.targets(user, job_class, source):
            if (gain := self._gain(worth, jobs.first, source, target)) is not None:
                yield -gain, user, job_class, source, target

    def _gain(self, worth: Worth, job: JobFacts, source: str, target: str) -> float | None:
        """What the user's sum grows by, if that is worth a move. One that only the job gains by, much, comes after all others."""
        if self.held and self.speeds.measured(job.job_class, (source, target)):
            return None
        now, then, gain = worth.gain(job, source, target)
        if gain > self.limits.pool_gain * job.gang * now + SLACK:
            return gain
        if gain > -SLACK and then > self.limits.fairer * now + SLACK:
            return SLACK * (then - now)
        return SCOUTS if worth.scouts(job, source, target) else None

    def _able(self, kind: Kind, target: str) -> Iterator[JobFacts]:
        """Of those that could go there the cheapest, of which only so many are looked at closely."""
        able = (job for job in self._who_could(kind) if target in self.world.usable(job) and self.may_go(job))
        return islice(able, self.limits.servers_tried)

    def _not_worse_off(
        self, jobs: Iterable[JobFacts], source: str, target: str, spare: Spare
    ) -> JobFacts | None:
        """The first without a process, or that is not worse off by it."""
        for job in jobs:
            if not (job.started and spare.worse_off(job, source, target)):
                return job
        return None

    def _who_could(self, kind: Kind) -> list[JobFacts]:
        """Go to another pool, cheapest first. Found once: those of a kind that may go become fewer as jobs move, never more."""
        key = kind, self.moves_started
        ready = self._ready.get(key)
        if ready is None:
            kin = self.world.kinds.get(kind)
            jobs = () if kin is None else kin.jobs if self.moves_started else kin.waiting
            ready = [
                job
                for job in jobs
                if self.may_go(job) and not (job.started and job.migrate is not Migrate.AUTO)
            ]
            ready.sort(key=self.cost_of)
            self._ready[key] = ready
        return ready


def drain(board: Board, speeds: Speeds, limits: Limits) -> Mover:
    """Only those that cannot wait for the next edge."""
    mover = Mover(board, speeds, limits)
    mover.drain()
    return mover


def settle_all(board: Board, speeds: Speeds, limits: Limits, *, held: bool = False) -> Mover:
    """All moves of one decision."""
    mover = Mover(board, speeds, limits, held=held)
    mover.drain()
    mover.held = held and not mover.done and not exchange.wastes(mover)
    mover.change_pools()
    if not mover.held:
        for model in board.world.models:
            if board.crowded(model):
                even_out(mover, board.pool(model))
        Spare(mover).fill()
    mover.held = exchange.settle_together(mover) or (mover.held and not mover.done)
    return mover
