"""All that the controller holds in memory: built from the journal at the start, and again whenever a commit has failed."""

import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hs_controller.config import Config
from hs_controller.meters import Meters
from hs_controller.registry import Registry
from hs_controller.rows import Account, Answered, Batch, Credential, Event, Kept, Loaded, NodeIdentity, Usage
from hs_controller.tables import COUNTED_BEFORE, usage_doc, usage_from
from hs_controller.usage import Ledger
from hs_controller.watched import Watched
from hs_core.cluster import ClusterMachine, Outcome, Settings, State
from hs_core.cluster.trade_facts import all_taken_back
from hs_core.errors import Kind, RefusedError
from hs_core.events.cluster import (
    ClusterEvent,
    Consult,
    Direct,
    GiveUp,
    HostJoined,
    HostLeft,
    HostReported,
    PolicyAnswered,
    Wake,
)
from hs_core.facts import Fact
from hs_core.model import Host, Job, User
from hs_core.names import HostName, JobId, UserName
from hs_core.policies import POLICIES
from hs_core.policy import Memory, Policy, Profiling
from hs_core.question import Question
from hs_core.reports import JobReport
from hs_core.wanted import Wanted

KEYS_KEPT = 50_000
KEYS_KEPT_S = 24 * 3600.0

FLUSH_S = 1.0  # between two commits that somebody else's news does not cause
COUNTERS_S = 5.0  # at most, until a counter is in the journal: agents say it again, so what is written more often is written for nothing

PROFILE_EVERY_S = 30.0  # measured rates: what is lost of them is measured again

Name = TypeVar("Name")
Row = TypeVar("Row")

_HELD_ANSWER_BYTES = 4096  # larger ones are looked up in the journal: retries are rare


@dataclass(frozen=True, slots=True)
class Known:
    """A request that was carried out."""

    digest: bytes
    answer: bytes | None  # None: too large to hold, the journal has it


def settings_of(config: Config, grant_key: str) -> Settings:
    limits = config.limits
    # With quanta of a minute nobody notices half a second, in which one decision takes in what 1,000 servers have said.
    settle_s = min(0.5, max(0.1, config.quantum_s / 100), config.quantum_s)
    base = Settings(quantum_s=config.quantum_s, settle_s=settle_s, settle_s_per_job=2.5e-4)
    return Settings(
        quantum_s=config.quantum_s,
        seed=config.seed,
        default_tickets=config.default_tickets,
        outlives_policy=True,
        decides_apart=True,
        max_jobs=limits.live_jobs,
        max_jobs_per_user=min(limits.live_jobs, base.max_jobs_per_user),
        max_spec_bytes_per_user=limits.spec_bytes_per_user,
        keep_ended=min(config.ended_limit, base.keep_ended),
        settle_s=base.settle_s,
        settle_s_per_job=base.settle_s_per_job,
        lease_s=config.lease_s,
        fence_after_s=config.fence_after_s,
        migrations_per_hour=config.migrations_per_hour,
        dataset_cache_bytes=int(config.dataset_cache_gib * 2**30),
        profiling=Profiling(batches=config.profile_batches, share=config.profile_share),
        move_deadline_s=config.move_deadline_s,
        checkpoint_interval_s=config.checkpoint_interval_s,
        grant_key=grant_key,
    )


def _in_office(saved: Any, configured: Policy) -> Policy:
    """The one that an administrator put in office, unless the configuration was changed since."""
    if saved and saved["configured"] == configured.name and saved["name"] in POLICIES:
        return POLICIES[saved["name"]]
    return configured


@dataclass(slots=True)
class Draft:
    """What the events of one batch came to, until it is committed."""

    jobs: dict[JobId, Job] = field(default_factory=dict)
    users: dict[UserName, User] = field(default_factory=dict)
    hosts: dict[HostName, Host] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)
    gone_users: set[UserName] = field(default_factory=set)
    gone_hosts: set[HostName] = field(default_factory=set)
    credentials: dict[tuple[type, str], Credential] = field(default_factory=dict)
    gone_credentials: list[Credential] = field(default_factory=list)
    directs: dict[HostName, tuple[Wanted, float]] = field(default_factory=dict)  # and when that was said
    wake_in_s: float | None = None
    gives_up: bool = False  # what the policy was asked before
    question: Question | None = None  # for the policy
    touched: set[JobId] = field(default_factory=set)
    weighty: bool = False  # has to be committed before anything comes of it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Late:
    """What a server that was away says of jobs: they have gone on all the while."""

    jobs: frozenset[JobId]
    received: tuple[float, float]  # from when to when
    retold: bool  # a backup was put back: much of it had been told, and counted, before
    added: dict[Account, Usage] = field(default_factory=dict)  # to what was charged for them


