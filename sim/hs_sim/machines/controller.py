"""The controller's body: one batch at a time, committed before it is answered and before its orders go out.

As `hs_controller.loop`, `agents` and `links` do it; time and the wire are simulated.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hs_core.cluster import ClusterMachine, Outcome, Settings
from hs_core.errors import RefusedError
from hs_core.events.cluster import (
    ClusterEvent,
    Consult,
    Direct,
    HostJoined,
    HostLeft,
    HostReported,
    PolicyAnswered,
    QuantumEnded,
    Wake,
)
from hs_core.failures import Failure
from hs_core.model import Gpu, Host
from hs_core.names import HostName, JobId
from hs_core.policies import find
from hs_core.policy import Memory, Policy, Snapshot, Verdict
from hs_core.question import Question
from hs_core.reports import JobReport, Phase
from hs_core.wanted import Wanted, WantedJob
from hs_sim.machines.clock import Clock
from hs_sim.machines.journal import Draft, Journal
from hs_sim.machines.network import DOWN, UP, Line, Network
from hs_sim.machines.timing import Timing

COUNTERS_S = 1.0

Make = Callable[[float], ClusterEvent]
Answered = Callable[[tuple[JobId, ...] | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """All that an agent has, as it connects."""

    host: Host
    reports: tuple[JobReport, ...]
    last_words: tuple[JobReport, ...]
    told: tuple[WantedJob, ...]
    said_s: float  # its host's clock


class Side:
    """One agent's connection, as the controller has it."""

    __slots__ = ("behind_s", "host", "line", "reports")

    def __init__(self, line: Line, host: Host, reports: Sequence[JobReport]) -> None:
        self.line = line
        self.host = host
        self.reports = {report.job: report for report in reports}
        self.behind_s = 0.0  # its host's clock, behind the simulation's


