"""The SQLite file itself: its lock, its connections, what it must look like, and what its errors mean."""

import contextlib
import errno
import os
import sqlite3
import struct
from pathlib import Path

import sqlalchemy as sa

from hs_controller.tables import STATEMENTS, TABLES, put_meta
from hs_daemon.held import NOTE, HeldError, hold
from hs_daemon.owned import why_not_ours
from hs_daemon.there import exists

SCHEMA = 6
"""Of the tables, and of what is in their rows: tests/controller/test_forms.py holds it to both. One that is lower is read, where nothing is lacking, and becomes this; one that is higher is refused."""

APPLICATION_ID = 0x48535348  # "HSSH": tells our file from any other SQLite file


class StoreError(Exception):
    """The store did not do what was asked; nothing of the batch is in it."""


class StoreUnavailableError(StoreError):
    """It cannot be written just now (disk full, busy): try again later."""


class StoreFullError(StoreUnavailableError):
    """The disk is full; one that cannot even be opened for that is tried again later."""


class StoreBrokenError(StoreError):
    """What is on the disk is not known (a failed fsync, a corrupt page): stop, never retry."""


class StoreUnreadableError(StoreBrokenError):
    """A text in it is none."""


class StoreRefusedError(StoreError):
    """It cannot be opened, and starting empty would lose what is in it."""


# The disk refused, but said so before anything was promised; everything else that goes wrong below SQL is final.
_TEMPORARY = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_IOERR_SHMSIZE,  # the disk is full where WAL's index would grow
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_NOMEM,
    }
)


_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
MAKE_ROOM = "the disk is full: make room"


_NO_TEXT = "Could not decode to UTF-8"  # the driver says so, and then the whole of it: what users put into their jobs' environment


def told(error: BaseException | None, doing: str) -> StoreError:
    """The driver's error as one of ours."""
    if str(error).startswith(_NO_TEXT):
        column = str(error).removeprefix(_NO_TEXT).partition(" with text ")[0]
        return StoreUnreadableError(f"{doing}: not UTF-8:{column}")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    name = getattr(error, "sqlite_errorname", "")
    text = f"{doing}: {error}{f' ({name})' if name else ''}"
    if code in _FULL:
        return StoreFullError(f"{text}: {MAKE_ROOM}")
    if code in _TEMPORARY or code & 0xFF in _TEMPORARY:
        return StoreUnavailableError(text)
    return StoreBrokenError(text)


def not_opened(error: OSError, doing: str) -> StoreError:
    """The system's error as one of ours."""
    if error.errno in NO_ROOM:
        return StoreFullError(f"{doing}: {MAKE_ROOM}")
    return StoreRefusedError(f"{doing}: {error.strerror}")


def why_no_file(folder: Path) -> StoreError | None:
    """Where no file can be made any more, SQLite says no more than that it cannot open one. None: one can be made."""
    probe = folder / f"{BACKUP}-probe"
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        probe.unlink()
    except OSError as error:
        return not_opened(error, f"{folder}: no file can be made there")
    return None


def check_ours(folder: Path) -> None:
    """Whoever can change what is in the state folder has the cluster."""
    try:
        why = why_not_ours(folder)
    except OSError as error:
        why = f"cannot be looked at: {error.strerror}"
    if why:
        raise StoreRefusedError(f"state_dir: {folder}: {why}")


def check_private(file: Path) -> None:
    """Whoever can read the journal has what users put into their jobs' environment; whoever can change it has the cluster."""
    for part in filter(Path.exists, (file, wal(file))):
        if why := why_not_ours(part):
            raise StoreRefusedError(f"state_dir: {part}: {why}")
    passed, read = file.parent.stat().st_mode & 0o011, file.stat().st_mode & 0o077
    if passed and read:
        raise StoreRefusedError(
            f"state_dir: {file}: can be read by others: chmod 600 it, or chmod 700 the folder"
        )


def locked(folder: Path) -> int:
    """As `hs_daemon.held`. Raises StoreRefusedError, StoreFullError."""
    try:
        return hold(folder)
    except HeldError as held:
        raise StoreRefusedError(
            f"{folder}: another controller (pid {held.holder}) has this state open"
        ) from None
    except OSError as error:
        raise not_opened(error, f"{folder / NOTE}: cannot be opened") from None


def wal(file: Path) -> Path:
    return file.with_name(file.name + "-wal")


