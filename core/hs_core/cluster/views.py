"""What the controller's mind holds, and what can be asked of it without changing it."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction

from hs_core.cluster import admission, orders
from hs_core.cluster.book import Book
from hs_core.cluster.state import Settings, State
from hs_core.cluster.why import Scene, Why, explain
from hs_core.errors import Kind, RefusedError
from hs_core.events import Fact, Turn, Wanted
from hs_core.ledger import Ledger
from hs_core.model import After, Host, HostName, Job, JobId, JobSpec, JobState, User, UserName
from hs_core.policy import Policy


class Views:
    def __init__(self, policy: Policy, settings: Settings, state: State) -> None:
        self.policy = policy
        self.settings = settings
        # durable
        self._book = Book(state, settings.keep_ended)
        self._next_job_id = state.next_job_id
        self._term = state.term
        self._quantum = state.quantum
        self._memory = state.memory
        # known again after the first events of a new term
        self._seq = 0
        self._connected: set[HostName] = set()
        self._sent: dict[HostName, Wanted] = {}
        self._told: set[tuple[HostName, JobId, int]] = set()  # incarnations a host was told to drop
        self._turns: Mapping[HostName, Turn] = {}
        self._tickets: dict[JobId, float] = {}
        self._planned: frozenset[JobId] = frozenset()  # jobs that the last plan gave tickets
        self._policy_says: Mapping[JobId, str] = {}
        self._entitled: Mapping[tuple[UserName, str], Fraction] = {}
        self._orders = orders.Orders()
        self._ledger: Ledger | None = None  # begins with the first event
        self._stories: dict[JobId, deque[Fact]] = {}
        self._since_s: dict[
            JobId, float
        ] = {}  # when a live job took its state, as far as this process saw it
        # when to decide
        self._stale = True  # something changed that the policy should know
        self._decided_s: float | None = None
        self._edge_s: float | None = (
            None  # end of this quantum; None: nothing runs, or the policy does not care
        )
        self._wake_s: float | None = None  # what the driver was last told
        # of the event under way
        self._before: dict[JobId, Job | None] = {}
        self._touched_users: set[UserName] = set()
        self._touched_hosts: set[HostName] = set()
        self._touched_meta = False
        self._restless: set[HostName] = set()  # hosts whose Wanted may have changed
        self._facts: list[Fact] = []

    @property
    def state(self) -> State:
        return State(
            jobs=dict(self._book.jobs),
            users=dict(self._book.users),
            hosts=dict(self._book.hosts),
            next_job_id=self._next_job_id,
            term=self._term,
            quantum=self._quantum,
            memory=self._memory,
        )

    @property
    def term(self) -> int:
        return self._term

    @property
    def quantum(self) -> int:
        return self._quantum

    @property
    def next_job_id(self) -> JobId:
        return self._next_job_id

    @property
    def memory(self) -> Mapping[str, object]:
        return self._memory

    @property
    def connected(self) -> frozenset[HostName]:
        return frozenset(self._connected)

    def job(self, job: JobId) -> Job:
        row = self._book.jobs.get(job)
        if row is None:
            raise RefusedError(f"there is no job {job}", Kind.NOT_FOUND)
        return row

    def find(self, job: JobId) -> Job | None:
        return self._book.jobs.get(job)

    def user(self, name: UserName) -> User | None:
        return self._book.users.get(name)

    def users(self) -> tuple[User, ...]:
        return tuple(self._book.users[name] for name in sorted(self._book.users))

    def host(self, name: HostName) -> Host | None:
        return self._book.hosts.get(name)

    def hosts(self) -> tuple[Host, ...]:
        return tuple(self._book.hosts_sorted())

    def jobs(
        self, *, user: UserName | None = None, states: Collection[JobState] = (), ended: bool = False
    ) -> list[Job]:
        """By id. No states given: those that have not ended; with `ended`, all that are held here."""
        include_ended = ended or any(state.ended for state in states)
        rows = self._book.jobs if include_ended else self._book.live
        found = (rows[job] for job in sorted(rows))
        return [
            row for row in found if (user is None or row.user == user) and (not states or row.state in states)
        ]

    def jobs_at(self, host: HostName) -> list[Job]:
        """The live jobs whose home it is, by id."""
        return self._book.at(host)

    def story(self, job: JobId) -> tuple[Fact, ...]:
        return tuple(self._stories.get(job, ()))

    def entitled(self) -> Mapping[tuple[UserName, str], float]:
        return {key: float(gpus) for key, gpus in sorted(self._entitled.items())}

    def demand(self) -> Mapping[tuple[UserName, str], float]:
        """GPUs that each user's jobs could use now, by model. A job without a home counts for each model it may use."""
        demand: dict[tuple[UserName, str], float] = {}
        models = sorted({host.model for host in self._book.hosts.values()})
        for row in orders.runnable(self._book):
            may = [row.gpu_model] if row.host is not None else (row.spec.gpu_types or models)
            for model in may:
                demand[row.user, model] = demand.get((row.user, model), 0.0) + row.spec.gang
        return dict(sorted(demand.items()))

    def job_tickets(self, job: JobId) -> float:
        """jobTickets as last decided; 0: it has none now."""
        return self._tickets[job] if job in self._planned and job in self._tickets else 0.0

    def job_share_gpus(self, job: JobId) -> float:
        """GPUs that its tickets come to on its host, beside the other jobs that could run there now."""
        row = self.job(job)
        if row.host is None or row.state.ended:
            return 0.0
        total = sum(self.job_tickets(other) for other in self._book.at_host.get(row.host, ()))
        gpus = len(self._book.hosts[row.host].healthy_gpus)
        return min(float(row.spec.gang), gpus * self.job_tickets(job) / total) if total > 0 else 0.0

    def received_gpus(
        self, window_s: float, now_s: float
    ) -> tuple[Mapping[tuple[UserName, str], float], float]:
        """Mean GPUs received by (user, model) over the window, and the seconds that it really covers."""
        ledger = self._ledger
        if ledger is None:
            return {}, 0.0
        covered_s = ledger.covered_s(now_s, window_s)
        return dict(sorted(ledger.received_gpus(now_s, window_s).items())), covered_s

    def usage(self) -> Mapping[tuple[UserName, str], float]:
        """GPU-seconds by (user, model), of all jobs that were loaded or have run since."""
        ledger = self._ledger or ledger_of(self._book.jobs.values(), began_s=0.0)
        return dict(sorted(ledger.totals().items()))

    def why(self, job: JobId, now_s: float) -> Why:
        row = self.job(job)
        hosts = self._book.hosts_sorted()
        home = self._book.hosts.get(row.host) if row.host is not None else None
        unplaced = row.host is None and not row.state.ended
        turn = self._turns.get(row.host) if row.host is not None else None
        scene = Scene(
            job=row,
            host=home,
            host_connected=row.host in self._connected,
            open_after=self._open_after(row),
            array_full=unplaced and row.id in self._book.beyond_array_limit(),
            misfit=admission.misfit(row.spec, hosts) if unplaced else None,
            healthy_misfit=admission.misfit(row.spec, hosts, healthy_only=True) if unplaced else None,
            hosts_away=self._all_away(row, hosts) if unplaced else (),
            policy_says=self._policy_says.get(job, ""),
            central=turn is not None and not turn.local,
            share_gpus=self.job_share_gpus(job),
            waited_s=max(0.0, now_s - self._since_s.get(job, now_s)),
            quantum_s=self.settings.quantum_s,
        )
        return explain(scene)

    def _open_after(self, row: Job) -> After | None:
        for index, after in enumerate(row.spec.after):
            if self._book.dependency(row, index) is admission.Dependency.OPEN:
                return after
        return None

    def _all_away(self, row: Job, hosts: Iterable[Host]) -> tuple[HostName, ...]:
        able = [host.name for host in hosts if admission.misfit(row.spec, [host], healthy_only=True) is None]
        return () if any(name in self._connected for name in able) else tuple(able)

    def missing(self, specs: Iterable[JobSpec]) -> tuple[JobId, ...]:
        """Jobs named in `after` that are not held here: to be looked up in the journal and recalled."""
        named = {after.job for spec in specs for after in spec.after}
        return tuple(sorted(job for job in named if job < self._next_job_id and job not in self._book.jobs))


_WINDOW_S = 600.0  # the ledger looks closest at windows up to this


def ledger_of(rows: Collection[Job], *, began_s: float) -> Ledger:
    """What these received before it began is in its totals, and in none of its windows."""
    running = [row for row in rows if row.report is not None and not row.state.ended]
    totals: dict[tuple[UserName, str], float] = {}
    for row in rows:
        parts = row.gpu_s_by_model if row.state.ended else row.past_gpu_s_by_model
        for model, gpu_s in parts.items():
            totals[row.user, model] = totals.get((row.user, model), 0.0) + gpu_s
    users = [(user, model, gpu_s, began_s) for (user, model), gpu_s in totals.items()]
    ledger = Ledger.load({"charges": [], "users": users}, began_s=began_s, window_s=_WINDOW_S)
    for row in running:
        gpu_s = row.report.gpu_s if row.report else 0.0
        ledger.report(row.id, row.epoch, row.user, row.gpu_model, gpu_s=gpu_s, now_s=began_s)
    return ledger
