"""The event that is being handled: what it has changed so far, and what is to be said of it."""

from dataclasses import dataclass, field

from hs_core.cluster.state import Touched
from hs_core.facts import Fact
from hs_core.model import Job
from hs_core.names import HostName, JobId, UserName
from hs_core.question import Question


@dataclass(slots=True)
class Underway:
    before: dict[JobId, Job | None] = field(default_factory=dict)  # rows that are others now, as they were
    counted: set[JobId] = field(
        default_factory=set
    )  # those of which nothing is new but the counters of one report
    users: set[UserName] = field(default_factory=set)
    hosts: set[HostName] = field(default_factory=set)
    meta: bool = False
    profile: bool = False
    facts: list[Fact] = field(default_factory=list)
    question: Question | None = None  # that it asks the policy
    gives_up: bool = False  # what the policy was asked before

    @property
    def touched(self) -> Touched:
        return Touched(
            jobs=frozenset(self.before),
            users=frozenset(self.users),
            hosts=frozenset(self.hosts),
            meta=self.meta,
            profile=self.profile,
        )
