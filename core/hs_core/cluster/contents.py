"""What the controller's mind holds, and the one way in which its rows change."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from math import inf

from hs_core.cluster import reports
from hs_core.cluster.abroad import Abroad
from hs_core.cluster.absent import Absent
from hs_core.cluster.asking import Asking
from hs_core.cluster.book import Book, row_with
from hs_core.cluster.budget import Budget
from hs_core.cluster.edges import Edges
from hs_core.cluster.evictions import Evictions
from hs_core.cluster.grounded import Grounded
from hs_core.cluster.last_said import LastSaid
from hs_core.cluster.orders import Orders, rendezvous
from hs_core.cluster.rates import Rates
from hs_core.cluster.restored import Backup, as_restored
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
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.policy import Policy
from hs_core.wanted import Wanted


class Contents:
    def __init__(
        self, policy: Policy, settings: Settings, state: State, dress: Callable[[Policy], Policy]
    ) -> None:
        """`dress`: what the driver puts around every policy that takes office, as a stopwatch."""
        self._dress = dress
        self.policy = dress(policy)
        self.settings = settings
        self._take_in(state)
        # known again after the first events of a new term
        self._seq = 0
        self._connected: set[HostName] = set()
        self._looks_on = False  # nothing can be taken in: as `look_on`
        self._absent = Absent(settings.lease_s, settings.fence_after_s)
        self._sent: dict[HostName, Wanted] = {}
        self._newest_heard: dict[
            HostName, tuple[int, int]
        ] = {}  # term and number of what each has heard last
        self._told = Told()
        self._tickets: dict[JobId, float] = {}  # as hosts are told
        self._weights: dict[HostName, float] = {}  # tickets on servers, where asked for since the last event
        self._idle: dict[HostName, tuple[GpuId, ...]] = {}  # GPUs there on which nobody runs, likewise
        self._loads: dict[HostName, float] = {}  # quanta that its jobs need for what is due to them, likewise
        self._unsliced: dict[HostName, dict[JobId, int]] = {}  # who cannot be suspended, likewise
        self._closed: dict[
            tuple[object, ...], tuple[HostName, ...]
        ] = {}  # to such wishes of a user, likewise
        self._said = LastSaid(trades=self.policy.trades(state.memory))
        # Moves past their point of no return, and since when.
        self._flights: dict[JobId, tuple[Move, float]] = {}
        self._releasing = deque[JobId]()  # have ended in this event; their waiters are yet to be told
        self._evictions = Evictions()
        self._clashes: set[tuple[HostName, str, JobId, JobId]] = set()  # GPUs claimed twice, as was said
        self._grounded = Grounded()
        self._unable = Unable()
        self._unforked = Unforked()
        self._abroad = Abroad()
        self._sight = Sight(
            self._book,
            self._connected,
            self._absent,
            grounded=self._grounded,
            unable=self._unable,
            unforked=self._unforked,
            abroad=self._abroad,
        )
        self._sight.serve(policy.needs)
        self._orders = Orders(self._book, settings.grant_key, self._sight.class_of)
        self._ledger: Ledger | None = None  # begins with the first event
        self._stories: dict[JobId, deque[Fact]] = {}
        # When a live job took its state, as far as this process saw it.
        self._since_s: dict[JobId, float] = {}
        self._in_office_s = -inf  # since when the policy is, where it took another's place
        self._asking = Asking()
        self._wake_s: float | None = None  # what the driver was last told
        self._sampled = 0  # rows that were checked, of all
        self._restless: set[HostName] = set()  # hosts whose Wanted may have changed
        self._untold: set[HostName] = set()  # hosts that need not know of new tickets before the next edge
        self._event = Underway()

    def _take_in(self, state: State) -> None:
        """What is durable."""
        settings = self.settings
        self._backup = Backup.of(state)
        self._book = Book(as_restored(state), settings.keep_ended, settings.keep_ended_bytes)
        self._next_job_id = state.next_job_id
        self._term = state.term
        self._edges = Edges(settings.quantum_s, state.quantum)
        self._memory = state.memory
        self._budget = Budget(settings.migrations_per_hour, state.budget)
        self._rates = Rates(state.profile, settings.quantum_s, settings.max_classes, state.gpu_speeds)
        self._slowdowns = Slowdowns(self._rates.gpus)

    def _put(self, row: Job, now_s: float, *, counters: bool = False, at_s: float | None = None) -> None:
        """`counters`: nothing but what it has received and done is new. `at_s`: what is new came about then."""
        old = self._book.jobs.get(row.id)
        self._event.before.setdefault(row.id, old)
        self._event.counted.discard(row.id)
        if old is None or old.state is not row.state:
            self._since_s[row.id] = now_s
        if old is not None and (old.state is not row.state or old.move is not row.move):
            row = row_with(row, ages=old.ages_at(now_s if at_s is None else at_s))
        elif old is not None and old.ages is not row.ages:
            row = row_with(row, ages=old.ages)
        of_one = counters and len(row.hosts) == 1  # of several, one may have said where they meet
        if not of_one and (old is None or _ordered(old) != _ordered(row)):
            self._restless.update(*(_concerned(each) for each in (old, row) if each is not None))
        if old is not None and old.hosts != row.hosts:
            self._orders.forget(row.id, old.hosts)
        self._book.put(row, counters=counters)

    def _put_counted(self, row: Job) -> None:
        """One on one server, of which nothing is new but the counters of its report."""
        if row.id not in self._event.before:
            self._event.before[row.id] = self._book.jobs[row.id]
            self._event.counted.add(row.id)
        self._book.put(row, counters=True)

    def _fact(
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
        row = self._book.jobs.get(job) if job is not None else None
        if row is not None:
            user, host = row.user, host or row.host
        fact = Fact(
            now_s=now_s, kind=kind, text=text, job=job, user=user, host=host, data=data or {}, deed=deed
        )
        self._event.facts.append(fact)
        if job is not None:
            story = self._stories.get(job)
            if story is None:
                story = self._stories[job] = deque(maxlen=self.settings.story_facts)
            story.append(fact)

    def _account(self, now_s: float) -> Ledger:
        if self._ledger is None:
            self._ledger = ledger_of(self._book.jobs.values(), began_s=now_s)
        return self._ledger

    def _models(self, home: Sequence[HostName]) -> tuple[str, ...]:
        """GPU models of servers, by node rank."""
        return tuple(self._book.hosts[name].model for name in home)

    def _doomed(self, now_s: float) -> frozenset[HostName]:
        """Servers that were to be empty by now: what is left there is ended, and queued again."""
        if not self._book.draining:
            return frozenset()
        return frozenset(
            name
            for name in self._book.draining
            if (drain := self._book.hosts[name].drain) is not None
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
