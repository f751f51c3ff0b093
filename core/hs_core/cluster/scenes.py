"""What there is to see of one job, for who asks why it is where it is (`why/` tells of it)."""

from dataclasses import replace
from fractions import Fraction

from hs_core.cluster import admission, reports
from hs_core.cluster.cadence import Cadence
from hs_core.cluster.contents import Contents
from hs_core.cluster.fits import could_hold
from hs_core.cluster.last_said import LOCAL
from hs_core.cluster.views import Views
from hs_core.cluster.why import AWAY, Scene, Why, explain
from hs_core.mechanism.time_load import time_load
from hs_core.model import After, Job, JobState
from hs_core.names import GpuId, HostName, JobId
from hs_core.wanted import Turn


class Scenes:
    def __init__(self, contents: Contents, views: Views, cadence: Cadence) -> None:
        self._contents = contents
        self._book = contents.book
        self._connected = contents.connected
        self._edges = contents.edges
        self._grounded = contents.grounded
        self._said = contents.said
        self._settings = contents.settings
        self._reach = contents.reach
        self._unable = contents.unable
        self._views = views
        self._cadence = cadence
        # Found where asked for since the last event.
        self._idle: dict[HostName, tuple[GpuId, ...]] = {}  # GPUs there on which nobody runs
        self._loads: dict[HostName, float] = {}  # quanta that its jobs need for what is due to them
        self._unsliced: dict[HostName, dict[JobId, int]] = {}  # who cannot be suspended
        self._closed: dict[tuple[object, ...], tuple[HostName, ...]] = {}  # to such wishes of a user

    def happened(self) -> None:
        """Something has: what was found before may be otherwise."""
        self._idle.clear()
        self._loads.clear()
        self._unsliced.clear()
        self._closed.clear()

    def why(self, job: JobId, now_s: float) -> Why:
        row = self._views.job(job)
        book = self._book
        unplaced = row.host is None and not row.state.ended
        turns = [turn for name in row.hosts if (turn := self._said.planned_turns.get(name)) is not None]
        in_turn, turn_in_s = self._turn_of(row, now_s)
        ahead = self._ahead_of(row) if not in_turn and turn_in_s < 0 else 0
        misfit = healthy_misfit = None
        short = not unplaced and not row.state.ended and self._reach.short_of_gpus(row)
        if unplaced:
            fits, version = self._reach.fits, book.hosts_version
            misfit = fits.misfit(row.spec, book.hosts, version)
            healthy_misfit = fits.misfit(row.spec, book.hosts, version, healthy_only=True)
        elif short:
            healthy_misfit = self._reach.fits.misfit(
                row.laid, book.hosts, book.hosts_version, healthy_only=True
            )
        counted, doomed = self._views.counted(row), self._contents.doomed(now_s)
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
            closed=self._closed_to(row) if (unplaced or short) and healthy_misfit is None else {},
            policy=self._contents.policy.name,
            unable=self._unable.told(row.user, row.hosts),
            failed_at=self._contents.abroad.failed(job),
            source_away=() if row.state.ended else self._reach.source_away(row),
            unsaved=self._unsaved(row),
            evicted=doomed.issuperset(row.hosts) if row.portions else not doomed.isdisjoint(row.hosts),
            saves_within_s=self._settings.move_deadline_s if job in self._contents.evictions.saving else 0.0,
            policy_says=self._says_of(job, now_s),
            until_edge=self._until_edge(job),
            round_in_s=self._round_in(job, now_s),
            copies_fail=self._copies_fail(job) if self._contents.policy.needs.copies else "",
            policy_chose=self._said.how.get(job, ""),
            trial=trial.text(row.step) if (trial := self._said.trials.get(job)) is not None else "",
            unsliced=self._unsliced_on(row) if len(row.hosts) == 1 else {},
            central=any(not turn.local for turn in turns),
            in_turn=in_turn,
            in_its_way=self._in_its_way(row) if in_turn else (),
            turn_in_s=turn_in_s,
            turn_after_s=self._edge_in(now_s) + ahead * self._settings.quantum_s if ahead > 0 else -1.0,
            idle=self._idle_on(row.hosts[0])
            if len(row.hosts) == 1 and reports.cannot_leave(row.report)
            else (),
            share_gpus=self._views.job_share_gpus(job),
            user_gpus=self._user_gpus(row),
            part=self._part_of(row) if len(row.hosts) == 1 and row.state is not JobState.RUNNING else 0.0,
            waited_s=max(
                0.0, now_s - max(self._contents.in_office_s, self._contents.since_s.get(job, now_s))
            ),
            quantum_s=self._settings.quantum_s,
            looks_on=self._contents.looks_on,
        )
        return explain(scene)

    def _user_gpus(self, row: Job) -> float:
        """That its user is entitled to of the pool where it lives."""
        entitled = self._said.entitled
        if not (entitled and row.hosts and self._contents.policy.needs.fair):
            return -1.0
        return float(sum(entitled.get((row.user, model), Fraction(0)) for model in set(row.gpu_models)))

    def _part_of(self, row: Job) -> float:
        """The part of all quanta that it runs in by its tickets and by who fits beside whom on its servers; of several the fullest counts."""
        due = self._due_part(row)
        loads = [self._load_on(name) for name in row.hosts]
        return min((min(1.0, due / load) if load > 0 else 1.0 for load in loads), default=0.0)

    def _due_part(self, row: Job) -> float:
        """The same by its tickets alone, as if GPUs could be handed out one by one."""
        parts = []
        for name in row.hosts:
            host, total = self._book.hosts.get(name), self._views.tickets_on(name)
            gpus = len(host.healthy_gpus) if host is not None else 0
            tickets = self._views.job_tickets(row.id) / row.nodes
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

    def _turn_of(self, row: Job, now_s: float) -> tuple[bool, float]:
        """Whether the controller has it run in the quantum that is now, and in how many seconds one begins that it is chosen for; -1: it is not."""
        chosen = [
            bool(row.hosts) and all(row.id in turns.get(name, LOCAL).gangs for name in row.hosts)
            for turns in (self._said.turns, self._said.planned_turns)
        ]
        edge_s = self._edges.at_s
        if edge_s is None or not any(map(self._cadence.is_in_step, row.hosts)):
            return chosen[1], -1.0  # told at once
        return chosen[0], max(0.0, edge_s - now_s) if chosen[1] else -1.0

    def _ahead_of(self, row: Job) -> int:
        """Of a gang that is not chosen for the next quantum: in how many after that it has its turn; 0: that is not known."""
        if row.nodes == 1 or row.state.ended or self._edges.at_s is None:
            return 0
        return max(0, self._said.ahead.get(row.id, 0) - (self._edges.quantum - self._said.quantum))

    def _edge_in(self, now_s: float) -> float:
        return max(0.0, self._edges.at_s - now_s) if self._edges.at_s is not None else 0.0

    def _in_its_way(self, row: Job) -> list[JobId]:
        """Of its turn: jobs that hold GPUs of its servers without one, where too few others are left. Who is told to stop has them until it has: that may take long where a part of it is cut off."""
        found = set[JobId]()
        for name in row.hosts:
            turn = self._turn_on(name)
            if turn.local or len(self._idle_on(name)) >= row.gpus:
                continue
            for job in self._book.at_host.get(name, ()):
                report = self._book.live[job].reports.get(name)
                if report is not None and report.occupies and job != row.id and job not in turn.gangs:
                    found.add(job)
        return sorted(found)

    def _turn_on(self, name: HostName) -> Turn:
        """That it is to have in the quantum that is now."""
        said = self._said
        return (said.turns if self._cadence.is_in_step(name) else said.planned_turns).get(name, LOCAL)

    def _unsaved(self, row: Job) -> str:
        """Why it could not leave when it was last to move; empty: it could, or has written a checkpoint since, or was not asked."""
        fails = row.id in self._grounded or (row.report is not None and row.report.checkpoint_fails > 0)
        return self._grounded.why(row.id) if fails and self._grounded.tried(row.id) else ""

    def _says_of(self, job: JobId, now_s: float) -> str:
        """Of one that waits for the end of a round, what was said as that began: nothing if it was not here, or had a turn."""
        if self._said.failure is not None:
            return f"the policy {self._contents.policy.name} fails, so nobody is given a home: an administrator can put another one in office"
        if self._views.stays_at_it(now_s):
            return f"the policy {self._contents.policy.name} has been deciding for {self._views.deciding_s(now_s):.0f} s, and nobody is given a home before it has"
        return (self._said.waits_in_round if self._until_edge(job) else self._said.why).get(job, "")

    def _until_edge(self, job: JobId) -> str:
        return self._said.waits.get(job, "") if self._said.within_a_round else ""

    def _round_in(self, job: JobId, now_s: float) -> float:
        """Of a policy that fails, or stays at a decision, nobody knows when it decides again."""
        decides = self._said.failure is None and not self._views.stays_at_it(now_s)
        rounds = self._contents.policy.needs.rounds and self._edges.at_s is not None
        return self._edge_in(now_s) if decides and rounds and job in self._said.waits else -1.0

    def _copies_fail(self, job: JobId) -> str:
        servers = sorted(self._contents.unforked.barring(job))
        if not servers:
            return ""
        whys = dict.fromkeys(self._contents.unforked.why((job, name)) for name in servers)
        return f"{', '.join(servers)} ({'; '.join(whys)})"

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
            shut = {*self._unable.of_all, *self._unable.obeys, *self._unable.barring(row.user)}
            hosts = book.hosts_sorted()
            here = [h for h in hosts if h.name in self._connected and h.schedulable and h.name not in shut]
            gone = {host.name for host in hosts}.difference(host.name for host in here)
            if not gone or could_hold(spec, here, mixed=self._contents.policy.needs.mixed):
                gone = set()
            single = replace(spec, nodes=1)
            self._closed[wish] = tuple(h.name for h in hosts if h.name in gone and could_hold(single, [h]))
        unable = self._unable.told(row.user, self._closed[wish]) if self._closed[wish] else {}
        return {name: unable.get(name) or self._why_closed(name) for name in self._closed[wish]}

    def _why_closed(self, name: HostName) -> str:
        drain = self._book.hosts[name].drain
        if name not in self._connected:
            return AWAY
        return f"drained: {drain.reason}" if drain is not None and drain.reason else "drained"
