"""Copies in whatever order things happen: steps add up, what is committed is not lost, and nobody begins from nothing."""

from dataclasses import replace

from forked import ANN, JOB, MODELS, TOTAL, A, B, C, Cluster
from hypothesis import settings as budget
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hs_core.cluster import copies
from hs_core.events.cluster import HostLeft, HostReported, JobsPaused, JobsUnpaused, QuantumEnded
from hs_core.names import HostName
from hs_core.reports import Exit, JobReport, Phase

LIVE = [Phase.WAITING, Phase.STARTING, Phase.HELD, Phase.RUNNING, Phase.SUSPENDING, Phase.CHECKPOINTED]
UP = {Phase.HELD, Phase.RUNNING, Phase.SUSPENDING, Phase.CHECKPOINTED}
WANTS = [((A, B, C), (3, 2, 1)), ((A, B), (1, 1)), ((B, C), (1, 3)), ((B,), ()), ((A,), ())]
ENDS = [Exit(code=1), Exit(signal=9), Exit(why="lost with its host: rebooted")]


class CopiesInAnyOrder(RuleBasedStateMachine):
    """Servers come and go, copies stand, train, leave and die as they like; what they say of their steps is true."""

    forks = 0
    averages = 0

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.cluster.alone()
        self.here = set(MODELS)
        self.epoch, self.safe = 0, 0

    @property
    def row(self):
        return self.cluster.row

    @rule(want=st.sampled_from(WANTS))
    def a_round_ends(self, want) -> None:
        self.cluster.want = want
        self.cluster.edge()

    @rule(want=st.sampled_from(WANTS), own=st.integers(0, 150))
    def a_round_goes_well(self, want, own: int) -> None:
        self.a_round_ends(want)
        for phase in (Phase.CHECKPOINTED, Phase.HELD, Phase.RUNNING):
            self.all_copies_go_on(phase, own)

    @rule(seconds=st.sampled_from([1.0, 12.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.cluster.world.now_s += seconds
        self.cluster.happens(QuantumEnded(now_s=0.0))

    def _say(self, host: HostName, phase: Phase, own: int, exit_: Exit | None = None) -> None:
        """Of a copy (or the job, alone) that does as much as it says, in the order in which a host says it."""
        row = self.row
        if host not in self.here or host not in row.hosts or row.state.ended:
            return
        told = self.cluster.told(host)
        begins = row.stored.step if row.stored is not None else row.base_step
        before = row.reports.get(host) or JobReport(
            job=JOB, epoch=row.epoch, phase=Phase.WAITING, step=begins
        )
        if before.exit is not None or (phase is Phase.WAITING and before.phase is not Phase.WAITING):
            return  # nobody who has had a process has had none
        last = told.last_step if told is not None and told.last_step else TOTAL
        step = min(last, before.step + own) if phase in UP else before.step
        generation, kept = before.checkpoint_generation, before.checkpoint_step
        if phase in UP and generation < 0 and (row.portions or row.stored):
            generation, kept = 50 + row.epoch * 10, max(begins, row.base_step)
        if phase is Phase.CHECKPOINTED:
            generation, kept = max(generation, 0) + 1, step
        report = replace(
            before, phase=Phase.EXITED if exit_ else phase, step=step, can_checkpoint=True, exit=exit_,
            checkpoint_generation=generation, checkpoint_step=kept,
        )  # fmt: skip
        self.cluster.happens(HostReported(now_s=0.0, host=host, reports=(report,)))

    @rule(host=st.sampled_from(sorted(MODELS)), phase=st.sampled_from(LIVE), own=st.integers(0, 90))
    def a_copy_goes_on(self, host: HostName, phase: Phase, own: int) -> None:
        self._say(host, phase, own)

    @rule(phase=st.sampled_from([Phase.HELD, Phase.RUNNING, Phase.CHECKPOINTED]), own=st.integers(0, 400))
    def all_copies_go_on(self, phase: Phase, own: int) -> None:
        for host in self.row.hosts:
            self._say(host, phase, own)
        stored = self.row.stored
        type(self).averages += phase is Phase.CHECKPOINTED and stored is not None and len(stored.copies) > 1

    @precondition(lambda self: len(copies.going(self.row)) > 1)
    @rule(at=st.integers(0, 2), exit_=st.sampled_from(ENDS))
    def a_copy_dies(self, at: int, exit_: Exit) -> None:
        on = copies.going(self.row)
        self._say(on[at % len(on)], Phase.EXITED, 0, exit_)

    @rule(host=st.sampled_from(sorted(MODELS)))
    def a_server_leaves(self, host: HostName) -> None:
        if host in self.here and len(self.here) > 1:
            self.here.discard(host)
            self.cluster.happens(HostLeft(now_s=0.0, host=host))

    @rule(host=st.sampled_from(sorted(MODELS)), forgets=st.booleans())
    def a_server_is_back(self, host: HostName, *, forgets: bool) -> None:
        if host not in self.here:
            self.here.add(host)
            said = self.row.reports.get(host)
            alone = len(self.row.hosts) < 2
            self.cluster.joins(host, MODELS[host], *([said] if said and not (forgets and not alone) else []))

    @rule()
    def the_controller_is_killed_and_starts_again(self) -> None:
        self.cluster.world.start(self.cluster.world.machine.state)
        reports = self.row.reports
        for host in sorted(self.here):
            self.cluster.joins(host, MODELS[host], *([reports[host]] if host in reports else []))

    @rule(pause=st.booleans())
    def its_owner_pauses_it_or_not(self, *, pause: bool) -> None:
        if not self.row.state.ended:
            verb = JobsPaused if pause else JobsUnpaused
            self.cluster.happens(verb(now_s=0.0, by=ANN, jobs=(JOB,)))

    @invariant()
    def steps_add_up(self) -> None:
        row = self.row
        if row.portions:
            assert row.base_step + sum(row.portions) == TOTAL
            assert len(row.portions) == len(row.hosts) == len(set(row.hosts))
        stored = row.stored
        if stored is not None and row.portions:
            assert stored.step == row.base_step
        if stored is not None and stored.copies:
            assert stored.step <= TOTAL
            assert all(part.steps >= 0 for part in stored.copies)

    @invariant()
    def what_is_committed_only_grows(self) -> None:
        row = self.row
        if row.state.ended:
            return
        if row.epoch > self.epoch:
            now = row.base_step if row.portions else row.stored.step if row.stored is not None else -1
            if now < 0:  # it stands there, and has it for its own
                now = row.report.checkpoint_step if row.report is not None else 0
            assert now >= self.safe, "an average that was committed is gone"
            type(self).forks += bool(row.portions)
            self.epoch, self.safe = row.epoch, now

    @invariant()
    def nobody_begins_from_nothing_and_all_know_the_same(self) -> None:
        row = self.row
        for host in row.hosts if row.portions else ():
            told = self.cluster.told(host) if host in self.here else None
            if told is None:
                continue
            said = row.reports.get(host)
            up = said is not None and (said.checkpoint_generation >= 0 or said.exit is not None)
            assert told.source is not None or up
            assert (told.epoch, told.copies) == (row.epoch, len(row.portions))
            assert told.last_step == row.base_step + row.portions[told.copy]


def test_the_laws_of_copies_hold_in_any_order() -> None:
    CopiesInAnyOrder.forks = CopiesInAnyOrder.averages = 0
    run_state_machine_as_test(
        CopiesInAnyOrder, settings=budget(max_examples=240, stateful_step_count=50, deadline=None)
    )
    assert CopiesInAnyOrder.forks > 50
    assert CopiesInAnyOrder.averages > 10