def unclosed(folder: Path) -> Path:
    """Is there while a controller has the journal, and after one that did not end in good order: what was committed last is in the log beside it, and may be nowhere else."""
    return folder / "unclosed"


def settle(db: sa.Connection, folder: Path) -> None:
    """Where all of the log is in the file, as far as anybody commits no more, nothing is lost with it. Best effort."""
    driver = db.connection.driver_connection
    assert driver is not None
    with contextlib.suppress(sqlite3.Error, OSError):
        _, there, taken = driver.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if there == taken:
            unclosed(folder).unlink(missing_ok=True)


BACKUP, RESTORING = "backup.tmp", "journal.restoring"  # names of copies that are being made


def clear_unfinished(folder: Path) -> None:
    """What a process that was killed had not made to its end: each may be as large as the journal. The folder is locked."""
    for name in (BACKUP, RESTORING):
        for file in folder.glob(f"{name}*"):
            with contextlib.suppress(OSError):
                file.unlink()


def mark(marker: Path) -> None:
    """Best effort: it only guards against what somebody removes later."""
    try:
        marker.touch(mode=0o600)
    except OSError:
        return


def engine(file: Path, mode: str) -> sa.Engine:
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(file)),
        poolclass=sa.NullPool,
        connect_args={"check_same_thread": False, "timeout": 5.0, "cached_statements": STATEMENTS},
    )

    def connected(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves: the driver would do so too late
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            "temp_store = MEMORY",
            "journal_size_limit = 67108864",
            "wal_autocheckpoint = 0",  # not within a commit that somebody waits for: `Journal.checkpoint`
        ):
            connection.execute(f"PRAGMA {pragma}")

    def begun(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"BEGIN {mode}")

    sa.event.listen(engine, "connect", connected)
    sa.event.listen(engine, "begin", begun)
    return engine


def create_schema(engine: sa.Engine) -> None:
    """One transaction: a crash leaves an empty file, which is created again, or the whole schema."""
    with engine.begin() as db:
        db.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        db.exec_driver_sql(f"PRAGMA user_version = {SCHEMA}")
        TABLES.create_all(db)
        put_meta(db, {"term": 0})


_HEADER = struct.Struct(
    ">60xI4xI"
)  # `user_version` and `application_id`: https://www.sqlite.org/fileformat.html


def check_not_newer(file: Path) -> None:
    """Before anything is done in the folder: what a newer controller has left is not changed, nor its log taken into the file. Raises StoreRefusedError; what is no journal passes."""
    with contextlib.suppress(OSError, struct.error), file.open("rb") as opened:
        schema, application = _HEADER.unpack(opened.read(_HEADER.size))
        if application == APPLICATION_ID:
            _not_newer(schema, file)
    if not exists(wal(file)):
        return  # and SQLite would make one
    reading = f"{file.absolute().as_uri()}?mode=ro"
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(reading, uri=True)) as db:
        _not_newer(db.execute("PRAGMA user_version").fetchone()[0], file)


def _not_newer(schema: int, file: Path) -> None:
    if schema > SCHEMA:
        raise StoreRefusedError(
            f"{file}: has schema {schema}; this version of the controller knows up to {SCHEMA}: install the newer one"
        )


def check_schema(engine: sa.Engine, file: Path) -> None:
    with engine.connect() as db:
        application = db.exec_driver_sql("PRAGMA application_id").scalar()
        schema = db.exec_driver_sql("PRAGMA user_version").scalar_one()
        if application != APPLICATION_ID:
            raise StoreRefusedError(f"{file}: is not a HeteroShare journal (application id {application})")
        _not_newer(schema, file)
        if schema < 1:
            raise StoreRefusedError(
                f"{file}: has schema {schema}, which no version of the controller ever wrote"
            )
        verdict = db.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        if verdict != "ok":
            raise StoreRefusedError(f"{file}: is corrupt ({verdict}); put it back from a backup")
        seen = sa.inspect(db)
        there = {
            name: {column["name"] for column in seen.get_columns(name)} for name in seen.get_table_names()
        }
        missing = set(TABLES.tables) - set(there)
        if missing:
            raise StoreRefusedError(
                f"{file}: lacks the tables {', '.join(sorted(missing))}; put it back from a backup"
            )
        lacking = [
            f"{table.name}.{column.name}"
            for table in TABLES.sorted_tables
            for column in table.columns
            if column.name not in there[table.name]
        ]
        if lacking:
            raise StoreRefusedError(
                f"{file}: lacks the columns {', '.join(lacking)}; put it back from a backup"
            )
