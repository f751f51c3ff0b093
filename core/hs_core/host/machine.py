"""HostMachine: events of one GPU host in, orders to its jobs out.

Who may run is decided at the edges of quanta (`turns`), at a fixed cadence from the first; a new turn from the controller begins a
quantum at once. A quantum lasts as configured, or longer where switching is slow: at least `switch_ratio` times the measured mean of
suspend plus resume, at most ten times what is configured. In between, GPUs that become idle are given away at once.

Where a part of a gang over several hosts lives, quanta begin when the cluster's do and turns come one ahead (`agenda`); a part runs in
the turns that the controller gives it and no others, while GPUs that they leave are shared by the host's own stride.

Without the controller the last `Wanted` stands, and quanta that nobody spoke of repeat earlier ones. Where it had switched the local
stride off (`turn.local`) and a gang of its turn ends, the GPUs stay idle for one quantum, in case it answers; then the other jobs
fill them by stride: work goes on while it is away. After a long silence jobs that ask for it are ended (`away`).

A job is started when nothing but GPUs is missing: a rendezvous that its nodes know, a checkpoint fetched from where it lies; one that is
to leave goes through a checkpoint as soon as it can write one (`comings`). What is heard of it is taken in by `said`.

After a restart: construct with what `saved()` gave last, then tell what was found as events: `JobExited` for what ended meanwhile,
nothing for what lives. What was ordered and not answered is ordered again, but for
launches. A job that ended meanwhile is charged until then, or, where nobody knows when that was, until the agent is back.
The daemon writes `saved()` before it carries out commands.
"""

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from math import floor, inf
from typing import Any

from hs_core.errors import BrokenError
from hs_core.events.host import (
    CastOut,
    CheckpointFetched,
    CheckpointWeighed,
    ControllerHeard,
    DeviceMemorySeen,
    ExitFound,
    GpusSeen,
    HostCommand,
    HostEvent,
    HostMemorySeen,
    JobCheckpointed,
    JobHeld,
    JobHooked,
    JobProgressed,
    JobWentOn,
    NothingFetched,
    Resume,
    WakeHost,
    WantedChanged,
    Woke,
)
from hs_core.facts import Fact
from hs_core.host import (
    away,
    comings,
    deadlines,
    device_memory,
    foresight,
    host_memory,
    letting_go,
    memory,
    said,
    turns,
    waking,
    wants,
    writing_out,
)
from hs_core.host.blame import LawError
from hs_core.host.board import Board, tickets_of
from hs_core.host.config import HostConfig
from hs_core.host.hosted import HostedJob
from hs_core.host.laws import broken_laws
from hs_core.host.mates import share_out
from hs_core.mechanism.stride import StrideQueue
from hs_core.model import Gpu
from hs_core.names import JobId
from hs_core.reports import JobReport, Phase
from hs_core.wanted import Wanted, WantedJob

_QUIET = (JobHooked, JobProgressed, JobWentOn, JobCheckpointed, CheckpointWeighed)
"""Where such an event leaves a job as it stood, nobody's turn can depend on it."""


class _News(Enum):
    """What the newest word of the controller means for the present quantum."""

    NONE = "none"
    TURN = "turn"  # another turn within it
    QUANTUM = "quantum"  # a quantum begins now


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOutcome:
    commands: tuple[HostCommand, ...]
    changed: frozenset[JobId]  # jobs whose report says something new, beyond growing counters
    facts: tuple[Fact, ...] = ()  # for the log
    checkpointed: bool = False  # a checkpoint is new: to be remembered before anybody is told of it


_NOTHING = HostOutcome(commands=(), changed=frozenset())
"""Of nearly every sign of life."""


