"""State that cannot be trusted is refused, and never started empty."""

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from hs_controller import journal as journals
from hs_controller import sqlite
from hs_controller.journal import Journal
from hs_controller.rows import Batch, UserToken
from hs_controller.sqlite import (
    SCHEMA,
    StoreRefusedError,
)
from tests.controller.journals import ANN, crash, job


def test_a_second_controller_on_the_same_state_is_refused(journal: Journal, folder: Path) -> None:
    with pytest.raises(StoreRefusedError, match=f"another controller \\(pid {os.getpid()}\\)"):
        Journal.open(folder)
    journal.begin_term()


def test_a_lock_that_somebody_removes_lets_no_second_controller_in(journal: Journal, folder: Path) -> None:
    (folder / "lock").unlink()
    with pytest.raises(StoreRefusedError, match="another controller"):
        Journal.open(folder)
    assert journal.begin_term() == 1


def kept(folder: Path) -> dict[str, bytes]:
    """Who has the folder open, and the index beside the log, are nothing that is kept."""
    passing = {"lock", "journal.db-shm"}
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name not in passing}


def test_a_newer_schema_is_refused_and_left_alone(folder: Path) -> None:
    Journal.open(folder).close()
    with contextlib.closing(sqlite3.connect(folder / "journal.db", isolation_level=None)) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    db.close()
    before = kept(folder)
    with pytest.raises(StoreRefusedError, match=f"schema {SCHEMA + 1}.*install the newer"):
        Journal.open(folder)
    assert kept(folder) == before


def test_an_older_controller_changes_nothing_of_what_a_newer_one_left_when_it_was_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(journals, "SCHEMA", SCHEMA + 1)
        journal = Journal.open(folder)
        journal.begin_term()
        journal.commit(Batch(jobs=(job(1),)))
        crash(journal)
    (folder / "backup.tmp").write_bytes(b"its, too")
    before = kept(folder)
    assert {"journal.db-wal", "unclosed"} <= before.keys(), "what it did last is in the log beside it"
    with pytest.raises(
        StoreRefusedError, match=f"schema {SCHEMA + 1}.*knows up to {SCHEMA}: install the newer"
    ):
        Journal.open(folder)
    assert kept(folder) == before


def test_a_newer_controller_reads_an_older_journal_and_makes_it_its_own_in_office(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = Journal.open(folder)
    older.commit(Batch(jobs=(job(1),)))
    older.close()
    with monkeypatch.context() as newer:
        newer.setattr(journals, "SCHEMA", SCHEMA + 1)
        newer.setattr(sqlite, "SCHEMA", SCHEMA + 1)
        Journal.open(folder).close()
        Journal.open(folder).close()
        journal = Journal.open(folder)
        assert [one.id for one in journal.load().jobs] == [1]
        journal.begin_term()
        journal.close()
    with pytest.raises(StoreRefusedError, match=f"schema {SCHEMA + 1}"):
        Journal.open(folder)


def test_a_schema_that_is_torn_is_refused(folder: Path) -> None:
    Journal.open(folder).close()
    with contextlib.closing(sqlite3.connect(folder / "journal.db", isolation_level=None)) as db:
        db.execute("DROP TABLE jobs")
    db.close()
    with pytest.raises(StoreRefusedError, match="lacks the tables jobs"):
        Journal.open(folder)


def test_a_table_that_lacks_a_column_is_refused_by_its_name(folder: Path) -> None:
    Journal.open(folder).close()
    with contextlib.closing(sqlite3.connect(folder / "journal.db", isolation_level=None)) as db:
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
    with contextlib.closing(sqlite3.connect(folder / "journal.db", isolation_level=None)) as db:
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


def test_a_log_that_is_gone_after_a_crash_is_not_started_without(folder: Path) -> None:
    opened = Journal.open(folder)
    opened.begin_term()
    opened.commit(Batch(jobs=(job(1),)))
    crash(opened)
    log = folder / "journal.db-wal"
    kept = log.rename(folder / "kept")
    with pytest.raises(StoreRefusedError, match=r"journal\.db-wal: missing, though"):
        Journal.open(folder)
    kept.rename(log)
    again = Journal.open(folder)
    assert [row.id for row in again.load().jobs] == [1]
    crash(again)


def test_a_log_that_an_end_in_good_order_took_into_the_file_is_missed_by_nobody(folder: Path) -> None:
    opened = Journal.open(folder)
    opened.begin_term()
    opened.commit(Batch(jobs=(job(1),)))
    opened.close()
    assert not (folder / "journal.db-wal").exists()
    again = Journal.open(folder)
    assert [row.id for row in again.load().jobs] == [1]
    again.close()


def test_a_log_that_a_start_which_was_cut_off_took_into_the_file_is_missed_by_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object) -> None:
        raise KeyboardInterrupt

    opened = Journal.open(folder)
    opened.begin_term()
    opened.commit(Batch(jobs=(job(1),)))
    opened.close()
    (folder / "unclosed").touch()
    (folder / "journal.db-wal").touch()
    with monkeypatch.context() as patch:
        patch.setattr(journals, "check_private", cut_off)
        with pytest.raises(KeyboardInterrupt):
            Journal.open(folder)
    assert not (folder / "journal.db-wal").exists()
    Journal.open(folder).close()


def test_a_text_that_is_none_is_told_without_what_is_in_it(journal: Journal) -> None:
    journal.commit(Batch(jobs=(job(1),)))
    with journal._write("changing") as db:
        db.exec_driver_sql("UPDATE jobs SET doc = CAST(X'736563726574ff' AS TEXT)")
    with pytest.raises(StoreRefusedError, match="not UTF-8: column 'doc'") as refused:
        journal.load()
    assert "secret" not in str(refused.value)
