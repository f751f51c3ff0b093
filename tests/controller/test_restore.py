"""A restore that is cut off anywhere: the old journal is whole, or the new one is, and said again it is done."""

import contextlib
import os
import shutil
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hs_controller import backup
from hs_controller.journal import Journal
from hs_controller.rows import Batch, Event
from hs_controller.sqlite import StoreRefusedError, StoreUnavailableError
from hs_core.facts import Fact
from hs_core.model import Job, JobSpec
from hs_core.names import JobId, UserName


class CutOffError(BaseException):
    """As kill -9: nothing is tidied up."""


def job(number: int, name: str) -> Job:
    return Job(
        id=JobId(number), user=UserName("ann"), spec=JobSpec(name=name, command=("true",)), arrival_s=1.0
    )


def state_with(folder: Path, name: str, count: int) -> Path:
    """A state folder as kill -9 leaves it: what was committed is in the log beside the file."""
    made = folder.with_name(f"{folder.name}-made")
    journal = Journal.open(made)
    for number in range(1, count + 1):
        journal.commit(Batch(jobs=(job(number, name),)))
    shutil.copytree(made, folder)
    journal.close()
    assert (folder / "journal.db-wal").stat().st_size > 0
    return folder


def names_in(folder: Path) -> set[str]:
    journal = Journal.open(folder)
    try:
        return {row.spec.name for row in journal.load().jobs}
    finally:
        journal.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return state_with(tmp_path / "state", "old", 40)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    with backup.take(state_with(tmp_path / "other", "from-the-backup", 3)) as taken:
        file = tmp_path / "copy.db"
        file.write_bytes(b"".join(chunk.data for chunk in taken.chunks()))
    return file


