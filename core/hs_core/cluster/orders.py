"""What a policy is shown of the rows, and what a host is told of them."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from hs_core.cluster import admission, reports
from hs_core.cluster.book import Book
from hs_core.cluster.state import Settings
from hs_core.events import Turn, WantedJob
from hs_core.model import HostName, Job, Phase, SuspendMode, User, job_class
from hs_core.policy import HostFacts, JobFacts, Snapshot


def snapshot(
    book: Book, connected: Collection[HostName], settings: Settings, *, quantum: int, now_s: float
) -> Snapshot:
    hosts = tuple(
        HostFacts(
            name=host.name,
            model=host.model,
            gpus=len(host.healthy_gpus),
            gpu_memory_bytes=min((gpu.memory_bytes for gpu in host.healthy_gpus), default=0),
            connected=host.name in connected,
            accepts=host.schedulable,
        )
        for host in book.hosts_sorted()
    )
    jobs = tuple(_job_facts(row) for row in runnable(book))
    users = sorted({job.user for job in jobs})
    return Snapshot(
        now_s=now_s,
        quantum_s=settings.quantum_s,
        quantum=quantum,
        hosts=hosts,
        jobs=jobs,
        tickets={user: Fraction(str(book.users[user].tickets)) for user in users},
        seed=settings.seed,
    )


def runnable(book: Book) -> Iterator[Job]:
    """Those that could run now: not paused, blocked, ending, or larger than the healthy GPUs they may use."""
    held = book.beyond_array_limit()
    fits: dict[tuple[tuple[str, ...], int, int], bool] = {}
    hosts = book.hosts_sorted()
    for row in book.live_rows():
        if row.paused or row.cancelled_by or row.id in book.blocked or row.id in held:
            continue
        if row.host is not None:
            if row.spec.gang <= len(book.hosts[row.host].healthy_gpus):
                yield row
            continue
        wish = (row.spec.gpu_types, row.spec.gpu_memory_bytes, row.spec.gang)
        if wish not in fits:
            fits[wish] = admission.misfit(row.spec, hosts, healthy_only=True) is None
        if fits[wish]:
            yield row


def _job_facts(row: Job) -> JobFacts:
    report = row.report
    return JobFacts(
        id=row.id,
        user=row.user,
        gang=row.spec.gang,
        arrival_s=row.arrival_s,
        priority=row.spec.priority,
        gpu_types=row.spec.gpu_types,
        gpu_memory_bytes=row.spec.gpu_memory_bytes,
        job_class=job_class(row.user, row.spec),
        host=row.host,
        started=reports.has_process(report),
        running=report is not None and report.phase is Phase.RUNNING,
        attained_gpu_s=row.gpu_s,
        sliceable=row.spec.suspend is not SuspendMode.NONE and (report is None or report.sliceable),
    )


def turn_among(turn: Turn, jobs: Sequence[WantedJob]) -> Turn:
    """The policy's, less what has ended, paused or been cancelled since it was decided."""
    able = {job.job for job in jobs if not (job.paused or job.cancelled)}
    if able.issuperset(turn.gangs):
        return turn
    return replace(turn, gangs=tuple(job for job in turn.gangs if job in able))


def wanted_job(row: Job, user: User, tickets: float) -> WantedJob:
    limit_s = row.spec.max_duration_s
    return WantedJob(
        job=row.id,
        epoch=row.epoch,
        user=row.user,
        run_as=user.run_as or row.user,
        job_class=job_class(row.user, row.spec),
        spec=row.spec,
        tickets=tickets,
        paused=row.paused,
        cancelled=bool(row.cancelled_by),
        time_limit_s=limit_s - row.past_run_s if limit_s else 0.0,
    )
