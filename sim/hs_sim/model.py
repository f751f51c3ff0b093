"""The nouns of a simulation: what is simulated, at what cost, and what came of it. Frozen; times in seconds, memory in bytes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hs_core.forms import Elastic, Form, strategy_of
from hs_core.mechanism.goodput import Speed
from hs_core.model import JobSpec, Migrate, Topology, nodes_as, spreads
from hs_core.names import UserName
from hs_core.policy import Profiling
from hs_core.strategy import Strategy, class_as


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Servers of one GPU model."""

    model: str
    servers: int
    gpus_per_server: int
    gpu_memory_bytes: int = 32 << 30
    memory_bytes: int = 0  # of each server; 0: enough for all
    slowdowns: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Job class (glob; the first that matches counts) → how many times as long a mini-batch takes on each GPU, server by server, as on the middling one."""

    @property
    def gpus(self) -> int:
        return self.servers * self.gpus_per_server


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    pools: tuple[Pool, ...]
    dataset_cache_bytes: int = 0  # of each server, for data sets that jobs have read; 0: not limited


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of a job's life: from that epoch on it trains with another batch size, so as another class, in fewer or more steps."""

    job_class: str
    from_epoch: int
    epoch_steps: int  # mini-batches of one epoch


class Growth(StrEnum):
    """How a job goes from one of its stages to others."""

    JUMP = "jump"  # to the one of the epoch that it has reached (Accordion)
    CLIMB = "climb"  # to the next, an epoch ahead (gradient noise scale: batches double)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """One job of a workload. `id` is its place in the order of arrival, from 1: the id it gets in the system too."""

    id: int
    user: UserName
    arrival_s: float
    steps: int  # mini-batches it has to do
    job_class: str  # key into Workload.rates
    gpus: int = 1  # per node
    nodes: int = 1
    gpu_types: tuple[str, ...] = ()
    gpu_memory_bytes: int = 0
    gpu_memory_fixed_bytes: int = 0  # of these, what does not shrink with the batch; 0: all
    memory_bytes: int = 0  # that each of its servers must have
    accumulation_max: int = 1  # sub-batches that a mini-batch can be split into, at most
    dataset: str = ""  # that its script reads: the first on a server fetches it
    dataset_bytes: int = 0
    state_bytes: int = 0  # of a checkpoint; what switching and moving cost follows from it
    migrate: Migrate = Migrate.AUTO
    sliceable: bool = True
    priority: int = 0
    stages: tuple[
        Stage, ...
    ] = ()  # the first is that of `job_class`, from epoch 0; () if the batch size stays
    growth: Growth = Growth.JUMP
    elastic: Elastic | None = (
        None  # its `steps` are mini-batches of its own size, and its class has `Workload.speeds`
    )
    noise_scale: float = 0.0  # that an elastic job's gradients really have; 0: as it declares
    strategies: tuple[
        Strategy, ...
    ] = ()  # that its script can do; rates are those of its class as each of them (`variant`)
    topology: Topology = Topology.AUTO
    line: int = field(default=0, compare=False)  # of the file that it was read from

    @property
    def gang(self) -> int:
        return self.gpus * self.nodes

    def variant(self, form: Form | None) -> str:
        """Key into `Workload.rates` of how it runs; None: as its user would."""
        if not self.strategies:
            return self.job_class
        return class_as(self.job_class, strategy_of(form) or self.strategies[0])

    def nodes_in(self, form: Form | None) -> int:
        """Servers over which it is, where it runs so; None: as its user would."""
        return nodes_as(self.spec(), form)

    @property
    def spreads(self) -> tuple[int, ...]:
        """Numbers of servers over which it may be laid; empty: over `nodes`."""
        return spreads(self.spec()) if self.topology is Topology.ANY else ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Keys into `Workload.rates` of all that it may come to; the first is how it begins."""
        if self.strategies:
            return tuple(map(self.variant, self.strategies))
        return (self.job_class, *(stage.job_class for stage in self.stages))

    @property
    def truly(self) -> Elastic | None:
        """What it allows, with the noise scale that it really has."""
        if self.elastic is None or not self.noise_scale:
            return self.elastic
        return replace(self.elastic, noise_scale=self.noise_scale)

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """(class, mini-batches) of its life, in order."""
        if not self.stages:
            return ((self.variant(None), float(self.steps)),)
        epochs = self.steps / self.stages[0].epoch_steps
        ends = [*(stage.from_epoch for stage in self.stages[1:]), math.inf]
        return tuple(
            (stage.job_class, (min(end, epochs) - stage.from_epoch) * stage.epoch_steps)
            for stage, end in zip(self.stages, ends, strict=True)
            if stage.from_epoch < epochs
        )

    def spec(self) -> JobSpec:
        """As its user would have submitted it."""
        return JobSpec(
            name=f"sim-{self.id}",
            command=("sim",),
            gpus=self.gpus,
            nodes=self.nodes,
            gpu_types=self.gpu_types,
            gpu_memory_bytes=self.gpu_memory_bytes,
            gpu_memory_fixed_bytes=self.gpu_memory_fixed_bytes,
            memory_bytes=self.memory_bytes,
            accumulation_max=self.accumulation_max,
            dataset=self.dataset,
            dataset_bytes=self.dataset_bytes,
            migrate=self.migrate,
            priority=self.priority,
            job_class=self.job_class,
            steps=self.steps,
            elastic=self.elastic,
            strategies=self.strategies,
            topology=self.topology,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedChange:
    """From then on jobs of the class are so fast on the model: another phase of training, another batch size."""

    at_s: float
    job_class: str
    model: str
    steps_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """How public simulators of one family differ, as far as results depend on it."""

    name: str
    reset_s: float  # least time between two allocations
    restart_s: float = 0.0  # lost of its round by who did not run in the one before
    spared_s: float = 0.0  # a round that would end so much early loses nothing


GAVEL = Peer(name="gavel", reset_s=1_920.0)
SHOCKWAVE = Peer(name="shockwave", reset_s=1_000.0, restart_s=20.0, spared_s=5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    jobs: tuple[SimJob, ...]  # by arrival
    tickets: Mapping[UserName, float]  # of every user
    rates: Mapping[tuple[str, str], float]  # (job class, GPU model) → mini-batches a second of the whole gang
    changes: tuple[SpeedChange, ...] = ()  # of `rates`, by time
    interference: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    """(job class, class beside it on its GPUs, GPU model) → how many times as long its mini-batches take, at least 1."""
    spread: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(job class, GPU model) → the part of its rate that is left to a gang over several servers; 1 where it is not said."""
    speeds: Mapping[tuple[str, str], Speed] = field(default_factory=dict)
    """(class of elastic jobs, GPU model) → what their mini-batches take on other numbers of GPUs and of other sizes; `rates` are as declared."""
    source: str = ""  # where it comes from: generator and seed, or file
    skipped: tuple[str, ...] = ()  # jobs that were left out, and why
    unnamed: tuple[UserName, ...] = ()  # users with jobs whom a file that names users does not name
    peer: Peer = GAVEL  # in whose world gavel_compat puts it

    def rate(self, job_class: str, model: str, nodes: int) -> float:
        """Mini-batches a second of a whole gang over so many servers; 0: it does not run there."""
        rate = self.rates.get((job_class, model), 0.0)
        return rate if nodes == 1 else rate * self.spread.get((job_class, model), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What switching costs. Defaults: held on the GPU, PCIe gen3 (Gandiva_fair, 4: 100-250 ms)."""

    suspend_s: float = 0.1  # of a turn's end, GPUs not yet free
    resume_s: float = 0.05  # of a turn's beginning, not yet training
    start_s: float = 10.0  # process, imports, device context; ahead of the turn where there is room
    swap_bytes_per_s: float = 10e9  # of a GPU's memory to its host's, and back
    checkpoint_bytes_per_s: float = 1e9  # written, and read again
    network_bytes_per_s: float = 1.25e9  # between two servers, and from where data sets are

    def begin_s(self, job: SimJob) -> float:
        """Of a process of the job, from a checkpoint, on a server that lacks its data: seconds at most."""
        return (
            self.start_s
            + job.state_bytes / self.checkpoint_bytes_per_s
            + job.dataset_bytes / self.network_bytes_per_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Of measured rates. 0: a report says what is true."""

    rate_cv: float = 0.0  # coefficient of variation of each reported rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """All that a run depends on: same experiment, same bytes out."""

    cluster: ClusterSpec
    workload: Workload
    policy: str = "gandiva-fair"
    quantum_s: float = 60.0
    seed: int = 0
    costs: Costs = field(default_factory=Costs)
    noise: Noise = field(default_factory=Noise)
    until_s: float | None = None  # None: until every job has ended
    sample_s: float = 0.0  # how often series are sampled; 0: every quantum
    rounds: bool = (
        False  # decisions at edges only: who comes waits for the next, who ends leaves GPUs idle till then
    )
    compat: bool = False  # policies as in Gavel's simulator, where that differs
    known_rates: bool = False  # policies know every class's rate on every model from the beginning
    interference: float = 1.5  # of two jobs on one GPU, where the workload does not say
    profiling: Profiling = field(default_factory=Profiling)  # runs of policies that have them
    migrations_per_hour: float = 240.0  # of started jobs, as a controller is configured; inf: not limited


def gavel_compat(experiment: Experiment) -> Experiment:
    """As Gavel's simulator has the world: nothing costs time, everything is decided at the edges of rounds, speeds are known, and gangs over
    several servers are as fast as on one."""
    free = Costs(
        suspend_s=0.0,
        resume_s=0.0,
        start_s=0.0,
        swap_bytes_per_s=math.inf,
        checkpoint_bytes_per_s=math.inf,
        network_bytes_per_s=math.inf,
    )
    workload = replace(experiment.workload, spread={})
    return replace(
        experiment,
        workload=workload,
        costs=free,
        rounds=True,
        compat=True,
        known_rates=True,
        migrations_per_hour=math.inf,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    id: int
    user: UserName
    gang: int
    arrival_s: float
    started_s: float | None  # first in its turn
    ended_s: float | None  # None: not ended when the run did
    steps: int  # all that it has to do
    steps_done: int  # until it ended, or the run did
    gpu_s: Mapping[str, float]  # by GPU model
    suspends: int = 0
    migrations: int = 0
    restarts: int = 0
    lost_gpu_s: float = 0.0

    @property
    def jct_s(self) -> float | None:
        return None if self.ended_s is None else self.ended_s - self.arrival_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Mean over the time since the sample before."""

    at_s: float
    gpus: Mapping[tuple[UserName, str], float]  # (user, model) → GPUs received
    entitled: Mapping[tuple[UserName, str], float]
    steps_per_s: Mapping[UserName, float]  # of all of its jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    experiment: Experiment
    depth: str  # "machines" | "quanta"
    jobs: tuple[JobOutcome, ...]  # by id
    samples: tuple[Sample, ...]
    ended_s: float
    quanta: int
    decisions: int
    decision_s_mean: float = 0.0  # measured, so not a part of what is compared byte by byte
    decision_s_max: float = 0.0
    cpu_s: float = 0.0
    messages: int = 0  # depth machines
    trades: tuple[Mapping[str, object], ...] = ()  # as `hsctl trades --json` prints them