def cut_off_after(renames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, done = Path.rename, [0]

    def counted(self: Path, target: Path) -> Path:
        if done[0] == renames:
            raise CutOffError
        done[0] += 1
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", counted)
    monkeypatch.setattr(backup, "_remove", lambda _file: None)


@pytest.mark.parametrize("renames", range(4))
def test_a_restore_that_is_cut_off_is_whole_when_it_is_said_again(
    renames: int, folder: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as cut:
        cut_off_after(renames, cut)
        with pytest.raises(CutOffError):
            backup.restore(folder, copy, force=True)
    if not (folder / "journal.db").exists():
        with pytest.raises(StoreRefusedError, match="put it back from a backup"):
            Journal.open(folder)
    backup.restore(folder, copy, force=True)
    assert names_in(folder) == {"from-the-backup"}, "nothing of the old log is taken into the new file"
    aside = min(folder.glob("journal.db.before-*"), key=lambda file: len(file.name))
    old = folder.with_name("gone-back")
    old.mkdir()
    for end in ("", "-wal"):
        shutil.copy(aside.with_name(aside.name + end), old / f"journal.db{end}")
    assert names_in(old) == {"old"}, "what was put aside is whole, too"
    assert len(list(folder.glob("journal.db.before-*-wal"))) == 1


def test_who_was_too_quick_goes_back_to_all_that_was_committed(folder: Path, copy: Path) -> None:
    _, aside = backup.restore(folder, copy, force=True)
    assert aside is not None
    assert backup.restore(folder, aside, force=True)[0] == 40, "also what is in the log beside it alone"
    assert names_in(folder) == {"old"}


def test_who_has_followed_events_up_to_the_end_is_told_what_comes_after_a_backup_was_put_back(
    tmp_path: Path,
) -> None:
    fact = Fact(now_s=1.0, kind="placed", text="")

    def happened(journal: Journal, *seqs: int) -> None:
        journal.commit(Batch(events=tuple(Event(seq=seq, fact=fact) for seq in seqs)))

    folder, copy = tmp_path / "state", tmp_path / "copy.db"
    journal = Journal.open(folder)
    happened(journal, *range(1, 11))
    with backup.take(folder) as taken:
        copy.write_bytes(b"".join(chunk.data for chunk in taken.chunks()))
    happened(journal, *range(11, 5000))
    journal.close()
    backup.restore(folder, copy, force=True)
    journal = Journal.open(folder)
    happened(journal, journal.load().last_seq + 1)
    assert [event.fact.kind for event in journal.events(after_seq=4999)] == ["journal-restored", "placed"]
    journal.close()


def test_two_restores_within_a_second_put_two_journals_aside(folder: Path, copy: Path) -> None:
    asides = {backup.restore(folder, copy, force=True)[1] for _ in range(3)}
    assert len(asides) == 3
    assert all(aside is not None and aside.exists() for aside in asides)


def test_what_was_being_made_when_the_process_was_killed_takes_no_room_for_ever(folder: Path) -> None:
    left = [
        folder / name
        for name in ("backup.tmp", "backup.tmp-journal", "journal.restoring", "journal.restoring-wal")
    ]
    for file in left:
        file.write_bytes(b"half")
    assert names_in(folder) == {"old"}
    assert not [file for file in left if file.exists()]


def test_of_what_is_no_database_not_all_is_read(folder: Path) -> None:
    """Of `/dev/zero` there is no end: the disk would be full."""
    before = names_in(folder)
    with pytest.raises(StoreRefusedError, match="/dev/zero: cannot be put back: file is not a database"):
        backup.restore(folder, Path("/dev/zero"), force=True)
    assert names_in(folder) == before
    assert not (folder / backup.RESTORING).exists()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE jobs SET doc = replace(doc, '\"spec\"', '\"spex\"') WHERE NOT ended",
        "UPDATE jobs SET ended = 1, doc = substr(doc, 1, 40)",
        "UPDATE jobs SET doc = CAST(CAST(doc AS BLOB) || x'ff' AS TEXT)",
        "UPDATE events SET data = '{'",
        "UPDATE meta SET value = '{}'",
        "INSERT INTO meta VALUES ('first_epoch', '[]')",
        "INSERT INTO credentials VALUES ('user-token', 'x', '{}')",
    ],
)
def test_a_backup_that_no_controller_could_read_is_refused_and_what_is_there_stays(
    folder: Path, tmp_path: Path, damage: str
) -> None:
    journal = Journal.open(tmp_path / "other")
    secret = replace(job(1, "made"), spec=JobSpec(name="made", command=("true",), env={"KEY": "hunter2"}))
    journal.commit(
        Batch(jobs=(secret,), events=(Event(seq=1, fact=Fact(now_s=1.0, kind="placed", text="")),))
    )
    journal.close()
    file = tmp_path / "copy.db"
    with backup.take(tmp_path / "other") as taken:
        file.write_bytes(b"".join(chunk.data for chunk in taken.chunks()))
    with contextlib.closing(sqlite3.connect(file)) as db:
        db.execute(damage)
        db.commit()
    before = names_in(folder)
    with pytest.raises(
        StoreRefusedError, match=f"{file}: holds what cannot be read .*try another backup"
    ) as error:
        backup.restore(folder, file, force=True)
    assert "hunter2" not in str(error.value)
    assert names_in(folder) == before
    assert list(folder.glob("journal.db.before-*")) == []


def test_a_backup_may_come_through_a_pipe(folder: Path, copy: Path) -> None:
    """As of `--from <(zcat backup.db.gz)`."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        sender = threading.Thread(target=lambda: (pipe.write(copy.read_bytes()), pipe.close()))
        sender.start()
        jobs, _ = backup.restore(folder, Path(f"/proc/self/fd/{reading}"), force=True)
        sender.join()
    os.close(reading)
    assert jobs == 3
    assert names_in(folder) == {"from-the-backup"}


def test_a_copy_for_which_there_is_no_room_is_not_begun(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal would have none either, until it was given up."""
    size = sum((folder / f"journal.db{end}").stat().st_size for end in ("", "-wal"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=2 * size - 1))
    monkeypatch.setattr(sqlite3, "connect", lambda *_args, **_more: pytest.fail("it was begun"))
    with pytest.raises(StoreUnavailableError, match=f"takes up to {size} bytes.*; {2 * size - 1} are free"):
        backup.take(folder)
    assert not (folder / backup.BACKUP).exists()
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=2 * size))
    backup.take(folder).close()
