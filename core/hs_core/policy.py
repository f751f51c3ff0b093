"""What a policy sees and says. A policy is a function of a snapshot and its own memory; nobody parses its name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from hs_core.events import Turn
from hs_core.model import HostName, JobId, UserName

Memory = Mapping[str, Any]
"""JSON-able; journalled with the decision. A policy gets back what it returned last, {} at first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """A job that could run now (not paused, not blocked by another job, not ending)."""

    id: JobId
    user: UserName
    gang: int
    arrival_s: float
    priority: int = 0
    gpu_types: tuple[str, ...] = ()
    gpu_memory_bytes: int = 0
    job_class: str = ""
    host: HostName | None = None  # home; None: not placed yet
    started: bool = False  # has a process: it stays at home unless it can move
    running: bool = False  # in its turn right now
    attained_gpu_s: float = 0.0
    sliceable: bool = True  # False: once started it runs to its end


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    name: HostName
    model: str
    gpus: int  # healthy ones
    gpu_memory_bytes: int  # of the smallest
    connected: bool = True
    accepts: bool = True  # False: drained, takes no new jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    now_s: float
    quantum_s: float
    quantum: int  # quanta since the controller's first start
    hosts: tuple[HostFacts, ...]
    jobs: tuple[JobFacts, ...]
    tickets: Mapping[UserName, Fraction]
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """For the next quantum: where every job lives and each server's turn."""

    homes: Mapping[JobId, HostName]
    turns: Mapping[HostName, Turn]
    tickets: Mapping[JobId, Fraction]  # jobTickets of every job that has a home; > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    plan: Plan
    memory: Memory = field(default_factory=dict)
    why: Mapping[JobId, str] = field(default_factory=dict)  # one line per job that does not run
    entitled: Mapping[tuple[UserName, str], Fraction] = field(default_factory=dict)  # (user, model) -> GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a policy asks of the system, and what it claims."""

    every_quantum: bool = False  # decide at each quantum, not only when something changed
    work_conserving: bool = True
    fair: bool = False  # long-run shares follow tickets: the fairness laws apply
    preemptive: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    name: str
    needs: Needs
    decide: Callable[[Snapshot, Memory], Verdict]
