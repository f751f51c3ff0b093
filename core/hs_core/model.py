"""The nouns. Frozen facts; changed with `dataclasses.replace`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase

from hs_core.ages import Ages, Stage
from hs_core.forms import Elastic, Form, NoiseScale, Shape, Spread, strategy_of
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.newest import Kept
from hs_core.reports import Exit, JobReport, as_one, copies_as_one
from hs_core.strategy import Strategy


class Migrate(StrEnum):
    AUTO = "auto"
    SAME_TYPE = "same-type"
    NEVER = "never"


class MoveReason(StrEnum):
    """Why a job leaves its servers for others."""

    BALANCE = "balance"  # ticket load between servers of one pool
    PACKING = "packing"  # GPUs would idle beside a gang
    POOL = "pool"  # it, or its user's other jobs, run better in another pool (also after a trade)
    DRAIN = "drain"  # an administrator wants the server empty
    ROUND = "round"  # the policy hands the GPUs out anew each round
    TROUBLE = "trouble"  # its server cannot start it again
    PROFILE = "profile"  # its class is to be measured on another GPU model
    SHAPE = "shape"  # it runs better, or lets others, on another number of GPUs or in another strategy


class Topology(StrEnum):
    """Over how many servers a job may be laid (`--topology`)."""

    AUTO = "auto"  # as many as it asks for
    ANY = "any"  # in equal parts over any number, where its GPUs are free so


class SuspendMode(StrEnum):
    """How the user lets us suspend the job (`--suspend`)."""

    AUTO = "auto"  # hook if the script can be hooked, else freezer
    HOOK = "hook"
    TRANSPARENT = "transparent"  # never hooked: freezer (CRIU where configured)
    NONE = "none"  # never suspended: runs unsliced within its user's share


class OnPartition(StrEnum):
    FENCE = "fence"
    CONTINUE = "continue"


class AfterCondition(StrEnum):
    OK = "ok"  # the other job succeeded
    ANY = "any"  # it ended, whatever the outcome
    FAIL = "fail"  # it failed


class JobState(StrEnum):
    """A job's life as users see it (docs/states.md is drawn from `cluster.TRANSITIONS`)."""

    QUEUED = "queued"  # not placed on a host
    STARTING = "starting"  # placed; its process is coming up ahead of its turn, or soon
    RUNNING = "running"  # in its turn, from the start of its process on
    SUSPENDED = "suspended"  # placed, waiting for its turn
    PAUSED = "paused"  # by its owner
    CANCELLING = "cancelling"  # told to end, not gone yet
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in ENDED_STATES


