"""What the machine knows of its host, and the small steps by which a job comes and goes."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import TypeVar

from hs_core import fencing
from hs_core.events.host import Checkpoint, Forget, HostCommand, Kill, Launch, Resume, Suspend
from hs_core.facts import Fact
from hs_core.host.agenda import Agenda
from hs_core.host.config import HostConfig
from hs_core.host.hosted import HostedJob
from hs_core.host.last_words import LastWords
from hs_core.host.mates import are_mates
from hs_core.host.places import Rearrangement
from hs_core.host.switching import Usual
from hs_core.mechanism.exact import exact
from hs_core.mechanism.stride import StrideQueue
from hs_core.model import Gpu, OnPartition, SuspendMode
from hs_core.names import GpuId, JobId
from hs_core.reports import MEMORY_HELD, Exit, Phase, Tier
from hs_core.wanted import Lend, Turn

STORY_LENGTH = 2_000
MOST_CLASSES = 256  # more than have jobs on one host at a time
LEAST_TICKETS = 1e-6
A_MOMENT_S = 0.001  # by which deadlines differ through rounding
FRACTION_OF_QUANTUM = 1024
"""Part quanta are charged in such steps, rounded up: passes stay small fractions for ever."""

Known = TypeVar("Known")


@dataclass(slots=True, kw_only=True)
class Board:
    config: HostConfig
    gpus: dict[GpuId, Gpu]  # in the order of their index
    queue: StrideQueue[JobId]
    now_s: float
    jobs: dict[JobId, HostedJob] = field(default_factory=dict)
    arrivals: int = 0
    agenda: Agenda = field(default_factory=Agenda)
    turn: Turn = field(default_factory=Turn)  # of the present quantum
    wanted_quantum_s: float = 0.0  # 0: nothing is wanted yet
    edge_s: float = 0.0  # the present quantum began
    quantum_s: float = 0.0  # and lasts so long
    advance: Fraction = Fraction(0)  # of the virtual time, charged when it began
    suspending: Usual = field(default_factory=Usual)
    resuming: Usual = field(default_factory=Usual)
    stopping_classes: dict[str, None] = field(
        default_factory=dict
    )  # job classes of which the newest stood at a step edge, by `remember`
    edgeless_classes: dict[str, None] = field(default_factory=dict)  # and those of which it never did
    heard_s: float = 0.0  # the controller, last
    fence_after_s: float = 0.0
    lease_s: float = 0.0  # the controller starts so much later elsewhere what is fenced; 0: it has not said
    drained: frozenset[GpuId] = frozenset()
    lends: frozenset[tuple[JobId, int]] = (
        frozenset()
    )  # (job, epoch) whose checkpoints others may still fetch here
    kept: dict[tuple[JobId, int], tuple[int, int]] = field(
        default_factory=dict
    )  # of these, jobs that have left: generation and step of what is lent
    free_bytes: int | None = None  # of host memory, as last seen; None: nobody looks
    most_bytes: int = 0  # that would be free without any job
    class_bytes: dict[str, int] = field(
        default_factory=dict
    )  # host memory for each GPU of a gang, the most that was seen of a job class, by `remember`
    class_device_bytes: dict[str, int] = field(default_factory=dict)  # the same of device memory
    class_moved_bytes: dict[str, int] = field(default_factory=dict)  # and of what of that was swapped
    refused: set[JobId] = field(default_factory=set)  # for want of host memory, when it was asked last
    room_for: dict[JobId, tuple[int, float]] = field(
        default_factory=dict
    )  # those for whom others leave: what they need, and when the quantum began in which they were refused last
    idle_since_s: dict[GpuId, float] = field(default_factory=dict)  # GPUs that are in nobody's turn
    vacated_s: dict[GpuId, float] = field(default_factory=dict)  # a process on each ended, the last one
    overdue: Mapping[GpuId, float] = field(default_factory=dict)
    """Quanta that were due to those bound to a GPU beyond all that it has, while one of them waited."""
    rearrangement: Rearrangement | None = None  # that is under way
    rearranged_s: float | None = None  # the last one was thought of
    last_words: LastWords = field(default_factory=LastWords)  # of who is no longer here
    gang_ended_s: float | None = None  # a gang of the turn ended, and the controller has not answered since
    out: list[HostCommand] = field(default_factory=list)
    facts: deque[Fact] = field(default_factory=lambda: deque(maxlen=STORY_LENGTH))
    facts_told: int = 0

    @property
    def next_edge_s(self) -> float:
        return self.edge_s + self.quantum_s

    def heard(self, late_s: float) -> None:
        """The controller was there when it said so, not when that was read."""
        self.heard_s = max(self.heard_s, self.now_s - late_s)

    def left_of_quantum(self) -> Fraction:
        left = ceil((self.next_edge_s - self.now_s) / self.quantum_s * FRACTION_OF_QUANTUM)
        return Fraction(min(FRACTION_OF_QUANTUM, max(1, left)), FRACTION_OF_QUANTUM)

    @property
    def in_order(self) -> list[HostedJob]:
        return list(self.jobs.values())  # a dict keeps the order of arrival

    def usable(self, gpu: GpuId) -> bool:
        """By those that are to be started."""
        return gpu in self.gpus and self.gpus[gpu].healthy and gpu not in self.drained

    def all_healthy(self, gpus: Iterable[GpuId]) -> bool:
        return all(gpu in self.gpus and self.gpus[gpu].healthy for gpu in gpus)

    def usable_by(self, job: HostedJob, gpu: GpuId) -> bool:
        """By one that is bound to it: on a drained GPU what cannot leave goes on, also where that is because it stands amid a step."""
        if gpu in self.drained and (not job.can_checkpoint or job.phase is Phase.FROZEN):
            return gpu in self.gpus and self.gpus[gpu].healthy
        return self.usable(gpu)

    def present_turn(self) -> Turn:
        """Without the controller's word none for gangs that want to be fenced, and by the host's own stride for who lives here alone."""
        if not self.agenda.without_word:
            return self.agenda.turn(())
        fences = [j.id for j in self.jobs.values() if j.wanted.spec.on_partition is OnPartition.FENCE]
        return self.agenda.turn(fences, [job.id for job in self.jobs.values() if not job.part])

    def turn_of(self, job: HostedJob) -> Turn:
        """The first that it is known to be in; the present one where none is."""
        if job.id in self.turn.gangs or not self.agenda.synced:
            return self.turn
        return self.agenda.known.get(self.agenda.quantum + 1, self.turn)

    def is_named(self, job: HostedJob) -> bool:
        """In the controller's turn, or in its next one."""
        following = self.agenda.known.get(self.agenda.quantum + 1) if self.agenda.synced else None
        return job.id in self.turn.gangs or (following is not None and job.id in following.gangs)

    def is_out_of_turn(self, job: HostedJob) -> bool:
        """A part of a gang over several hosts, whatever it does now: its other parts are told to stand."""
        return job.part and job.id not in self.turn.gangs

    def sliceable(self, job: HostedJob) -> bool:
        return job.sliceable(self.config.can_freeze)

    def immovable(self, job: HostedJob) -> bool:
        return job.immovable(self.config.can_freeze)

    def on(self, gpus: Iterable[GpuId]) -> list[HostedJob]:
        """Jobs with a process bound to any of these GPUs."""
        wanted = frozenset(gpus)
        return [
            job
            for job in self.jobs.values()
            if job.launched_s is not None and not wanted.isdisjoint(job.gpus)
        ]

    def rivals(self, job: HostedJob) -> list[HostedJob]:
        """Others with a process bound to any of its GPUs that must not compute while it does."""
        turn = self.turn
        return [
            other
            for other in self.on(job.gpus)
            if other is not job and not (turn.guests and are_mates(turn, job.id, other.id))
        ]

    def choosing_quantum_s(self) -> float:
        """The cluster's where it keeps step with that; else as configured, longer where switching is slow (never more than tenfold: shares must be seen within minutes)."""
        if self.agenda.synced:
            return self.wanted_quantum_s
        least = self.config.switch_ratio * (self.suspending.mean_s + self.resuming.mean_s)
        return min(max(self.wanted_quantum_s, least), 10 * self.wanted_quantum_s)

    def tell(self, kind: str, text: str, job: HostedJob | None = None) -> None:
        self.facts_told += 1
        if job is None:
            self.facts.append(Fact(now_s=self.now_s, kind=kind, text=text))
        else:
            self.facts.append(Fact(now_s=self.now_s, kind=kind, text=text, job=job.id, user=job.wanted.user))

    # --- coming

    def launch(self, job: HostedJob) -> None:
        assert not job.alive, f"job {job.id} has a process already"
        assert job.startable, f"job {job.id} must not be started: {job.waits_for or 'it leaves'}"
        job.launched_s, job.gone_s = self.now_s, None
        job.aim = job.left = ()
        job.shelved = False
        job.held_up, job.refused_quanta, job.idle_quanta = "", 0, 0
        job.launched_run_s = job.run_s
        job.moved_bytes, job.takes = 0, None
        job.start_deadline_s = self.now_s + self.config.hook_deadline_s
        job.hooked = None if job.hookable else False
        job.ready = job.resumed = job.overdue = job.can_swap = job.can_checkpoint = job.weighed = False
        job.phase = Phase.STARTING if job.hookable else Phase.RUNNING
        if self.is_edgeless(job) and job.mode is SuspendMode.AUTO:
            job.hooked, job.phase, job.resumed = False, Phase.RUNNING, True
        self.saves_later(job)
        generation = job.checkpoint_generation
        job.began_step = -1 if generation >= 0 else 0
        self.out.append(Launch(wanted=job.wanted, gpus=job.gpus, generation=generation))
        how = "" if generation < 0 else f" from checkpoint {generation}"
        self.tell("launched", f"launched on {self.names(job.gpus)}{how}", job)

    def is_edgeless(self, job: HostedJob) -> bool:
        """The newest of its class never stood at a step edge: it computes from its launch on."""
        return job.wanted.job_class in self.edgeless_classes

    def resume(self, job: HostedJob) -> None:
        if job.phase is not Phase.STARTING:
            job.resumes += 1
        job.came_up_s = 0.0 if job.resumed else self._turn_waited_s(job)
        job.phase = Phase.RUNNING
        job.resumed = True
        job.parked_bytes = 0
        job.coming_back = job.shelved = False
        job.going_s = self.now_s
        job.resend_s = self.now_s + self.config.suspend_deadline_s
        self.say_go(job)
        self.tell("resumed", "let go", job)

    def say_go(self, job: HostedJob) -> None:
        job.orders += 1
        self.out.append(Resume(job=job.id, epoch=job.wanted.epoch, order=job.orders))

    def went_on(self, job: HostedJob) -> None:
        if job.going_s is not None:
            took_s = max(0.0, self.now_s - job.going_s)
            job.resume_s += took_s
            self.resuming.took(job.going_s, took_s + job.came_up_s, self.wanted_quantum_s)
            job.going_s = None

    def _turn_waited_s(self, job: HostedJob) -> float:
        """For how long of its turn GPUs idled, as there was no memory in which it could have stood, and it had to be started. Its first start is no switch."""
        if not job.suspends or job.launched_s is None or job.charged_from_s is None:
            return 0.0
        return max(0.0, self.now_s - max(job.launched_s, job.charged_from_s))

    # --- going

    def suspend(self, job: HostedJob, tier: Tier) -> None:
        job.phase = Phase.SUSPENDING
        job.in_turn = False
        job.going_s = None
        job.asked_s = self.now_s
        in_vain = tier is Tier.HOLD and self.now_s < job.hold_after_s and self.config.can_freeze
        self.ask(job, Tier.FREEZE if in_vain or not job.ready else tier)

    def ask(self, job: HostedJob, tier: Tier) -> None:
        job.asked = tier
        parks = tier in (Tier.SWAP, Tier.CHECKPOINT)
        job.deadline_s = self.now_s + (
            self.config.park_deadline_s if parks else self.config.suspend_deadline_s
        )
        job.orders += tier is not Tier.FREEZE
        self.out.append(Suspend(job=job.id, epoch=job.wanted.epoch, tier=tier, order=job.orders))
        self.tell("suspending", f"told to stop ({tier})", job)

    def stopped(self, job: HostedJob, phase: Phase, tier: Tier) -> None:
        """Its GPUs are free to others."""
        if job.phase is Phase.SUSPENDING:
            took_s = max(0.0, self.now_s - job.asked_s)
            job.suspends += 1
            job.suspend_s += took_s
            self.suspending.took(job.asked_s, took_s, self.wanted_quantum_s)
        if job.occupying and any(other.occupying for other in self.rivals(job)):
            job.in_turn = False  # two could not be stopped; one is left
        if self.is_out_of_turn(job):
            job.in_turn = False  # it could not be stopped before
            for other in self.rivals(job):
                other.passed_over = other.passed_over and not job.stuck
        job.free(self.now_s)
        job.stood_from_s = self.now_s if job.phase is Phase.SUSPENDING else job.stood_from_s
        job.unparked = job.unparked and phase is Phase.CHECKPOINTED
        job.phase, job.tier = phase, tier
        self.takes_along(job)
        job.asked = job.going_s = None
        job.stuck = ""
        self.tell("suspended", f"stopped at step {job.step} ({tier})", job)

    def takes_along(self, job: HostedJob) -> None:
        """To another host, should it move there now: its place in the queue, if it has left."""
        left = job.phase is Phase.CHECKPOINTED and job.id in self.queue
        job.takes = float(self.queue.carry(job.id)) if left else None

    def save(self, job: HostedJob) -> None:
        self.saves_later(job)
        self.out.append(Checkpoint(job=job.id, epoch=job.wanted.epoch))

    def saves_later(self, job: HostedJob) -> None:
        """Its interval begins anew: of turns, so that short ones do not save at each beginning what the last one did."""
        job.saves_at_run_s = (
            job.run_s + job.seconds_in_turn(self.now_s) + job.wanted.spec.checkpoint_interval_s
        )

    def kill(self, job: HostedJob, why: str) -> None:
        if job.phase is Phase.KILLING:
            return
        leaves = job.phase is Phase.CHECKPOINTED and not self._is_fenced(job)
        job.phase = Phase.KILLING
        job.kill_why, job.stuck, job.held_up = why, "", ""
        job.asked = job.going_s = None
        job.in_turn = False
        self.send_kill(job, leaves=leaves)
        self.tell("killing", why, job)

    def send_kill(self, job: HostedJob, *, leaves: bool = False) -> None:
        grace_s = self._grace_s(job)
        job.deadline_s = self.now_s + grace_s * (1 + leaves) + self.config.unkillable_s
        self.out.append(
            Kill(job=job.id, epoch=job.wanted.epoch, grace_s=grace_s, why=job.kill_why, leaves=leaves)
        )

    def hasten(self, job: HostedJob) -> None:
        """Its end was ordered before it was to be fenced, with more time than that leaves it."""
        latest_s = self.now_s + self._grace_s(job) + self.config.unkillable_s
        if job.deadline_s > latest_s + A_MOMENT_S:
            self.send_kill(job)

    def _grace_s(self, job: HostedJob) -> float:
        own_s = self.config.kill_grace_s
        if not self._is_fenced(job):
            return own_s
        return fencing.grace_s(own_s, self.lease_s, self.now_s - self.heard_s - self.fence_after_s)

    def _is_fenced(self, job: HostedJob) -> bool:
        return job.fences and self.fence_after_s > 0 and self.now_s >= self.heard_s + self.fence_after_s

    def gone(self, job: HostedJob) -> None:
        """There is no process any more: nothing binds it."""
        if job.alive:
            self._look_for_memory_again()
            self.vacated_s.update(dict.fromkeys(job.gpus, self.now_s))
        job.free(self.now_s)
        job.launched_s = None
        job.gpus = ()
        job.in_turn = False
        job.asked = job.going_s = None
        job.parked_bytes = job.residue_bytes = 0
        job.coming_back = False
        if self.free_bytes is not None:
            self.free_bytes += job.host_bytes
        job.host_bytes = 0
        job.stuck = job.held_up = ""

    def _look_for_memory_again(self) -> None:
        for job in self.jobs.values():
            if MEMORY_HELD in job.start_why:
                job.start_why, job.start_at_s = "", self.now_s

    def exited(self, job: HostedJob, exit_: Exit) -> None:
        if job.kill_why and not exit_.why:
            why = job.exit_why or job.kill_why
            exit_ = Exit(code=exit_.code, signal=exit_.signal, why=why, log_tail=exit_.log_tail)
        self.gone(job)
        job.phase, job.exit = Phase.EXITED, exit_
        if exit_.ok:
            job.trouble = ""
        ending = exit_.why or (f"signal {exit_.signal}" if exit_.signal else f"code {exit_.code}")
        self.tell("exited", f"ended: {ending}", job)
        if job.id in self.turn.gangs:
            self.gang_ended_s = self.now_s

    def forget(self, job: HostedJob) -> None:
        """What is left of it goes, unless others are to fetch its checkpoint."""
        lent = [
            key for key in self.lends if key[0] == job.id
        ]  # perhaps of an incarnation before, which it had come back to
        alone = not (job.part or job.wanted.copy >= 0)
        for key in lent:
            # A part, or a copy, says nothing of what the job wrote here alone; nor can it go on from that alone.
            if alone:
                self.kept[key] = (job.checkpoint_generation, job.checkpoint_step)
            else:
                self.kept.setdefault(key, (-1, -1))
        if (job.id, job.wanted.epoch) not in lent:
            self.out.append(Forget(job=job.id, epoch=job.wanted.epoch))

    def lend(self, lends: Iterable[Lend]) -> None:
        self.lends = frozenset((lend.job, lend.epoch) for lend in lends)

    def let_go(self) -> None:
        """Of what is lent no longer, once those that come back have taken theirs up."""
        for job, epoch in sorted(self.kept.keys() - self.lends):
            there = self.jobs.get(job)
            if there is not None and there.next is not None:
                continue  # who takes it up waits for the end of a process
            del self.kept[job, epoch]
            self.out.append(Forget(job=job, epoch=epoch))

    def lent_by(self, job: JobId) -> tuple[int, int]:
        """Generation and step of what it left here, where it comes back before it got anywhere else."""
        return max((kept for (other, _), kept in self.kept.items() if other == job), default=(-1, -1))

    # --- the queue

    def enqueue(self) -> None:
        """Every job that can run is in the stride queue, and no other.

        A paused job that can't be stopped runs on, and is charged for it.
        """
        queued = self.queue.jobs
        for id_, job in self.jobs.items():
            belongs = not job.dropped and not job.ended
            if belongs and job.wanted.paused:
                belongs = job.occupying and not self.sliceable(job)
            if belongs == (id_ in queued):
                continue
            if belongs:
                order = (job.order, job.id)
                self.queue.add(job.id, job.gang, tickets_of(job), order, job.carry, kin=job.wanted.user)
                job.carry = None
            else:
                job.carry = self.queue.remove(job.id)
                job.in_turn = False

    @property
    def absent(self) -> list[JobId]:
        """They have not come to their first step edge, nor had a turn."""
        return [
            job.id for job in self.jobs.values() if not job.ready and job.gpu_s == 0 and not job.occupying
        ]

    def begins(self, job: HostedJob) -> None:
        """It was started ahead of its turn and could take one from now on: the time its start took earns nothing."""
        if job.wanted.carry is not None:
            return  # it has brought its place
        if job.gpu_s == 0 and not job.in_turn and job.id in self.queue and self.quantum_s > 0:
            left = self.left_of_quantum()
            self.advance = self.queue.begin(job.id, self.advance * left, self.absent) / left

    def names(self, gpus: Iterable[GpuId]) -> str:
        numbers = [str(self.gpus[g].index) if g in self.gpus else g for g in gpus]
        return ("GPU " if len(numbers) == 1 else "GPUs ") + ",".join(numbers)


def remember(known: dict[str, Known], job_class: str, what: Known) -> None:
    """Of the newest classes: users make them up, and what an agent knows is written down before each order."""
    known.pop(job_class, None)
    known[job_class] = what
    if len(known) > MOST_CLASSES:
        del known[next(iter(known))]


def remember_most(known: dict[str, int], job_class: str, size: int) -> None:
    remember(known, job_class, max(known.get(job_class, 0), size))


def tickets_of(job: HostedJob) -> Fraction:
    """They travel as floats; 4/3 is 4/3 again here, so that shares are exact."""
    return _exact(max(job.wanted.tickets, LEAST_TICKETS))


def tickets_per_gpu(job: HostedJob) -> Fraction:
    """Also quanta to the unit of virtual time."""
    return _exact_of(max(job.wanted.tickets, LEAST_TICKETS), job.gang)


@lru_cache(maxsize=4096)
def _exact(tickets: float) -> Fraction:
    return exact(tickets)


@lru_cache(maxsize=4096)
def _exact_of(tickets: float, gang: int) -> Fraction:
    return _exact(tickets) / gang
