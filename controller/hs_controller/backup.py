"""A consistent copy of the journal while it is written to, and how one is put back."""

import asyncio
import contextlib
import hashlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import sqlalchemy as sa

from hs_controller.accounts import name_of
from hs_controller.calls import audit
from hs_controller.loading import read_all, readable
from hs_controller.rows import Event
from hs_controller.sqlite import (
    BACKUP,
    RESTORING,
    StoreRefusedError,
    StoreUnavailableError,
    check_ours,
    check_schema,
    engine,
    locked,
    mark,
    unclosed,
    wal,
)
from hs_controller.tables import (
    COUNTED_BEFORE,
    EVENTS,
    PUT_BACK,
    USAGE,
    account_of,
    event_row,
    insert,
    put_meta,
    read_meta,
    usage_doc,
    usage_of,
)
from hs_daemon.durable import sync_folder
from hs_daemon.there import exists

SQLITE = b"SQLite format 3\0"  # what each of its files begins with
CHUNK_BYTES = 256 << 10
JOB_IDS_SKIPPED = 1_000_000  # jobs that came after the backup had such numbers: agents may still know them
EVENTS_SKIPPED = 1_000_000_000  # so had events: who has followed them asks for what comes after the last one


@dataclass(frozen=True, slots=True)
class Chunk:
    data: bytes
    sha256: str = ""  # of all of it, with the last chunk


class Copy:
    """An open copy that has no name any more: it goes when it is closed, or with the process."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def chunks(self) -> Iterator[Chunk]:
        digest = hashlib.sha256()
        data = self._file.read(CHUNK_BYTES)
        while data:
            digest.update(data)
            after = self._file.read(CHUNK_BYTES)
            yield Chunk(data) if after else Chunk(data, digest.hexdigest())
            data = after


def take(folder: Path) -> Copy:
    """Raises StoreUnavailableError. Beside the journal, as only there is surely room for another of its size, or not."""
    file = folder / BACKUP
    file.unlink(missing_ok=True)
    try:
        check_room(folder)
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with (
            contextlib.closing(sqlite3.connect(folder / "journal.db", timeout=30)) as source,
            contextlib.closing(sqlite3.connect(file, isolation_level=None)) as target,
        ):
            source.backup(target)  # in one step: nothing that is committed meanwhile can tear it
            target.execute("PRAGMA journal_mode = DELETE")
        return Copy(file.open("rb"))
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailableError(f"{file}: {error}") from None
    finally:
        file.unlink(missing_ok=True)


def check_room(folder: Path) -> None:
    """A copy that fills the disk would stop the journal meanwhile. Raises StoreUnavailableError."""
    journal = folder / "journal.db"
    size = sum(part.stat().st_size for part in (journal, wal(journal)) if exists(part))
    free = shutil.disk_usage(folder).free
    if free < 2 * size:
        raise StoreUnavailableError(
            f"{folder}: a copy takes up to {size} bytes, and the journal has to have as much again left to go on; {free} are free"
        )


class Copies:
    """Made one after the other, in a thread: that of a caller who has gone is made to its end first."""

    def __init__(self, folder: Path) -> None:
        self.sending = asyncio.Lock()  # held by who is being sent one
        self._folder = folder
        self._making: asyncio.Task[Copy] | None = None

    async def check_room(self) -> None:
        """Raises StoreUnavailableError."""
        await asyncio.to_thread(check_room, self._folder)

    async def take(self) -> Copy:
        """As `take`."""
        while self._making is not None:
            await asyncio.wait({self._making})
        making = self._making = asyncio.create_task(asyncio.to_thread(take, self._folder))
        making.add_done_callback(self._made)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_let_go)
            raise

    def _made(self, _: "asyncio.Task[Copy]") -> None:
        self._making = None


def _let_go(made: "asyncio.Task[Copy]") -> None:
    if not made.cancelled() and made.exception() is None:
        made.result().close()


def restore(folder: Path, source: Path, *, force: bool) -> tuple[int, Path | None]:
    """Puts a copy in the journal's place; the number of jobs in it, and where what was there is now. Raises StoreRefusedError, and then nothing has changed.

    Terms, job numbers, epochs and numbers of events begin far above all that anybody may have heard of since the copy was made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreRefusedError(f"state_dir: {folder}: cannot be made: {error.strerror}") from None
    check_ours(folder)  # no controller would start there
    lock = locked(folder)
    fresh = folder / RESTORING
    try:
        journal = folder / "journal.db"
        if exists(journal) and journal.stat().st_size and not force:
            raise StoreRefusedError(
                f"{journal}: there is a journal; --force puts it aside and the backup in its place"
            )
        jobs = _prepared(source, fresh)
        aside = _put_aside(journal)
        unclosed(folder).unlink(missing_ok=True)
        fresh.rename(journal)
        mark(folder / "initialized")
        sync_folder(folder)
    except (OSError, sqlite3.Error, sa.exc.DBAPIError) as error:
        why = error.orig if isinstance(error, sa.exc.DBAPIError) else error
        raise StoreRefusedError(f"{source}: cannot be put back: {why}") from None
    else:
        return jobs, aside
    finally:
        _remove(fresh)  # of a copy that was refused: on a full disk the next controller needs its room
        os.close(lock)


