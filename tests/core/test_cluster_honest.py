"""Controller and hosts that keep their word, with crashes, cuts, moves and drains at any time: no job runs twice, none is
lost, what was committed stays, and when the faults stop all jobs end."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import settings as budget
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from hs_core.cluster import Settings
from hs_core.cluster.harness import World, a_host, a_spec, plain_policy
from hs_core.cluster.plain import Wishes
from hs_core.errors import RefusedError
from hs_core.events.cluster import (
    ClusterEvent,
    Direct,
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
    QuantumEnded,
    UserSet,
)
from hs_core.model import MoveReason, OnPartition
from hs_core.names import HostName, JobId, UserName
from hs_core.reports import CANNOT_START, LOST, Exit, JobReport, Phase
from hs_core.wanted import Wanted, WantedJob

NAMES = [HostName(name) for name in ("n1", "n2", "n3")]
ALICE, ROOT = UserName("alice"), UserName("root")
FENCE_S, LEASE_S = 30.0, 5.0
LIVE = {Phase.STARTING, Phase.HELD, Phase.RUNNING}


@dataclass
class Part:
    """A job's process on a host, or the place for it."""

    epoch: int
    phase: Phase = Phase.WAITING
    step: int = 0
    can: bool = True
    fails: int = 0  # starts, in a row
    exit: Exit | None = None


@dataclass
class Agent:
    name: HostName
    boot: int = 1
    full: bool = False  # it can start nothing
    linked: bool = False
    heard_s: float = 0.0
    wanted: Wanted | None = None
    parts: dict[JobId, Part] = field(default_factory=dict)
    files: dict[JobId, tuple[int, int]] = field(default_factory=dict)  # generation and step

    @property
    def heard(self) -> tuple[int, int] | None:
        return None if self.wanted is None else (self.wanted.term, self.wanted.seq)

    def obey(self, wanted: Wanted, now_s: float) -> None:
        self.wanted, self.heard_s = wanted, now_s
        told = {job.job: job for job in wanted.jobs}
        for job in list(self.parts):
            if job not in told or told[job].epoch != self.parts[job].epoch:
                del self.parts[job]
        kept = told.keys() | {lend.job for lend in wanted.lends}
        self.files = {job: files for job, files in self.files.items() if job in kept}
        for job, order in told.items():
            part = self.parts.setdefault(job, Part(epoch=order.epoch))
            if order.cancelled and part.exit is None:
                part.phase, part.exit = Phase.EXITED, Exit(signal=15)

    def order(self, job: JobId) -> WantedJob | None:
        return next((o for o in self.wanted.jobs if o.job == job), None) if self.wanted else None

    def report(self, job: JobId) -> JobReport:
        part = self.parts[job]
        generation, step = self.files.get(job, (-1, -1))
        order = self.order(job)
        first = order is not None and order.nodes and order.node_rank == 0
        return JobReport(
            job=job,
            epoch=part.epoch,
            phase=part.phase,
            step=part.step,
            gpu_s=float(part.step),
            can_checkpoint=part.can and part.phase in LIVE,
            checkpoint_generation=generation,
            checkpoint_step=step,
            rendezvous=f"{self.name}:1" if first else "",
            start_fails=part.fails,
            note=f"{CANNOT_START}: full" if part.fails and part.phase not in LIVE else "",
            exit=part.exit,
        )


