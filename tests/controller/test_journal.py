"""What was committed is there after any end; what cannot be trusted is refused, never started empty."""

import contextlib
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from hs_controller import __main__ as program
from hs_controller import journal as journals
from hs_controller import sqlite as files
from hs_controller.callers import secret
from hs_controller.journal import Journal
from hs_controller.rows import JOB, Answered, Batch, Event, Sample, Usage, UserToken
from hs_controller.sqlite import (
    SCHEMA,
    StoreBrokenError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
    wal,
)
from hs_controller.tables import COARSE, DROP_STALE_SAMPLES, FINE, PUT_BACK, nearest_samples
from hs_core.events import Fact
from hs_core.forms import Form, Shape, Spread
from hs_core.model import After, AfterCondition, Gpu, Host, Job, JobSpec, JobState, Migrate, User
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.reports import Exit, JobReport, Phase, Tier
from hs_core.strategy import Strategy

ANN = UserName("ann")


def job(number: int, **more: object) -> Job:
    return Job(id=JobId(number), user=ANN, spec=JobSpec(name="j", command=("true",)), arrival_s=1.0, **more)


def event(seq: int, **more: object) -> Event:
    return Event(seq=seq, fact=Fact(now_s=float(seq), kind="placed", text=f"event {seq}", **more))


def crash(journal: Journal) -> None:
    """As after kill -9: nothing is flushed, nothing is closed in order; only the lock goes, as the system does it."""
    os.close(journal._lock)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def journal(folder: Path) -> Iterator[Journal]:
    opened = Journal.open(folder)
    yield opened
    opened.close()


RICH = job(
    7,
    state=JobState.RUNNING,
    epoch=3,
    hosts=(HostName("h1"),),
    gpu_models=("V100",),
    reports={
        HostName("h1"): JobReport(
            job=JobId(7), epoch=3, phase=Phase.RUNNING, gpus=(GpuId("GPU-1"),), tier=Tier.SWAP, gpu_s=1.5
        )
    },
    past_gpu_s_by_model={"V100": 2.5},
)


def test_every_row_comes_back_as_it_was(folder: Path) -> None:
    spec = JobSpec(
        name="Ümlaut",
        command=("python", "x.py"),
        gpu_types=("V100", "K80"),
        after=(After(job=JobId(2), condition=AfterCondition.ANY),),
        env={"A": "ü\n"},
        migrate=Migrate.NEVER,
        array_id=JobId(1),
        array_index=0,
    )
    rich = Job(id=JobId(8), user=ANN, spec=spec, arrival_s=3.25)
    ended = job(2, state=JobState.FAILED, exit=Exit(signal=9, log_tail="…"), ended_s=4.0)
    host = Host(
        name=HostName("h1"),
        boot_id="b",
        gpus=(Gpu(id=GpuId("GPU-1"), index=0, model="V100", memory_bytes=1 << 34),),
    )
    user = User(name=ANN, tickets=33.3, run_as="nobody")
    total = {(ANN, "V100"): Usage(gpu_s=4.0, jobs=1)}
    answered = Answered(caller="account:ann", key="k", digest=b"d", answer=b"a", at_s=5.0)
    sample = Sample(tier=FINE, at_s=5.0, account=(ANN, "V100"), usage=Usage(gpu_s=4.0, jobs=1))
    first = Journal.open(folder)
    first.commit(
        Batch(
            jobs=(RICH, rich, ended),
            users=(user,),
            hosts=(host,),
            meta={"next_job_id": 9, "memory": {"passes": {"7": [1, 3]}}},
            events=(event(1, job=JobId(7), user=ANN, host=HostName("h1"), data={"gpus": 2}),),
            usage=total,
            samples=(sample,),
            answered=(answered,),
        )
    )
    crash(first)
    loaded = Journal.open(folder).load()
    assert loaded.jobs == (RICH, rich)
    assert loaded.ended == (ended,), "an ended job that another waits for is needed"
    assert (loaded.users, loaded.hosts) == ((user,), (host,))
    assert loaded.meta["memory"] == {"passes": {"7": [1, 3]}}
    assert (loaded.usage, loaded.samples, loaded.answered) == (total, (sample,), (answered,))
    assert (loaded.last_seq, loaded.last_s) == (1, 1.0)