ENDED_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    job: JobId
    condition: AfterCondition = AfterCondition.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What a user asked for. Immutable for the job's life."""

    name: str
    command: tuple[str, ...]  # argv, run as it is: no shell
    gpus: int = 1  # per node: the gang size where nodes == 1
    nodes: int = 1
    gpu_types: tuple[str, ...] = ()  # models the job may use, e.g. ("V100",); empty: any
    gpu_memory_bytes: int = 0  # per GPU; 0: unknown, measured when it runs
    gpu_memory_fixed_bytes: int = (
        0  # of these, what does not shrink with the batch (weights, optimizer); 0: all
    )
    cpus: int = 0  # 0: not limited
    memory_bytes: int = 0  # host memory; 0: not limited
    max_duration_s: float = 0.0  # of running time (turns received), 0: no limit
    priority: int = 0  # among one user's own jobs
    after: tuple[After, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    output: str = ""  # also written here, opened as the user; empty: agent's log only
    torchrun: bool = False  # start `gpus` ranks through torchrun
    migrate: Migrate = Migrate.AUTO
    topology: Topology = Topology.AUTO
    suspend: SuspendMode = SuspendMode.AUTO
    on_partition: OnPartition = OnPartition.CONTINUE
    retry_max: int = 0  # restarts after a failure
    checkpoint_dir: str = (
        ""  # the job's own, in the folder that its user named; empty: in the agent's state folder
    )
    checkpoint_interval_s: float = 0.0  # 0: only when suspended to disk
    job_class: str = ""  # jobs with the same performance; empty: made from user and command
    steps: int = 0  # mini-batches in all, as the user expects; 0: not said
    accumulation_max: int = (
        1  # sub-batches into which its training loop can split a mini-batch when told to, at most
    )
    elastic: Elastic | None = None  # None: always on `gpus` GPUs
    strategies: tuple[
        Strategy, ...
    ] = ()  # that its script can do, the user's own choice first; empty: the script's own
    dataset: str = ""  # the data that its script reads, by a name that its users agree on; empty: not said
    dataset_bytes: int = 0  # how much that is; 0: not said
    array_id: JobId | None = None  # first job of the array
    array_index: int | None = None
    array_limit: int = 0  # at most so many of the array live at once; 0: no limit

    @property
    def gang(self) -> int:
        """GPUs the job needs at once, all or nothing."""
        return self.gpus * self.nodes


def gpus_as(spec: JobSpec, form: Form | None) -> int:
    """GPUs on each of its servers, where it runs so; None: as declared."""
    if form is None:
        return spec.gpus
    if isinstance(form, Spread):
        return spec.gang // form.nodes
    return form.per_node if isinstance(form, Shape) else spec.gpus


def nodes_as(spec: JobSpec, form: Form | None) -> int:
    """Its servers, where it runs so; None: as declared."""
    if form is None:
        return spec.nodes
    return form.nodes if isinstance(form, Spread | Shape) else spec.nodes


def spans(spec: JobSpec) -> bool:
    """It is elastic, and each of its shapes may be over any number of servers."""
    return spec.elastic is not None and spec.topology is Topology.ANY


def spreads(spec: JobSpec) -> tuple[int, ...]:
    """Numbers of servers over which it may be laid when it is placed first, the fewest first; empty: as many as it asks for, or as its shape says."""
    if spec.topology is not Topology.ANY or spec.elastic is not None:
        return ()
    return tuple(nodes for nodes in range(1, spec.gang + 1) if spec.gang % nodes == 0)


def strategy_as(spec: JobSpec, form: Form | None) -> Strategy | None:
    """The strategy in which it runs so: the first that it declared where nobody chose."""
    return strategy_of(form) or (spec.strategies[0] if spec.strategies else None)


def split_memory(whole_bytes: int, fixed_bytes: int, parts: int) -> int:
    """Bytes per GPU of a job that works through its mini-batches in so many parts; `fixed_bytes` 0: nothing shrinks."""
    fixed = fixed_bytes or whole_bytes
    return fixed + -(-(whole_bytes - fixed) // parts)


LEAST_SLOWDOWN, MOST_SLOWDOWN = 0.01, 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """How fast a GPU is among those of its model, as an administrator says."""

    job_class: str  # glob
    times: (
        float  # as long a mini-batch takes on it as on the middling one; `LEAST_SLOWDOWN` to `MOST_SLOWDOWN`
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    id: GpuId
    index: int  # on its host
    model: str  # "V100"
    memory_bytes: int
    healthy: bool = True
    why_unhealthy: str = ""
    slowdowns: tuple[Slowdown, ...] = ()  # the first that matches a job's class counts; none: 1

    def slowdown(self, job_class: str) -> float:
        """For jobs of that class, as is said of it."""
        found = (said.times for said in self.slowdowns if fnmatchcase(job_class, said.job_class))
        return next(found, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Data that jobs read: who comes after another one that did finds it on the server."""

    name: str
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """An administrator wants it empty: nothing new comes, what is there leaves by migration."""

    by: str
    since_s: float  # wall clock
    reason: str = ""
    deadline_s: float | None = None  # wall clock; what has not left by then is ended and queued again


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A server: GPUs of one model (its pool)."""

    name: HostName
    boot_id: str
    gpus: tuple[Gpu, ...]
    warnings: tuple[str, ...] = ()
    version: str = ""
    peer: str = ""  # where its agent serves other agents ("10.0.0.2:7444"); empty: nowhere, so no job spans or leaves it
    memory_bytes: int = 0  # for all its jobs together, as its agent said when it came; 0: not known
    # An administrator's words: kept by the controller, not the agent's to say.
    drain: Drain | None = None
    drained_gpus: frozenset[GpuId] = frozenset()
    datasets: tuple[Dataset, ...] = ()  # that jobs have read there, as the controller remembers; newest last

    @property
    def model(self) -> str:
        return self.gpus[0].model

    @property
    def schedulable(self) -> bool:
        return self.drain is None

    @property
    def healthy_gpus(self) -> tuple[Gpu, ...]:
        """Those that jobs may use: in health, and not drained."""
        return tuple(g for g in self.gpus if g.healthy and g.id not in self.drained_gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    name: UserName
    tickets: float = 100.0
    run_as: str = ""  # operating system account; empty: the account of the same name


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A migration under way, before its point of no return: the job still belongs to where it is."""

    to: tuple[HostName, ...]  # by node rank
    reason: MoveReason
    since_s: float
    text: str = ""  # for people: why
    shape: Form | None = None  # there; None: as declared
    portions: tuple[
        int, ...
    ] = ()  # it is to train there as copies: weights by which the mini-batches that are left are divided among them


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What one copy of a job did of an epoch, and the checkpoint that holds it."""

    copy: int  # its rank among them
    generation: int
    steps: int  # since its epoch began


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The newest committed checkpoint of a job, and which servers have its files (by node rank, unless `ranks` says otherwise; one may have several parts)."""

    hosts: tuple[
        HostName, ...
    ]  # empty: those that had it are lost, and it is looked for in the folder that the user named
    epoch: int  # of the incarnation that wrote it
    generation: int  # of copies: the number that their average gets
    step: int
    copies: tuple[
        Copied, ...
    ] = ()  # by server: it is the average of these, weighted by their steps; empty: one checkpoint
    ranks: tuple[
        int, ...
    ] = ()  # by server, where other servers of it are lost: the node that wrote what it has …
    of: int = 0  # … of so many
    surpassed: bool = False  # perhaps, by an incarnation that nobody heard, in the folder that the user named, or of which its server has no memory; what lies there goes before this, which may be gone

    also: tuple[
        HostName, ...
    ] = ()  # by server, another of them that has the same part as well, or "" where none has; empty: none has any

    @property
    def in_folder(self) -> bool:
        """Not on a server that is known to have it: it may be where the user has its checkpoints, if other servers see that too."""
        return not self.hosts

    @property
    def is_unknown(self) -> bool:
        """Any that is found in the folder that the user named, if there is one: nobody was heard to have written it."""
        return self.in_folder and (self.generation, self.step) == (0, 0)

    @property
    def where(self) -> str:
        """For people."""
        return f"on {', '.join(self.servers)}" if self.hosts else "in the folder that its user named"

    @property
    def nodes(self) -> int:
        """Over how many it was written."""
        return self.of or len(self.hosts)

    @property
    def servers(self) -> tuple[HostName, ...]:
        """For people: each once."""
        return tuple(dict.fromkeys(self.hosts))

    def rank(self, at: int) -> int:
        """The node that wrote what the server has that comes at this place."""
        return self.ranks[at] if self.ranks else at

    def is_at(self, home: tuple[HostName, ...]) -> bool:
        """All of it, and each part where its node lives."""
        return self.hosts == home and not self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """How often a job was suspended and resumed, and how long that took."""

    suspends: int = 0
    resumes: int = 0
    suspend_s: float = 0.0
    resume_s: float = 0.0

    @classmethod
    def of(cls, report: JobReport | None) -> "Switches":
        if report is None:
            return _NONE
        return cls(
            suspends=report.suspends,
            resumes=report.resumes,
            suspend_s=report.suspend_s,
            resume_s=report.resume_s,
        )

    def __add__(self, other: "Switches") -> "Switches":
        return Switches(
            suspends=self.suspends + other.suspends,
            resumes=self.resumes + other.resumes,
            suspend_s=self.suspend_s + other.suspend_s,
            resume_s=self.resume_s + other.resume_s,
        )

    def __sub__(self, other: "Switches") -> "Switches":
        return Switches(
            suspends=self.suspends - other.suspends,
            resumes=self.resumes - other.resumes,
            suspend_s=self.suspend_s - other.suspend_s,
            resume_s=self.resume_s - other.resume_s,
        )


_NONE = Switches()
_STAGES = {
    JobState.QUEUED: Stage.WAITING,
    JobState.SUSPENDED: Stage.WAITING,
    JobState.STARTING: Stage.STARTING,
    JobState.RUNNING: Stage.RUNNING,
    JobState.PAUSED: Stage.PAUSED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The controller's row for a job."""

    id: JobId
    user: UserName
    spec: JobSpec
    arrival_s: float  # wall clock, for display and order of arrival
    state: JobState = JobState.QUEUED
    epoch: int = 0  # grows whenever a new incarnation may be started
    restarts: int = (
        0  # incarnations before this one: by one each time, where the epoch leaps when a backup is put back
    )
    hosts: tuple[HostName, ...] = ()  # home, once placed: one server per node, by node rank
    gpu_models: tuple[str, ...] = ()  # of the home by node rank (of the last one, where there is none now)
    reports: Mapping[HostName, JobReport] = field(default_factory=dict)  # newest of the current epoch
    move: Move | None = None  # leaving its home for another
    stored: Stored | None = None  # a checkpoint made before the current epoch that its start goes on from
    origin: Stored | None = (
        None  # what its parts went on from, where they changed places: each of their servers has parts that it does not use
    )
    portions: tuple[
        int, ...
    ] = ()  # it trains as copies, one on each of its servers, each with so many mini-batches to do in this epoch, by rank; empty: it does not
    base_step: int = 0  # mini-batches done where its copies began
    accumulation: int = 1  # sub-batches of each mini-batch, since it was last started
    shape: Form | None = None  # that it has at its home; None: as declared
    noise: NoiseScale | None = (
        None  # of an elastic job, newest that was measured well enough; None: as declared
    )
    migrations: int = 0
    state_bytes: int = 0  # of its newest checkpoint that was weighed, on all of its servers, whichever incarnation wrote it; of copies: of one; 0: none was
    unconfirmed: tuple[
        HostName, ...
    ] = ()  # homes that it was taken from before they started it, and that may not know that yet
    given_up: tuple[
        "Job", ...
    ] = ()  # incarnations that may have gone on unheard since, as they were: `cluster.given_up`
    left_behind: tuple[
        "Job", ...
    ] = ()  # and the last round of copies that ended without one that was cut off
    settled_s: float = 0.0  # when it was placed or last moved, and its checkpoint had come along
    past_gpu_s: float = 0.0  # of earlier epochs
    past_gpu_s_by_model: Mapping[str, float] = field(default_factory=dict)  # the same, by GPU model
    past_run_s: float = 0.0
    past_lost_gpu_s: float = 0.0
    past_switches: Switches = _NONE
    ages: Ages | None = None  # until its last change; None: it has been waiting since it came
    first_run_s: float | None = None  # wall clock
    ended_s: float | None = None
    exit: Exit | None = None
    retries: int = 0
    paused: bool = False  # by its owner
    cancelled_by: str = ""

    @property
    def forked(self) -> bool:
        """It trains as copies that are averaged."""
        return bool(self.portions)

    @property
    def elastic(self) -> Elastic | None:
        """What it allows, with the noise scale that was measured, if one was."""
        said = self.spec.elastic
        return said if said is None or self.noise is None else replace(said, noise_scale=self.noise.examples)

    @property
    def gpus(self) -> int:
        """On each of its servers."""
        return gpus_as(self.spec, self.shape)

    @property
    def gang(self) -> int:
        """GPUs it needs at once, in the shape that it has."""
        return self.gpus * self.nodes

    @property
    def laid(self) -> JobSpec:
        """What was asked for, over the servers that it has."""
        if self.nodes == self.spec.nodes:
            return self.spec
        return replace(self.spec, nodes=self.nodes, gpus=self.gpus)

    @property
    def nodes(self) -> int:
        """Servers that it needs at once."""
        return nodes_as(self.spec, self.shape)

    @property
    def strategy(self) -> Strategy | None:
        """That it runs in; None: it declared none."""
        return strategy_as(self.spec, self.shape)

    @property
    def host(self) -> HostName | None:
        """Its first server: node rank 0."""
        return self.hosts[0] if self.hosts else None

    @property
    def report(self) -> JobReport | None:
        """Its servers' reports as one; None until one of them has said something."""
        if len(self.hosts) == 1 and not self.portions:
            return self.reports.get(self.hosts[0])
        return self.report_of(self.reports)

    def report_of(self, reports: Mapping[HostName, JobReport]) -> JobReport | None:
        """What it would be if they had said this."""
        if self.portions:
            said = tuple(reports[host] for host in self.hosts if host in reports)
            return _copies_as_one(said, len(self.hosts), self.base_step)
        if len(self.hosts) == 1:
            return reports.get(self.hosts[0])
        return _parts_as_one(tuple(reports[host] for host in self.hosts if host in reports), len(self.hosts))

    @property
    def gpu_s(self) -> float:
        """GPU-seconds received over all incarnations."""
        report = self.report
        return self.past_gpu_s if report is None else self.past_gpu_s + report.gpu_s

    @property
    def switches(self) -> Switches:
        """Over all incarnations."""
        return self.past_switches + Switches.of(self.report)

    @property
    def stage(self) -> Stage:
        """That it is in, or was in at its end."""
        if self.state is JobState.SUSPENDED and self.move is not None:
            return Stage.LEAVING
        return _STAGES.get(self.state, Stage.ENDING)

    def ages_at(self, now_s: float) -> Ages:
        """Until its end, where it has ended."""
        ages = self.ages or Ages(until_s=self.arrival_s)
        return ages if self.state.ended else ages.after(self.stage, now_s)

    @property
    def gpu_model(self) -> str:
        """For people: `V100`, or `K80+V100` where its servers have several."""
        models = self.gpu_models
        return models[0] if len(models) == 1 else "+".join(sorted(set(models)))

    @property
    def now_gpu_s_by_model(self) -> Mapping[str, float]:
        """GPU-seconds of the current epoch: no rank changes its model within one."""
        if not self.reports:
            return {}
        if len(self.hosts) == 1 and (report := self.reports.get(self.hosts[0])) is not None:
            (model,) = self.gpu_models
            return {model: report.gpu_s}
        found: dict[str, float] = {}
        for host, model in zip(self.hosts, self.gpu_models, strict=True):
            if (report := self.reports.get(host)) is not None:
                found[model] = found.get(model, 0.0) + report.gpu_s
        return found

    @property
    def gpu_s_by_model(self) -> Mapping[str, float]:
        """GPU-seconds received over all incarnations, by GPU model."""
        found = dict(self.past_gpu_s_by_model)
        for model, gpu_s in self.now_gpu_s_by_model.items():
            found[model] = found.get(model, 0.0) + gpu_s
        return found

    @property
    def step(self) -> int:
        """Of one that has not taken up the checkpoint that it goes on from: of that, which its process can't tell before."""
        report, stored = self.report, self.stored
        if report is None:
            return stored.step if stored is not None else self.base_step
        if stored is not None and not self.portions:
            return max(report.step, stored.step)
        return report.step


# Asked for a dozen times between two reports.
_parts_as_one = Kept[JobReport, JobReport | None](lambda reports, nodes, _: as_one(reports, nodes))
_copies_as_one = Kept[JobReport, JobReport | None](copies_as_one)
