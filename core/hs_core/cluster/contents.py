"""What the controller's mind holds, and the one way in which its rows change."""

from collections import deque
from collections.abc import Collection, Sequence
from math import inf

from hs_core.cluster import reports
from hs_core.cluster.abroad import Abroad
from hs_core.cluster.absent import Absent
from hs_core.cluster.asking import Asking
from hs_core.cluster.book import Book, row_with
from hs_core.cluster.budget import Budget
from hs_core.cluster.classes import Classes
from hs_core.cluster.edges import Edges
from hs_core.cluster.evictions import Evictions
from hs_core.cluster.grounded import Grounded
from hs_core.cluster.last_said import LastSaid
from hs_core.cluster.orders import Orders, rendezvous
from hs_core.cluster.rates import Rates
from hs_core.cluster.reach import Reach
from hs_core.cluster.restored import Backup, as_restored
from hs_core.cluster.servers_shown import ServersShown
from hs_core.cluster.sight import Sight
from hs_core.cluster.slowdowns import Slowdowns
from hs_core.cluster.state import Settings, State
from hs_core.cluster.told import Told
from hs_core.cluster.unable import Unable
from hs_core.cluster.underway import Underway
from hs_core.cluster.unforked import Unforked
from hs_core.facts import Fact
from hs_core.ledger import Ledger
from hs_core.model import Job, Move
from hs_core.names import HostName, JobId, UserName
from hs_core.policy import Policy
from hs_core.wanted import Wanted


