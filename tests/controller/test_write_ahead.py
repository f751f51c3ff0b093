"""The write-ahead log: taken into the file beside the commits, and there after a crash."""

import contextlib
import os
import shutil
import sqlite3
import threading
from pathlib import Path

from hs_controller.journal import Journal
from hs_controller.rows import Batch
from hs_controller.sqlite import (
    wal,
)
from hs_core.model import Job, JobSpec
from hs_core.names import JobId
from tests.controller.journals import ANN, crash, job


def many(first: int, count: int) -> Batch:
    """Of jobs that take a page each."""
    spec = JobSpec(name="j", command=("true", "x" * 4096))
    return Batch(
        jobs=tuple(Job(id=JobId(first + at), user=ANN, spec=spec, arrival_s=1.0) for at in range(count))
    )


def in_file_alone(folder: Path, tmp_path: Path) -> int:
    """Jobs in a copy of the file without its log."""
    copy = tmp_path / "alone.db"
    shutil.copy(folder / "journal.db", copy)
    with contextlib.closing(sqlite3.connect(copy)) as db:
        return db.execute("SELECT count(*) FROM jobs").fetchone()[0]


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
