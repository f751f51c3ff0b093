"""Every invariant of the controller's mind. What fails here is our fault: the process stops and recovers."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import isfinite

from hs_core.cluster import states
from hs_core.cluster.book import Book
from hs_core.errors import BrokenError
from hs_core.events import Wanted
from hs_core.model import HostName, Job, JobId
from hs_core.policy import Snapshot, Verdict


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
    must(
        len(row.hosts) in {0, row.spec.nodes}, f"{name}: has {row.spec.nodes} nodes, and lives on {row.hosts}"
    )
    must(len(set(row.hosts)) == len(row.hosts), f"{name}: two of its parts are on one server")
    must(row.epoch >= 0 and row.retries <= row.spec.retry_max, f"{name}: retried {row.retries} times")
    for value in (row.past_gpu_s, row.past_run_s, row.past_lost_gpu_s):
        must(isfinite(value) and value >= 0, f"{name}: its account holds {value}")
    by_model = sum(row.past_gpu_s_by_model.values())
    must(
        abs(by_model - row.past_gpu_s) <= 1e-6 * (1 + row.past_gpu_s),
        f"{name}: GPU-seconds by model do not add up",
    )
    must(row.reports.keys() <= set(row.hosts), f"{name}: reported of by who is not its home")
    for report in row.reports.values():
        must((report.job, report.epoch) == (row.id, row.epoch), f"{name}: holds another one's report")
        must(report.gpu_s >= 0 and isfinite(report.gpu_s), f"{name}: received {report.gpu_s}")
    if row.state.ended:
        return
    for host in row.hosts:
        must(row.id in book.at_host.get(host, ()), f"{name}: missing at {host}")
        part = row.reports.get(host)
        given_up = part is not None and part.exit is not None
        must(host in book.hosts or given_up, f"{name}: its home {host!r} is not known")
    _check_move(book, row, name)
    for after in row.spec.after:
        must(after.job < row.id, f"{name}: waits for a later job, {after.job}")
        must(after.job in book.jobs, f"{name}: what it waits for, {after.job}, is not there")
    if row.id in book.blocked:
        must(row.host is None, f"{name}: placed although it waits for another job")


def _check_move(book: Book, row: Job, name: str) -> None:
    must((row.id in book.moving) == (row.move is not None), f"{name}: listed otherwise among those that move")
    if row.move is not None:
        must(bool(row.hosts) and row.move.to != row.hosts, f"{name}: moves from {row.hosts} to {row.move.to}")
        must(not row.paused and not row.cancelled_by, f"{name}: moves, though it is paused or ending")
    stored = row.stored
    if stored is not None:
        must(stored.epoch <= row.epoch, f"{name}: goes on from epoch {stored.epoch} in {row.epoch}")
        must(len(stored.hosts) == row.spec.nodes, f"{name}: its checkpoint is on {stored.hosts}")
        for host in stored.hosts:
            must(host in book.hosts, f"{name}: its checkpoint is on {host}, which is not known")
            must(row.id in book.lent.get(host, ()), f"{name}: its checkpoint is not listed at {host}")


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
    must(new.epoch >= old.epoch, f"{name}: epoch {old.epoch} → {new.epoch}")
    must(new.gpu_s >= old.gpu_s - 1e-9, f"{name}: GPU-seconds {old.gpu_s} → {new.gpu_s}")
    must(new.past_lost_gpu_s >= old.past_lost_gpu_s, f"{name}: lost work was forgotten")
    same_home = new.hosts == old.hosts or not old.hosts or new.state.ended
    must(same_home or new.epoch > old.epoch, f"{name}: left {old.hosts} for {new.hosts} in one epoch")
    must(new.migrations >= old.migrations and new.retries >= old.retries, f"{name}: its moves were forgotten")
    if new.epoch == old.epoch:
        for host, before in old.reports.items():
            after = new.reports.get(host)
            must(after is not None, f"{name}: what {host} said is forgotten")
            kept = after is not None and after.checkpoint_step >= before.checkpoint_step
            must(kept, f"{name}: a checkpoint on {host} was taken back")


def check_arrays(book: Book) -> None:
    for array, members in book.of_array.items():
        limit = book.live[min(members)].spec.array_limit
        placed = sum(book.live[job].host is not None for job in members)
        must(placed <= limit, f"array {array}: {placed} jobs are under way, at most {limit} may be")


def check_homes(book: Book) -> None:
    """Each live job is in its servers' lists, and in no other."""
    parts = 0
    for host, members in book.at_host.items():
        parts += len(members)
        for job in members:
            must(
                host in book.live[job].hosts, f"job {job}: listed at {host}, lives on {book.live[job].hosts}"
            )
    must(parts == sum(len(row.hosts) for row in book.live.values()), "a job is missing at its home")


def check_gangs(sent: Mapping[HostName, Wanted], book: Book) -> None:
    """A gang over several servers is in the turn of all of them or of none, of the same quantum."""
    for job in book.spanning:
        told = [wanted for host in book.live[job].hosts if (wanted := sent.get(host)) is not None]
        quanta = {wanted.quantum for wanted in told}
        if len(quanta) != 1:
            continue  # one of them was told later than the others
        for turns in ([w.turn for w in told], [w.next_turn for w in told if w.next_turn is not None]):
            must(len({job in turn.gangs for turn in turns}) <= 1, f"job {job}: a part of it has a turn alone")


def check_trades(verdict: Verdict, snapshot: Snapshot) -> None:
    """Trades only pass on what there is, and nobody gets less of use than they give."""
    for trade in verdict.trades:
        what = f"the trade of {trade.giver} and {trade.taker}"
        must(
            trade.fast_gpus > 0 and trade.slow_gpus > 0, f"{what}: of {trade.fast_gpus} for {trade.slow_gpus}"
        )
        price = float(trade.slow_gpus / trade.fast_gpus)
        must(price >= trade.giver_speedup * (1 - 1e-6), f"{what}: {trade.giver} loses at {price}")
        must(price <= trade.taker_speedup * (1 + 1e-6), f"{what}: {trade.taker} loses at {price}")
    if not verdict.trades or not verdict.base:
        return
    for model in {model for _, model in verdict.base}:
        before = sum(gpus for (_, of), gpus in verdict.base.items() if of == model)
        after = sum(gpus for (_, of), gpus in verdict.entitled.items() if of == model)
        most = max(before, Fraction(sum(host.gpus for host in snapshot.hosts if host.model == model)))
        must(
            after <= most + Fraction(1, 10**6),
            f"after trades users are entitled to {float(after)} of {model}",
        )
    must(all(gpus >= 0 for gpus in verdict.entitled.values()), "an entitlement is negative after trades")


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