class Honest(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.wishes: Wishes = {}
        settings = Settings(
            quantum_s=10.0, settle_s=0.0, fence_after_s=FENCE_S, lease_s=LEASE_S, move_deadline_s=40.0
        )
        self.world = World(plain_policy(every_quantum=True, wishes=self.wishes), settings)
        self.agents = {name: Agent(name) for name in NAMES}
        self.gone: set[HostName] = set()
        self.committed: dict[JobId, int] = {}
        self.forgiven: set[JobId] = set()  # may have lost commits: their only copy was cut off or removed
        self.tell(UserSet(now_s=0.0, name=ALICE))
        for name in NAMES:
            self.connect(name)
        self.submit(nodes=1, partition=OnPartition.FENCE, retries=1)
        self.submit(nodes=2, partition=OnPartition.CONTINUE, retries=1)

    # --- the wires ----------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self.world.now_s

    def tell(self, event: ClusterEvent) -> None:
        """What follows from an order is told at once, and so on until nothing follows."""
        todo: list[ClusterEvent] = [event]
        while todo:
            try:
                outcome = self.world.handle(todo.pop(0))
            except RefusedError:
                continue
            for command in outcome.commands:
                if isinstance(command, Direct) and self.agents[command.host].linked:
                    agent = self.agents[command.host]
                    ended = {job for job, part in agent.parts.items() if part.exit}
                    agent.obey(command.wanted, self.now_s)
                    fresh = [job for job, part in agent.parts.items() if part.exit and job not in ended]
                    if fresh:
                        told = tuple(agent.report(job) for job in fresh)
                        todo.append(
                            HostReported(now_s=self.now_s, host=agent.name, reports=told, heard=agent.heard)
                        )

    def connect(self, name: HostName) -> None:
        agent = self.agents[name]
        agent.linked, agent.heard_s = True, self.now_s
        told = tuple(agent.report(job) for job in agent.parts)
        host = a_host(name, boot=str(agent.boot))
        self.commit(agent)
        self.tell(HostJoined(now_s=self.now_s, host=host, reports=told))

    def commit(self, agent: Agent) -> None:
        for job, part in agent.parts.items():
            row = self.world.machine.find(job)
            if row is not None and row.epoch == part.epoch and job in agent.files and len(row.hosts) == 1:
                self.committed[job] = max(self.committed.get(job, 0), agent.files[job][1])

    def say(self, agent: Agent, job: JobId) -> None:
        if agent.linked:
            self.commit(agent)
            self.tell(
                HostReported(
                    now_s=self.now_s, host=agent.name, reports=(agent.report(job),), heard=agent.heard
                )
            )

    # --- the jobs -----------------------------------------------------------------------------------------------

    def crew(self, job: JobId) -> list[Agent]:
        """The agents of the incarnation that is wanted, if all of them have their part of it."""
        row = self.world.machine.job(job)
        agents = [self.agents[name] for name in row.hosts]
        whole = all(job in a.parts and a.parts[job].epoch == row.epoch for a in agents)
        return agents if whole else []

    def start(self, job: JobId, agents: list[Agent]) -> bool:
        """Whether each part has its files: its own, or fetched where they are lent."""
        if any(agent.full for agent in agents):
            for agent in agents:
                self.cannot_start(agent.parts[job], agent, whole=len(agents) == 1)
            return False
        got: list[tuple[int, int] | None] = []
        for agent in agents:
            order = agent.order(job)
            if order is None or order.epoch != agent.parts[job].epoch or order.paused or order.leave:
                return False
            if order.nodes and not order.rendezvous:
                self.say(agents[0], job)
                return False
            if order.source is not None and order.source.peer.host != agent.name:
                owner = self.agents[order.source.peer.host]
                lent = [lend for lend in (owner.wanted.lends if owner.wanted else ()) if lend.job == job]
                here = owner.files.get(job)
                if not owner.linked or not lent or here is None:
                    return False
                assert (lent[0].grant, lent[0].epoch) == (order.grant, order.source.epoch)
                assert here >= (order.source.generation, order.source.step)
                agent.files[job] = here
            got.append(agent.files.get(job))
        steps = [files[1] if files else 0 for files in got]
        for agent in agents:
            agent.parts[job].step = min(steps)
            agent.parts[job].phase, agent.parts[job].fails = Phase.HELD, 0
        if len(agents) == 1 and job not in self.forgiven:
            assert steps[0] >= self.committed.get(job, 0), "what was committed is lost"
        return True

    @staticmethod
    def cannot_start(part: Part, agent: Agent, *, whole: bool) -> None:
        part.fails += agent.full
        if agent.full and not whole:
            part.phase, part.exit = Phase.EXITED, Exit(why=f"{LOST}: {CANNOT_START}: full")

    def advance(self, job: JobId, *, save: bool = False) -> None:
        agents = self.crew(job)
        parts = [agent.parts[job] for agent in agents]
        if not parts or any(part.exit for part in parts):
            return
        leaving = [o for a in agents if (o := a.order(job)) is not None and o.leave]
        phases = {part.phase for part in parts}
        if phases <= {Phase.WAITING, Phase.CHECKPOINTED} and not leaving:
            self.start(job, agents)
        elif phases <= {Phase.HELD, Phase.RUNNING}:
            go = all(not o.paused for a in agents if (o := a.order(job)) is not None)
            for agent, part in zip(agents, parts, strict=True):
                part.step += go
                part.phase = Phase.RUNNING if go else Phase.HELD
                if part.can and (save or leaving):
                    generation = max(a.files.get(job, (-1, 0))[0] for a in agents) + 1
                    part.step = max(p.step for p in parts)
                    agent.files[job] = (generation, part.step) if agent is agents[0] else agents[0].files[job]
                    part.phase = Phase.CHECKPOINTED if leaving else part.phase
        for agent in agents:
            if job in agent.parts:
                self.say(agent, job)

    def end(self, job: JobId, ended: Exit) -> None:
        for agent in self.crew(job):
            part = agent.parts.get(job)
            if part is not None and part.exit is None and part.phase in LIVE:
                part.phase, part.exit = Phase.EXITED, ended
                self.say(agent, job)

    # --- what happens -------------------------------------------------------------------------------------------

    @rule(nodes=st.sampled_from([1, 1, 2]), partition=st.sampled_from(OnPartition), retries=st.integers(0, 1))
    def submit(self, nodes: int, partition: OnPartition, retries: int) -> None:
        spec = a_spec(nodes=nodes, on_partition=partition, retry_max=retries)
        self.tell(JobsSubmitted(now_s=self.now_s, user=ALICE, specs=(spec,)))

    @rule(which=st.integers(0, 9), save=st.booleans(), times=st.integers(1, 3))
    def a_job_gets_on(self, which: int, *, save: bool, times: int) -> None:
        for job in self.pick(which):
            for _ in range(times):
                self.advance(job, save=save)

    @rule()
    def all_jobs_get_on(self) -> None:
        for row in self.world.machine.jobs():
            self.advance(row.id)

    @rule(which=st.integers(0, 9), code=st.sampled_from([0, 1]))
    def a_job_ends(self, which: int, code: int) -> None:
        for job in self.pick(which):
            self.end(job, Exit(code=code))

    @rule(which=st.integers(0, 9))
    def a_job_can_write_no_checkpoint(self, which: int) -> None:
        for job in self.pick(which):
            for agent in self.crew(job):
                agent.parts[job].can = False

    @rule(
        which=st.integers(0, 9), verb=st.sampled_from([JobsPaused, JobsUnpaused, JobsUnpaused, JobsCancelled])
    )
    def its_owner_asks(self, which: int, verb: type[JobsCancelled | JobsPaused | JobsUnpaused]) -> None:
        for job in self.pick(which):
            self.tell(verb(now_s=self.now_s, by=ALICE, jobs=(job,)))

    @rule(which=st.integers(0, 9), to=st.permutations(NAMES), gets=st.integers(0, 4))
    def a_job_is_to_move(self, which: int, to: list[HostName], gets: int) -> None:
        for job in self.pick(which):
            nodes = self.world.machine.job(job).spec.nodes
            self.wishes[job] = (tuple(to[:nodes]), MoveReason.BALANCE, "")
            for _ in range(gets):
                self.advance(job)
            self.tell(
                UserSet(now_s=self.now_s, name=ALICE, tickets=self.now_s + 1.0)
            )  # something to decide about
            for _ in range(gets):
                self.advance(job)

    @rule(name=st.sampled_from(NAMES))
    def a_link_breaks(self, name: HostName) -> None:
        self.agents[name].linked = False
        self.tell(HostLeft(now_s=self.now_s, host=name))

    @rule(name=st.sampled_from(NAMES), seconds=st.sampled_from([10.0, FENCE_S - 1, FENCE_S + 1, 60.0]))
    def a_host_is_cut_off_for_long(self, name: HostName, seconds: float) -> None:
        self.all_jobs_get_on()
        self.a_link_breaks(name)
        self.time_passes(seconds)
        self.a_link_is_back(name)

    @rule(name=st.sampled_from(NAMES))
    def a_link_is_back(self, name: HostName) -> None:
        if not self.agents[name].linked and name not in self.gone:
            self.connect(name)

    @rule(name=st.sampled_from(NAMES))
    def a_host_reboots(self, name: HostName) -> None:
        agent = self.agents[name]
        if name in self.gone:
            return
        if agent.linked:
            self.a_link_breaks(name)
        agent.boot += 1
        agent.parts, agent.wanted = {}, None
        self.connect(name)

    @rule(name=st.sampled_from(NAMES), in_s=st.none() | st.floats(0.0, 60.0))
    def a_host_is_drained(self, name: HostName, in_s: float | None) -> None:
        deadline_s = None if in_s is None else self.now_s + in_s
        self.tell(HostDrained(now_s=self.now_s, by=ROOT, host=name, deadline_s=deadline_s))

    @rule(name=st.sampled_from(NAMES), full=st.booleans())
    def a_disk_is_full_or_has_room(self, name: HostName, full: bool) -> None:
        self.agents[name].full = full

    @rule(name=st.sampled_from(NAMES))
    def a_host_is_undrained(self, name: HostName) -> None:
        self.tell(HostUndrained(now_s=self.now_s, by=ROOT, host=name))

    @rule(name=st.sampled_from(NAMES))
    def a_host_burns_down(self, name: HostName) -> None:
        """And is removed. Another one of its name comes in its place later."""
        agent = self.agents[name]
        if agent.linked or name in self.gone:
            return
        self.forgiven |= agent.files.keys() | agent.parts.keys()
        self.agents[name] = Agent(name, boot=agent.boot + 1)
        self.gone.add(name)
        self.tell(HostRemoved(now_s=self.now_s, by=ROOT, host=name, force=True))

    @rule(name=st.sampled_from(NAMES))
    def a_host_is_replaced(self, name: HostName) -> None:
        if name in self.gone:
            self.gone.discard(name)
            self.connect(name)

    @rule(seconds=st.floats(0.1, 45.0))
    def time_passes(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            wake_s = self.world.wake_s if self.world.wake_s is not None else until_s
            self.world.now_s = max(self.now_s + 1e-3, min(until_s, wake_s))
            self.hosts_fence()
            self.tell(QuantumEnded(now_s=self.now_s))

    def hosts_fence(self) -> None:
        for agent in self.agents.values():
            if agent.linked or self.now_s - agent.heard_s < FENCE_S:
                continue
            for job, part in agent.parts.items():
                if self.world.machine.job(job).spec.on_partition is OnPartition.FENCE:
                    self.forgiven.add(job)
                    if part.exit is None:
                        part.phase, part.exit = Phase.EXITED, Exit(why="lost with its host: fenced")
            for job in agent.files:
                if self.world.machine.job(job).spec.on_partition is OnPartition.FENCE:
                    self.forgiven.add(job)

    @rule()
    def the_controller_is_killed(self) -> None:
        for agent in self.agents.values():
            agent.linked = False
        self.world.start(self.world.machine.state)
        self.tell(QuantumEnded(now_s=self.now_s))

    def pick(self, which: int) -> Iterator[JobId]:
        jobs = [row.id for row in self.world.machine.jobs()]
        if jobs:
            yield jobs[which % len(jobs)]

    # --- what must hold -----------------------------------------------------------------------------------------

    @invariant()
    def no_job_runs_twice(self) -> None:
        epochs: dict[JobId, set[int]] = {}
        for agent in self.agents.values():
            for job, part in agent.parts.items():
                if part.phase in LIVE:
                    epochs.setdefault(job, set()).add(part.epoch)
        assert all(len(each) == 1 for each in epochs.values()), epochs

    @invariant()
    def every_law_holds(self) -> None:
        self.world.machine.check()

    def teardown(self) -> None:
        """The faults stop: every job comes to its end."""
        for name in NAMES:
            if not self.agents[name].linked:
                self.gone.discard(name)
                self.connect(name)
            self.a_host_is_undrained(name)
            self.agents[name].full = False
        self.wishes.clear()
        for row in self.world.machine.jobs():
            if row.paused:
                self.tell(JobsUnpaused(now_s=self.now_s, by=ALICE, jobs=(row.id,)))
        for _ in range(12):
            for row in self.world.machine.jobs():
                self.advance(row.id)
            self.time_passes(11.0)
        for row in self.world.machine.jobs():
            self.end(row.id, Exit())
        left = [(row.id, row.state, row.hosts, row.report) for row in self.world.machine.jobs()]
        assert not left, left


def test_honest_hosts_and_every_kind_of_fault() -> None:
    run_state_machine_as_test(Honest, settings=budget(max_examples=40, stateful_step_count=30))
