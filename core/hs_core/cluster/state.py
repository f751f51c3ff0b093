"""What the controller's mind is set to, what of it is durable, and what one event comes to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from hs_core.events.cluster import ClusterCommand
from hs_core.facts import Fact
from hs_core.model import Host, Job, User
from hs_core.names import HostName, JobId, UserName
from hs_core.policy import Memory, Profiling

KiB, MiB = 1 << 10, 1 << 20
FIRST_JOB = JobId(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one spec and one request; what is beyond them is a mistake or an attack."""

    jobs_per_request: int = 4096
    spec_bytes: int = 256 * KiB
    argv_words: int = 4096
    env_names: int = 512
    name_chars: int = 128
    path_chars: int = 4096
    gpus: int = 1024
    after: int = 1000  # all of an array
    gpu_types: int = 16
    cpus: int = 4096
    memory_bytes: int = 1 << 50
    dataset_bytes: int = 1 << 60
    duration_s: float = 10 * 366 * 86_400.0
    priority: int = 1000
    retries: int = 1000
    array_index: int = 1_000_000
    tickets: float = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    quantum_s: float = 60.0
    seed: int = 0
    default_tickets: float = 100.0
    outlives_policy: bool = (
        False  # a policy that fails is told of, and what it said last stands; else it ends who asked
    )
    decides_apart: bool = False  # the policy is asked beside the machine, which goes on meanwhile (Consult)
    max_jobs: int = 20_000  # that have not ended
    max_jobs_per_user: int = 10_000
    max_spec_bytes_per_user: int = 64 * MiB  # of those of theirs that have not ended
    keep_ended: int = 10_000  # newest ended jobs held in memory; the journal keeps them all
    keep_ended_bytes: int = 64 * MiB  # of their specs
    story_facts: int = 64  # newest facts held per job
    settle_s: float = (
        0.1  # decisions are at least so far apart, so that a burst of submits costs a few of them
    )
    settle_s_per_job: float = (
        2e-5  # so much longer for each live job: deciding costs more where there are more
    )
    lease_s: float = 10.0  # the controller takes over so much later than a host that was cut off lets go
    fence_after_s: float = (
        60.0  # without a word for so long, a host ends the jobs that said `fence`; 0: never
    )
    migrations_per_hour: float = (
        240.0  # of jobs that have started; what an administrator drains is not counted
    )
    move_deadline_s: float = 120.0  # a job that has not written its checkpoint by then stays where it is
    checkpoint_interval_s: float = (
        0.0  # of jobs that say none; 0: these save only when they are suspended to disk
    )
    grant_key: str = ""  # what grants between agents are made from: a secret of the controller's
    max_classes: int = 10_000  # job classes whose rates are remembered
    dataset_cache_bytes: int = 0  # of data sets that stay on a server; 0: not limited
    profiling: Profiling = field(default_factory=Profiling)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not 0 < self.quantum_s < float("inf"):
            raise ValueError(f"quantum_s: {self.quantum_s} is not a positive number of seconds")
        if not 0 <= self.settle_s <= self.quantum_s:
            raise ValueError(
                f"settle_s: {self.settle_s} is not between 0 and the quantum of {self.quantum_s}"
            )
        for name in (
            "settle_s_per_job",
            "lease_s",
            "fence_after_s",
            "migrations_per_hour",
            "checkpoint_interval_s",
        ):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name}: {getattr(self, name)} is not a number of 0 or more")
        if not 0 < self.move_deadline_s < float("inf"):
            raise ValueError(f"move_deadline_s: {self.move_deadline_s} is not a positive number of seconds")
        if not 0 < self.default_tickets <= self.limits.tickets:
            raise ValueError(
                f"default_tickets: {self.default_tickets} is not between 0 and {self.limits.tickets}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that survives the controller.

    Of ended jobs only those that live ones wait for (`spec.after`) are needed; the others may be left out when it is
    loaded, and given back with `ClusterMachine.recall` when a new job names one of them.
    """

    jobs: Mapping[JobId, Job] = field(default_factory=dict)
    users: Mapping[UserName, User] = field(default_factory=dict)
    hosts: Mapping[HostName, Host] = field(default_factory=dict)  # as last known
    next_job_id: JobId = FIRST_JOB
    term: int = 0
    quantum: int = 0  # quanta since the first start
    memory: Memory = field(default_factory=dict)  # the policy's
    budget: tuple[float, float] | None = None  # migrations that were left, and when; None: none was ever made
    profile: list[Any] = field(default_factory=list)  # measured rates, as `hs_core.profile` dumps them
    gpu_speeds: list[Any] = field(default_factory=list)  # and by GPU, as `hs_core.speeds` does
    first_epoch: int = 0  # of incarnations that begin from now on: above all that there ever were
    restored: bool = False  # it is a backup, and not all hosts have said yet what became of it since
    unknown: tuple[JobId, JobId] = (
        FIRST_JOB,
        FIRST_JOB,
    )  # numbers of jobs that may have been submitted since the backup was made: from the first to before the second
    taken_up: frozenset[JobId] = frozenset()  # of those, who went on as their servers told of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """The rows that an event changed: written before it is answered and before its commands are performed."""

    jobs: frozenset[JobId] = frozenset()
    users: frozenset[UserName] = frozenset()  # one that is no longer known was removed
    hosts: frozenset[HostName] = frozenset()  # one that is no longer known was removed
    meta: bool = False  # next_job_id, term, quantum, memory, budget, restored or taken_up
    profile: bool = False  # measured rates: to be written now and then, and worth no commit of its own

    def __bool__(self) -> bool:
        return bool(self.jobs or self.users or self.hosts or self.meta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    commands: tuple[ClusterCommand, ...] = ()
    facts: tuple[Fact, ...] = ()
    answer: tuple[JobId, ...] = ()  # the jobs that a request was about, in its order
    touched: Touched = field(default_factory=Touched)
