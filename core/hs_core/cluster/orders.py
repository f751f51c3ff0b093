"""What a policy is shown of the rows, and what a host is told of them. Built again only where a row changed."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from hs_core.cluster import admission, reports
from hs_core.cluster.book import Book
from hs_core.cluster.state import Settings
from hs_core.events import Turn, WantedJob
from hs_core.model import Host, HostName, Job, JobId, Phase, SuspendMode, User, job_class
from hs_core.policy import HostFacts, JobFacts, Snapshot


class Orders:
    def __init__(self) -> None:
        self._facts: dict[JobId, tuple[Job, JobFacts]] = {}
        self._wanted: dict[JobId, tuple[Job, str, WantedJob]] = {}
        self._classes: dict[JobId, str] = {}

    def forget(self, job: JobId) -> None:
        self._facts.pop(job, None)
        self._wanted.pop(job, None)
        self._classes.pop(job, None)

    def snapshot(
        self, book: Book, connected: Collection[HostName], settings: Settings, *, quantum: int, now_s: float
    ) -> Snapshot:
        jobs = tuple(self._job_facts(row) for row in runnable(book))
        users = sorted({job.user for job in jobs})
        return Snapshot(
            now_s=now_s,
            quantum_s=settings.quantum_s,
            quantum=quantum,
            hosts=tuple(_host_facts(host, connected=host.name in connected) for host in book.hosts_sorted()),
            jobs=jobs,
            tickets={user: Fraction(str(book.users[user].tickets)) for user in users},
            seed=settings.seed,
        )

    def wanted_job(self, row: Job, user: User, tickets: float) -> WantedJob:
        run_as = user.run_as or row.user
        last = self._wanted.get(row.id)
        if last is not None:
            known, account, wanted = last
            if known is row and account == run_as:
                return (
                    wanted if wanted.tickets == tickets else self._keep(row, replace(wanted, tickets=tickets))
                )
        limit_s = row.spec.max_duration_s
        wanted = WantedJob(
            job=row.id,
            epoch=row.epoch,
            user=row.user,
            run_as=run_as,
            job_class=self._class_of(row),
            spec=row.spec,
            tickets=tickets,
            paused=row.paused,
            cancelled=bool(row.cancelled_by),
            time_limit_s=limit_s - row.past_run_s if limit_s else 0.0,
        )
        return self._keep(row, wanted)

    def _keep(self, row: Job, wanted: WantedJob) -> WantedJob:
        self._wanted[row.id] = (row, wanted.run_as, wanted)
        return wanted

    def _class_of(self, row: Job) -> str:
        found = self._classes.get(row.id)
        if found is None:
            found = self._classes[row.id] = job_class(row.user, row.spec)
        return found

    def _job_facts(self, row: Job) -> JobFacts:
        last = self._facts.get(row.id)
        if last is not None and last[0] is row:
            return last[1]
        report = row.report
        facts = JobFacts(
            id=row.id,
            user=row.user,
            gang=row.spec.gang,
            arrival_s=row.arrival_s,
            priority=row.spec.priority,
            gpu_types=row.spec.gpu_types,
            gpu_memory_bytes=row.spec.gpu_memory_bytes,
            job_class=self._class_of(row),
            nodes=row.spec.nodes,
            hosts=row.hosts,
            migrate=row.spec.migrate,
            settled_s=row.settled_s,
            started=reports.has_process(report),
            running=report is not None and report.phase is Phase.RUNNING,
            attained_gpu_s=row.gpu_s,
            sliceable=row.spec.suspend is not SuspendMode.NONE and (report is None or report.sliceable),
        )
        self._facts[row.id] = (row, facts)
        return facts


def _host_facts(host: Host, *, connected: bool) -> HostFacts:
    healthy = host.healthy_gpus
    return HostFacts(
        name=host.name,
        model=host.model,
        gpus=len(healthy),
        gpu_memory_bytes=min((gpu.memory_bytes for gpu in healthy), default=0),
        connected=connected,
        accepts=host.schedulable,
    )


def runnable(book: Book) -> Iterator[Job]:
    """Those that could run now: not paused, blocked, ending, or larger than the healthy GPUs they may use."""
    held = book.beyond_array_limit()
    fits: dict[tuple[tuple[str, ...], int, int], bool] = {}
    hosts = book.hosts_sorted()
    healthy = {host.name: len(host.healthy_gpus) for host in hosts}
    for row in book.live_rows():
        if row.paused or row.cancelled_by or row.id in book.blocked or row.id in held:
            continue
        if row.host is not None:
            if row.spec.gang <= healthy[row.host]:
                yield row
            continue
        wish = (row.spec.gpu_types, row.spec.gpu_memory_bytes, row.spec.gang)
        if wish not in fits:
            fits[wish] = admission.misfit(row.spec, hosts, healthy_only=True) is None
        if fits[wish]:
            yield row


def turn_among(turn: Turn, jobs: Sequence[WantedJob]) -> Turn:
    """The policy's, less what has ended, paused or been cancelled since it was decided."""
    able = {job.job for job in jobs if not (job.paused or job.cancelled)}
    if able.issuperset(turn.gangs):
        return turn
    return replace(turn, gangs=tuple(job for job in turn.gangs if job in able))
