"""Every invariant of the controller's mind. What fails here is our fault: the process stops and recovers."""

from collections.abc import Iterable, Mapping
from math import inf
from typing import NoReturn

from hs_core.cluster import states
from hs_core.cluster.admission import spec_bytes
from hs_core.cluster.book import Book
from hs_core.errors import BrokenError
from hs_core.forms import Form, Shape, Spread, strategy_of
from hs_core.model import Job, spans, spreads
from hs_core.names import HostName, JobId
from hs_core.strategy import Strategy
from hs_core.wanted import Wanted


def must(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenError(what)


def check_rows(book: Book, rows: Iterable[Job], next_job_id: JobId) -> None:
    for row in rows:
        check_row(book, row, next_job_id)


def check_row(book: Book, row: Job, next_job_id: JobId) -> None:
    """After every event of every row that it changed: what is wrong is put into words only once something is."""
    state, hosts, spec = row.state, row.hosts, row.spec
    if not 0 < row.id < next_job_id:
        _broken(row, f"the next id is {next_job_id}")
    if state not in states.expected(row):
        _broken(row, f"{state}, but its row says {states.expected(row)}")
    if (row.exit is not None) != (row.ended_s is not None):
        _broken(row, "an exit and a time of it come together")
    if (row.id in book.live) == state.ended:
        _broken(row, f"{state}, yet listed otherwise")
    if hosts and len(hosts) != (len(row.portions) or row.nodes):
        _broken(row, f"has {row.nodes} nodes, and lives on {hosts}")
    if row.portions and (row.nodes != 1 or len(hosts) < 2 or min(row.portions) < 1 or row.base_step < 0):
        _broken(row, f"has copies that do {row.portions} steps from {row.base_step} on {hosts}")
    if row.shape is not None:
        _check_shape(row, row.shape)
    if len(hosts) > 1 and len(set(hosts)) != len(hosts):
        _broken(row, "two of its parts are on one server")
    if row.epoch < 0 or row.retries > spec.retry_max:
        _broken(row, f"retried {row.retries} times")
    _check_account(row)
    _check_reports(row)
    if not state.ended:
        _check_live(book, row)


def _broken(row: Job, what: str) -> NoReturn:
    raise BrokenError(f"job {row.id}: {what}")


def _check_shape(row: Job, shape: Form) -> None:
    hosts, spec = row.hosts, row.spec
    if isinstance(shape, Strategy) and not hosts:
        _broken(row, f"has {shape}, and no home")
    if (strategy := strategy_of(shape)) is not None and strategy not in spec.strategies:
        _broken(row, f"has {shape}, and declares {spec.strategies}")
    if isinstance(shape, Spread) and (shape.nodes not in spreads(spec) or not (hosts or row.stored)):
        _broken(row, f"has {shape}, and may be laid over {spreads(spec)}, on {hosts}")
    if isinstance(shape, Shape) and (spec.elastic is None or not hosts):
        _broken(row, f"has a shape, {shape}, as {spec.elastic} on {hosts}")
    if isinstance(shape, Shape) and shape.nodes != 1 and not spans(spec):
        _broken(row, f"has {shape}, and is to be on one server")


def _check_account(row: Job) -> None:
    past = row.past_gpu_s
    had = row.past_switches
    switches = (had.suspends, had.resumes, had.suspend_s, had.resume_s)
    for value in (past, row.past_run_s, row.past_lost_gpu_s, *switches):
        if not 0.0 <= value < inf:
            _broken(row, f"its account holds {value}")
    if abs(sum(row.past_gpu_s_by_model.values()) - past) > 1e-6 * (1 + past):
        _broken(row, "GPU-seconds by model do not add up")
    if row.ages is not None:
        spent_s, age_s = sum(row.ages.spent_s.values()), row.ages.until_s - row.arrival_s
        if abs(spent_s - age_s) > 1e-6 * (1 + abs(age_s)):
            _broken(row, f"its stages add up to {spent_s} s of an age of {age_s} s")


def _check_reports(row: Job) -> None:
    for host, report in row.reports.items():
        if host not in row.hosts:
            _broken(row, "reported of by who is not its home")
        if report.job != row.id or report.epoch != row.epoch:
            _broken(row, "holds another one's report")
        if not 0.0 <= report.gpu_s < inf:
            _broken(row, f"received {report.gpu_s}")


def _check_live(book: Book, row: Job) -> None:
    if row.user not in book.users:
        _broken(row, f"its user {row.user!r} is not known")
    for host in row.hosts:
        if row.id not in book.at_host.get(host, ()):
            _broken(row, f"missing at {host}")
        if host not in book.hosts:
            part = row.reports.get(host)
            if part is None or part.exit is None:
                _broken(row, f"its home {host!r} is not known")
    _check_move(book, row)
    for after in row.spec.after:
        if after.job >= row.id:
            _broken(row, f"waits for a later job, {after.job}")
        if after.job not in book.jobs:
            _broken(row, f"what it waits for, {after.job}, is not there")
    if row.hosts and row.id in book.blocked:
        _broken(row, "placed although it waits for another job")


def _check_move(book: Book, row: Job) -> None:
    if (row.id in book.moving) != (row.move is not None):
        _broken(row, "listed otherwise among those that move")
    if row.move is not None:
        alike = row.move.to == row.hosts and row.move.shape == row.shape
        if not row.hosts or (alike and not row.portions):
            _broken(row, f"moves from {row.hosts} to {row.move.to}")
        if row.paused or row.cancelled_by:
            _broken(row, "moves, though it is paused or ending")
    stored = row.stored
    if stored is None:
        return
    if stored.epoch > row.epoch:
        _broken(row, f"goes on from epoch {stored.epoch} in {row.epoch}")
    if stored.in_folder:
        if not row.spec.checkpoint_dir or stored.copies or stored.of < 1:
            _broken(row, f"its checkpoint, of {stored.of} nodes, is nowhere")
        return
    if len(stored.hosts) != (len(stored.copies) or row.nodes) and not spans(row.spec):
        _broken(row, f"its checkpoint is on {stored.hosts}")
    if stored.ranks and (
        len(stored.ranks) != len(stored.hosts) or max(stored.ranks) >= stored.of or not spans(row.spec)
    ):
        _broken(row, f"its checkpoint is of nodes {stored.ranks} of {stored.of} on {stored.hosts}")
    if stored.also and (
        len(stored.also) != len(stored.hosts) or not {*stored.also} - {""} <= {*stored.hosts}
    ):
        _broken(row, f"its checkpoint is on {stored.hosts}, and also on {stored.also}")
    for host in stored.hosts:
        if host not in book.hosts:
            _broken(row, f"its checkpoint is on {host}, which is not known")
        if row.id not in book.lent.get(host, ()):
            _broken(row, f"its checkpoint is not listed at {host}")


def check_change(old: Job | None, new: Job, *, taken_up: bool = False) -> None:
    """Epochs and accounts only grow; what has ended stays as it ended. `taken_up`: it had begun before this controller knew of it."""
    if old is None:
        if not taken_up and (new.epoch != 0 or new.gpu_s != 0):
            _broken(new, "born with a past")
        return
    if old.state.ended and old != new:
        _broken(new, "changed after its end")
    # One job's spec is one object until somebody makes another: comparing it field by field is for that case.
    same = old.id == new.id and old.user == new.user and old.arrival_s == new.arrival_s
    if not same or (old.spec is not new.spec and old.spec != new.spec):
        _broken(new, "remade")
    if new.epoch < old.epoch:
        _broken(new, f"epoch {old.epoch} → {new.epoch}")
    before, now = old.gpu_s, new.gpu_s
    if not now >= before - 1e-9:
        _broken(new, f"GPU-seconds {before} → {now}")
    if not new.past_lost_gpu_s >= old.past_lost_gpu_s:
        _broken(new, "lost work was forgotten")
    if _suspends(new) < _suspends(old):
        _broken(new, "suspends were forgotten")
    if old.hosts and new.hosts != old.hosts and not new.state.ended and new.epoch == old.epoch:
        _broken(new, f"left {old.hosts} for {new.hosts} in one epoch")
    if new.migrations < old.migrations or new.retries < old.retries:
        _broken(new, "its moves were forgotten")
    if new.epoch == old.epoch:
        _check_said(old, new)


def _suspends(row: Job) -> int:
    report = row.report
    return row.past_switches.suspends + (report.suspends if report is not None else 0)


def _check_said(old: Job, new: Job) -> None:
    for host, before in old.reports.items():
        after = new.reports.get(host)
        if after is None:
            _broken(new, f"what {host} said is forgotten")
        if after.checkpoint_step < before.checkpoint_step and after.fallbacks == before.fallbacks:
            _broken(new, f"a checkpoint on {host} was taken back")


def check_counted(old: Job, new: Job) -> None:
    """Of a row in which nothing is new but the counters of its one report: what these could break."""
    _check_reports(new)
    _check_said(old, new)
    (before,), (after,) = old.reports.values(), new.reports.values()
    if not after.gpu_s >= before.gpu_s - 1e-9:
        _broken(new, f"GPU-seconds {before.gpu_s} → {after.gpu_s}")
    if after.suspends < before.suspends:
        _broken(new, "suspends were forgotten")
    if new.state is not old.state or new.hosts is not old.hosts or new.epoch != old.epoch:
        _broken(new, "is otherwise than it was, though only its counters moved")


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


def check_bulk(book: Book) -> None:
    """Whose memory a row takes: that of who has it under way, or lets a job wait for it."""
    needed = book.live.keys() | (book.waiters.keys() & book.jobs.keys())
    must(book.bulk.needed == needed, f"needed are {sorted(needed)}, counted {sorted(book.bulk.needed)}")
    for user in {book.jobs[job].user for job in needed}:
        own = sum(spec_bytes(book.jobs[job].spec) for job in needed if book.jobs[job].user == user)
        must(
            book.bulk.of_user(user) == own, f"{user}: specs of {own} bytes, counted {book.bulk.of_user(user)}"
        )


def check_gangs(sent: Mapping[HostName, Wanted], book: Book) -> None:
    """A gang over several servers is in the turn of all of them or of none, of the same quantum."""
    for job in book.spanning:
        told = [wanted for host in book.live[job].hosts if (wanted := sent.get(host)) is not None]
        quanta = {wanted.quantum for wanted in told}
        if len(quanta) != 1:
            continue  # one of them was told later than the others
        for turns in ([w.turn for w in told], [w.next_turn for w in told if w.next_turn is not None]):
            must(len({job in turn.gangs for turn in turns}) <= 1, f"job {job}: a part of it has a turn alone")


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