@given(
    st.builds(
        JobSpec,
        name=st.text(max_size=5),
        command=st.lists(st.text(max_size=5), min_size=1, max_size=3).map(tuple),
        env=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        max_duration_s=st.floats(0, 1e9),
        after=st.lists(
            st.builds(After, job=st.integers(1, 99), condition=st.sampled_from(AfterCondition)), max_size=2
        ).map(tuple),
        array_index=st.none() | st.integers(0, 5),
    ),
    st.sampled_from(
        [
            None,
            Shape(gpus=1, per_gpu=2),
            Strategy(),
            Strategy(tensor=2),
            Spread(nodes=2),
            Spread(nodes=1, strategy=Strategy(tensor=2)),
        ]
    ),
)
def test_a_job_and_its_json_are_the_same(spec: JobSpec, shape: Form | None) -> None:
    before = Job(id=JobId(1), user=ANN, spec=spec, arrival_s=0.1, shape=shape)
    row = replace(before, epoch=1, given_up=(before,), left_behind=(before,))
    assert JOB.validate_json(JOB.dump_json(row)) == row


def test_terms_only_grow(folder: Path) -> None:
    terms = []
    for _ in range(3):
        opened = Journal.open(folder)
        terms.append(opened.begin_term())
        crash(opened)
    assert terms == [1, 2, 3]


def test_a_batch_that_fails_leaves_nothing_of_itself(journal: Journal) -> None:
    journal.commit(Batch(events=(event(1),)))
    with pytest.raises(StoreBrokenError):  # seq 1 is taken: a mistake of ours, which must not be papered over
        journal.commit(Batch(jobs=(job(1),), users=(User(name=ANN),), events=(event(1),)))
    loaded = journal.load()
    assert (loaded.jobs, loaded.users) == ((), ())


