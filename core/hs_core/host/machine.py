"""HostMachine: events of one GPU host in, orders to its jobs out.

Who may run is decided at the edges of quanta (`turns`), at a fixed cadence from the first; a new turn from the controller begins a
quantum at once. A quantum lasts as configured, or longer where switching is slow: at least `switch_ratio` times the measured mean of
suspend plus resume, at most ten times what is configured. In between, GPUs that become idle are given away at once.

Without the controller the last `Wanted` stands. Where it had switched the local stride off (`turn.local`) and a gang of its turn
ends, the GPUs stay idle for one quantum, in case it answers; then the other jobs fill them by stride: work goes on while it is away.

After a restart: construct with what `saved()` gave last, then tell what was found as events: `JobExited` for what ended meanwhile,
nothing for what lives. What was ordered and not answered is ordered again, but for
launches. A job that ended meanwhile is charged until the agent is back: nobody knows when it ended.
The daemon writes `saved()` before it carries out commands.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import Any, assert_never

from hs_core.errors import BrokenError
from hs_core.events import (
    CheckpointFailed,
    CheckpointFetched,
    ControllerHeard,
    Fact,
    FetchFailed,
    GpusSeen,
    HostCommand,
    HostEvent,
    JobCapable,
    JobCheckpointed,
    JobExited,
    JobFroze,
    JobHeld,
    JobHooked,
    JobProgressed,
    JobReady,
    JobRestored,
    JobWentOn,
    LaunchFailed,
    RendezvousReserved,
    Resume,
    SuspendFailed,
    Turn,
    WakeHost,
    Wanted,
    WantedChanged,
    WantedJob,
    Woke,
)
from hs_core.host import deadlines, turns
from hs_core.host.board import Board, tickets_of
from hs_core.host.config import HostConfig
from hs_core.host.hosted import HostedJob
from hs_core.host.laws import broken_laws
from hs_core.host.plain import plain, revive
from hs_core.mechanism.stride import StrideQueue
from hs_core.model import Exit, Gpu, JobId, JobReport, Phase, Tier

CHECKPOINTED_STATUS = 75
"""How a process exits once its checkpoint is durable (docs/job-protocol.md)."""

SAVED_VERSION = 1

PHASE_OF_TIER = {
    Tier.HOLD: Phase.HELD,
    Tier.SWAP: Phase.SWAPPED,
    Tier.CHECKPOINT: Phase.CHECKPOINTED,
    Tier.FREEZE: Phase.FROZEN,
}

_JobEvent = (
    JobHooked | JobReady | JobCapable | JobHeld | JobWentOn | JobProgressed | JobCheckpointed | CheckpointFailed
    | JobRestored | JobFroze | SuspendFailed | JobExited | LaunchFailed
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOutcome:
    commands: tuple[HostCommand, ...]
    changed: frozenset[JobId]  # jobs whose report says something new, beyond growing counters
    facts: tuple[Fact, ...] = ()  # for the log


class HostMachine:
    def __init__(
        self,
        gpus: tuple[Gpu, ...],
        config: HostConfig,
        *,
        now_s: float,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        by_index = {gpu.id: gpu for gpu in sorted(gpus, key=lambda g: g.index)}
        if len(by_index) != len(gpus):
            raise BrokenError(f"two GPUs of this host have the same id: {[g.id for g in gpus]}")
        self._board = Board(config=config, gpus=by_index, queue=StrideQueue(), now_s=now_s, edge_s=now_s)
        self._term = self._seq = -1
        self._orders = 0
        self._new_turn = False
        self._resend = False
        self._told: dict[JobId, tuple[object, ...]] = {}
        if saved is not None:
            self._load(saved, now_s)

    # --- events

    def handle(self, event: HostEvent) -> HostOutcome:
        board = self._board
        board.now_s = max(board.now_s, event.now_s)
        facts_before = board.facts_told
        if self._resend:
            self._resend = False
            self._order_again()
        match event:
            case WantedChanged():
                self._wanted(event.wanted)
            case GpusSeen():
                self._gpus_seen(event)
            case Woke() | ControllerHeard():
                pass
            case CheckpointFetched() | FetchFailed() | RendezvousReserved():
                pass
            case _:
                job = board.jobs.get(event.job)
                if job is not None and job.wanted.epoch == event.epoch:
                    self._job_event(job, event)
        self._settle()
        commands = tuple(board.out)
        board.out.clear()
        self.check()
        new_facts = board.facts_told - facts_before
        return HostOutcome(
            commands=commands,
            changed=self._changed(),
            facts=tuple(board.facts)[len(board.facts) - new_facts :],
        )

    def _job_event(self, job: HostedJob, event: _JobEvent) -> None:
        match event:
            case JobHooked():
                self._hooked(job)
            case JobReady():
                self._ready(job, event)
            case JobCapable():
                job.can_swap, job.can_checkpoint = event.can_swap, event.can_checkpoint
            case JobHeld():
                self._held(job, event)
            case JobWentOn():
                self._went_on(job, event.step)
            case JobProgressed():
                self._progressed(job, event)
            case JobCheckpointed():
                self._durable(job, event.step, event.generation)
            case CheckpointFailed():
                self._checkpoint_failed(job, event.why)
            case JobRestored():
                self._restored(job, event)
            case JobFroze():
                self._froze(job)
            case SuspendFailed():
                if job.asked is not None:
                    deadlines.unanswered(self._board, job, event.why)
            case JobExited():
                self._exited(job, event.exit)
            case LaunchFailed():
                if job.phase is not Phase.EXITED:
                    self._board.exited(job, Exit(why=f"launch failed: {event.why}"))
            case _:
                assert_never(event)

    # --- what is wanted

    def _wanted(self, wanted: Wanted) -> None:
        if (wanted.term, wanted.seq) <= (self._term, self._seq):
            return
        board = self._board
        first = board.wanted_quantum_s == 0.0
        self._term, self._seq = wanted.term, wanted.seq
        board.wanted_quantum_s = wanted.quantum_s
        for entry in wanted.jobs:
            self._wanted_job(entry)
        listed = {entry.job for entry in wanted.jobs}
        for job in board.in_order:
            if job.id not in listed:
                self._drop(job)
        tickets = {j.id: tickets_of(j) for j in board.jobs.values() if j.id in board.queue}
        board.queue.set_tickets(tickets)
        board.gang_ended_s = None
        self._new_turn = first or wanted.turn != board.turn
        board.turn = wanted.turn

    def _wanted_job(self, entry: WantedJob) -> None:
        board = self._board
        job = board.jobs.get(entry.job)
        if job is None:
            job = self._take_up(entry)
        elif entry.epoch > job.wanted.epoch:
            job.next, job.dropped = entry, False
            if job.alive:
                board.kill(job, f"replaced by incarnation {entry.epoch}")
            else:
                self._bury(job)
            return
        elif entry.epoch < job.wanted.epoch:
            return
        else:
            job.wanted, job.dropped, job.next = entry, False, None
        if entry.cancelled and not job.ended:
            if job.alive:
                board.kill(job, "cancelled")
            else:
                board.exited(job, Exit(why="cancelled"))
        elif entry.paused and job.in_turn:
            self._pause(job)

    def _take_up(self, entry: WantedJob) -> HostedJob:
        self._orders += 1
        job = HostedJob(wanted=entry, order=self._orders, came_s=self._board.now_s)
        self._board.jobs[entry.job] = job
        self._board.tell("arrived", f"wants {entry.spec.gpus} GPUs", job)
        return job

    def _pause(self, job: HostedJob) -> None:
        board = self._board
        if job.phase is Phase.RUNNING and not board.sliceable(job):
            board.tell("unsliceable", "paused by its owner, but it can't be stopped", job)
            return
        job.in_turn = False
        if job.phase is Phase.RUNNING:
            board.suspend(job, Tier.HOLD)
        elif job.phase is Phase.STARTING:
            job.free(board.now_s)  # like one started ahead of its turn
        elif not job.alive:
            job.gpus = ()

    def _drop(self, job: HostedJob) -> None:
        job.dropped, job.next = True, None
        if job.alive:
            self._board.kill(job, "no longer wanted here")
        else:
            self._bury(job)

    def _bury(self, job: HostedJob) -> None:
        """Nothing of it is alive, and the controller knows or does not care."""
        board = self._board
        board.forget(job)
        if job.id in board.queue:
            board.queue.remove(job.id)
        del board.jobs[job.id]
        self._told.pop(job.id, None)
        if job.next is not None:
            # A new incarnation on the same host goes on from the newest checkpoint of the one before.
            heir = self._take_up(job.next)
            heir.checkpoint_generation, heir.checkpoint_step = job.checkpoint_generation, job.checkpoint_step

    # --- what jobs do

    def _hooked(self, job: HostedJob) -> None:
        if not job.hookable or not job.alive:
            return
        if job.hooked is None:
            job.start_deadline_s = self._board.now_s + self._board.config.ready_deadline_s
        job.hooked = True  # late, perhaps: until JobReady it is still in the freezer's care
        self._board.hooking_classes.add(job.wanted.job_class)

    def _ready(self, job: HostedJob, event: JobReady) -> None:
        board = self._board
        if (
            not job.alive
            or not job.hookable
            or job.phase in (Phase.KILLING, Phase.SWAPPED, Phase.CHECKPOINTED)
        ):
            return
        self._hooked(job)
        first, job.ready = not job.ready, True
        job.can_swap, job.can_checkpoint = event.can_swap, event.can_checkpoint
        job.step = event.step
        if first:
            board.tell("ready", f"stands at its first suspend point, step {job.step}", job)
            if job.ahead:
                board.begins(job)
        if job.phase is Phase.FROZEN or job.asked in (Tier.SWAP, Tier.CHECKPOINT):
            return
        if job.phase is Phase.SUSPENDING:
            board.stopped(job, Phase.HELD, Tier.HOLD)
        elif job.phase in (Phase.STARTING, Phase.RUNNING):
            others = any(other.occupying for other in board.on(job.gpus) if other is not job)
            if job.in_turn and job.occupying and not others and not job.wanted.paused:
                board.resume(job)
                return
            job.free(board.now_s)
            job.phase, job.going_s, job.stuck = Phase.HELD, None, ""
            job.in_turn = job.in_turn and not others

    def _held(self, job: HostedJob, event: JobHeld) -> None:
        board = self._board
        if event.tier not in PHASE_OF_TIER:
            raise BrokenError(f"job {job.id} held with tier {event.tier}")
        if event.tier is Tier.CHECKPOINT:
            self._durable(job, event.step, event.generation)
        if not job.alive or job.ended:
            return
        job.ready, job.resumed = True, True
        self._hooked(job)
        asked, job.step = job.asked, event.step
        if asked is Tier.SWAP and event.tier is Tier.HOLD:
            deadlines.parking_failed(board, job, Tier.SWAP, "device memory stays where it is")
        board.stopped(job, PHASE_OF_TIER[event.tier], event.tier)
        job.parked_bytes = event.parked_bytes if event.tier is Tier.SWAP else 0
        if event.tier is Tier.CHECKPOINT:
            job.in_turn = False

    def _went_on(self, job: HostedJob, step: int) -> None:
        board = self._board
        if not job.alive or job.ended or job.phase is Phase.SUSPENDING:
            return
        job.step = max(job.step, step)
        if job.phase is Phase.RUNNING:
            board.went_on(job)
            return
        # It trains without having been let go: what is so goes before what was ordered.
        job.phase, job.ready, job.resumed, job.asked = Phase.RUNNING, job.hookable, True, None
        if not (job.in_turn and job.occupying):
            deadlines.intrude(board, job)

    def _progressed(self, job: HostedJob, event: JobProgressed) -> None:
        if not job.alive:
            return
        if job.phase is Phase.RUNNING:
            self._board.went_on(job)
        job.step = max(job.step, event.step)
        job.steps_per_s = event.steps_per_s
        job.device_memory_bytes = max(job.device_memory_bytes, event.device_memory_bytes)

    def _durable(self, job: HostedJob, step: int, generation: int) -> None:
        if generation >= job.checkpoint_generation:
            job.checkpoint_step, job.checkpoint_generation = step, generation
        job.checkpoint_due_s = self._board.now_s + job.wanted.spec.checkpoint_interval_s
        job.trouble = ""

    def _checkpoint_failed(self, job: HostedJob, why: str) -> None:
        board = self._board
        deadlines.parking_failed(board, job, Tier.CHECKPOINT, why)
        job.checkpoint_due_s = board.now_s + job.wanted.spec.checkpoint_interval_s
        if job.asked is Tier.CHECKPOINT:
            job.asked = None
            if job.phase is Phase.SUSPENDING:  # it goes on, but its turn is over
                board.ask(job, Tier.HOLD)

    def _restored(self, job: HostedJob, event: JobRestored) -> None:
        if job.step > event.step:
            spent = job.gpu_s + job.seconds_in_turn(self._board.now_s) * job.gang
            job.lost_gpu_s += spent * (job.step - event.step) / job.step
        job.step = event.step
        job.checkpoint_step, job.checkpoint_generation = event.step, event.generation

    def _froze(self, job: HostedJob) -> None:
        if job.alive and not job.ended and job.phase not in (Phase.SWAPPED, Phase.CHECKPOINTED, Phase.FROZEN):
            self._board.stopped(job, Phase.FROZEN, Tier.FREEZE)

    def _exited(self, job: HostedJob, exit_: Exit) -> None:
        board = self._board
        if job.phase is Phase.EXITED:
            return
        parked = job.asked is Tier.CHECKPOINT and exit_.code == CHECKPOINTED_STATUS and not exit_.signal
        if job.phase is Phase.CHECKPOINTED or parked:
            if job.phase is not Phase.CHECKPOINTED:
                # Durable, or it would not have left like this; the word of it was lost with an agent.
                job.checkpoint_generation += 1
                job.checkpoint_step = job.step
                board.stopped(job, Phase.CHECKPOINTED, Tier.CHECKPOINT)
            board.gone(job)
        elif job.next is not None or job.dropped:
            board.exited(job, exit_)
            self._bury(job)
        else:
            board.exited(job, exit_)

    def _gpus_seen(self, event: GpusSeen) -> None:
        board = self._board
        seen = {gpu.id: gpu for gpu in sorted(event.gpus, key=lambda g: g.index)}
        for gpu in board.gpus.values():
            now = seen.get(gpu.id)
            if gpu.healthy and (now is None or not now.healthy):
                board.tell(
                    "gpu-lost", f"GPU {gpu.index} is out of use: {now.why_unhealthy if now else 'gone'}"
                )
        board.gpus = seen
        for job in board.in_order:
            if job.in_turn and not job.occupying and not all(board.usable(g) for g in job.gpus):
                turns.pass_over(job, "one of its GPUs is out of use")

    # --- after each event

    def _settle(self) -> None:
        board = self._board
        board.enqueue()
        late: list[HostedJob] = []
        for _ in range(4 * len(board.jobs) + 4):
            late = [
                job
                for job in board.in_order
                if min(deadlines.due(job), default=board.now_s + 1) <= board.now_s
            ]
            if not late:
                break
            for job in late:
                deadlines.expire(board, job)
        else:
            raise BrokenError(f"deadlines of jobs {[job.id for job in late]} do not pass")
        board.enqueue()
        if board.wanted_quantum_s > 0.0:
            self._slice()
            self._wake()

    def _slice(self) -> None:
        board = self._board
        if self._new_turn:
            self._new_turn = False
            board.edge_s = board.now_s
            board.quantum_s = board.choosing_quantum_s()
            turns.edge(board)
        elif board.now_s >= board.next_edge_s:
            self._next_quantum()
            turns.edge(board)
        else:
            turns.fill(board)
        while turns.advance(board):
            turns.fill(board)
        board.enqueue()
        turns.preload(board)

    def _next_quantum(self) -> None:
        """Edges keep their cadence however late they are seen; quanta that nobody saw are charged to those who had them."""
        board = self._board
        passed = max(
            1, floor((board.now_s - board.edge_s) / board.quantum_s)
        )  # rounding must not stop the clock
        board.edge_s += passed * board.quantum_s
        if passed > 1:
            turns.charge_missed(board, passed - 1)
        board.quantum_s = board.choosing_quantum_s()

    def _wake(self) -> None:
        board = self._board
        times = [t for job in board.jobs.values() for t in deadlines.due(job)]
        if len(board.queue) or any(job.occupying for job in board.jobs.values()):
            times.append(board.next_edge_s)
        if times:
            board.out.append(WakeHost(at_s=min(times)))

    def _order_again(self) -> None:
        """After a restart: what was ordered and not answered. Orders can be repeated without harm, launches excepted."""
        board = self._board
        for job in board.in_order:
            if job.phase is Phase.KILLING:
                board.send_kill(job)
            elif job.phase is Phase.STARTING:  # what it said meanwhile was not heard; it says it again
                hook, ready = board.config.hook_deadline_s, board.config.ready_deadline_s
                job.start_deadline_s = board.now_s + (hook if job.hooked is None else ready)
            elif job.asked is not None:
                board.ask(job, job.asked)
            elif job.going_s is not None:
                board.out.append(Resume(job=job.id, epoch=job.wanted.epoch))

    # --- questions

    def report(self, job: JobId, now_s: float | None = None) -> JobReport:
        """As of `now_s`, or of the last event: a job that nobody hears from is charged all the same."""
        at_s = self._board.now_s if now_s is None else max(now_s, self._board.now_s)
        return self._board.jobs[job].report(at_s, self._board.config.can_freeze)

    def reports(self, now_s: float | None = None) -> tuple[JobReport, ...]:
        return tuple(self.report(job, now_s) for job in self._board.jobs)

    @property
    def story(self) -> tuple[Fact, ...]:
        """What happened here, newest last."""
        return tuple(self._board.facts)

    def story_of(self, job: JobId) -> tuple[Fact, ...]:
        return tuple(fact for fact in self._board.facts if fact.job == job)

    def check(self) -> None:
        """Every invariant, after every event."""
        broken = broken_laws(self._board)
        if broken:
            raise BrokenError("; ".join(broken))

    def _changed(self) -> frozenset[JobId]:
        board, changed = self._board, set()
        for job in board.jobs.values():
            now = (
                job.wanted.epoch, job.phase, job.gpus, job.step, job.tier, job.suspends, job.resumes, job.exit,
                job.checkpoint_generation, job.hooked, job.ready, job.stuck, job.trouble, job.held_up, job.resume_s,
            )  # fmt: skip
            if self._told.get(job.id) != now:
                self._told[job.id] = now
                changed.add(job.id)
        return frozenset(changed)

    # --- memory

    def saved(self) -> dict[str, Any]:
        board = self._board
        return {
            "version": SAVED_VERSION,
            "now_s": board.now_s,
            "term": self._term,
            "seq": self._seq,
            "orders": self._orders,
            "turn": plain(board.turn),
            "wanted_quantum_s": board.wanted_quantum_s,
            "edge_s": board.edge_s,
            "quantum_s": board.quantum_s,
            "mean_suspend_s": board.mean_suspend_s,
            "mean_resume_s": board.mean_resume_s,
            "hooking_classes": sorted(board.hooking_classes),
            "gang_ended_s": board.gang_ended_s,
            "queue": board.queue.dump(),
            "jobs": [plain(job) for job in board.jobs.values()],
        }

    def _load(self, saved: Mapping[str, Any], now_s: float) -> None:
        if saved.get("version") != SAVED_VERSION:
            raise BrokenError(
                f"the saved state has version {saved.get('version')}; this agent reads {SAVED_VERSION}"
            )
        board = self._board
        self._term, self._seq, self._orders = saved["term"], saved["seq"], saved["orders"]
        board.turn = revive(Turn, saved["turn"])
        board.gang_ended_s = saved["gang_ended_s"]
        for name in ("wanted_quantum_s", "edge_s", "quantum_s", "mean_suspend_s", "mean_resume_s"):
            setattr(board, name, saved[name])
        board.hooking_classes = set(saved["hooking_classes"])
        board.queue = StrideQueue.load(saved["queue"])
        jobs = [revive(HostedJob, job) for job in saved["jobs"]]
        board.jobs = {job.id: job for job in jobs}
        self._resend = True
        if now_s < saved["now_s"]:
            self._reboot(saved["now_s"], now_s)

    def _reboot(self, then_s: float, now_s: float) -> None:
        """The clock began anew: every process is gone (the daemon says so next); what is known is charged until the last word."""
        board = self._board
        for job in board.jobs.values():
            if job.charged_from_s is not None:
                job.free(then_s)
                job.begin(now_s)
            job.launched_s = None if job.launched_s is None else now_s
            job.going_s = None if job.going_s is None else now_s
            job.asked_s = job.deadline_s = job.start_deadline_s = job.resend_s = job.checkpoint_due_s = now_s
            job.swap_after_s = job.checkpoint_after_s = now_s
        board.edge_s = now_s
        board.gang_ended_s = None if board.gang_ended_s is None else now_s
