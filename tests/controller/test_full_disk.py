"""A full disk is told as such and survived."""

import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from hs_controller import __main__ as program
from hs_controller import journal as journals
from hs_controller import sqlite as files
from hs_controller.callers import secret
from hs_controller.journal import Journal
from hs_controller.rows import Batch
from hs_controller.sqlite import StoreFullError, StoreRefusedError, StoreUnavailableError
from tests.controller.journals import crash, job


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
        opened._closes()
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


def test_how_a_daemon_ended_is_its_status_though_a_library_cannot_say_all_on_standard_error() -> None:
    ends = (
        "import sys; from hs_daemon import unheard; sys.stderr.write('half a line'); {}; raise SystemExit(3)"
    )

    buffered = {name: said for name, said in os.environ.items() if name != "PYTHONUNBUFFERED"}

    def status(before: str) -> int:
        with Path("/dev/full").open("w") as full:
            argv = [sys.executable, "-c", ends.format(before)]
            return subprocess.run(argv, stderr=full, env=buffered, timeout=120, check=False).returncode

    assert status("unheard.forget_unsaid()") == 3
    assert status("pass") == 120, "Python's own"