class Mind:
    """The machine and what is kept beside it. Everything in it is in the journal, or is reported again by the agents."""

    def __init__(
        self,
        loaded: Loaded,
        config: Config,
        policy: Policy,
        now_s: float,
        *,
        meters: Meters,
        grant_key: str = "",
    ) -> None:
        saved = loaded.meta.get("policy")
        in_office = _in_office(saved, policy)
        self.replaced = (  # the policy in whose place the configuration puts another; empty: none
            str(saved["name"]) if saved and saved["name"] != in_office.name else ""
        )
        self._memory: Memory = loaded.meta.get("memory", {})  # as it is in the journal
        before = POLICIES.get(self.replaced)
        self._taken_back = before.trades(self._memory) if before is not None else ()
        unknown = loaded.meta.get("unknown", State().unknown)
        state = State(
            jobs={job.id: job for job in (*loaded.ended, *loaded.jobs)},
            users={user.name: user for user in loaded.users},
            hosts={host.name: host for host in loaded.hosts},
            next_job_id=JobId(int(loaded.meta.get("next_job_id", 1))),
            term=loaded.term,
            quantum=int(loaded.meta.get("quantum", 0)),
            memory={} if self.replaced else self._memory,
            budget=None if (budget := loaded.meta.get("budget")) is None else (budget[0], budget[1]),
            profile=loaded.meta.get("profile", []),
            gpu_speeds=loaded.meta.get("gpu_speeds", []),
            first_epoch=int(loaded.meta.get("first_epoch", 0)),
            restored=bool(loaded.meta.get("restored", False)),
            unknown=(JobId(unknown[0]), JobId(unknown[1])),
            taken_up=frozenset(map(JobId, loaded.meta.get("taken_up", ()))),
        )
        self.watched = Watched()
        self._asking_s = 0.0  # that the question took that the policy is at
        self._meters = meters
        self._configured = policy.name
        self.machine = ClusterMachine(in_office, settings_of(config, grant_key), state, self.watched.dress)
        self._profile_s = now_s  # when it was last written
        self._profile_dirty = False
        self.machine.begin_term(loaded.term)
        self.registry = Registry(loaded.credentials)
        every_s = min(10.0, max(1.0, config.quantum_s / 2))
        self.ledger = Ledger(loaded.usage, loaded.jobs, loaded.samples, now_s=now_s, every_s=every_s)
        self.counted_before = usage_from(loaded.meta.get(COUNTED_BEFORE, []))
        """Of the totals what is in no counter that Prometheus reads since a backup was put back: it knows that from before."""
        # Servers of which nothing is heard, and since when.
        self._unheard_s = {host.name: self.ledger.newest_s for host in loaded.hosts}
        self._retell = set(self._unheard_s) if state.restored else set[HostName]()
        self.last_seq = loaded.last_seq
        self.config_users: Any = loaded.meta.get("config_users", {})
        self._known: OrderedDict[tuple[str, str], Known] = OrderedDict()
        for answered in loaded.answered:
            self._remember(answered)
        self._unwritten: dict[
            JobId, float
        ] = {}  # rows whose counters moved and nothing else, since when; oldest first
        self._wait_s = min(COUNTERS_S, max(FLUSH_S, config.quantum_s / 12)) - FLUSH_S

    # --- one event --------------------------------------------------------------------------------------------------

    def handle(self, event: ClusterEvent | Kept, draft: Draft) -> Outcome:
        """Raises RefusedError, and then nothing has changed."""
        if isinstance(event, Kept):
            self._keep(event, draft)
            return Outcome()
        rows = self._told_of(event)
        before = rows if isinstance(event, HostReported) else {}
        outcome = self._handle(event)
        if isinstance(event, HostReported):
            self._meters.reported(event.host, event.reports, rows)
        elif isinstance(event, HostJoined):  # all that nobody could be told of in the meantime
            self._meters.reported(event.host.name, (*event.last_words, *event.reports), rows)
        touched = outcome.touched
        self._profile_dirty |= touched.profile
        draft.touched |= touched.jobs
        for command in outcome.commands:
            if isinstance(command, Direct):
                draft.directs[command.host] = command.wanted, event.now_s  # the newest replaces all before it
            elif isinstance(command, Wake):
                draft.wake_in_s = max(0.0, command.at_s - event.now_s)
            elif isinstance(command, GiveUp):
                self.watched.give_up()
                draft.gives_up, draft.question = True, None
            elif isinstance(command, Consult):
                draft.question = command.question
        late = self._late(event)
        light = self._note_rows(touched.jobs, before, event.now_s, draft, late)
        if late is not None:
            self._account(late, draft)
        if light and before and not _says_more(outcome):
            return outcome
        draft.weighty = draft.weighty or bool(touched or outcome.facts)
        for user in touched.users:
            _note(user, self.machine.user(user), draft.users, draft.gone_users)
        for host in touched.hosts:
            _note(host, self.machine.host(host), draft.hosts, draft.gone_hosts)
        if touched.meta:
            draft.meta.update(self.meta())
        self._note_facts(outcome.facts, draft)
        return outcome

    def _late(self, event: ClusterEvent) -> _Late | None:
        if isinstance(event, HostLeft):
            self._unheard_s.setdefault(event.host, event.now_s)
        if not isinstance(event, HostJoined):
            return None
        name, since_s = event.host.name, self._unheard_s.pop(event.host.name, None)
        retold = name in self._retell
        self._retell.discard(name)
        if since_s is None:
            return None
        jobs = frozenset(report.job for report in (*event.last_words, *event.reports))
        return _Late(jobs=jobs, received=(since_s, event.now_s), retold=retold)

    def _charge(self, row: Job, late: _Late | None) -> None:
        of_late = late is not None and row.id in late.jobs and self.ledger.goes_on(row)
        added = self.ledger.charge(row)
        if late is not None and of_late:
            for account, usage in added.items():
                late.added[account] = late.added.get(account, Usage()) + usage

    def _account(self, late: _Late, draft: Draft) -> None:
        for account, usage in late.added.items():
            due_s = self.ledger.spread(account, usage.gpu_s, *late.received)
            if late.retold:
                known = usage + Usage(entitled_gpu_s=due_s)
                self.counted_before[account] = self.counted_before.get(account, Usage()) + known
        if late.retold:
            draft.meta[COUNTED_BEFORE] = usage_doc(self.counted_before)

    def _handle(self, event: ClusterEvent) -> Outcome:
        began_s = time.perf_counter()
        answered = isinstance(event, PolicyAnswered) and event.question is self.machine.question
        outcome = self.machine.handle(event)
        took_s = time.perf_counter() - began_s
        self.ledger.entitle(self.machine.entitled(), event.now_s)
        if answered and not self.machine.failure:
            decision_s = self.watched.took_s
            cycle_s = self._asking_s + decision_s + took_s
            self._meters.decided(self.machine.policy.name, cycle_s=cycle_s, decision_s=decision_s)
        if any(isinstance(command, Consult) for command in outcome.commands):
            self._asking_s = took_s
        return outcome

    def _note_facts(self, facts: Sequence[Fact], draft: Draft) -> None:
        for fact in facts:
            self.last_seq += 1
            draft.events.append(Event(seq=self.last_seq, fact=fact))

    def _keep(self, kept: Kept, draft: Draft) -> None:
        self.registry.keep(kept)
        draft.weighty = True
        draft.gone_credentials += kept.gone
        for row in kept.gone:
            draft.credentials.pop(_key_of(row), None)
        draft.credentials |= {_key_of(row): row for row in kept.rows}
        self._note_facts(kept.facts, draft)

    def _note_rows(
        self,
        touched: Collection[JobId],
        before: Mapping[JobId, Job],
        now_s: float,
        draft: Draft,
        late: _Late | None,
    ) -> bool:
        """Whether of all of them only counters moved: cumulative ones, which agents report again when they connect."""
        light = True
        for job in touched:
            row = self.machine.find(job)
            if row is None:
                continue
            if job in before and _but_counters(before[job], row):
                self._unwritten.setdefault(job, now_s)
            else:
                self._charge(row, late)
                self._unwritten.pop(job, None)
                draft.jobs[job] = row
                light = False
        return light

    def _told_of(self, event: ClusterEvent) -> dict[JobId, Job]:
        """The rows of which an agent says how they stand, as they were; none for any other event."""
        if not isinstance(event, HostReported | HostJoined):
            return {}
        words = event.last_words if isinstance(event, HostJoined) else ()
        found = (self.machine.find(report.job) for report in (*words, *event.reports))
        return {row.id: row for row in found if row is not None}

    def put_in_office(self, now_s: float) -> Iterator[Fact]:
        """What is to be said of the policy that the configuration puts in the place of another."""
        old, by, name = self.replaced, "the configuration", self.machine.policy.name
        yield from all_taken_back(self._taken_back, by, name, now_s)
        text = f"{by} puts the policy {name} in place of {old}"
        yield Fact(now_s=now_s, kind="policy-set", text=text, data={"by": by, "old": old}, deed=True)

    def meta(self) -> dict[str, Any]:
        machine = self.machine
        meta: dict[str, Any] = {
            "next_job_id": machine.next_job_id,
            "quantum": machine.quantum,
            "budget": machine.budget,
            "policy": {"name": machine.policy.name, "configured": self._configured},
            "restored": machine.restored,
        }
        if machine.taken_up:
            meta["taken_up"] = sorted(machine.taken_up)
        if machine.memory is not self._memory:  # it may be large
            self._memory = machine.memory
            meta["memory"] = dict(machine.memory)
        return meta

    # --- requests that were carried out -----------------------------------------------------------------------------

    def known(self, caller: str, key: str) -> Known | None:
        return self._known.get((caller, key))

    def answered(self, answered: Answered, draft: Draft) -> None:
        self._remember(answered)
        draft.answered.append(answered)
        draft.weighty = True

    def _remember(self, answered: Answered) -> None:
        held = answered.answer if len(answered.answer) <= _HELD_ANSWER_BYTES else None
        self._known[answered.caller, answered.key] = Known(answered.digest, held)
        while len(self._known) > KEYS_KEPT:
            self._known.popitem(last=False)

    # --- what is to be written --------------------------------------------------------------------------------------

    @property
    def unwritten(self) -> bool:
        return bool(self._unwritten) or self.registry.used

    def batch(self, draft: Draft, now_s: float, *, last: bool = False) -> Batch:
        """What is not in the journal yet, but for counters that have not waited for long: rows and the totals charged from them go together."""
        jobs = draft.jobs
        for job in self._due(draft, now_s, last=last):
            row = self.machine.find(job)
            if row is not None:
                self.ledger.charge(row)
                jobs[job] = row
        samples = self.ledger.sample(now_s)
        if self._profile_dirty and (last or not 0 <= now_s - self._profile_s < PROFILE_EVERY_S):
            draft.meta["profile"] = self.machine.profile
            draft.meta["gpu_speeds"] = self.machine.gpu_speeds
            self._profile_s, self._profile_dirty = now_s, False
        return Batch(
            jobs=tuple(jobs.values()),
            users=tuple(draft.users.values()),
            gone_users=tuple(draft.gone_users),
            hosts=tuple(draft.hosts.values()),
            gone_hosts=tuple(draft.gone_hosts),
            credentials=(*self.registry.take_used(), *draft.credentials.values()),
            gone_credentials=tuple(draft.gone_credentials),
            meta=draft.meta,
            events=tuple(draft.events),
            usage=self.ledger.take(),
            samples=samples,
            answered=tuple(draft.answered),
        )

    def _due(self, draft: Draft, now_s: float, *, last: bool) -> list[JobId]:
        """Rows whose counters are to be written now: those that waited, and those that are written anyway."""
        due = [job for job in draft.jobs if job in self._unwritten]
        for job, since_s in self._unwritten.items():
            if not last and now_s - since_s < self._wait_s:
                break
            if job not in draft.jobs:
                due.append(job)
        for job in due:
            del self._unwritten[job]
        return due

    # --- what is asked ----------------------------------------------------------------------------------------------

    def recall(self, jobs: Sequence[Job]) -> None:
        self.machine.recall(job for job in jobs if self.machine.find(job.id) is None)


