"""What a policy is shown: kept from decision to decision, and looked at again only where something changed."""

from collections import Counter
from collections.abc import Collection, Mapping
from fractions import Fraction
from math import inf

from hs_core.cluster import checkpoints, copies, reports
from hs_core.cluster.abroad import Abroad
from hs_core.cluster.book import Book
from hs_core.cluster.classes import Classes
from hs_core.cluster.fits import could_hold
from hs_core.cluster.grounded import Grounded
from hs_core.cluster.narrow import Narrow
from hs_core.cluster.reach import Reach
from hs_core.cluster.unable import Unable
from hs_core.cluster.unforked import Unforked
from hs_core.copier import copier, maker
from hs_core.forms import Shape
from hs_core.model import Job, Migrate, SuspendMode, gpus_as, spans, split_memory, spreads
from hs_core.names import HostName, JobId, UserName
from hs_core.policy import Going, JobFacts, Needs
from hs_core.reports import JobReport, Phase

_changed = copier(JobFacts)
_facts = maker(JobFacts)
_WITHOUT_PROCESS = (Phase.WAITING, Phase.CHECKPOINTED)


class Sight:
    """`doomed` servers are those whose jobs are being ended: drained, and past the deadline."""

    def __init__(
        self,
        book: Book,
        connected: Collection[HostName],
        reach: Reach,
        classes: Classes,
        *,
        grounded: Grounded,
        unable: Unable,
        unforked: Unforked,
        abroad: Abroad,
    ) -> None:
        self._book = book
        self._grounded = grounded
        self._unable = unable
        self._unforked = unforked
        self._abroad = abroad
        self._narrow = Narrow()
        self._connected = connected
        self._reach = reach
        self._classes = classes
        self._copies = True
        self._awaited: Collection[HostName] = ()
        self._progress = True
        self._facts: dict[JobId, JobFacts] = {}  # by id
        self._shown: tuple[JobFacts, ...] | None = None
        self._in_order = True
        self._users: Counter[UserName] = Counter()
        self._hosts_version = -1
        self._doomed: frozenset[HostName] = frozenset()
        self._running: set[JobId] = set()
        self._fractions: dict[UserName, tuple[float, Fraction]] = {}
        self._by_gpu = False
        self._sick: set[JobId] = set()  # whose servers had too few GPUs in health when they were looked at

    def serve(self, needs: Needs) -> None:
        """The policy that takes office."""
        self._progress = needs.progress
        if self._reach.fits.mixed != needs.mixed:
            self._reach.fits.mixed = needs.mixed
            self._hosts_version = -1  # who has no home is looked at again
        if self._copies != needs.copies:
            self._copies = needs.copies
            self._book.changed |= (
                self._book.forked
            )  # where copies are none of its kind they are shown as what is to become of them
            self._book.changed |= self._unforked.jobs() & self._book.live.keys()
        by_gpu = needs.by_gpu or needs.sharing or needs.bindings
        if self._by_gpu != by_gpu:
            self._by_gpu = by_gpu
            self._book.changed |= self._book.live.keys()  # now it is said which GPUs processes are bound to

    def wait_for(self, awaited: Collection[HostName]) -> bool:
        """Servers that will be back at once, perhaps: copies there count still. Whether others were waited for until now."""
        if awaited == self._awaited:
            return False
        self._awaited = awaited
        self._book.changed |= self._book.forked
        return True

    def classes(self) -> set[str]:
        """Of the jobs that are shown."""
        return {job.job_class for job in self._facts.values()}

    def _bound(self, row: Job) -> tuple[tuple[int, ...], ...]:
        """As `JobFacts.gpus`, whoever asks."""
        bound = []
        for name in row.hosts if not row.portions else ():
            report = row.reports.get(name)
            here = {gpu.id: gpu.index for gpu in self._book.hosts[name].gpus}
            if report is None or len(report.gpus) != row.gpus or not here.keys() >= set(report.gpus):
                return ()
            bound.append(tuple(here[gpu] for gpu in report.gpus))
        return tuple(bound)

    def jobs(self, doomed: frozenset[HostName] = frozenset()) -> tuple[JobFacts, ...]:
        """Those that could run now, by id: not paused (or not to be stopped), blocked or ending, nor larger than the GPUs they may use.

        What they have received and done is as of now only for a policy that goes by it.
        """
        book = self._book
        book.recount()
        changed = book.changed
        if self._progress:
            changed |= self._count(book.counted - changed)
            book.counted = set()
        for host in doomed ^ self._doomed:
            changed |= book.at_host.get(host, set())
        self._doomed = doomed
        # Whether who waits there has a place elsewhere.
        for host in self._unable.servers():
            changed |= book.at_host.get(host, set())
        if self._hosts_version != book.hosts_version:
            self._hosts_version = book.hosts_version
            narrowed = self._narrow.see(book.hosts.values())
            changed |= {
                job
                for job, row in book.live.items()
                if not row.hosts or job in self._sick or (narrowed and row.spec.memory_bytes)
            }
            self._sick.clear()
        if changed:
            self._renew(changed)
            book.changed = set()
        if self._shown is None:
            if not self._in_order:
                self._facts = dict(sorted(self._facts.items()))
                self._in_order = True
            self._shown = tuple(self._facts.values())
        return self._shown

    def shown(self, doomed: frozenset[HostName] = frozenset()) -> Mapping[JobId, JobFacts]:
        """As `jobs`, by id."""
        self.jobs(doomed)
        return self._facts

    def _count(self, counted: Collection[JobId]) -> set[JobId]:
        """What these have received and done, of which nothing else changed; the answer is who is to be looked at all the same."""
        others: set[JobId] = set()
        for job in counted:
            row, old = self._book.live[job], self._facts.get(job)
            # How noisy its gradients are is measured along with its progress.
            if old is None or row.spec.elastic is not None:
                others.add(job)
                continue
            gpu_s, step = row.gpu_s, row.step
            if gpu_s != old.attained_gpu_s or step != old.steps_done:
                self._facts[job] = _changed(old, attained_gpu_s=gpu_s, steps_done=step)
                self._shown = None
        return others

    def running(self) -> frozenset[JobId]:
        """Of those that `jobs` said last, who is in its turn."""
        return frozenset(self._running)

    def _renew(self, changed: Collection[JobId]) -> None:
        newest = next(reversed(self._facts), JobId(0))
        for job in sorted(changed):
            row = self._book.live.get(job)
            old = self._facts.get(job)
            if row is None or not self._could_run(row):
                self._turn(job, None)
                if old is not None:
                    del self._facts[job]
                    self._users[old.user] -= 1
                    self._shown = None
                continue
            report = row.report
            new = self._job_facts(row, report)
            if old is not None and not self._progress:
                known = _changed(new, attained_gpu_s=old.attained_gpu_s, steps_done=old.steps_done)
                new = old if known == old else new
            self._turn(job, report)
            if old is None:
                self._users[row.user] += 1
                if job < newest:
                    self._in_order = False
                else:
                    newest = job
            if new is not old and new != old:
                self._facts[job] = new
                self._shown = None

    def _turn(self, job: JobId, report: JobReport | None) -> None:
        if report is not None and report.phase is Phase.RUNNING:
            self._running.add(job)
        else:
            self._running.discard(job)

    def _counted(self, row: Job) -> tuple[HostName, ...]:
        """Copies that are being ended on servers that were to be empty are as those that have."""
        there = copies.counted(row, {*self._connected, *self._awaited})
        return tuple(name for name in there if name not in self._doomed) or there

    def _could_run(self, row: Job) -> bool:
        book = self._book
        if (row.paused and not reports.cannot_pause(row)) or row.cancelled_by or row.id in book.blocked:
            return False
        if row.hosts:
            there = self._counted(row) if row.portions else row.hosts
            if reports.broken(row) or not there or not self._doomed.isdisjoint(there):
                return False
            hosts = [book.hosts.get(name) for name in there]
            if any(host is None for host in hosts):
                return False
            able = all(host is not None and row.gpus <= len(host.healthy_gpus) for host in hosts)
            return able or self._leaves_sick(row)
        if book.beyond_array_limit(row.id) or (
            self._reach.source_away(row) and not self._reach.out_of_reach(row)
        ):
            return False
        return self._reach.fits_somewhere(row)

    def _leaves_sick(self, row: Job) -> bool:
        """Too few GPUs of its servers are in health, but it can go, and there are others that have enough."""
        self._sick.add(row.id)
        started = reports.has_process(row.report)
        here = all(host in self._connected for host in row.hosts)
        if row.portions or not here or not reports.can_leave(row.report):
            return False
        if started and row.spec.migrate is Migrate.NEVER:
            return False
        return self._reach.fits_somewhere(row)

    def stranded(self, row: Job) -> bool:
        """It waits on a server that cannot start it, and there are others that could: it is shown as one without a home, which it keeps where it gets no other."""
        if row.move is not None or row.portions or not self._unable.why(row.user, row.hosts):
            return False
        if any(part.phase not in _WITHOUT_PROCESS for part in row.reports.values()):
            return False
        if any(name not in self._connected for name in row.hosts):
            return False
        if reports.has_process(row.report) and not self._reach.may_leave_checkpointed(row):
            return False
        others = [
            host
            for name, host in self._book.hosts.items()
            if name in self._connected and host.schedulable and not self._unable.why(row.user, [name])
        ]
        return could_hold(row.laid, others, mixed=self._reach.fits.mixed)

    def _job_facts(self, row: Job, report: JobReport | None) -> JobFacts:
        hosts, parts = row.hosts, tuple(row.reports.values())
        if self.stranded(row):
            hosts, parts, report = (), (), None
        if row.portions:  # those that have ended, or are away, are not waited for
            hosts = self._counted(row)
            parts = tuple(row.reports[host] for host in hosts if host in row.reports)
        here = all(host in self._connected for host in hosts)
        reachable = all(self._book.hosts[host].peer for host in hosts)
        started = any(map(reports.has_process, parts)) or (not row.portions and reports.has_process(report))
        stays = False
        if row.portions and row.move is not None and not row.move.portions:
            hosts = row.move.to  # from now on it is one
        elif row.portions and not self._copies:
            hosts, stays = hosts[:1], True
        grounded = started and row.id in self._grounded
        leaves = not started or (not grounded and all(map(reports.can_leave, parts)))
        free = here and row.move is None and not row.paused and not stays and leaves
        looks = here and not started and checkpoints.looks_at_home(row, hosts)
        rooted = grounded or looks or any(map(reports.cannot_leave, parts))
        return _facts(
            id=row.id,
            user=row.user,
            gang=row.gang,
            arrival_s=row.arrival_s,
            nodes=row.nodes,
            priority=row.spec.priority,
            gpu_types=row.spec.gpu_types,
            barred=self._barred(row, hosts),
            gpu_memory_bytes=row.spec.gpu_memory_bytes,
            memory_bytes=max(_declared(row, started), row.needs_bytes, _measured(report)),
            fixed_bytes=row.spec.gpu_memory_fixed_bytes,
            accumulation_max=row.spec.accumulation_max,
            accumulation=row.accumulation,
            job_class=self._classes.of(row),
            hosts=hosts,
            # Of a server that is away nobody knows what it has started since.
            started=started or looks or not here,
            held_up=here
            and all(part.phase in _WITHOUT_PROCESS for part in parts)
            and (row.id in self._unable.for_memory or any(map(reports.is_held_up, parts))),
            movable=free and not looks and (not started or reachable),
            going=_going(row),
            restartable=free and started,
            rooted=rooted,
            single=report is not None and report.single,
            migrate=row.spec.migrate,
            settled_s=inf if checkpoints.is_fetching(row) else row.settled_s,
            attained_gpu_s=row.gpu_s,
            state_bytes=_state_bytes(row, report),
            steps=row.spec.steps,
            steps_done=row.step,
            sliceable=row.spec.suspend is not SuspendMode.NONE and (report is None or report.sliceable),
            gpus=self._bound(row) if rooted or self._by_gpu else (),
            dataset=row.spec.dataset,
            elastic=row.elastic,
            spans=spans(row.spec),
            strategies=row.spec.strategies,
            spreads=spreads(row.spec) if not (hosts or row.stored or reports.has_process(row.report)) else (),
            shape=row.shape,
            declared=_as_declared(row),
            migrations=row.migrations,
        )

    def _barred(self, row: Job, hosts: Collection[HostName]) -> frozenset[HostName]:
        """Servers that cannot start it, but for its home: the very same for nearly all jobs of a kind."""
        unable, narrow = self._unable.barring(row.user), self._narrow.below(row.spec.memory_bytes)
        barred = unable | narrow if unable and narrow else unable or narrow
        # Where its copies fail none is made, as long as it has a place to be one.
        if self._copies and (failed := self._unforked.barring(row.id)) and self._reach.has_place(hosts):
            barred |= failed
        if (ended := self._abroad.failed(row.id)) and self._reach.could_go_elsewhere(row, ended):
            barred = barred.union(ended)
        return barred if barred.isdisjoint(hosts) else barred.difference(hosts)

    def tickets(self) -> dict[UserName, Fraction]:
        """Of the users whose jobs are shown."""
        found: dict[UserName, Fraction] = {}
        for user in sorted(user for user, jobs in self._users.items() if jobs):
            tickets = self._book.users[user].tickets
            known = self._fractions.get(user)
            if known is None or known[0] != tickets:
                known = self._fractions[user] = (tickets, Fraction(str(tickets)))
            found[user] = known[1]
        return found

    def demand(self) -> Mapping[tuple[UserName, str], float]:
        """GPUs that each user's jobs could use now, by model. A job without a home counts for each model it may use."""
        demand: dict[tuple[UserName, str], float] = {}
        models = sorted(self._book.models())
        for job in self.jobs(self._doomed):
            if job.hosts:
                parts = Counter(self._book.live[job.id].gpu_models)
                asked = {model: job.per_node * nodes for model, nodes in parts.items()}
            else:
                asked = dict.fromkeys(job.gpu_types or models, job.gang)
            for model, gpus in asked.items():
                demand[job.user, model] = demand.get((job.user, model), 0.0) + gpus
        return dict(sorted(demand.items()))


def _state_bytes(row: Job, report: JobReport | None) -> int:
    """As `JobFacts.state_bytes`. Before any checkpoint of it was weighed: what was seen in the memory of its GPUs is no less, as a rule."""
    if row.state_bytes or report is None:
        return row.state_bytes
    return report.device_memory_bytes * row.gang


def _going(row: Job) -> Going | None:
    if row.move is None:
        return None
    return Going(hosts=row.move.to, gpus=gpus_as(row.spec, row.move.shape))


def _as_declared(row: Job) -> Shape | None:
    """None: it runs so, or is not elastic."""
    if row.spec.elastic is None or not isinstance(row.shape, Shape):
        return None
    declared = row.spec.elastic.on(row.spec.gang, row.spec.nodes)
    return None if row.shape == declared else declared


def _measured(report: JobReport | None) -> int:
    return report.device_memory_bytes if report is not None else 0


def _declared(row: Job, started: bool) -> int:
    spec = row.spec
    if not started or row.accumulation == 1:
        return spec.gpu_memory_bytes
    return split_memory(spec.gpu_memory_bytes, spec.gpu_memory_fixed_bytes, row.accumulation)