def test_a_full_disk_is_told_as_such_and_goes_away_by_itself(journal: Journal) -> None:
    pages = journal._writer.exec_driver_sql("PRAGMA page_count").scalar_one()
    journal._writer.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    journal._writer.rollback()
    many = tuple(job(number) for number in range(1, 500))
    with pytest.raises(StoreUnavailableError, match="full"):
        journal.commit(Batch(jobs=many))
    assert journal.load().jobs == ()
    journal._writer.exec_driver_sql("PRAGMA max_page_count = 1000000")
    journal._writer.rollback()
    journal.commit(Batch(jobs=many))
    assert len(journal.load().jobs) == 499


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_really_full_file_system_is_survived(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount here: {mounted.stderr.strip()}")
    try:
        opened = Journal.open(small / "state")
        opened.commit(Batch(jobs=(job(1),)))
        _fill(small / "filler")
        many = tuple(job(number) for number in range(2, 3000))
        with pytest.raises(StoreUnavailableError):
            opened.commit(Batch(jobs=many))
        assert [row.id for row in opened.load().jobs] == [1]
        (small / "filler").unlink()
        opened.commit(Batch(jobs=(job(2),)))
        crash(opened)
        again = Journal.open(small / "state")
        assert [row.id for row in again.load().jobs] == [1, 2]
        opened._writer.close()
        opened._reader.close()
        again.close()
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(b"x" * 4096)
        except OSError:
            return


def test_a_second_controller_on_the_same_state_is_refused(journal: Journal, folder: Path) -> None:
    with pytest.raises(StoreRefusedError, match=f"another controller \\(pid {os.getpid()}\\)"):
        Journal.open(folder)
    journal.begin_term()


def test_the_lock_goes_with_the_process_that_held_it(folder: Path) -> None:
    code = f"import os; from pathlib import Path; from hs_controller.journal import Journal; Journal.open(Path({str(folder)!r})).begin_term(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    opened = Journal.open(folder)
    assert opened.begin_term() == 2
    opened.close()


def test_a_newer_schema_is_refused_and_left_alone(folder: Path) -> None:
    Journal.open(folder).close()
    with sqlite3.connect(folder / "journal.db") as db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    db.close()
    with pytest.raises(StoreRefusedError, match=f"schema {SCHEMA + 1}.*install the newer"):
        Journal.open(folder)


def test_a_schema_that_is_torn_is_refused(folder: Path) -> None:
    Journal.open(folder).close()
    with sqlite3.connect(folder / "journal.db") as db:
        db.execute("DROP TABLE jobs")
    db.close()
    with pytest.raises(StoreRefusedError, match="lacks the tables jobs"):
        Journal.open(folder)


def test_a_table_that_lacks_a_column_is_refused_by_its_name(folder: Path) -> None:
    Journal.open(folder).close()
    with sqlite3.connect(folder / "journal.db") as db:
        db.execute("DROP INDEX events_by_deed")
        db.execute("ALTER TABLE events DROP COLUMN deed")
    db.close()
    with pytest.raises(StoreRefusedError, match=r"lacks the columns events\.deed"):
        Journal.open(folder)


@pytest.mark.parametrize(
    ("mode", "owner", "expected"),
    [
        (0o777, None, r"others can change what is in it \(mode 0777\): chmod go-w it"),
        (0o770, None, "others can change"),
        (0o755, None, "can be read by others: chmod 600 it"),
        (0o700, 4242, "belongs to uid 4242, who can change what is in it: chown it to uid"),
    ],
)
def test_a_state_folder_that_is_not_the_controllers_alone_is_refused(
    folder: Path, mode: int, owner: int | None, expected: str
) -> None:
    Journal.open(folder).close()
    (folder / "journal.db").chmod(0o644)
    folder.chmod(mode)
    if owner is not None:
        if os.geteuid() != 0:
            pytest.skip("needs root")
        os.chown(folder, owner, -1)
    with pytest.raises(StoreRefusedError, match=f"state_dir: {folder}.*: {expected}"):
        Journal.open(folder)
    if owner is not None:
        os.chown(folder, os.geteuid(), -1)
    folder.chmod(0o700)
    Journal.open(folder).close()  # nobody else gets as far as the file


def test_another_programs_database_is_refused(folder: Path) -> None:
    folder.mkdir()
    with sqlite3.connect(folder / "journal.db") as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    with pytest.raises(StoreRefusedError, match="not a HeteroShare journal"):
        Journal.open(folder)


def test_garbage_is_refused(folder: Path) -> None:
    folder.mkdir()
    (folder / "journal.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(StoreRefusedError, match="not a database"):
        Journal.open(folder)
    assert (folder / "journal.db").read_bytes() == b"garbage" * 1000


def test_a_corrupt_page_is_refused(folder: Path) -> None:
    opened = Journal.open(folder)
    opened.commit(Batch(jobs=tuple(job(number) for number in range(1, 400))))
    opened.close()
    file = folder / "journal.db"
    pages = file.read_bytes()
    torn = bytearray(pages)
    for page in range(4, len(pages) // 4096):
        torn[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    file.write_bytes(torn)
    with pytest.raises(StoreRefusedError, match=r"corrupt|malformed"):
        Journal.open(folder)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            "UPDATE jobs SET doc = replace(doc, '\"queued\"', '\"secret\"')",
            r"Job: state: Input should be 'queued'",
        ),
        ("UPDATE jobs SET doc = '{secret'", "Job: Invalid JSON"),
        ("UPDATE meta SET value = 'secret'", "JSONDecodeError: Expecting value"),
        ("UPDATE credentials SET kind = 'later'", "KeyError: 'later'"),
    ],
)
def test_a_row_that_cannot_be_read_is_told_without_what_is_in_it(
    journal: Journal, change: str, why: str
) -> None:
    token = UserToken(id="t", user=ANN, label="", digest="d", created_s=1.0, not_after_s=2.0)
    journal.commit(Batch(jobs=(job(1),), credentials=(token,)))
    with journal._write("changing") as db:
        db.exec_driver_sql(change)
    with pytest.raises(StoreRefusedError, match=why) as refused:
        journal.load()
    assert "put it back from a backup" in str(refused.value)
    assert "secret" not in str(refused.value)
    assert refused.value.__suppress_context__, "nor in a traceback"


@pytest.mark.parametrize("how", ["gone", "empty"])
def test_a_journal_that_is_gone_is_not_started_anew(folder: Path, how: str) -> None:
    opened = Journal.open(folder)
    opened.commit(Batch(jobs=(job(1),)))
    opened.close()
    file = folder / "journal.db"
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(b"")
    with pytest.raises(StoreRefusedError, match="missing or empty"):
        Journal.open(folder)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE])
def test_a_journal_that_a_full_disk_keeps_closed_is_tried_again_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(*_: object) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = code
        raise sa.exc.OperationalError("", None, error)

    Journal.open(folder).close()
    with monkeypatch.context() as patch:
        patch.setattr(journals, "check_schema", full)
        with pytest.raises(StoreFullError, match="the disk is full: make room"):
            Journal.open(folder)
    Journal.open(folder).close()


