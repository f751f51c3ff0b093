"""A server, its GPUs, and what an administrator says of them."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from hs_core.names import GpuId, HostName

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
    setup: str = ""  # drawn when its agent's state folder was made: with another one than before, nothing is left of what lay there; empty: not known
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
