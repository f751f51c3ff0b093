"""One simulated cluster: the controller, its agents, their jobs, and who submits them."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from math import ceil
from typing import NoReturn

from hs_core.cluster import Outcome, Settings
from hs_core.cluster.machine import as_it_is
from hs_core.dice import Random, roll
from hs_core.errors import BrokenError, RefusedError
from hs_core.events.cluster import JobsSubmitted, UserSet
from hs_core.events.host import HostCommand, RendezvousReserved, Reserve, WakeHost
from hs_core.facts import TRADE
from hs_core.host import HostConfig
from hs_core.model import JobSpec, JobState
from hs_core.names import HostName, JobId, UserName
from hs_core.policies import find
from hs_core.policy import Memory, Policy, Snapshot, Verdict
from hs_core.reports import Exit
from hs_core.wanted import WantedJob
from hs_sim.garbage import rare_collections
from hs_sim.machines.agent import Agent
from hs_sim.machines.checkpoints import Checkpoints
from hs_sim.machines.clock import Clock
from hs_sim.machines.controller import Controller
from hs_sim.machines.device_memory import DeviceMemory
from hs_sim.machines.fetches import Fetches
from hs_sim.machines.gang import Gang
from hs_sim.machines.journal import Draft
from hs_sim.machines.known import known_speeds
from hs_sim.machines.network import DOWN, Line, Network
from hs_sim.machines.orders import Orders
from hs_sim.machines.part import Part
from hs_sim.machines.samples import Samples
from hs_sim.machines.setting import config_of, hosts_of, settings_of
from hs_sim.machines.speeds import Speeds
from hs_sim.machines.timing import Timing, timing_for
from hs_sim.machines.trade_laws import TradeLaws
from hs_sim.machines.trouble import TRADE_MOMENT, FaultPlan, Trouble
from hs_sim.machines.truth import JobTruth, LawBrokenError, Owner, Truth
from hs_sim.model import Costs, Experiment, JobOutcome, Result, SimJob
from hs_sim.trades import trade_row

TRACE = 60  # lines kept of what happened last
RETRY_S = 10.0  # who was not answered asks again
PATIENCE = (
    50.0  # a run may take so many times what its work would take on one GPU at a time, then it is stuck
)


class World:
    def __init__(
        self,
        experiment: Experiment,
        *,
        faults: FaultPlan | None = None,
        timing: Timing | None = None,
        specs: Callable[[SimJob], JobSpec] = SimJob.spec,
        settings: Settings | None = None,
        host_config: HostConfig | None = None,
        policy: Policy | None = None,  # in place of the one that the experiment names
        dress: Callable[[Policy], Policy] = as_it_is,  # what is put around every policy that takes office
        watched: bool = False,  # keeps a trace, and goes on until the controller knows of every end
    ) -> None:
        self.experiment = experiment
        self.costs: Costs = experiment.costs
        office = policy or find(experiment.policy)
        profiles = office.needs.profile_batches(experiment.profiling) > 0
        self.timing = timing or timing_for(experiment.costs, experiment.quantum_s, profiles=profiles)
        self.progress_s = self.timing.progress_s or experiment.quantum_s
        self.clock = Clock()
        self.dice: Random = roll(experiment.seed, "world")
        self.network = Network(self.clock, self.timing, roll(experiment.seed, "network"))
        self.truth = Truth()
        self.agents: dict[HostName, Agent] = {}
        self.checkpoints = Checkpoints(self.truth, self.agents)
        self.orders = Orders(self.clock, self.network)
        self.occupied: dict[Part, None] = {}  # in the order in which they came: sums of floats go by it
        self.trace: deque[str] = deque(maxlen=TRACE)
        self.cannot_checkpoint: frozenset[int] = frozenset()
        self.cannot_swap: frozenset[int] = frozenset()  # they say they can, and then it fails
        self.grows_at: Mapping[
            int, int
        ] = {}  # steps from which on jobs hold more of their GPUs, by SimJob.id
        self.join_s: dict[HostName, float] = {}  # when servers' agents start; left out: at once
        self.watch: Callable[[World], None] | None = None  # called at every sample
        self.trade_laws: TradeLaws | None = None
        asked = settings_of(settings or Settings(), experiment, self.timing)
        self.controller = Controller(
            self.clock, self.network, self.timing, office, asked, flush=watched, dress=dress
        )
        if experiment.known_rates:
            self.controller.journal.profile = known_speeds(experiment, office.needs)
        self._wire()
        for host, pool, gpus in hosts_of(experiment):
            self.agents[host] = agent = Agent(self, host, gpus, host_config or config_of(pool))
            agent.memory_bytes = pool.memory_bytes
        self.trouble = Trouble(self, faults or FaultPlan())
        self._gangs: dict[Owner, Gang] = {}
        every = [gpu for agent in self.agents.values() for gpu in agent.gpus]
        self.device_memory = DeviceMemory(every)
        self.speeds = Speeds(experiment, every, self._gangs, self.truth)
        self.fetches = Fetches(self)
        self._left = len(experiment.workload.jobs)
        self._samples = Samples()
        self._trades: list[dict[str, object]] = []
        self._watched = watched or bool(faults and faults.faults)
        self.horizon_s: float | None = None  # by when everything has to have ended
        for job in experiment.workload.jobs:
            self.truth.jobs[job.id] = JobTruth(sim=job, spec=specs(job))

    def _wire(self) -> None:
        controller = self.controller
        controller.deliver = lambda line, wanted, sent_s: self.agents[line.host].wanted(line, wanted, sent_s)
        controller.welcome = lambda line: self.agents[line.host].link.welcomed(line)
        controller.hung_up = lambda line: self.agents[line.host].link.hung_up(line)
        controller.refused = self._refused
        controller.committed = self._committed
        controller.happened = self._happened
        controller.ruled = self._ruled

    # --- running ----------------------------------------------------------------------------------------------------

    def run(self, progress: Callable[[float, int], None] | None = None) -> Result:
        experiment, clock = self.experiment, self.clock
        self.controller.start()
        for name in sorted(experiment.workload.tickets):
            self._set_user(name, experiment.workload.tickets[name])
        for host, agent in self.agents.items():
            if self.join_s.get(host, 0.0) > 0:
                clock.at(self.join_s[host], agent.start)
            else:
                agent.start()
        for sim in experiment.workload.jobs:
            clock.at(sim.arrival_s, self._submit, self.truth.jobs[sim.id])
        for change in experiment.workload.changes:
            clock.at(change.at_s, self.speeds.change, change)
        every_s = experiment.sample_s or experiment.quantum_s
        clock.at(every_s, self._sample, every_s, progress)
        if self._watched:
            settings = self.controller.settings
            least_s = min(settings.lease_s, settings.fence_after_s or settings.lease_s, 20.0)
            clock.after(least_s / 4, self._alive, least_s / 4)
        until_s = self._horizon_s() if experiment.until_s is None else experiment.until_s
        with rare_collections():
            clock.run(until_s, self._finished)
        if experiment.until_s is None and not self._finished():
            waiting = [j.sim.id for j in self.truth.jobs.values() if j.ended_s is None]
            what = f"jobs {waiting[:20]} have not ended" if waiting else "the controller does not know it"
            raise LawBrokenError(f"at {clock.now_s:.0f}: {what}: {self._standing()}")
        if clock.now_s > self._samples.at_s:
            self._take_sample()
        return self._result()

    def _finished(self) -> bool:
        if self._left:
            return False
        return not self._watched or (
            self.controller.alive and self.trouble.over and not self.controller.machine.live
        )

    def _standing(self) -> str:
        rows = self.controller.machine.jobs()
        parts = [
            f"{job}:{epoch} {part.way.value} at {agent.name}"
            for agent in self.agents.values()
            for (job, epoch), part in agent.parts.items()
        ]
        told = [f"{row.id}:{row.epoch} {row.state} at {','.join(row.hosts) or '-'}" for row in rows[:10]]
        return f"the controller says {told}, in truth {parts[:10]}"

    def _horizon_s(self) -> float:
        if self.horizon_s is not None:
            return self.horizon_s
        workload = self.experiment.workload
        rates = [(class_, rate) for (class_, _), rate in workload.rates.items()]
        rates += [(change.job_class, change.steps_per_s) for change in workload.changes]
        slowest: dict[str, float] = {}
        for class_, rate in rates:
            if rate > 0:  # elsewhere it does not run
                slowest[class_] = min(rate, slowest.get(class_, rate))
        jobs = self.experiment.workload.jobs
        left = min(workload.spread.values(), default=1.0)  # of a rate, over several servers
        work_s = sum(job.steps / min(map(slowest.__getitem__, job.classes)) / left for job in jobs)
        starts_s = sum(self.costs.begin_s(job) for job in jobs)  # each may be begun anew some times
        last_s = max((job.arrival_s for job in jobs), default=0.0)
        waits_s = self.experiment.quantum_s * len(jobs) + starts_s
        return last_s + 3600.0 + PATIENCE * waits_s + 3.0 * work_s

    def _set_user(self, name: UserName, tickets: float) -> None:
        self.controller.tell(lambda now_s: UserSet(now_s=now_s, name=name, tickets=tickets))

    def _submit(self, job: JobTruth) -> None:
        """Asks until it is accepted; the key makes it one job."""
        if job.id is not None:
            return

        def make(now_s: float) -> JobsSubmitted:
            return JobsSubmitted(now_s=now_s, user=job.sim.user, specs=(job.spec,))

        def answered(ids: tuple[JobId, ...] | None) -> None:
            if ids is not None and job.id is None:
                job.id = ids[0]
                self.truth.by_id[ids[0]] = job
                if job.spec.checkpoint_dir:
                    self.checkpoints.folders[ids[0]] = {}

        self.controller.tell(make, f"job-{job.sim.id}", answered)
        if self._watched:
            self.clock.after(RETRY_S, self._submit, job)

    def _refused(self, refused: RefusedError) -> None:
        if not self._watched:
            raise BrokenError(f"at {self.clock.now_s:.3f}: refused: {refused}")
        self.note(f"refused: {refused}")

    def _alive(self, every_s: float) -> None:
        """Signs of life: jobs that fence count from the last one."""
        controller = self.controller
        if controller.alive and self.clock.now_s >= controller.paused_until_s:
            for side in controller.sides.values():
                self.network.send(side.line, DOWN, self._sign_of_life, self.clock.now_s)
        self.clock.after(every_s, self._alive, every_s)

    def _sign_of_life(self, line: Line, sent_s: float) -> None:
        self.agents[line.host].keepalive(line, sent_s)

    # --- what agents and jobs ask of the world ----------------------------------------------------------------------

    def made(self, agent: Agent) -> None:
        """An agent has a machine (again); tests put another in its place."""

    def ordered(self, agent: Agent, commands: Sequence[HostCommand]) -> None:
        words = tuple(type(command).__name__ for command in commands if not isinstance(command, WakeHost))
        if words and self._watched:
            self.note(f"{agent.name}: {', '.join(_said(c) for c in commands if not isinstance(c, WakeHost))}")
            self.trouble.ordered(words, agent.name)

    def gang(self, wanted: WantedJob, model: str) -> Gang:
        key = (wanted.job, wanted.epoch, wanted.copy)
        gang = self._gangs.get(key)
        if gang is None or wanted.node_rank in gang.parts:
            job = self.job_of(wanted)
            models = {self.agents[peer.host].model for peer in wanted.nodes} or {model}
            # The slowest has the others wait.
            rate = min(self.speeds.rate(job, model, wanted.form) for model in models)
            gang = self._gangs[key] = Gang(self, wanted, job, rate)
            job.launches += 1
        return gang

    def job_of(self, wanted: WantedJob) -> JobTruth:
        known = self.truth.by_id.get(wanted.job)
        if known is not None:
            return known
        return self.truth.jobs[int(wanted.spec.name.rpartition("-")[2])]

    def launched(self, gang: Gang) -> None:
        """All of its parts are coming up."""
        job = gang.job
        home = tuple(gang.parts[rank].agent.name for rank in sorted(gang.parts))
        job.homes.setdefault(gang.key[1], {})[gang.copy] = home, gang.shape
        if gang.copy > 0:
            return
        again = (job.last_home, job.last_shape) == (home, gang.shape)
        if again and gang.key[1] > job.last_epoch and not gang.averaged:
            job.restarts += 1
        job.last_home, job.last_shape, job.last_epoch = home, gang.shape, gang.key[1]

    def gang_gone(self, gang: Gang, exit_: Exit) -> None:
        if exit_.ok and gang.job.ended_s is None:
            gang.job.ended_s = self.clock.now_s
            self._left -= not (gang.job.cancelled or gang.job.failed)
        if self._gangs.get(gang.id) is gang:
            del self._gangs[gang.id]

    def cancelled(self, job: JobTruth) -> None:
        """The controller has said that it will end, if it had not ended by then."""
        self._left -= not job.over
        job.cancelled = True

    def can_checkpoint(self, job: JobTruth) -> bool:
        return job.sim.id not in self.cannot_checkpoint

    def can_swap(self, job: JobTruth) -> bool:
        return job.sim.id not in self.cannot_swap

    def reserve(self, agent: Agent, order: Reserve) -> None:
        port = 29_400 + order.job * 8 % 4096 + order.epoch % 8
        agent.post(
            RendezvousReserved(
                now_s=agent.now_s(), job=order.job, epoch=order.epoch, address=f"{agent.name}:{port}"
            )
        )

    def broken(self, what: str) -> NoReturn:
        raise LawBrokenError(f"at {self.clock.now_s:.3f}: {what}")

    def note(self, what: str) -> None:
        self.trace.append(f"{self.clock.now_s:10.3f} {what}")

    # --- what was decided, and committed ----------------------------------------------------------------------------

    def _happened(self, outcome: Outcome) -> None:
        self._decided(outcome.touched.jobs)
        if self.trade_laws is not None:
            self.trade_laws.happened(outcome)
        if any(fact.kind == TRADE for fact in outcome.facts):
            self.trouble.ordered((TRADE_MOMENT,), None)

    def _decided(self, touched: Collection[JobId]) -> None:
        """Of what is not committed yet: which incarnations begin, and from what they could."""
        machine, life = self.controller.machine, self.controller.life
        if touched and not machine.live:
            self._samples.entitled({}, self.clock.now_s)  # no policy is asked before somebody comes
        for job in touched:
            row, known = machine.find(job), self.truth.by_id.get(job)
            if row is None or known is None or row.epoch <= known.epoch:
                continue
            if known.reach.get(row.epoch, (-1, 0))[0] != life:
                known.reach[row.epoch] = (
                    life,
                    self.checkpoints.within_reach(job, row.nodes, machine.connected),
                )

    def _ruled(self, snapshot: Snapshot, memory: Memory, verdict: Verdict) -> None:
        now_s = self.clock.now_s
        if self.trade_laws is not None:
            self.trade_laws.ruled(snapshot, memory, verdict)
        self._samples.entitled(verdict.entitled, now_s)
        self._trades.extend(trade_row(made, now_s) for made in verdict.news)

    def _committed(self, draft: Draft) -> None:
        if self.trade_laws is not None:
            self.trade_laws.committed(draft)
        steps: dict[JobId, int] = {}
        for row in draft.jobs.values():
            if (known := self.truth.by_id.get(row.id)) is not None:
                known.epoch = max(known.epoch, row.epoch)
                if row.state is JobState.FAILED:
                    self._left -= not known.over
                    known.failed = True
            report = row.report
            if report is not None and report.checkpoint_generation >= 0:
                steps[row.id] = report.checkpoint_step
        if steps:
            self.truth.acknowledge(steps)
        for name, host in draft.hosts.items():
            if host is None or host.setup == self.agents[name].setup:
                for known in self.truth.jobs.values():
                    known.gone_with.discard(name)

    # --- what came of it --------------------------------------------------------------------------------------------

    def _sample(self, every_s: float, progress: Callable[[float, int], None] | None) -> None:
        self._take_sample()
        if self.watch is not None:
            self.watch(self)
        if progress is not None:
            progress(self.clock.now_s, len(self.truth.jobs) - self._left)
        self.clock.after(every_s, self._sample, every_s, progress)

    def _take_sample(self) -> None:
        for part in self.occupied:
            part.gang.holding.charge(part)
        self._samples.take(self.clock.now_s, self.truth, self._gangs.values())

    def _result(self) -> Result:
        controller = self.controller
        outcomes = tuple(self._outcome(job) for _, job in sorted(self.truth.jobs.items()))
        decisions = controller.decisions
        return Result(
            experiment=self.experiment,
            depth="machines",
            jobs=outcomes,
            samples=tuple(self._samples.taken),
            ended_s=self.clock.now_s,
            quanta=ceil(self.clock.now_s / self.experiment.quantum_s),
            decisions=decisions,
            decision_s_mean=controller.decision_s / decisions if decisions else 0.0,
            decision_s_max=controller.decision_s_max,
            messages=self.messages,
            trades=tuple(self._trades),
        )

    @property
    def messages(self) -> int:
        """What machines were told, and what they ordered."""
        return self.controller.handled + sum(agent.handled + agent.ordered for agent in self.agents.values())

    def _outcome(self, job: JobTruth) -> JobOutcome:
        sim = job.sim
        return JobOutcome(
            id=sim.id,
            user=sim.user,
            gang=sim.gang,
            arrival_s=sim.arrival_s,
            started_s=job.started_s,
            ended_s=job.ended_s,
            steps=sim.steps,
            steps_done=self._samples.done.get(sim.id, 0),
            gpu_s=dict(sorted(job.gpu_s.items())),
            suspends=job.suspends,
            migrations=job.migrations,
            restarts=job.restarts,
            lost_gpu_s=job.lost_gpu_s,
        )


def _said(command: HostCommand) -> str:
    name = type(command).__name__.lower()
    wanted = getattr(command, "wanted", None)
    job = wanted.job if wanted is not None else getattr(command, "job", "")
    epoch = wanted.epoch if wanted is not None else getattr(command, "epoch", "")
    tier = getattr(command, "tier", None) or getattr(command, "why", None)
    return f"{name} {job}:{epoch}" + (f" ({tier})" if tier else "") if job != "" else name