def test_a_disk_that_takes_no_more_files_is_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite says of a write-ahead log for which there is no inode that it cannot open the database."""
    Journal.open(folder).close()
    opened = os.open

    def full(path: str | Path, flags: int, *more: int, **said: int) -> int:
        if flags & os.O_CREAT and not Path(path).exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, flags, *more, **said)

    def cannot_open(*_: object) -> None:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_CANTOPEN, "SQLITE_CANTOPEN"
        raise sa.exc.OperationalError("", None, error)

    with monkeypatch.context() as patch:
        patch.setattr(journals, "check_schema", cannot_open)
        with pytest.raises(StoreRefusedError, match="SQLITE_CANTOPEN"):
            Journal.open(folder)
        patch.setattr(files.os, "open", full)
        with pytest.raises(StoreFullError, match="no file can be made there: the disk is full"):
            Journal.open(folder)
    Journal.open(folder).close()


def test_a_folder_for_which_a_full_disk_has_no_room_is_tried_again_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", full)
        with pytest.raises(StoreFullError, match="cannot be made: the disk is full: make room"):
            Journal.open(folder)
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(files.os, "open", full)
    with pytest.raises(StoreFullError, match="lock: cannot be opened: the disk is full"):
        Journal.open(folder)
    with pytest.raises(StoreFullError, match=r"token\.secret: cannot be made: the disk is full"):
        secret(folder / "token.secret")


def test_a_start_on_a_full_disk_ends_so_that_systemd_tries_again_and_does_not_give_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    file = tmp_path / "c.toml"
    file.write_text(f'state_dir = "{tmp_path}/state"\n')

    def full(*_: object) -> None:
        raise StoreFullError("the disk is full: make room")

    monkeypatch.setattr(program.app, "run", full)
    monkeypatch.setattr(program.garbage, "rarely", lambda: None)
    monkeypatch.setattr(program.time, "sleep", slept.append)
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert (program._run(file), slept) == (75, [])
    monkeypatch.setenv("NOTIFY_SOCKET", "@nobody")
    assert (program._run(file), slept) == (75, [program.FULL_S])


def test_a_creation_that_was_cut_off_is_done_again(folder: Path) -> None:
    folder.mkdir()
    (folder / "journal.db").touch()
    opened = Journal.open(folder)
    assert opened.load().jobs == ()
    opened.close()


def test_pruning_keeps_what_was_promised(journal: Journal) -> None:
    ended = tuple(job(number, state=JobState.SUCCEEDED, exit=Exit(), ended_s=1.0) for number in range(1, 11))
    account = (ANN, "V100")
    samples = tuple(
        Sample(tier=tier, at_s=float(at), account=account, usage=Usage(gpu_s=float(at)))
        for tier in (FINE, COARSE)
        for at in range(10)
    )
    journal.commit(
        Batch(
            jobs=(*ended, job(11)),
            events=tuple(event(seq) for seq in range(1, 101)),
            samples=samples,
            usage={account: Usage(gpu_s=9.0)},
            answered=tuple(
                Answered(caller="c", key=str(n), digest=b"", answer=b"", at_s=float(n)) for n in range(10)
            ),
        )
    )
    journal.prune(
        events=10,
        deeds=0,
        ended=3,
        awaited={JobId(2), JobId(9)},
        requests=4,
        requests_before_s=5.0,
        fine_before_s=5.5,
        coarse_before_s=0.0,
    )
    assert [e.seq for e in journal.events()] == list(range(91, 101))
    assert [row.id for row in journal.ended_jobs(limit=99)] == [10, 9, 8, 7, 2]
    loaded = journal.load()
    assert [row.id for row in loaded.jobs] == [11]
    assert [a.key for a in loaded.answered] == ["6", "7", "8", "9"]
    assert [s.at_s for s in loaded.samples] == [5.0, 6.0, 7.0, 8.0, 9.0], (
        "the newest before the cut still says what was"
    )
    assert journal.usage_at(3.5)[account].gpu_s == 3.5, "the coarse tier was not cut"


def test_what_jobs_do_does_not_drive_out_what_administrators_did(journal: Journal) -> None:
    def prune(events: int, deeds: int) -> bool:
        ages = {"requests_before_s": 0.0, "fine_before_s": 0.0, "coarse_before_s": 0.0}
        return journal.prune(events=events, deeds=deeds, ended=9, awaited=frozenset(), requests=9, **ages)

    deeds = [1, 2, 3, 50, 95]
    journal.commit(Batch(events=tuple(event(seq, deed=seq in deeds) for seq in range(1, 101))))
    prune(events=10, deeds=3)
    assert [e.seq for e in journal.events()] == [2, 3, 50, *range(91, 101)], "of older deeds the newest"
    assert [e.seq for e in journal.events(deeds=True)] == [2, 3, 50, 95]
    assert [e.seq for e in journal.events(deeds=True, limit=2, newest=True)] == [50, 95]
    assert [e.fact.deed for e in journal.events(after_seq=94, limit=2)] == [True, False]
    # A deed at the very beginning does not keep what comes after it: so much is dropped at a time, from there on.
    many = 45_000
    journal.commit(Batch(events=tuple(event(seq) for seq in range(101, many))))
    assert [prune(events=10, deeds=3) for _ in range(3)] == [True, True, False], (
        "it says whether there is more"
    )
    assert [e.seq for e in journal.events()] == [3, 50, 95, *range(many - 10, many)]
    journal._writer.exec_driver_sql("DELETE FROM events WHERE NOT deed")
    journal._writer.commit()
    journal.commit(Batch(events=(event(many, deed=True),)))
    assert not prune(events=10, deeds=3), "where there are deeds alone there is no more"


def test_what_anybody_may_do_all_day_does_not_drive_out_what_administrators_did(journal: Journal) -> None:
    def deed(seq: int, kind: str, by: str = "", user: str | None = None) -> Event:
        data = {"by": by} if by else {}
        name = UserName(user) if user else None
        return Event(seq=seq, fact=Fact(now_s=1.0, kind=kind, text="", user=name, data=data, deed=True))

    journal.commit(
        Batch(
            events=(
                deed(1, "user-set", "root", "ann"),
                deed(2, "token-created", "root", "ann"),
                *(deed(seq, "token-created", "bob", "bob") for seq in range(3, 50)),
                *(deed(seq, "token-revoked", "bob", "bob") for seq in range(50, 90)),
                *(deed(seq, "node-renewed") for seq in range(90, 100)),
                event(100),
            )
        )
    )
    ages = {"requests_before_s": 0.0, "fine_before_s": 0.0, "coarse_before_s": 0.0}
    journal.prune(events=1, deeds=3, ended=9, awaited=frozenset(), requests=9, **ages)
    assert [e.seq for e in journal.events()] == [1, 2, 97, 98, 99, 100]


def test_events_from_before_a_backup_was_put_back_are_kept_as_long_as_others(journal: Journal) -> None:
    ages = {"requests_before_s": 0.0, "fine_before_s": 0.0, "coarse_before_s": 0.0}

    def kept(events: int) -> list[int]:
        journal.prune(events=events, deeds=0, ended=9, awaited=frozenset(), requests=9, **ages)
        return [e.seq for e in journal.events()]

    first = 1_000_000
    put_back = Fact(now_s=1.0, kind=PUT_BACK, text="", deed=True)
    after = (Event(seq=first, fact=put_back), *(event(seq) for seq in range(first + 1, first + 5)))
    journal.commit(Batch(events=(*(event(seq) for seq in range(1, 21)), *after)))
    there = [*range(1, 21), *range(first, first + 5)]
    assert [kept(events) for events in (25, 15, 6, 5, 4)] == [
        there,
        there[-15:],
        there[-6:],
        there[-5:],
        there[-4:],
    ]


@pytest.mark.parametrize(
    "what", [DROP_STALE_SAMPLES, nearest_samples(later=False), nearest_samples(later=True)]
)
def test_of_samples_each_account_is_looked_up_and_none_walked_through(journal: Journal, what) -> None:
    asked = sa.text(f"EXPLAIN QUERY PLAN {what.text}")
    steps = [row.detail for row in journal._writer.execute(asked, dict.fromkeys(what.compile().params, 0))]
    journal._writer.rollback()
    looked = [step for step in steps if "samples" in step or " old " in step or " found " in step]
    assert looked, steps
    one = ("(rowid=?)", "(tier=? AND user=? AND model=? AND at_s")
    assert all(any(by in step for by in one) for step in looked), looked


def test_events_are_found_by_job_user_and_place(journal: Journal) -> None:
    journal.commit(
        Batch(events=tuple(event(n, job=JobId(n % 2), user=UserName("ab"[n % 2])) for n in range(1, 21)))
    )
    assert [e.seq for e in journal.events(job=1, limit=3)] == [1, 3, 5]
    assert [e.seq for e in journal.events(user="a", limit=3, newest=True)] == [16, 18, 20]
    assert [e.seq for e in journal.events(after_seq=18)] == [19, 20]


def test_trades_are_found_from_both_sides(journal: Journal) -> None:
    def trade(seq: int, kind: str, gives: str, receives: str) -> Event:
        fact = event(seq, user=UserName(gives), data={"gives": gives, "receives": receives}).fact
        return Event(seq=seq, fact=replace(fact, kind=kind))

    sides = [("trade", "a", "b"), ("trade", "b", "c"), ("trade-undone", "a", "b"), ("trade", "c", "a")]
    events = [trade(at, *one) for at, one in enumerate(sides, start=1)]
    events.append(event(5, user=UserName("b"), data={"receives": "a"}))  # no trade
    journal.commit(Batch(events=tuple(events)))
    for user, seqs in {"a": [1, 3, 4], "b": [1, 2, 3, 5], "c": [2, 4], "d": []}.items():
        assert [e.seq for e in journal.events(user=user)] == seqs
        assert [e.seq for e in events if e.fact.concerns(user)] == seqs
    assert [e.seq for e in journal.events(user="b", after_seq=1, limit=2)] == [2, 3]
    assert [e.seq for e in journal.events(user="b", limit=2, newest=True)] == [3, 5]
    assert journal.before_newest(2, user="b") == 2
    assert [e.seq for e in journal.events(user="b", kind="trade-undone")] == [3]


# --- the write-ahead log


def in_file_alone(folder: Path, tmp_path: Path) -> int:
    """Jobs in a copy of the file without its log."""
    copy = tmp_path / "alone.db"
    shutil.copy(folder / "journal.db", copy)
    with contextlib.closing(sqlite3.connect(copy)) as db:
        return db.execute("SELECT count(*) FROM jobs").fetchone()[0]


def many(first: int, count: int) -> Batch:
    """Of jobs that take a page each."""
    spec = JobSpec(name="j", command=("true", "x" * 4096))
    return Batch(
        jobs=tuple(Job(id=JobId(first + at), user=ANN, spec=spec, arrival_s=1.0) for at in range(count))
    )


def test_no_commit_takes_the_log_into_the_file_and_a_checkpoint_takes_all_of_it(
    journal: Journal, folder: Path, tmp_path: Path
) -> None:
    for turn in range(5):
        journal.commit(many(1 + 300 * turn, 300))
    assert wal(folder / "journal.db").stat().st_size > 1000 * 4096  # where SQLite would do it within a commit
    assert in_file_alone(folder, tmp_path) == 0
    journal.checkpoint()
    assert in_file_alone(folder, tmp_path) == 1500


def test_the_log_is_written_from_its_beginning_after_what_was_committed_beside_a_checkpoint_is_taken_too(
    journal: Journal, folder: Path, tmp_path: Path
) -> None:
    sizes, number = [], 0
    for _ in range(4):
        journal.commit(many(number + 1, 500))
        number += 500
        keeper = threading.Thread(target=journal.checkpoint)
        keeper.start()
        for _ in range(10):
            number += 1
            journal.commit(Batch(jobs=(job(number),)))
        keeper.join()
        number += 1
        journal.commit(Batch(jobs=(job(number),)))  # by then it has surely ended
        journal.checkpoint_rest()
        sizes.append(wal(folder / "journal.db").stat().st_size)
    assert sizes[-1] < 2 * sizes[0], "each turn began anew"
    assert in_file_alone(folder, tmp_path) == number == 4 * 511


def test_what_is_in_the_log_alone_is_there_after_a_crash(journal: Journal, folder: Path) -> None:
    journal.commit(Batch(jobs=(job(1),)))
    journal.checkpoint()
    journal.commit(Batch(jobs=(job(2),)))
    crash(journal)
    again = Journal.open(folder)
    assert [row.id for row in again.load().jobs] == [1, 2]
    again.close()
    journal._lock = os.open(folder / "lock", os.O_RDWR)  # for the fixture to close
