"""What a user asks for, and what follows from that in each form in which a job may run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hs_core.forms import Elastic, Form, Shape, Spread, strategy_of
from hs_core.names import JobId
from hs_core.strategy import Strategy


class Migrate(StrEnum):
    AUTO = "auto"
    SAME_TYPE = "same-type"
    NEVER = "never"


class Topology(StrEnum):
    """Over how many servers a job may be laid (`--topology`)."""

    AUTO = "auto"  # as many as it asks for
    ANY = "any"  # in equal parts over any number, where its GPUs are free so


class SuspendMode(StrEnum):
    """How the user lets us suspend the job (`--suspend`)."""

    AUTO = "auto"  # hook if the script can be hooked, else freezer
    HOOK = "hook"
    TRANSPARENT = "transparent"  # never hooked: the cgroup freezer
    NONE = "none"  # never suspended: runs unsliced within its user's share


class OnPartition(StrEnum):
    FENCE = "fence"
    CONTINUE = "continue"


class AfterCondition(StrEnum):
    OK = "ok"  # the other job succeeded
    ANY = "any"  # it ended, whatever the outcome
    FAIL = "fail"  # it failed


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


def may_run_as(spec: JobSpec, form: Form | None) -> bool:
    """It allows that; None: as declared."""
    strategy = strategy_of(form)
    if strategy is not None and strategy not in spec.strategies:
        return False
    if isinstance(form, Spread):
        return form.nodes in spreads(spec)
    if isinstance(form, Shape):
        return spec.elastic is not None and spec.elastic.allows(form) and (form.nodes == 1 or spans(spec))
    return True


def split_memory(whole_bytes: int, fixed_bytes: int, parts: int) -> int:
    """Bytes per GPU of a job that works through its mini-batches in so many parts; `fixed_bytes` 0: nothing shrinks."""
    fixed = fixed_bytes or whole_bytes
    return fixed + -(-(whole_bytes - fixed) // parts)
