"""Every invariant of the controller's mind. What fails here is our fault: the process stops and recovers."""

from collections.abc import Iterable, Mapping
from math import isfinite

from hs_core.cluster import states
from hs_core.cluster.book import Book
from hs_core.errors import BrokenError
from hs_core.events import Wanted
from hs_core.model import HostName, Job, JobId


def must(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenError(what)


def check_rows(book: Book, rows: Iterable[Job], next_job_id: JobId) -> None:
    for row in rows:
        check_row(book, row, next_job_id)


def check_row(book: Book, row: Job, next_job_id: JobId) -> None:
    name = f"job {row.id}"
    must(0 < row.id < next_job_id, f"{name}: the next id is {next_job_id}")
    must(row.user in book.users, f"{name}: its user {row.user!r} is not known")
    must(row.state in states.expected(row), f"{name}: {row.state}, but its row says {states.expected(row)}")
    must(
        (row.exit is not None) == (row.ended_s is not None), f"{name}: an exit and a time of it come together"
    )
    must((row.id in book.live) == (not row.state.ended), f"{name}: {row.state}, yet listed otherwise")
    must(row.host is None or row.host in book.hosts, f"{name}: its home {row.host!r} is not known")
    must(row.epoch >= 0 and row.retries <= row.spec.retry_max, f"{name}: retried {row.retries} times")
    for value in (row.past_gpu_s, row.past_run_s, row.past_lost_gpu_s):
        must(isfinite(value) and value >= 0, f"{name}: its account holds {value}")
    by_model = sum(row.past_gpu_s_by_model.values())
    must(
        abs(by_model - row.past_gpu_s) <= 1e-6 * (1 + row.past_gpu_s),
        f"{name}: GPU-seconds by model do not add up",
    )
    if row.report is not None:
        must((row.report.job, row.report.epoch) == (row.id, row.epoch), f"{name}: holds another one's report")
        must(row.report.gpu_s >= 0 and isfinite(row.report.gpu_s), f"{name}: received {row.report.gpu_s}")
        must(row.host is not None, f"{name}: reported of without a home")
    if row.state.ended:
        return
    must((row.id in book.at_host.get(row.host, ())) if row.host else True, f"{name}: missing at {row.host}")
    for after in row.spec.after:
        must(after.job < row.id, f"{name}: waits for a later job, {after.job}")
        must(after.job in book.jobs, f"{name}: what it waits for, {after.job}, is not there")
    if row.id in book.blocked:
        must(row.host is None, f"{name}: placed although it waits for another job")


def check_change(old: Job | None, new: Job) -> None:
    """Epochs and accounts only grow; what has ended stays as it ended."""
    if old is None:
        must(new.epoch == 0 and new.gpu_s == 0, f"job {new.id}: born with a past")
        return
    name = f"job {new.id}"
    must(not old.state.ended or old == new, f"{name}: changed after its end")
    must(
        (old.id, old.user, old.spec, old.arrival_s) == (new.id, new.user, new.spec, new.arrival_s),
        f"{name}: remade",
    )
    must(new.epoch in {old.epoch, old.epoch + 1}, f"{name}: epoch {old.epoch} → {new.epoch}")
    must(new.gpu_s >= old.gpu_s - 1e-9, f"{name}: GPU-seconds {old.gpu_s} → {new.gpu_s}")
    must(new.past_lost_gpu_s >= old.past_lost_gpu_s, f"{name}: lost work was forgotten")
    same_home = new.host == old.host or old.host is None or new.state.ended
    must(same_home or new.epoch > old.epoch, f"{name}: left {old.host} for {new.host} in one epoch")


def check_arrays(book: Book) -> None:
    for array, members in book.of_array.items():
        limit = book.live[min(members)].spec.array_limit
        placed = sum(book.live[job].host is not None for job in members)
        must(placed <= limit, f"array {array}: {placed} jobs are under way, at most {limit} may be")


def check_homes(book: Book) -> None:
    """Each live job is in exactly one host's list or in none."""
    listed: dict[JobId, HostName] = {}
    for host, members in book.at_host.items():
        must(host in book.hosts, f"host {host!r} has jobs and is not known")
        for job in members:
            must(job not in listed, f"job {job}: has two homes, {listed.get(job)} and {host}")
            must(
                book.live[job].host == host,
                f"job {job}: listed at {host}, its row says {book.live[job].host}",
            )
            listed[job] = host


def check_wanted(sent: Mapping[HostName, Wanted], book: Book, term: int, seq: int) -> None:
    for host, wanted in sent.items():
        must(
            wanted.term <= term and wanted.seq <= seq,
            f"{host}: was told ({wanted.term}, {wanted.seq}) too early",
        )
        must(all(job.tickets > 0 for job in wanted.jobs), f"{host}: was told of a job without tickets")
        must(
            {j.job for j in wanted.jobs} >= set(wanted.turn.gangs),
            f"{host}: the turn of a job that is not there",
        )
        must(host in book.hosts, f"{host}: was told, but is not known")
