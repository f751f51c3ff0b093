"""What can be asked of the controller's mind without changing it."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from hs_core.cluster import admission, copies, reports
from hs_core.cluster.contents import Contents, ledger_of
from hs_core.cluster.fits import could_hold
from hs_core.cluster.last_said import LOCAL
from hs_core.cluster.rates import PoolRate, WayRate
from hs_core.cluster.state import State
from hs_core.cluster.why import AWAY, Scene, Why, explain
from hs_core.errors import Kind, RefusedError
from hs_core.facts import Fact
from hs_core.mechanism.time_load import time_load
from hs_core.model import After, Host, Job, JobSpec, JobState, User
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.policy import Trade
from hs_core.question import Question
from hs_core.reports import Phase
from hs_core.wanted import Turn
from hs_core.words import listed


class Views(Contents):
    @property
    def state(self) -> State:
        return State(
            jobs=dict(self._book.jobs),
            users=dict(self._book.users),
            hosts=dict(self._book.hosts),
            next_job_id=self._next_job_id,
            term=self._term,
            quantum=self._edges.quantum,
            memory=self._memory,
            budget=self._budget.saved,
            profile=self._rates.dump(),
            gpu_speeds=self._rates.gpus.dump(),
            first_epoch=self._backup.first_epoch,
            restored=self._backup.awaits,
        )

    @property
    def term(self) -> int:
        return self._term

    @property
    def restored(self) -> bool:
        """As `State.restored`."""
        return self._backup.awaits

    @property
    def quantum(self) -> int:
        return self._edges.quantum

    @property
    def budget(self) -> tuple[float, float] | None:
        """As `State.budget`."""
        return self._budget.saved

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
        return self._next_job_id

    @property
    def memory(self) -> Mapping[str, object]:
        return self._memory

    @property
    def connected(self) -> frozenset[HostName]:
        return frozenset(self._connected)

    @property
    def looks_on(self) -> bool:
        """As `ClusterMachine.look_on`."""
        return self._looks_on

    def cut_off(self, job: Job) -> bool:
        """A server of its home is away (of several copies, all are): how it stands is what was heard last."""
        return any(name not in self._connected for name in self._counted(job))

    def _counted(self, row: Job) -> tuple[HostName, ...]:
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

    def live_of(self, user: UserName) -> int:
        """How many jobs of theirs have not ended."""
        return len(self._book.of_user.get(user, ()))

    def spec_bytes(self, user: UserName) -> int:
        """That specs of theirs take of what one user may have (`Settings.max_spec_bytes_per_user`)."""
        return self._book.bulk.of_user(user)

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
        """By (user, model), as decided last."""
        return {key: float(gpus) for key, gpus in sorted(self._said.entitled.items())}

    def base(self) -> Mapping[tuple[UserName, str], float]:
        """Entitlements before trades."""
        return {key: float(gpus) for key, gpus in sorted((self._said.base or self._said.entitled).items())}

    def trades(self) -> tuple[Trade, ...]:
        """Those that stand, oldest first."""
        return self._said.trades

    def needing(self, host: HostName) -> tuple[JobId, ...]:
        """Jobs that live elsewhere, or nowhere, and whose checkpoint, or a part of it, can be had from there only."""
        book = self._book
        others = book.hosts.keys() - {host}
        lent = [book.live[job] for job in sorted(book.lent.get(host, ()))]
        return tuple(row.id for row in lent if host not in row.hosts and not reports.can_be_had(row, others))

    def rates(self, job: JobId) -> tuple[PoolRate, ...]:
        """What was measured of its class, by GPU model."""
        return self._rates.of(self._sight.class_of(self.job(job)))

    def way_rates(self, row: Job) -> tuple[WayRate, ...]:
        """What was measured of its class in every way in which it may run; of one that ended long ago, too."""
        return tuple(self._rates.ways(row.spec, row.user))

    def demand(self) -> Mapping[tuple[UserName, str], float]:
        """GPUs that each user's jobs could use now, by model. A job without a home counts for each model it may use."""
        return self._sight.demand()

    def job_tickets(self, job: JobId) -> float:
        """jobTickets as last decided; 0: it has none now."""
        return self._tickets[job] if job in self._said.tickets and job in self._tickets else 0.0

    def job_share_gpus(self, job: JobId) -> float:
        """GPUs that its tickets come to on its servers, beside the other jobs that could run there now."""
        row = self.job(job)
        if not row.hosts or row.state.ended:
            return 0.0
        share = 0.0
        for name in row.hosts:
            host, total = self._book.hosts.get(name), self._tickets_on(name)
            if total > 0 and host is not None:
                part = self.job_tickets(job) / row.nodes / total
                share += min(float(row.gpus), len(host.healthy_gpus) * part)
        return share

    def _part_of(self, row: Job) -> float:
        """The part of all quanta that it runs in by its tickets and by who fits beside whom on its servers; of several the fullest counts."""
        due = self._due_part(row)
        loads = [self._load_on(name) for name in row.hosts]
        return min((min(1.0, due / load) if load > 0 else 1.0 for load in loads), default=0.0)

    def _due_part(self, row: Job) -> float:
        """The same by its tickets alone, as if GPUs could be handed out one by one."""
        parts = []
        for name in row.hosts:
            host, total = self._book.hosts.get(name), self._tickets_on(name)
            gpus = len(host.healthy_gpus) if host is not None else 0
            tickets = self.job_tickets(row.id) / row.nodes
            parts.append(min(1.0, gpus * tickets / total / row.gpus) if total > 0 else 0.0)
        return min(parts, default=0.0)

    def _load_on(self, name: HostName) -> float:
        """Quanta that its jobs need for one of what is due to each (`mechanism.time_load`)."""
        if name not in self._loads:
            host = self._book.hosts.get(name)
            there = [self._book.live[job] for job in sorted(self._book.at_host.get(name, ()))]
            jobs = tuple((row.gpus, due) for row in there if (due := self._due_part(row)) > 0)
            self._loads[name] = time_load(len(host.healthy_gpus), jobs) if host is not None else 0.0
        return self._loads[name]

    def _tickets_on(self, name: HostName) -> float:
        """Of all jobs that live there, added up once between two events: a list of many jobs asks for it again and again."""
        if name not in self._weights:
            there = self._book.at_host.get(name, ())
            self._weights[name] = sum(self.job_tickets(job) / self._book.live[job].nodes for job in there)
        return self._weights[name]

    def _idle_on(self, name: HostName) -> tuple[GpuId, ...]:
        """GPUs in health on which nobody runs; found once between two events, for the same reason."""
        host = self._book.hosts.get(name)
        if name not in self._idle and host is not None:
            said = (self._book.live[job].reports.get(name) for job in self._book.at_host.get(name, ()))
            taken = {gpu for report in said if report is not None and report.occupies for gpu in report.gpus}
            self._idle[name] = tuple(gpu.id for gpu in host.healthy_gpus if gpu.id not in taken)
        return self._idle.get(name, ())

    def _unsliced_on(self, row: Job) -> dict[JobId, int]:
        """Others that run on its server and cannot be suspended: GPUs in health that they have."""
        (name,) = row.hosts
        if name not in self._unsliced:
            host = self._book.hosts.get(name)
            healthy = {gpu.id for gpu in host.healthy_gpus} if host is not None else set()
            said = ((job, self._book.live[job].reports.get(name)) for job in self._book.at_host.get(name, ()))
            self._unsliced[name] = {
                job: len(healthy.intersection(report.gpus))
                for job, report in said
                if report is not None and report.occupies and not report.sliceable
            }
        return {job: gpus for job, gpus in self._unsliced[name].items() if job != row.id}

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
        book = self._book
        unplaced = row.host is None and not row.state.ended
        turns = [turn for name in row.hosts if (turn := self._said.planned_turns.get(name)) is not None]
        in_turn, turn_in_s = self._turn_of(row, now_s)
        ahead = self._ahead_of(row) if not in_turn and turn_in_s < 0 else 0
        misfit = healthy_misfit = None
        if unplaced:
            fits, version = self._sight.fits, book.hosts_version
            misfit = fits.misfit(row.spec, book.hosts, version)
            healthy_misfit = fits.misfit(row.spec, book.hosts, version, healthy_only=True)
        elif not row.state.ended and self._sight.short_of_gpus(row):
            healthy_misfit = self._sight.fits.misfit(
                row.laid, book.hosts, book.hosts_version, healthy_only=True
            )
        counted, doomed = self._counted(row), self._doomed(now_s)
        scene = Scene(
            job=row,
            hosts=tuple(host for name in row.hosts if (host := book.hosts.get(name)) is not None),
            away=tuple(name for name in counted if name not in self._connected),
            without=tuple(name for name in row.hosts if name not in {*counted, *self._connected}),
            open_after=self._open_after(row),
            array_full=unplaced and book.beyond_array_limit(row.id),
            array_first=book.first_of_array(row.id) if unplaced else (),
            misfit=misfit,
            healthy_misfit=healthy_misfit,
            closed=self._closed_to(row) if unplaced and healthy_misfit is None else {},
            unable=self._unable.why(row.user, row.hosts or self._unable.servers()),
            source_away=() if row.state.ended else self._sight.source_away(row),
            unsaved=self._unsaved(row),
            evicted=doomed.issuperset(row.hosts) if row.portions else not doomed.isdisjoint(row.hosts),
            policy_says=self._says_of(job, now_s),
            policy_chose=self._said.how.get(job, ""),
            trial=trial.text(row.step) if (trial := self._said.trials.get(job)) is not None else "",
            unsliced=self._unsliced_on(row) if len(row.hosts) == 1 else {},
            central=any(not turn.local for turn in turns),
            in_turn=in_turn,
            in_its_way=self._in_its_way(row) if in_turn else (),
            turn_in_s=turn_in_s,
            turn_after_s=self._edge_in(now_s) + ahead * self.settings.quantum_s if ahead > 0 else -1.0,
            idle=self._idle_on(row.hosts[0])
            if len(row.hosts) == 1 and reports.cannot_leave(row.report)
            else (),
            share_gpus=self.job_share_gpus(job),
            part=self._part_of(row) if len(row.hosts) == 1 and row.state is not JobState.RUNNING else 0.0,
            waited_s=max(0.0, now_s - self._since_s.get(job, now_s)),
            quantum_s=self.settings.quantum_s,
            looks_on=self._looks_on,
        )
        return explain(scene)

    def _turn_of(self, row: Job, now_s: float) -> tuple[bool, float]:
        """Whether the controller has it run in the quantum that is now, and in how many seconds one begins that it is chosen for; -1: it is not."""
        chosen = [
            bool(row.hosts) and all(row.id in turns.get(name, LOCAL).gangs for name in row.hosts)
            for turns in (self._said.turns, self._said.planned_turns)
        ]
        edge_s = self._edges.at_s
        if edge_s is None or not any(self._book.spanned.get(name, 0) for name in row.hosts):
            return chosen[1], -1.0  # servers without a gang over several are told at once
        return chosen[0], max(0.0, edge_s - now_s) if chosen[1] else -1.0

    def _ahead_of(self, row: Job) -> int:
        """Of a gang that is not chosen for the next quantum: in how many after that it has its turn; 0: that is not known."""
        if row.nodes == 1 or row.state.ended or self._edges.at_s is None:
            return 0
        return max(0, self._said.ahead.get(row.id, 0) - (self._edges.quantum - self._said.quantum))

    def _edge_in(self, now_s: float) -> float:
        return max(0.0, self._edges.at_s - now_s) if self._edges.at_s is not None else 0.0

    def _in_its_way(self, row: Job) -> list[JobId]:
        """Of its turn: jobs that hold GPUs of its servers without one, where too few others are left. Who is told to stop is about to."""
        found = set[JobId]()
        for name in row.hosts:
            turn = self._turn_on(name)
            if turn.local or len(self._idle_on(name)) >= row.gpus:
                continue
            for job in self._book.at_host.get(name, ()):
                report = self._book.live[job].reports.get(name)
                stays = report is not None and report.occupies and report.phase is not Phase.SUSPENDING
                if stays and job != row.id and job not in turn.gangs:
                    found.add(job)
        return sorted(found)

    def _turn_on(self, name: HostName) -> Turn:
        """That it is to have in the quantum that is now."""
        spanned = self._edges.at_s is not None and self._book.spanned.get(name, 0)
        return (self._said.turns if spanned else self._said.planned_turns).get(name, LOCAL)

    def _unsaved(self, row: Job) -> str:
        """Why it could not leave when it was last to move; empty: it could, or has written a checkpoint since, or was not asked."""
        fails = row.id in self._grounded or (row.report is not None and row.report.checkpoint_fails > 0)
        return self._grounded.why(row.id) if fails and self._grounded.tried(row.id) else ""

    def _says_of(self, job: JobId, now_s: float) -> str:
        if self._said.failure is not None:
            return f"the policy {self.policy.name} fails, so nobody is given a home: an administrator can put another one in office"
        if self.stays_at_it(now_s):
            return f"the policy {self.policy.name} has been deciding for {self.deciding_s(now_s):.0f} s, and nobody is given a home before it has"
        return self._said.why.get(job, "")

    def deciding_s(self, now_s: float) -> float:
        """For how long the policy has been at a question; 0: it is at none."""
        return (
            0.0 if self._asking.question is None else max(0.0, now_s - self._asking.question.snapshot.now_s)
        )

    def stays_at_it(self, now_s: float) -> bool:
        """The policy has been at its question for so long that people are told."""
        return self.deciding_s(now_s) > self.settings.quantum_s

    def _open_after(self, row: Job) -> After | None:
        for index, after in enumerate(row.spec.after):
            if self._book.dependency(row, index) is admission.Dependency.OPEN:
                return after
        return None

    def _closed_to(self, row: Job) -> dict[HostName, str]:
        """Servers that could hold it and take nobody now, and why, where not enough others could; found once between two events, as lists ask for many jobs."""
        spec, book = row.spec, self._book
        wish = row.user, spec.gpu_types, spec.gpu_memory_bytes, spec.memory_bytes, spec.gpus, spec.nodes
        if wish not in self._closed:
            shut = {*self._unable.of_all, *self._unable.barring(row.user)}
            hosts = book.hosts_sorted()
            here = [h for h in hosts if h.name in self._connected and h.schedulable and h.name not in shut]
            gone = {host.name for host in hosts}.difference(host.name for host in here)
            if not gone or could_hold(spec, here, mixed=self.policy.needs.mixed):
                gone = set()
            single = replace(spec, nodes=1)
            self._closed[wish] = tuple(h.name for h in hosts if h.name in gone and could_hold(single, [h]))
        unable = self._unable.why(row.user, self._closed[wish])
        return {name: unable.get(name) or self._why_closed(name) for name in self._closed[wish]}

    def _why_closed(self, name: HostName) -> str:
        drain = self._book.hosts[name].drain
        if name not in self._connected:
            return AWAY
        return f"drained: {drain.reason}" if drain is not None and drain.reason else "drained"

    def cannot_start(self, host: HostName) -> str:
        """For people: that it could not start a job, and has started none since; else nothing."""
        if self._unable.of_all.tried(host):
            now = (
                "it is given no others for a while"
                if host in self._unable.of_all
                else "it may have others again"
            )
            return f"could not start a job ({self._unable.of_all.why(host)}): {now}"
        whose = [key for key in self._unable.of_one.all_tried() if key[1] == host]
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
        return tuple(sorted(job for job in named if job < self._next_job_id and job not in self._book.jobs))
