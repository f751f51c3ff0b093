"""Rows of the journal ↔ frozen values of the model; the JSON is pydantic's, so enumerations and tuples come back as such."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from hs_core.facts import Fact
from hs_core.model import Host, Job, User
from hs_core.names import HostName, JobId, UserName

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
    entitled_gpu_s: float = 0.0
    """What it was entitled to, added up over time."""
    lost_gpu_s: float = 0.0
    suspends: int = 0
    jobs: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            gpu_s=self.gpu_s + other.gpu_s,
            entitled_gpu_s=self.entitled_gpu_s + other.entitled_gpu_s,
            lost_gpu_s=self.lost_gpu_s + other.lost_gpu_s,
            suspends=self.suspends + other.suspends,
            jobs=self.jobs + other.jobs,
        )

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(
            gpu_s=self.gpu_s - other.gpu_s,
            entitled_gpu_s=self.entitled_gpu_s - other.entitled_gpu_s,
            lost_gpu_s=self.lost_gpu_s - other.lost_gpu_s,
            suspends=self.suspends - other.suspends,
            jobs=self.jobs - other.jobs,
        )

    def towards(self, later: "Usage", part: float) -> "Usage":
        """On the straight line to a later one: 0 is here, 1 there."""
        return Usage(
            gpu_s=self.gpu_s + part * (later.gpu_s - self.gpu_s),
            entitled_gpu_s=self.entitled_gpu_s + part * (later.entitled_gpu_s - self.entitled_gpu_s),
            lost_gpu_s=self.lost_gpu_s + part * (later.lost_gpu_s - self.lost_gpu_s),
            suspends=self.suspends + round(part * (later.suspends - self.suspends)),
            jobs=self.jobs + round(part * (later.jobs - self.jobs)),
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
class UserToken:
    """What a user may show instead of coming through the unix socket."""

    id: str
    user: UserName
    label: str
    digest: str  # SHA-256; the token itself is nowhere
    created_s: float
    not_after_s: float
    revoked: bool = False
    last_used_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """Lets one node join, once."""

    id: str
    node: HostName
    digest: str
    created_s: float
    not_after_s: float
    used_s: float = 0.0  # 0: not yet
    by: str = ""  # who invites it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """Which certificates of a node count."""

    node: HostName
    serials: Mapping[str, float] = field(
        default_factory=dict
    )  # that were given out and have not ended → their end
    refused_before_s: float = 0.0  # others that were given out before this moment do not count
    removed: bool = False


Credential = UserToken | JoinToken | NodeIdentity
CREDENTIAL_KINDS: Mapping[str, type[Credential]] = {
    "user-token": UserToken,
    "join-token": JoinToken,
    "node": NodeIdentity,
}
"""By the word in the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What identities changed by, and what the audit is to say of it. Beside the cluster's events: no machine needs to know."""

    now_s: float
    rows: tuple[Credential, ...] = ()
    gone: tuple[Credential, ...] = ()
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Everything that one transaction writes."""

    jobs: tuple[Job, ...] = ()
    users: tuple[User, ...] = ()
    gone_users: tuple[UserName, ...] = ()
    hosts: tuple[Host, ...] = ()
    gone_hosts: tuple[HostName, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    usage: Mapping[Account, Usage] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    answered: tuple[Answered, ...] = ()
    credentials: tuple[Credential, ...] = ()
    gone_credentials: tuple[Credential, ...] = ()


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
    credentials: tuple[Credential, ...] = ()


def after_of(jobs: tuple[Job, ...]) -> set[JobId]:
    """Jobs that others wait for."""
    return {after.job for job in jobs for after in job.spec.after}
