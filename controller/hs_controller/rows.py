"""Rows of the journal ↔ frozen values of the model; the JSON is pydantic's, so enumerations and tuples come back as such."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from hs_core.events import Fact
from hs_core.model import Host, HostName, Job, JobId, User, UserName

JOB = TypeAdapter(Job)
USER = TypeAdapter(User)
HOST = TypeAdapter(Host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A fact with its place in the audit."""

    seq: int
    fact: Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a user received of one GPU model since ever: every figure only grows."""

    gpu_s: float = 0.0
    lost_gpu_s: float = 0.0
    suspends: int = 0
    jobs: int = 0

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(
            gpu_s=self.gpu_s - other.gpu_s,
            lost_gpu_s=self.lost_gpu_s - other.lost_gpu_s,
            suspends=self.suspends - other.suspends,
            jobs=self.jobs - other.jobs,
        )


Account = tuple[UserName, str]
"""User and GPU model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An account's usage at a moment; `tier` says how long it is kept."""

    tier: int
    at_s: float
    account: Account
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A request that was carried out: the same key and body get the same answer."""

    caller: str
    key: str
    digest: bytes
    answer: bytes
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Everything that one transaction writes."""

    jobs: tuple[Job, ...] = ()
    users: tuple[User, ...] = ()
    hosts: tuple[Host, ...] = ()
    gone_hosts: tuple[HostName, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    usage: Mapping[Account, Usage] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    answered: tuple[Answered, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """All that a controller needs to go on where it was."""

    term: int
    jobs: tuple[Job, ...]  # those that have not ended
    ended: tuple[Job, ...]  # the newest ended ones that others wait for
    users: tuple[User, ...]
    hosts: tuple[Host, ...]
    meta: Mapping[str, Any]
    last_seq: int  # of events
    last_s: float  # newest moment in the journal
    usage: Mapping[Account, Usage]
    samples: tuple[Sample, ...]  # of the fine tier
    answered: tuple[Answered, ...]  # oldest first


def after_of(jobs: tuple[Job, ...]) -> set[JobId]:
    """Jobs that others wait for."""
    return {after.job for job in jobs for after in job.spec.after}
