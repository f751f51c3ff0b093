"""What can be asked of the controller's mind without changing it."""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from fractions import Fraction
from typing import Any

from hs_core.cluster import checkpoints, copies
from hs_core.cluster.contents import Contents, ledger_of
from hs_core.cluster.rates import PoolRate, WayRate
from hs_core.cluster.state import Settings, State
from hs_core.errors import Kind, RefusedError
from hs_core.facts import Fact
from hs_core.model import Host, Job, JobSpec, JobState, User
from hs_core.names import HostName, JobId, UserName
from hs_core.newest import Kept
from hs_core.policy import Policy, Trade
from hs_core.question import Question
from hs_core.words import listed


class Views:
    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._asking = contents.asking
        self._backup = contents.backup
        self._book = contents.book
        self._connected = contents.connected
        self._rates = contents.rates
        self._said = contents.said
        self._unable = contents.unable
        self._weights: dict[HostName, float] = {}  # tickets on servers, where asked for since the last event

    def happened(self) -> None:
        """Something has: what was found before may be otherwise."""
        self._weights.clear()

    @property
    def policy(self) -> Policy:
        return self._contents.policy

    @property
    def settings(self) -> Settings:
        return self._contents.settings

    @property
    def state(self) -> State:
        return State(
            jobs=dict(self._book.jobs),
            users=dict(self._book.users),
            hosts=dict(self._book.hosts),
            next_job_id=self._contents.next_job_id,
            term=self._contents.term,
            quantum=self._contents.edges.quantum,
            memory=self._contents.memory,
            budget=self._contents.budget.saved,
            profile=self._rates.dump(),
            gpu_speeds=self._rates.gpus.dump(),
            first_epoch=self._backup.first_epoch,
            restored=self._backup.awaits,
            unknown=self._backup.unknown,
            taken_up=self._backup.taken_up,
        )

    @property
    def term(self) -> int:
        return self._contents.term

    @property
    def newest_order(self) -> tuple[int, int]:
        """Term and number of what was wanted of any server last: who has heard more has heard another controller."""
        return self._contents.term, self._contents.seq

    @property
    def restored(self) -> bool:
        """As `State.restored`."""
        return self._backup.awaits

    @property
    def unknown(self) -> tuple[JobId, JobId]:
        """As `State.unknown`."""
        return self._backup.unknown

    @property
    def taken_up(self) -> frozenset[JobId]:
        """As `State.taken_up`."""
        return self._backup.taken_up

    @property
    def quantum(self) -> int:
        return self._contents.edges.quantum

    @property
    def budget(self) -> tuple[float, float] | None:
        """As `State.budget`."""
        return self._contents.budget.saved

    @property
    def profile(self) -> list[Any]:
        """As `State.profile`."""
        return self._rates.dump()

    @property
    def gpu_speeds(self) -> list[Any]:
        """As `State.gpu_speeds`."""
        return self._rates.gpus.dump()

    @property
    def failure(self) -> str:
        """How the policy failed when it was asked last; empty: it did not."""
        return "" if self._said.failure is None else self._said.failure.text

    @property
    def question(self) -> Question | None:
        """That the policy is at, beside the machine."""
        return self._asking.question

    @property
    def next_job_id(self) -> JobId:
        return self._contents.next_job_id

    @property
    def memory(self) -> Mapping[str, object]:
        return self._contents.memory

    def unable(self, user: UserName) -> frozenset[HostName]:
        """Servers that are given no new jobs of this user for a while, as they could not start one."""
        return frozenset(self._unable.of_all) | self._unable.barring(user)

    def failed_at(self, job: JobId) -> frozenset[HostName]:
        """Servers to which it was sent, and on which it failed at its start."""
        return frozenset(self._contents.abroad.failed(job))

    @property
    def connected(self) -> frozenset[HostName]:
        return frozenset(self._connected)

    @property
    def looks_on(self) -> bool:
        """As `ClusterMachine.look_on`."""
        return self._contents.looks_on

    def cut_off(self, job: Job) -> bool:
        """A server of its home is away (of several copies, all are): how it stands is what was heard last."""
        return any(name not in self._connected for name in self.counted(job))

    def counted(self, row: Job) -> tuple[HostName, ...]:
        return copies.counted(row, self._connected) if row.portions else row.hosts

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

    @property
    def live(self) -> int:
        """How many jobs have not ended."""
        return len(self._book.live)

    def live_of(self, user: UserName) -> int:
        """How many jobs of theirs have not ended."""
        return len(self._book.of_user.get(user, ()))

    def spec_bytes(self, user: UserName) -> int:
        """That specs of theirs take of what one user may have (`Settings.max_spec_bytes_per_user`)."""
        return self._book.bulk.of_user(user)

    def host(self, name: HostName) -> Host | None:
        return self._book.hosts.get(name)

    def hosts(self) -> tuple[Host, ...]:
        """By name."""
        return self._book.hosts_sorted()

    def models(self) -> AbstractSet[str]:
        """Of their GPUs, whether they are connected or not."""
        return self._book.models()

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
        return tuple(self._contents.stories.get(job, ()))

    def entitled(self) -> Mapping[tuple[UserName, str], float]:
        """By (user, model), as decided last; the very same until the policy has said something else."""
        return _in_floats((self._said.entitled,), 0)

    def base(self) -> Mapping[tuple[UserName, str], float]:
        """Entitlements before trades; likewise the very same."""
        return _in_floats((self._said.base or self._said.entitled,), 0)

    def trades(self) -> tuple[Trade, ...]:
        """Those that stand, oldest first."""
        return self._said.trades

    def needing(self, host: HostName) -> tuple[JobId, ...]:
        """As `checkpoints.needing`."""
        return checkpoints.needing(self._book, host)

    def rates(self, job: JobId) -> tuple[PoolRate, ...]:
        """What was measured of its class, by GPU model."""
        return self._rates.of(self._contents.classes.of(self.job(job)))

    def way_rates(self, row: Job) -> tuple[WayRate, ...]:
        """What was measured of its class in every way in which it may run; of one that ended long ago, too."""
        return tuple(self._rates.ways(row.spec, row.user))

    def demand(self) -> Mapping[tuple[UserName, str], float]:
        """GPUs that each user's jobs could use now, by model. A job without a home counts for each model it may use."""
        return self._contents.sight.demand()

    def job_tickets(self, job: JobId) -> float:
        """jobTickets as last decided; 0: it has none now."""
        return (
            self._contents.tickets[job]
            if job in self._said.tickets and job in self._contents.tickets
            else 0.0
        )

    def job_share_gpus(self, job: JobId) -> float:
        """GPUs that its tickets come to on its servers, beside the other jobs that could run there now."""
        row = self.job(job)
        if not row.hosts or row.state.ended:
            return 0.0
        share = 0.0
        for name in row.hosts:
            host, total = self._book.hosts.get(name), self.tickets_on(name)
            if total > 0 and host is not None:
                part = self.job_tickets(job) / row.nodes / total
                share += min(float(row.gpus), len(host.healthy_gpus) * part)
        return share

    def tickets_on(self, name: HostName) -> float:
        """Of all jobs that live there, added up once between two events: a list of many jobs asks for it again and again."""
        if name not in self._weights:
            there = self._book.at_host.get(name, ())
            self._weights[name] = sum(self.job_tickets(job) / self._book.live[job].nodes for job in there)
        return self._weights[name]

    def received_gpus(
        self, window_s: float, now_s: float
    ) -> tuple[Mapping[tuple[UserName, str], float], float]:
        """Mean GPUs received by (user, model) over the window, and the seconds that it really covers."""
        ledger = self._contents.ledger
        if ledger is None:
            return {}, 0.0
        covered_s = ledger.covered_s(now_s, window_s)
        return dict(sorted(ledger.received_gpus(now_s, window_s).items())), covered_s

    def usage(self) -> Mapping[tuple[UserName, str], float]:
        """GPU-seconds by (user, model), of all jobs that were loaded or have run since."""
        ledger = self._contents.ledger or ledger_of(self._book.jobs.values(), began_s=0.0)
        return dict(sorted(ledger.totals().items()))

    def deciding_s(self, now_s: float) -> float:
        """For how long the policy has been at a question; 0: it is at none."""
        return self._asking.at_it_s(now_s)

    def stays_at_it(self, now_s: float) -> bool:
        """The policy has been at its question for so long that people are told."""
        return self.deciding_s(now_s) > self._contents.settings.quantum_s

    def cannot_start(self, host: HostName) -> str:
        """For people: that it could not start a job, and has started none since, or does not start any for this controller; else nothing."""
        if why := self._unable.obeys.get(host):
            return f"does nothing that this controller wants: {why}"
        if self._unable.of_all.tried(host):
            now = (
                "it is given no others for a while"
                if host in self._unable.of_all
                else "it may have others again"
            )
            return f"could not start a job ({self._unable.of_all.why(host)}): {now}"
        # Of a user who has none left nobody waits for it, and no start would ever end the warning.
        whose = [
            key for key in self._unable.of_one.all_tried() if key[1] == host and key[0] in self._book.of_user
        ]
        if not whose:
            return ""
        users = listed(sorted(user for user, _ in whose))
        return f"could not start jobs of {users} ({self._unable.of_one.why(whose[0])}): it is given none of theirs for a while, again and again"

    @property
    def awaited(self) -> frozenset[JobId]:
        """Jobs that live ones name in `after`, ended ones too: no row of theirs may go."""
        return frozenset(self._book.waiters)

    def missing(self, specs: Iterable[JobSpec]) -> tuple[JobId, ...]:
        """Jobs named in `after` that are not held here: to be looked up in the journal and recalled."""
        named = {after.job for spec in specs for after in spec.after}
        return tuple(
            sorted(job for job in named if job < self._contents.next_job_id and job not in self._book.jobs)
        )


_At = tuple[UserName, str]
_in_floats = Kept[Mapping[_At, Fraction], Mapping[_At, float]](
    lambda said, *_: {key: float(gpus) for key, gpus in sorted(said[0].items())}, most=16
)
