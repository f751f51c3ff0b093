"""What one decision's moves have in common: who may go, how many may, which have been made."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from hs_core.mechanism.changes import Cost
from hs_core.mechanism.loads import Board
from hs_core.mechanism.placing import Home
from hs_core.mechanism.rates import Speeds
from hs_core.model import Migrate, MoveReason
from hs_core.names import JobId
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
        self._cool_down_s = limits.cool_down_quanta * self.world.snapshot.quantum_s
        self._urgent_s = limits.urgent_cool_down_quanta * self.world.snapshot.quantum_s

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
    def some_wait(self) -> bool:
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