def _key_of(row: Credential) -> tuple[type, str]:
    return type(row), row.node if isinstance(row, NodeIdentity) else row.id


def _note(name: Name, row: Row | None, rows: dict[Name, Row], gone: set[Name]) -> None:
    """None: it was removed."""
    if row is None:
        rows.pop(name, None)
        gone.add(name)
    else:
        rows[name] = row
        gone.discard(name)


def _but_counters(old: Job, new: Job) -> bool:
    """Whether two rows of a job are the same but for what the agent counts."""
    return (
        old.state is new.state
        and old.epoch == new.epoch
        and old.hosts == new.hosts
        and old.move == new.move
        and old.stored == new.stored
        and old.migrations == new.migrations
        and old.first_run_s == new.first_run_s
        and old.reports.keys() == new.reports.keys()
        and all(_alike(report, new.reports[host]) for host, report in old.reports.items())
        and old.exit is None
        and new.exit is None
    )


def _alike(old: JobReport, new: JobReport) -> bool:
    return old.phase is new.phase and old.rendezvous == new.rendezvous


def _says_more(outcome: Outcome) -> bool:
    """Whether anything but rows came of it that is to be in the journal first."""
    touched = outcome.touched
    if outcome.facts or touched.meta or touched.users or touched.hosts:
        return True
    return any(isinstance(command, Direct) for command in outcome.commands)


def refuse_other_body() -> RefusedError:
    return RefusedError(
        "key: was used before for another request; give every request a key of its own, and its retries the same one",
        Kind.CONFLICT,
    )