class Contents:
    def __init__(self, policy: Policy, settings: Settings, state: State) -> None:
        self.policy = policy
        self.settings = settings
        self._take_in(state)
        # known again after the first events of a new term
        self.seq = 0
        self.connected: set[HostName] = set()
        self.looks_on = False  # nothing can be taken in: as `look_on`
        self.absent = Absent(settings.lease_s, settings.fence_after_s)
        self.sent: dict[HostName, Wanted] = {}
        self.newest_heard: dict[HostName, tuple[int, int]] = {}  # term and number of what each has heard last
        self.told = Told()
        self.tickets: dict[JobId, float] = {}  # as hosts are told
        self.said = LastSaid(trades=self.policy.trades(state.memory))
        # Moves past their point of no return, and since when.
        self.flights: dict[JobId, tuple[Move, float]] = {}
        self.evictions = Evictions()
        self.grounded = Grounded()
        self.unable = Unable()
        self.unforked = Unforked()
        self.abroad = Abroad()
        self.reach = Reach(self.book, self.connected, self.absent)
        self.classes = Classes()
        self.servers_shown = ServersShown(self.book, self.connected, self.absent, self.unable)
        self.sight = Sight(
            self.book,
            self.connected,
            self.reach,
            self.classes,
            grounded=self.grounded,
            unable=self.unable,
            unforked=self.unforked,
            abroad=self.abroad,
        )
        self.sight.serve(policy.needs)
        self.orders = Orders(self.book, settings.grant_key, self.classes.of)
        self.ledger: Ledger | None = None  # begins with the first event
        self.stories: dict[JobId, deque[Fact]] = {}
        # When a live job took its state, as far as this process saw it.
        self.since_s: dict[JobId, float] = {}
        self.in_office_s = -inf  # since when the policy is, where it took another's place
        self.asking = Asking()
        self.restless: set[HostName] = set()  # hosts whose Wanted may have changed
        self.untold: set[HostName] = set()  # hosts that need not know of new tickets before the next edge
        self.event = Underway()

    def _take_in(self, state: State) -> None:
        """What is durable."""
        settings = self.settings
        self.backup = Backup.of(state)
        self.book = Book(as_restored(state), settings.keep_ended, settings.keep_ended_bytes)
        self.next_job_id = state.next_job_id
        self.term = state.term
        self.edges = Edges(settings.quantum_s, state.quantum)
        self.memory = state.memory
        self.budget = Budget(settings.migrations_per_hour, state.budget)
        self.rates = Rates(state.profile, settings.quantum_s, settings.max_classes, state.gpu_speeds)
        self.slowdowns = Slowdowns(self.rates.gpus)

    def put(self, row: Job, now_s: float, *, counters: bool = False, at_s: float | None = None) -> None:
        """`counters`: nothing but what it has received and done is new. `at_s`: what is new came about then."""
        old = self.book.jobs.get(row.id)
        self.event.before.setdefault(row.id, old)
        self.event.counted.discard(row.id)
        if old is None or old.state is not row.state:
            self.since_s[row.id] = now_s
        if old is not None and (old.state is not row.state or old.move is not row.move):
            row = row_with(row, ages=old.ages_at(now_s if at_s is None else at_s))
        elif old is not None and old.ages is not row.ages:
            row = row_with(row, ages=old.ages)
        of_one = counters and len(row.hosts) == 1  # of several, one may have said where they meet
        if not of_one and (old is None or _ordered(old) != _ordered(row)):
            self.restless.update(*(_concerned(each) for each in (old, row) if each is not None))
        if old is not None and old.hosts != row.hosts:
            self.orders.forget(row.id, old.hosts)
        self.book.put(row, counters=counters)

    def put_counted(self, row: Job) -> None:
        """One on one server, of which nothing is new but the counters of its report."""
        if row.id not in self.event.before:
            self.event.before[row.id] = self.book.jobs[row.id]
            self.event.counted.add(row.id)
        self.book.put(row, counters=True)

    def fact(
        self,
        now_s: float,
        kind: str,
        text: str,
        *,
        job: JobId | None = None,
        user: UserName | None = None,
        host: HostName | None = None,
        data: dict[str, str | int | float] | None = None,
        deed: bool = False,
    ) -> None:
        row = self.book.jobs.get(job) if job is not None else None
        if row is not None:
            user, host = row.user, host or row.host
        fact = Fact(
            now_s=now_s, kind=kind, text=text, job=job, user=user, host=host, data=data or {}, deed=deed
        )
        self.event.facts.append(fact)
        if job is not None:
            story = self.stories.get(job)
            if story is None:
                story = self.stories[job] = deque(maxlen=self.settings.story_facts)
            story.append(fact)

    def deed(
        self,
        now_s: float,
        kind: str,
        text: str,
        *,
        by: str,
        user: UserName,
        host: HostName | None = None,
        **more: str,
    ) -> None:
        self.fact(now_s, kind, text, user=user, host=host, data={"by": by, **more}, deed=True)

    def forget_job(self, row: Job, now_s: float) -> None:
        """It has ended: what is known of it besides its row."""
        self.tickets.pop(row.id, None)
        self.since_s.pop(row.id, None)
        self.flights.pop(row.id, None)
        self.grounded.forget(row.id)
        self.unable.for_memory.forget(row.id)
        self.unable.sent_on.pop(row.id, None)
        self.abroad.forget(row.id)
        self.unforked.forget_job(row.id)
        self.orders.forget(row.id, row.hosts)
        self.classes.forget(row.id)
        self.rates.forget_job(row.id)
        self.restless.update(self.backup.over(row.id))
        self.account(now_s).forget(row.id)

    def account(self, now_s: float) -> Ledger:
        if self.ledger is None:
            self.ledger = ledger_of(self.book.jobs.values(), began_s=now_s)
        return self.ledger

    def models_of(self, home: Sequence[HostName]) -> tuple[str, ...]:
        """GPU models of servers, by node rank."""
        return tuple(self.book.hosts[name].model for name in home)

    def doomed(self, now_s: float) -> frozenset[HostName]:
        """Servers that were to be empty by now: what is left there is ended, and queued again."""
        if not self.book.draining:
            return frozenset()
        return frozenset(
            name
            for name in self.book.draining
            if (drain := self.book.hosts[name].drain) is not None
            and drain.deadline_s is not None
            and drain.deadline_s <= now_s
        )


_WINDOW_S = 600.0  # the ledger looks closest at windows up to this


def ledger_of(rows: Collection[Job], *, began_s: float) -> Ledger:
    """What these received before it began is in its totals, and in none of its windows."""
    running = [row for row in rows if row.report is not None and not row.state.ended]
    totals: dict[tuple[UserName, str], float] = {}
    for row in rows:
        parts = row.gpu_s_by_model if row.state.ended else row.past_gpu_s_by_model
        for model, gpu_s in parts.items():
            totals[row.user, model] = totals.get((row.user, model), 0.0) + gpu_s
    ledger = Ledger(began_s, _WINDOW_S, totals)
    for row in running:
        for model, gpu_s in row.now_gpu_s_by_model.items():
            ledger.report(row.id, row.epoch, row.user, model, gpu_s=gpu_s, now_s=began_s)
    return ledger


def _concerned(row: Job) -> tuple[HostName, ...]:
    """Hosts that are told of it."""
    return row.hosts + (row.stored.hosts if row.stored is not None else ())


def _ordered(
    row: Job,
) -> tuple[object, ...]:
    """What of a row its hosts are told."""
    return (
        row.hosts,
        row.epoch,
        bool(row.unconfirmed),
        row.paused,
        bool(row.cancelled_by),
        row.state.ended,
        row.move,
        row.stored,
        rendezvous(row),
        reports.broken(row),
    )
