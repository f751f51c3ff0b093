"""The controller's store: what was committed, and nothing else, is there after a crash."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hs_core.cluster import ClusterMachine, Outcome, State
from hs_core.events.cluster import ClusterEvent, HostReported
from hs_core.facts import Fact
from hs_core.model import Host, Job, User
from hs_core.names import HostName, JobId, UserName

SKIPPED = 1_000_000  # job numbers and terms that may have been given since a backup was made


@dataclass(slots=True)
class Draft:
    """What the events of one batch changed."""

    jobs: dict[JobId, Job] = field(default_factory=dict)
    users: dict[UserName, User | None] = field(default_factory=dict)
    hosts: dict[HostName, Host | None] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    answers: dict[str, tuple[JobId, ...]] = field(default_factory=dict)
    rates: bool = False  # were measured
    weighty: bool = False  # committed before anything comes of it; else counters that agents repeat

    def take(self, machine: ClusterMachine, event: ClusterEvent, outcome: Outcome) -> None:
        touched = outcome.touched
        for job in touched.jobs:
            row = machine.find(job)
            if row is not None:
                self.jobs[job] = row
        for name in touched.users:
            self.users[name] = machine.user(name)
        for host in touched.hosts:
            self.hosts[host] = machine.host(host)
        self.facts += outcome.facts
        if touched.meta:
            self.meta = {
                "next_job_id": machine.next_job_id,
                "quantum": machine.quantum,
                "memory": machine.memory,
                "budget": machine.budget,
                "policy": machine.policy.name,
                "restored": machine.restored,
                "taken_up": machine.taken_up,
            }
        self.rates = self.rates or touched.profile
        counters = isinstance(event, HostReported) and not (outcome.facts or touched.meta or touched.hosts)
        self.weighty = self.weighty or not counters


Key = TypeVar("Key")
Row = TypeVar("Row")


def _put(rows: dict[Key, Row], changed: Mapping[Key, Row | None]) -> None:
    """None: it was removed."""
    for key, row in changed.items():
        if row is None:
            rows.pop(key, None)
        else:
            rows[key] = row


class Journal:
    def __init__(self) -> None:
        self.jobs: dict[JobId, Job] = {}
        self.users: dict[UserName, User] = {}
        self.hosts: dict[HostName, Host] = {}
        self.answers: dict[str, tuple[JobId, ...]] = {}
        self.term = 0
        self.last_s = 0.0  # newest moment
        self.meta: Mapping[str, Any] = {}
        self.profile: list[Any] = []
        self.gpu_speeds: list[Any] = []
        self._first_epoch = 0
        self._unknown = JobId(1), JobId(1)

    def put_back(self, copy: "Journal") -> None:
        """As it was when the copy was made, and as `hs-controller restore` leaves it."""
        self.jobs, self.users, self.hosts = dict(copy.jobs), dict(copy.users), dict(copy.hosts)
        self.answers, self.profile, self.gpu_speeds = dict(copy.answers), copy.profile, copy.gpu_speeds
        first = copy.meta.get("next_job_id", JobId(1))
        past = JobId(first + SKIPPED)
        self.meta = {**copy.meta, "next_job_id": past, "restored": True, "taken_up": frozenset()}
        self._unknown = first, past
        self._first_epoch = self.term = self.term + SKIPPED

    def commit(self, drafts: Iterable[Draft]) -> None:
        for draft in drafts:
            self.jobs.update(draft.jobs)
            _put(self.users, draft.users)
            _put(self.hosts, draft.hosts)
            self.answers.update(draft.answers)
            if draft.facts:
                self.last_s = max(self.last_s, draft.facts[-1].now_s)
            if draft.meta:
                self.meta = draft.meta

    @property
    def policy(self) -> str:
        """Name of the one in office; "": nothing was written yet."""
        name: str = self.meta.get("policy", "")
        return name

    def begin_term(self) -> State:
        """What a controller that takes office finds. The policy's memory goes through JSON, as on the disk."""
        self.term += 1
        return State(
            jobs=dict(self.jobs),
            users=dict(self.users),
            hosts=dict(self.hosts),
            next_job_id=self.meta.get("next_job_id", JobId(1)),
            term=self.term,
            quantum=self.meta.get("quantum", 0),
            memory=json.loads(json.dumps(self.meta.get("memory", {}))),
            budget=self.meta.get("budget"),
            profile=json.loads(json.dumps(self.profile)),
            gpu_speeds=json.loads(json.dumps(self.gpu_speeds)),
            first_epoch=self._first_epoch,
            restored=self.meta.get("restored", False),
            unknown=self._unknown,
            taken_up=self.meta.get("taken_up", frozenset()),
        )