class Controller:
    def __init__(
        self,
        clock: Clock,
        network: Network,
        timing: Timing,
        policy: Policy,
        settings: Settings,
        *,
        flush: bool,
        dress: Callable[[Policy], Policy],
    ) -> None:
        """`dress`: what is put around every policy that takes office."""
        self._clock, self._network, self._timing = clock, network, timing
        self.settings = settings
        self._configured = policy
        self._dress = dress
        self._flush = flush  # counters reach the disk by themselves too: matters only to who crashes
        self.journal = Journal()
        self.sides: dict[HostName, Side] = {}
        self.deliver: Callable[[Line, Wanted, float], None] = _nobody
        self.welcome: Callable[[Line], None] = _nobody
        self.hung_up: Callable[[Line], None] = _nobody
        self.refused: Callable[[RefusedError], None] = _ignore
        self.happened: Callable[[Outcome], None] = _ignore  # right after each event
        self.committed: Callable[[Draft], None] = _ignore
        self.ruled: Callable[[Snapshot, Memory, Verdict], None] = _ignore
        self.alive = False
        self.life = 0
        self.wall_s = 0.0  # the time of day, ahead of the simulation's clock
        self._ahead_s = 0.0  # as it was when this controller took office: its clock goes on from there, as `hs_controller.clock`
        self.paused_until_s = 0.0
        self.handled = 0
        self.decisions = 0
        self.decision_s = 0.0
        self.decision_s_max = 0.0
        self.longest_queue = 0
        self._queue: deque[tuple[Make, str, Answered | None]] = deque()
        self._busy = False
        self._wakes = 0
        self._unwritten: list[Draft] = []
        self._flushing = False
        self.machine: ClusterMachine = ClusterMachine(policy, settings, dress=self._timed)

    def _timed(self, policy: Policy) -> Policy:
        """As it takes office."""
        policy = self._dress(policy)
        decide = policy.decide

        def timed(snapshot: Snapshot, memory: Memory) -> Verdict:
            began_s = time.perf_counter()
            verdict = decide(snapshot, memory)
            took_s = time.perf_counter() - began_s
            self.decisions += 1
            self.decision_s += took_s
            self.decision_s_max = max(self.decision_s_max, took_s)
            self.ruled(snapshot, memory, verdict)
            return verdict

        return replace(policy, decide=timed)

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        state = self.journal.begin_term()
        self._ahead_s = max(self.wall_s, self.journal.last_s - self._clock.now_s)
        self.machine = self._make(state)
        self.machine.begin_term(state.term)
        self.alive, self._busy = True, False
        self.tell(_quantum_ended)

    def _make(self, state: Any) -> ClusterMachine:
        name, policy = self.journal.policy, self._configured
        in_office = policy if name in ("", policy.name) else find(name)
        return ClusterMachine(in_office, self.settings, state, self._timed)

    def crash(self) -> None:
        """What was not committed is gone, and so is every line."""
        self.alive = False
        self.life += 1
        self._wakes += 1
        self._queue.clear()
        self._unwritten.clear()
        self._flushing = self._busy = False
        for side in self.sides.values():
            self._break(side.line)
        self.sides.clear()

    def now_s(self) -> float:
        return self._clock.now_s + self._ahead_s

    def pause(self, seconds: float) -> None:
        self.paused_until_s = self._clock.now_s + seconds

    # --- the single writer ------------------------------------------------------------------------------------------

    def tell(self, make: Make, key: str = "", answered: Answered | None = None) -> None:
        if not self.alive:
            return
        self._queue.append((make, key, answered))
        self.longest_queue = max(self.longest_queue, len(self._queue))
        if not self._busy:
            self._busy = True
            # Not at once: what else happens at this moment is of the same batch.
            self._clock.at(max(self._clock.now_s, self.paused_until_s), self._step, self.life)

    def _step(self, life: int) -> None:
        while life == self.life and self._queue:
            draft, directs, wake_in_s = Draft(), dict[HostName, Wanted](), None
            question: Question | None = None
            answers: list[tuple[Answered | None, tuple[JobId, ...] | None]] = []
            while self._queue:
                make, key, answered = self._queue.popleft()
                known = self.journal.answers.get(key) or draft.answers.get(key) if key else None
                if known is not None:
                    answers.append((answered, known))
                    continue
                event = make(self.now_s())
                self.handled += 1
                try:
                    outcome = self.machine.handle(event)
                except RefusedError as refused:
                    self.refused(refused)
                    answers.append((answered, None))
                    continue
                draft.take(self.machine, event, outcome)
                self.happened(outcome)
                if key:
                    draft.answers[key] = outcome.answer
                answers.append((answered, outcome.answer))
                for command in outcome.commands:
                    if isinstance(command, Direct):
                        directs[command.host] = command.wanted
                        draft.weighty = True
                    elif isinstance(command, Wake):
                        wake_in_s = max(0.0, command.at_s - event.now_s)
                    elif isinstance(command, Consult):
                        question = command.question
            if self._timing.commit_s and draft.weighty:
                rest = (draft, directs, wake_in_s, question, answers)
                self._clock.after(self._timing.commit_s, self._commit_and_go_on, life, *rest)
                return
            self._commit(draft, directs, wake_in_s, question, answers)
        self._busy = False

    def _commit_and_go_on(self, life: int, *rest: Any) -> None:
        if life != self.life:
            return
        self._commit(*rest)
        self._step(life)

    def _commit(
        self,
        draft: Draft,
        directs: dict[HostName, Wanted],
        wake_in_s: float | None,
        question: Question | None,
        answers: list[tuple[Answered | None, tuple[JobId, ...] | None]],
    ) -> None:
        self._unwritten.append(draft)
        if draft.weighty or not self._flush:
            self._write()
        elif not self._flushing:
            self._flushing = True
            self._clock.after(COUNTERS_S, self._flush_now, self.life)
        for host, wanted in directs.items():
            side = self.sides.get(host)
            if side is not None:
                named = {job.job for job in wanted.jobs}
                ended = [j for j, r in side.reports.items() if j not in named and r.phase is Phase.EXITED]
                for job in ended:
                    del side.reports[job]
                self._network.send(side.line, DOWN, self.deliver, wanted, self._clock.now_s)
        if wake_in_s is not None:
            self._wakes += 1
            self._clock.after(wake_in_s, self._woke, self._wakes)
        if question is not None:
            said = question.answer() if self.settings.outlives_policy else question.verdict()
            self._clock.after(self._timing.decision_s, self._answered, self.life, question, said)
        for answered, answer in answers:
            if answered is not None:
                answered(answer)

    def _write(self) -> None:
        drafts, self._unwritten = self._unwritten, []
        self.journal.commit(drafts)
        if self._flush and any(draft.rates for draft in drafts):
            self.journal.profile = self.machine.profile
            self.journal.gpu_speeds = self.machine.gpu_speeds
        for draft in drafts:
            self.committed(draft)

    def _flush_now(self, life: int) -> None:
        if life == self.life:
            self._flushing = False
            self._write()

    def _woke(self, wake: int) -> None:
        if wake == self._wakes:
            self.tell(_quantum_ended)

    def _answered(self, life: int, question: Question, answer: Verdict | Failure) -> None:
        if life == self.life:
            self.tell(lambda now_s: PolicyAnswered(now_s=now_s, question=question, answer=answer))

    # --- agents -----------------------------------------------------------------------------------------------------

    def hello(self, line: Line, hello: Hello) -> None:
        if not self.alive:
            self._break(line)  # whoever listened when it was dialled has died
            return
        old = self.sides.get(hello.host.name)
        if old is not None:
            self._break(old.line)
        side = self.sides[hello.host.name] = Side(line, hello.host, hello.reports)
        side.behind_s = self._clock.now_s - hello.said_s
        self._network.send(line, DOWN, self.welcome)
        first, past = self.machine.unknown
        unknown = tuple(job for job in hello.told if first <= job.job < past)
        self.tell(lambda now_s: _joined(side, hello.last_words, unknown, now_s, self._clock.now_s))

    def _break(self, line: Line) -> None:
        line.closed[UP] = True
        self._network.send(line, DOWN, self.hung_up)

    def report(
        self,
        line: Line,
        reports: tuple[JobReport, ...],
        gpus: tuple[Gpu, ...],
        heard: tuple[int, int],
        said_s: float,
    ) -> None:
        side = self.sides.get(line.host)
        if not self.alive or side is None or side.line is not line:
            return
        side.behind_s = self._clock.now_s - said_s
        for report in reports:
            side.reports[report.job] = report
        if gpus:
            side.host = replace(side.host, gpus=gpus)

        def make(now_s: float) -> HostReported:
            said_s = self._clock.now_s - side.behind_s
            return HostReported(
                now_s=now_s, host=line.host, reports=reports, gpus=gpus, heard=heard, said_s=said_s
            )

        def taken_in(_: object) -> None:
            line.full = False

        self.tell(make, answered=taken_in)

    def lost(self, line: Line) -> None:
        """The line ended, or carried nothing for so long that it counts as dead."""
        line.closed[UP] = True
        side = self.sides.get(line.host)
        if side is not None and side.line is line:
            del self.sides[line.host]
            self.tell(lambda now_s: HostLeft(now_s=now_s, host=line.host))


def _joined(
    side: Side,
    last_words: tuple[JobReport, ...],
    told: tuple[WantedJob, ...],
    now_s: float,
    at_s: float,
) -> HostJoined:
    return HostJoined(
        now_s=now_s,
        host=side.host,
        reports=tuple(side.reports.values()),
        last_words=last_words,
        said_s=at_s - side.behind_s,
        told=told,
    )


def _quantum_ended(now_s: float) -> QuantumEnded:
    return QuantumEnded(now_s=now_s)


def _nobody(*_: Any) -> None:
    raise AssertionError("the controller was not wired")


def _ignore(*_: Any) -> None:
    pass