def _prepared(source: Path, fresh: Path) -> int:
    """A checked copy that is ready to be opened, on the disk."""
    _remove(fresh)
    _copy(source, fresh, begins=SQLITE)
    if exists(wal(source)):  # of a journal that was put aside: what was committed last is in it alone
        _copy(wal(source), wal(fresh))
    opened = engine(fresh, "IMMEDIATE")
    try:
        check_schema(opened, source)
        with readable(source, instead="nothing was put back: try another backup"), opened.begin() as db:
            read_all(db)
            meta = read_meta(db)
            # Terms grow by one a start, and epochs by one each time that a job begins: none ever came near the seconds since 1970.
            above = int(time.time())
            first = int(meta.get("next_job_id", 1))
            past = first + JOB_IDS_SKIPPED
            put_meta(
                db,
                {
                    "term": max(int(meta.get("term", 0)), above),
                    "first_epoch": max(int(meta.get("first_epoch", 0)), above),
                    "restored": True,
                    "next_job_id": past,
                    "unknown": [first, past],
                    "taken_up": [],
                    # Less than Prometheus has seen: a counter that began there would be taken for new as a whole.
                    COUNTED_BEFORE: usage_doc(
                        {account_of(row): usage_of(row) for row in db.execute(sa.select(USAGE))}
                    ),
                },
            )
            insert(db, EVENTS, [event_row(_put_back(db))])
            jobs = db.exec_driver_sql("SELECT count(*) FROM jobs").scalar_one()
    finally:
        opened.dispose()
    with contextlib.closing(sqlite3.connect(fresh, isolation_level=None)) as db_file:
        db_file.execute("PRAGMA journal_mode = DELETE")
    with fresh.open("rb") as written:
        os.fsync(written.fileno())
    return int(jobs)


def _copy(source: Path, fresh: Path, *, begins: bytes = b"") -> None:
    os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with source.open("rb") as data, fresh.open("wb") as out:
        chunk = data.read(CHUNK_BYTES)
        if chunk and not chunk.startswith(begins):  # of a device or a huge file not all is read to say so
            raise StoreRefusedError(f"{source}: cannot be put back: file is not a database")
        while chunk:
            out.write(chunk)
            chunk = data.read(CHUNK_BYTES)


def _put_back(db: sa.Connection) -> Event:
    """The line of the audit about it."""
    seq, newest_s = db.execute(sa.select(sa.func.max(EVENTS.c.seq), sa.func.max(EVENTS.c.at_s))).one()
    by = name_of(os.getuid()) or f"uid-{os.getuid()}"
    fact = audit(
        max(time.time(), newest_s or 0.0),
        PUT_BACK,
        f"{by} put a backup back; what came after it is not known",
        by=by,
    )
    return Event(seq=(seq or 0) + EVENTS_SKIPPED, fact=fact)


def _remove(fresh: Path) -> None:
    for part in (fresh, wal(fresh), fresh.with_name(fresh.name + "-shm")):
        part.unlink(missing_ok=True)


def _put_aside(journal: Path) -> Path | None:
    """Under another name with its log, so that whoever was too quick can still go back. None: there was nothing.

    One that was cut off has perhaps left the log behind: beside another file it would be taken into that.
    """
    parts = [end for end in ("", "-wal", "-shm") if exists(journal.with_name(journal.name + end))]
    if not parts:
        return None
    asides = {
        int(number): file
        for file in journal.parent.glob(f"{journal.name}.before-*")
        if (number := file.name.rpartition("-")[2]).isdecimal()
    }
    newest = max(asides, default=0)
    aside = journal.with_name(f"{journal.name}.before-{max(int(time.time()), newest + 1)}")
    if "" not in parts and asides:
        aside = asides[newest]
    for end in parts:
        journal.with_name(journal.name + end).rename(aside.with_name(aside.name + end))
    return aside