class HostMachine:
    def __init__(
        self,
        gpus: tuple[Gpu, ...],
        config: HostConfig,
        *,
        now_s: float,
        saved: Mapping[str, Any] | None = None,
        rebooted: bool = False,
        elsewhere: bool = False,
    ) -> None:
        """`rebooted`: since it was saved. Every process is gone then, and the clock began anew, however far it has got. `elsewhere`: it was another host, which may
        be up as well: what that was to do this one does once the controller says so."""
        by_index = {gpu.id: gpu for gpu in sorted(gpus, key=lambda g: g.index)}
        if len(by_index) != len(gpus):
            raise BrokenError(f"two GPUs of this host have the same id: {[g.id for g in gpus]}")
        self._board = Board(config=config, gpus=by_index, queue=StrideQueue(), now_s=now_s, edge_s=now_s)
        self._board.heard_s = now_s
        self._term = self._seq = -1
        self._heard = (-1, -1)
        self._news = _News.NONE
        self._plain = memory.PlainJobs()
        self._resend = False
        self._due_s = -inf  # nothing is to be done before, unless something happens
        self._fenced_s = inf  # or the controller is not heard until then
        self._told: dict[JobId, tuple[object, ...]] = {}
        self._said: dict[JobId, JobReport] = {}  # since something touched them
        if saved is not None:
            self._term, self._seq = saved["term"], saved["seq"]
            memory.load(self._board, saved, rebooted=rebooted, elsewhere=elsewhere)
            self._resend = True

    # --- events

    def handle(self, event: HostEvent) -> HostOutcome:
        board = self._board
        board.now_s = max(board.now_s, event.now_s)
        facts_before = board.facts_told
        if self._resend:
            self._resend = False
            self._due_s = -inf
            self._order_again()
        touched: Collection[HostedJob] | None = (
            None  # by an event that others cannot depend on; None: who knows
        )
        went_on = False  # and nothing else happened: its report tells so by itself
        match event:
            case WantedChanged():
                if event.wanted.term >= self._term:
                    board.heard(event.late_s)
                self._wanted(event.wanted, event.now_s)
            case GpusSeen():
                self._gpus_seen(event)
            case HostMemorySeen():
                grown = host_memory.seen(board, event)
                if not (board.room_for or board.refused or host_memory.is_short(board)):
                    touched = grown
            case DeviceMemorySeen():
                if not device_memory.seen(board, event):
                    touched = ()
            case ControllerHeard():
                board.heard(event.late_s)
                touched = ()
            case CastOut():
                self._cast_out()
            case ExitFound():
                wants.found(board, event)
                touched = ()
            case NothingFetched():
                for job_id, epoch in event.jobs:
                    self._hear(
                        CheckpointFetched(now_s=event.now_s, job=job_id, epoch=epoch, generation=-1, step=0)
                    )
            case Woke():
                pass
            case _:
                touched = heard = self._hear(event)
                if heard and isinstance(event, JobProgressed):
                    went_on = heard[0].charged_from_s is not None
        if touched is None or board.now_s >= self._due_s:
            touched = None
            self._settle()
        elif self._due_s < board.next_edge_s and not (
            self._due_s < self._fenced_s and isinstance(event, ControllerHeard)
        ):
            self._wake(again=False)  # what was due may have come about, or be later
        every = board.jobs.values() if touched is None else touched
        if not every and not board.out and board.facts_told == facts_before:
            return _NOTHING
        outcome = self._outcome(every, facts_before, checkpointed=_checkpointed(event))
        if not (went_on and touched):
            for job in every:
                self._said.pop(job.id, None)
        return outcome

    def _hear(self, event: said.JobEvent) -> tuple[HostedJob, ...] | None:
        """Of a job; as `touched` in `handle`."""
        board = self._board
        job = board.jobs.get(event.job)
        if job is None or job.wanted.epoch != event.epoch:
            return ()
        quiet = isinstance(event, _QUIET)
        stood, untried = job.standing, quiet and job.untried
        said.hear(board, job, event)
        if job.id not in board.jobs:
            self._left_behind()
        # Of one that is known from now on: others may come beside it.
        same = quiet and not board.out and job.standing == stood and job.untried == untried
        return (job,) if same else None

    def _outcome(
        self, touched: Collection[HostedJob], facts_before: int, *, checkpointed: bool
    ) -> HostOutcome:
        board = self._board
        commands = tuple(board.out)
        if commands:
            board.out.clear()
        for job in touched:
            job.note_phase(board.now_s)
        changed = self._changed(touched)
        self._check(touched, commands)
        new_facts = board.facts_told - facts_before
        facts = tuple(islice(reversed(board.facts), new_facts))[::-1] if new_facts else ()
        return HostOutcome(commands=commands, changed=changed, facts=facts, checkpointed=checkpointed)

    # --- what is wanted

    def _wanted(self, wanted: Wanted, said_s: float) -> None:
        if (wanted.term, wanted.seq) <= (self._term, self._seq):
            return
        board = self._board
        first = board.wanted_quantum_s == 0.0
        self._term, self._seq = wanted.term, wanted.seq
        board.wanted_quantum_s = wanted.quantum_s
        board.fence_after_s, board.lease_s = wanted.fence_after_s, wanted.lease_s
        board.drained = wanted.drained_gpus
        board.lend(wanted.lends)
        for entry in wanted.jobs:
            wants.want(board, entry)
        listed = {entry.job for entry in wanted.jobs}
        for job in board.in_order:
            if job.id not in listed:
                wants.drop(board, job)
        board.let_go()
        board.last_words.look(board.jobs, board.lends)
        self._left_behind()
        board.queue.set_tickets({j.id: tickets_of(j) for j in board.jobs.values() if j.id in board.queue})
        board.gang_ended_s = None
        self._hear_turns(wanted, said_s, first=first)

    def _cast_out(self) -> None:
        there = [job for job in self._board.in_order if not job.dropped]
        if there:
            self._board.tell("cast-out", "removed from the cluster: what runs here is ended")
        for job in there:
            wants.drop(self._board, job)
        self._left_behind()

    def _hear_turns(self, wanted: Wanted, said_s: float, *, first: bool) -> None:
        board = self._board
        was = board.turn
        heard = board.agenda.hear(wanted, said_s, board.now_s)
        board.turn = board.present_turn()
        if heard is None:
            if first or board.turn != was:
                board.edge_s, board.quantum_s = board.now_s, board.choosing_quantum_s()
                self._news = _News.QUANTUM
            return
        begun, next_s = heard
        if begun > 1 and not first:
            turns.charge_missed(board, begun - 1)
        board.quantum_s = wanted.quantum_s
        board.edge_s = next_s - wanted.quantum_s
        if begun != 0 or first:
            self._news = _News.QUANTUM
        elif board.turn != was:
            self._news = _News.TURN

    def _left_behind(self) -> None:
        for job in [job for job in self._told if job not in self._board.jobs]:
            del self._told[job]
            self._said.pop(job, None)

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
        board.refused.clear()
        away.fence(board)
        for job in board.in_order:
            if not job.alive:
                comings.prepare(board, job)
            elif job.wanted.leave:
                comings.leave(board, job)
                deadlines.cannot_save(board, job)
            comings.give_up(board, job)
        board.enqueue()
        self._expire()
        if board.wanted_quantum_s > 0.0:
            waking.cut_short(board)
            self._slice()
            self._wake()
        share_out(board.turn, board.jobs.values(), board.now_s)

    def _expire(self) -> None:
        board = self._board
        late: list[HostedJob] = []
        for _ in range(4 * len(board.jobs) + 4):
            late = [job for job in board.jobs.values() if deadlines.due_s(job) <= board.now_s]
            if not late:
                return
            for job in late:
                deadlines.expire(board, job)
                comings.prepare(board, job)
                comings.leave(board, job)
            board.enqueue()
        ids = [job.id for job in late]
        raise LawError(f"deadlines of jobs {ids} do not pass", [(job.id, job.wanted.epoch) for job in late])

    def _slice(self) -> None:
        board = self._board
        news, self._news = self._news, _News.NONE
        if news is _News.QUANTUM:
            turns.edge(board)
        elif board.now_s >= board.next_edge_s:
            self._next_quantum()
            turns.edge(board)
        elif news is _News.TURN:
            turns.change(board)
        else:
            turns.fill(board)
        while turns.advance(board):
            turns.fill(board)
        board.enqueue()
        foresight.look_ahead(board)
        turns.preload(board)
        letting_go.let_go(board)
        writing_out.write_out(board)

    def _next_quantum(self) -> None:
        """Edges keep their cadence however late they are seen; quanta that nobody saw are charged to those who had them."""
        board = self._board
        passed = max(
            1, floor((board.now_s - board.edge_s) / board.quantum_s)
        )  # rounding must not stop the clock
        board.edge_s += passed * board.quantum_s
        if passed > 1:
            turns.charge_missed(board, passed - 1)
        board.agenda.quantum += passed
        board.turn = board.present_turn()
        board.quantum_s = board.choosing_quantum_s()

    def _wake(self, *, again: bool = True) -> None:
        board = self._board
        due_s = min(map(deadlines.due_s, board.jobs.values()), default=inf)
        self._fenced_s = away.fence_s(board)
        due_s = min(due_s, self._fenced_s)
        if len(board.queue) or any(job.occupying for job in board.jobs.values()):
            due_s = min(due_s, board.next_edge_s)
        if due_s < inf and (again or due_s != self._due_s):
            board.out.append(WakeHost(at_s=due_s))
        self._due_s = due_s

    def _order_again(self) -> None:
        """After a restart: what was ordered and not answered. Orders can be repeated without harm, launches excepted.

        How long they take is measured from now: for how long no agent was there says nothing of how fast this host switches.
        """
        board = self._board
        for job in board.in_order:
            comings.order_again(board, job)
            if job.phase is Phase.KILLING:
                board.send_kill(job)
            elif job.phase is Phase.STARTING:  # what it said meanwhile was not heard; it says it again
                hook, ready = board.config.hook_deadline_s, board.config.ready_deadline_s
                job.start_deadline_s = board.now_s + (hook if job.hooked is None else ready)
            elif job.asked is not None:
                job.asked_s = board.now_s
                board.ask(job, job.asked)
            elif job.going_s is not None:
                job.going_s = board.now_s
                board.out.append(Resume(job=job.id, epoch=job.wanted.epoch, order=job.orders))

    # --- questions

    def report(self, job: JobId, now_s: float | None = None) -> JobReport:
        """As of `now_s`, or of the last event: a job that nobody hears from is charged all the same."""
        return self._report(self._board.jobs[job], self._as_of(now_s))

    def reports(self, now_s: float | None = None) -> tuple[JobReport, ...]:
        at_s = self._as_of(now_s)
        return tuple([self._report(job, at_s) for job in self._board.jobs.values()])

    @property
    def kept(self) -> frozenset[tuple[JobId, int]]:
        """Incarnations (job, epoch) that have left, and of which others are to fetch what they wrote: not forgotten yet."""
        return frozenset(self._board.kept)

    def last_words(self, now_s: float | None = None) -> tuple[JobReport, ...]:
        """For a controller that is met: of incarnations that are no longer here, the older ones first."""
        return self._board.last_words.said(self._as_of(now_s))

    def told(self) -> tuple[WantedJob, ...]:
        """What was said last of jobs that are to be here, for a controller that may not know of them."""
        return tuple(job.wanted for job in self._board.jobs.values() if not job.dropped)

    def _as_of(self, now_s: float | None) -> float:
        return self._board.now_s if now_s is None else max(now_s, self._board.now_s)

    def _report(self, job: HostedJob, at_s: float) -> JobReport:
        last = self._said.get(job.id)
        if last is not None:
            return job.report_again(last, at_s)
        said = self._said[job.id] = job.report(at_s, self._board.config.can_freeze)
        return said

    @property
    def jobs(self) -> AbstractSet[JobId]:
        """All that are known here, also those that have ended."""
        return self._board.jobs.keys()

    @property
    def heard(self) -> tuple[int, int]:
        """(term, seq) of the newest Wanted after which nothing is left here that is not wanted."""
        newest = (self._term, self._seq)
        if self._heard != newest and not any(
            job.dropped or job.next is not None for job in self._board.jobs.values()
        ):
            self._heard = newest
        return self._heard

    @property
    def story(self) -> tuple[Fact, ...]:
        """What happened here, newest last."""
        return tuple(self._board.facts)

    def check(self) -> None:
        """Every invariant."""
        self._check(self._board.jobs.values(), ())

    def _check(self, touched: Collection[HostedJob], orders: Collection[HostCommand]) -> None:
        broken = broken_laws(self._board, touched, orders)
        if broken:
            jobs = {who for law in broken for who in law.jobs}
            raise LawError("; ".join(law.what for law in broken), jobs)

    def _changed(self, touched: Collection[HostedJob]) -> frozenset[JobId]:
        changed = set()
        for job in touched:
            now = (
                job.wanted.epoch, job.phase, job.gpus, job.step, job.tier, job.suspends, job.resumes, job.exit,
                job.checkpoint_generation, job.checkpoint_bytes, job.checkpoint_fails, job.hooked, job.ready, job.stuck, job.trouble, job.held_up, job.resume_s,
                job.can_checkpoint, job.beside, job.charged_from_s is None, job.rendezvous, job.fetch_why, job.start_why, job.wanted.leave, job.wanted.source, job.wanted.rendezvous,
            )  # fmt: skip
            id_ = job.id
            if self._told.get(id_) != now:
                self._told[id_] = now
                changed.add(id_)
        return frozenset(changed)

    def saved(self) -> dict[str, Any]:
        """JSON-able; the daemon keeps it, before it carries out what was ordered. Nobody changes what is in it: of jobs that stand as before it is what was given then."""
        return {**memory.save(self._board, self._plain), "term": self._term, "seq": self._seq}


def _checkpointed(event: HostEvent) -> bool:
    if isinstance(event, JobHeld):
        return event.generation >= 0
    return isinstance(event, JobCheckpointed | CheckpointFetched)
