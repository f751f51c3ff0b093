"""Whatever happens in whatever order: nothing acknowledged is lost, accounts and epochs only grow, refusals change nothing."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import settings as budget
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hs_core.cluster import Settings, State
from hs_core.cluster.admission import Dependency
from hs_core.cluster.harness import World, a_host, a_spec, plain_policy, sick
from hs_core.cluster.plain import Wishes
from hs_core.errors import RefusedError
from hs_core.events.cluster import (
    ClusterEvent,
    GiveUp,
    GpusDrained,
    HostDrained,
    HostJoined,
    HostLeft,
    HostRemoved,
    HostReported,
    HostUndrained,
    JobsCancelled,
    JobsPaused,
    JobsSubmitted,
    JobsUnpaused,
    PolicyAnswered,
    PolicySet,
    QuantumEnded,
    UserRemoved,
    UserSet,
)
from hs_core.model import After, AfterCondition, Job, JobState, MoveReason, OnPartition
from hs_core.names import HostName, JobId, UserName
from hs_core.policies import POLICIES
from hs_core.policy import Policy
from hs_core.question import Question
from hs_core.reports import CANNOT_START, Exit, JobReport, Phase

HOSTS = {HostName("n1"): 4, HostName("n2"): 2, HostName("n3"): 4}
USERS = [UserName("alice"), UserName("bob")]
LIVE_PHASES = [p for p in Phase if p is not Phase.EXITED]
EXITS = [Exit(), Exit(code=1), Exit(signal=9), Exit(why="time limit"), Exit(why="lost with its host")]


class AnyOrder(RuleBasedStateMachine):
    """Hosts here lie, repeat themselves, forget and reboot; the only truth they keep is that counters grow, mostly."""

    jobs = Bundle("jobs")
    reports = Bundle("reports")

    policy = plain_policy(every_quantum=True)

    def __init__(self) -> None:
        super().__init__()
        self.wishes: Wishes = {}
        if self.policy.name == "plain":
            self.policy = plain_policy(every_quantum=True, wishes=self.wishes)
        settings = Settings(
            quantum_s=10.0, settle_s=1.0, keep_ended=1000, move_deadline_s=40.0, fence_after_s=30.0
        )
        self.world = World(self.policy, settings)
        self.acknowledged: dict[JobId, UserName] = {}
        self.boots = dict.fromkeys(HOSTS, 1)
        self.seen: Mapping[JobId, Job] = {}
        self.given_up: list[Question] = []
        self.sent: dict[HostName, tuple[int, int]] = {}
        for user in USERS:
            self.happens(UserSet(now_s=0.0, name=user))

    @initialize(apart=st.booleans())
    def the_policy_is_asked(self, *, apart: bool) -> None:
        """In the events that it decides about, or beside the machine, and then it answers some time."""
        if apart:
            self.world.settings = replace(self.world.settings, decides_apart=True)
            self.world.start(self.world.machine.state)

    @precondition(lambda self: self.world.question is not None)
    @rule(again=st.booleans())
    def the_policy_answers(self, *, again: bool) -> None:
        question = self.world.question
        if not again:  # else it comes twice
            self.world.question = None
        answer = question.verdict()
        self.happens(PolicyAnswered(now_s=self.world.now_s, question=question, answer=answer))
        assert question is not self.world.machine.question

    @rule(name=st.sampled_from(["fifo", "las"]))
    def an_administrator_sets_the_policy(self, name: str) -> None:
        machine, now_s = self.world.machine, self.world.now_s
        asked, old = machine.question, machine.policy.name
        changes = name != old or machine.stays_at_it(now_s)
        assert self.happens(PolicySet(now_s=now_s, name=name, by=USERS[0]))
        assert machine.policy.name == name
        given_up = any(isinstance(command, GiveUp) for command in self.world.outcome.commands)
        assert given_up == (changes and machine.settings.decides_apart)
        assert asked is None or (machine.question is asked) != changes
        if changes and asked is not None:
            self.given_up.append(asked)

    @precondition(lambda self: self.given_up)
    @rule()
    def what_was_given_up_is_answered_late(self) -> None:
        machine, question = self.world.machine, self.given_up.pop()
        asked, memory = machine.question, machine.memory
        answered = PolicyAnswered(now_s=self.world.now_s, question=question, answer=question.verdict())
        self.happens(answered)
        assert machine.memory is memory
        assert asked is None or machine.question is asked
        assert not any(fact.kind == "placed" for fact in self.world.outcome.facts)

    def happens(self, event: ClusterEvent) -> bool:
        machine = self.world.machine
        before = machine.state
        try:
            outcome = self.world.handle(event)
        except RefusedError:
            outcome = None
        if outcome is None:
            assert machine.state == before, "a refused event changed something"
            return False
        after = machine.state
        changed = {job for job in after.jobs if after.jobs[job] != before.jobs.get(job)}
        assert changed == {j for j in outcome.touched.jobs if after.jobs[j] != before.jobs.get(j)}
        known = after.hosts.keys() | before.hosts.keys()
        assert {h for h in known if after.hosts.get(h) != before.hosts.get(h)} <= outcome.touched.hosts
        assert {u for u in after.users if after.users[u] != before.users.get(u)} <= outcome.touched.users
        meta = (after.next_job_id, after.quantum, after.memory, after.budget) != (
            before.next_job_id,
            before.quantum,
            before.memory,
            before.budget,
        )
        assert outcome.touched.meta or not meta
        assert outcome.touched.profile or after.profile == before.profile
        return True

    @rule(seconds=st.floats(0.0, 30.0))
    def time_passes(self, seconds: float) -> None:
        self.world.now_s += seconds

    @rule(hours=st.integers(-48, 48))
    def the_clock_is_set(self, hours: int) -> None:
        self.world.now_s += hours * 3600.0

    @rule(
        target=jobs,
        user=st.sampled_from(USERS),
        gpus=st.integers(0, 5),
        count=st.integers(1, 3),
        retries=st.integers(0, 2),
        limit=st.sampled_from([0.0, 5.0]),
        array=st.booleans(),
        nodes=st.sampled_from([1, 1, 2]),
        partition=st.sampled_from(OnPartition),
        after=st.none() | st.tuples(st.integers(1, 30), st.sampled_from(AfterCondition)),
    )
    def submit(self, *, user, gpus, count, retries, limit, array, nodes, partition, after):
        wait = () if after is None else (After(job=JobId(after[0]), condition=after[1]),)
        spec = a_spec(
            gpus=gpus,
            nodes=nodes if self.policy.name == "plain" else 1,
            on_partition=partition,
            retry_max=retries,
            max_duration_s=limit,
            after=wait,
            steps=1000 if self.policy.needs.copies else 0,
        )
        specs = tuple(replace(spec, array_index=i, array_limit=1) if array else spec for i in range(count))
        if not self.happens(JobsSubmitted(now_s=self.world.now_s, user=user, specs=specs)):
            return multiple()
        answer = self.world.outcome.answer
        assert len(answer) == count
        assert not set(answer) & self.acknowledged.keys(), "an id was given twice"
        self.acknowledged |= dict.fromkeys(answer, user)
        return multiple(*answer)

    @rule(job=jobs, verb=st.sampled_from([JobsCancelled, JobsPaused, JobsUnpaused]))
    def somebody_asks(self, job: JobId, verb: type[JobsCancelled | JobsPaused | JobsUnpaused]) -> None:
        event = verb(now_s=self.world.now_s, by=USERS[0], jobs=(job,))
        if self.happens(event):
            row = self.world.machine.job(job)
            self.happens(event)
            assert self.world.machine.job(job) == row, "asking twice is not asking once"

    @rule(name=st.sampled_from(USERS), tickets=st.sampled_from([0.0, 1.0, 50.0]))
    def tickets_change(self, name: UserName, tickets: float) -> None:
        self.happens(UserSet(now_s=self.world.now_s, name=name, tickets=tickets))

    @rule(name=st.sampled_from(USERS))
    def user_leaves(self, name: UserName) -> None:
        has_jobs = bool(self.world.machine.jobs(user=name))
        removed = self.happens(UserRemoved(now_s=self.world.now_s, name=name, by=USERS[0]))
        assert bool(removed) != has_jobs
        self.happens(UserSet(now_s=self.world.now_s, name=name))

    @rule(name=st.sampled_from(sorted(HOSTS)), reboot=st.booleans(), forgets=st.booleans())
    def host_joins(self, name: HostName, *, reboot: bool, forgets: bool) -> None:
        self.boots[name] += reboot
        rows = self.world.machine.jobs_at(name) if self.world.machine.host(name) else []
        known = () if forgets else tuple(row.reports[name] for row in rows if name in row.reports)
        host = a_host(name, gpus=HOSTS[name], boot=str(self.boots[name]))
        assert self.happens(HostJoined(now_s=self.world.now_s, host=host, reports=known))
        assert name in {c.host for c in self.world.outcome.commands if hasattr(c, "wanted")}

    @rule(name=st.sampled_from(sorted(HOSTS)))
    def host_leaves(self, name: HostName) -> None:
        self.happens(HostLeft(now_s=self.world.now_s, host=name))

    @rule(name=st.sampled_from(sorted(HOSTS)), count=st.integers(0, 4))
    def gpus_fall_ill(self, name: HostName, count: int) -> None:
        host = self.world.machine.host(name)
        if host is not None:
            event = HostReported(now_s=self.world.now_s, host=name, reports=(), gpus=sick(host, count))
            self.happens(event)

    @rule(
        job=jobs,
        to=st.lists(st.sampled_from(sorted(HOSTS)), min_size=1, max_size=2, unique=True),
        reason=st.sampled_from(MoveReason),
    )
    def somebody_wants_it_elsewhere(self, job: JobId, to: list[HostName], reason: MoveReason) -> None:
        if len(to) == self.world.machine.job(job).spec.nodes:
            self.wishes[job] = (tuple(to), reason, "")

    @rule(name=st.sampled_from(sorted(HOSTS)), in_s=st.none() | st.floats(-5.0, 60.0), back=st.booleans())
    def an_administrator_drains(self, name: HostName, in_s: float | None, *, back: bool) -> None:
        now_s, by = self.world.now_s, USERS[1]
        drain = HostDrained(now_s=now_s, by=by, host=name, deadline_s=None if in_s is None else now_s + in_s)
        event = HostUndrained(now_s=now_s, by=by, host=name) if back else drain
        if self.happens(event):
            host = self.world.machine.host(name)
            self.happens(event)
            assert self.world.machine.host(name) == host

    @rule(name=st.sampled_from(sorted(HOSTS)), count=st.integers(0, 3))
    def an_administrator_drains_gpus(self, name: HostName, count: int) -> None:
        host = self.world.machine.host(name)
        if host is not None:
            gpus = frozenset(gpu.id for gpu in host.gpus[:count])
            self.happens(GpusDrained(now_s=self.world.now_s, by=USERS[1], host=name, gpus=gpus))

    @rule(name=st.sampled_from(sorted(HOSTS)), force=st.booleans())
    def an_administrator_removes(self, name: HostName, *, force: bool) -> None:
        self.happens(HostRemoved(now_s=self.world.now_s, by=USERS[1], host=name, force=force))

    @rule(
        target=reports,
        job=jobs,
        part=st.integers(0, 1),
        can=st.booleans(),
        old=st.integers(0, 1),
        phase=st.sampled_from(LIVE_PHASES),
        gpu_s=st.sampled_from([0.0, 1.0, 7.5, 100.0, float("nan"), -1.0, 1e308]),
        generation=st.integers(-1, 3),
        fails=st.sampled_from([0, 0, 1, 2]),
        ended=st.none() | st.sampled_from(EXITS),
    )
    def host_reports(self, *, job, part, can, old, phase, gpu_s, generation, fails, ended):
        row = self.world.machine.job(job)
        if row.host is None:
            return multiple()
        report = JobReport(
            job=job,
            epoch=max(0, row.epoch - old),
            phase=Phase.EXITED if ended else phase,
            gpu_s=gpu_s,
            run_s=gpu_s,
            can_checkpoint=can,
            step=10,
            checkpoint_generation=generation,
            checkpoint_step=5 if generation >= 0 else -1,
            start_fails=fails,
            note=f"{CANNOT_START}: full" if fails else "",
            exit=ended,
        )
        host = row.hosts[part % len(row.hosts)]
        event = HostReported(now_s=self.world.now_s, host=host, reports=(report,))
        self.happens(event)
        return event

    @rule(event=reports)
    def a_report_is_repeated_late(self, event: HostReported) -> None:
        self.happens(replace(event, now_s=self.world.now_s))

    @rule(event=consumes(reports), name=st.sampled_from(sorted(HOSTS)))
    def a_report_comes_from_elsewhere(self, event: HostReported, name: HostName) -> None:
        self.happens(replace(event, host=name, now_s=self.world.now_s))

    @precondition(lambda self: self.world.wake_s is not None)
    @rule()
    def the_timer_fires(self) -> None:
        self.world.now_s = max(self.world.now_s, self.world.wake_s or 0.0)
        self.world.wake_s = None
        assert self.happens(QuantumEnded(now_s=self.world.now_s))

    @rule()
    def a_stray_timer_fires(self) -> None:
        assert self.happens(QuantumEnded(now_s=self.world.now_s))

    @rule()
    def the_controller_is_killed_and_starts_again(self) -> None:
        state = self.world.machine.state
        needed = {after.job for row in state.jobs.values() if not row.state.ended for after in row.spec.after}
        kept = {j: row for j, row in state.jobs.items() if not row.state.ended or j in needed}
        self.world.start(replace(state, jobs=kept))
        assert self.world.machine.state.jobs == kept
        self.world.machine.recall(row for j, row in state.jobs.items() if j not in kept)
        assert replace(self.world.machine.state, term=0) == replace(state, term=0)
        self.sent.clear()

    @invariant()
    def every_law_holds(self) -> None:
        self.world.machine.check()

    @invariant()
    def who_waits_for_another_is_blocked(self) -> None:
        book = self.world.machine._book
        for row in book.live.values():
            met = [book.dependency(row, i) is Dependency.MET for i in range(len(row.spec.after))]
            assert (row.id in book.blocked) == (not all(met))

    @invariant()
    def nothing_acknowledged_is_lost(self) -> None:
        rows = self.world.machine.state.jobs
        assert {job: row.user for job, row in rows.items()} == self.acknowledged

    @invariant()
    def accounts_and_epochs_only_grow(self) -> None:
        rows = self.world.machine.state.jobs
        for job, old in self.seen.items():
            new = rows[job]
            assert new.epoch >= old.epoch
            assert new.gpu_s >= old.gpu_s - 1e-9
            assert not old.state.ended or new == old
            assert new.retries >= old.retries
        self.seen = rows

    @invariant()
    def nobody_is_told_of_what_lives_elsewhere(self) -> None:
        machine = self.world.machine
        epochs: dict[JobId, int] = {}
        for host, wanted in self.world.wanted.items():
            assert (wanted.term, wanted.seq) >= self.sent.get(host, (0, 0))
            self.sent[host] = (wanted.term, wanted.seq)
            if host not in machine.connected:
                continue
            mine = {row.id: row.epoch for row in machine.jobs_at(host)}
            assert {job.job: job.epoch for job in wanted.jobs} == mine, (
                "a host was not told what is wanted of it"
            )
            for job in wanted.jobs:
                assert host in machine.job(job.job).hosts
                assert epochs.setdefault(job.job, job.epoch) == job.epoch, "two incarnations are wanted"
            lent = {lend.job for lend in wanted.lends}
            for row in machine.jobs():
                kept = row.stored
                if kept is not None and host in kept.hosts and host not in row.hosts:
                    assert row.id in lent, "a checkpoint that is needed is not kept"

    @invariant()
    def every_job_knows_why(self) -> None:
        machine = self.world.machine
        for row in machine.jobs(ended=True):
            why = machine.why(row.id, self.world.now_s)
            assert why.text
            assert why.next_step
            assert (why.reason == "running") <= (row.state is JobState.RUNNING)

    @invariant()
    def the_account_adds_up(self) -> None:
        machine = self.world.machine
        total = sum(row.gpu_s for row in machine.jobs(ended=True))
        by_model = sum(sum(row.gpu_s_by_model.values()) for row in machine.jobs(ended=True))
        assert abs(total - by_model) <= 1e-6 * (1 + total)


KINDS = (
    "gandiva-fair",
    "fifo",
    "lottery",
    "las",
    "sjf",
    "gavel-max-min",
    "fft",
    "hadare",
    "allox",
    "themis",
    "tesserae-las",
)
"""One of each way of deciding; all of them are under the policies' own laws (tests/policies)."""


@pytest.mark.parametrize(
    "policy", [AnyOrder.policy, *(POLICIES[kind] for kind in KINDS)], ids=lambda policy: policy.name
)
def test_the_laws_hold_in_any_order(policy: Policy) -> None:
    examples = 200 if policy is AnyOrder.policy else 60
    machine = type("AnyOrderUnder", (AnyOrder,), {"policy": policy})
    run_state_machine_as_test(machine, settings=budget(max_examples=examples, stateful_step_count=60))


def test_a_state_of_nothing_is_a_state() -> None:
    world = World(plain_policy())
    assert replace(world.machine.state, term=0) == State()
