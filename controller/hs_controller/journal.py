"""The store: SQLite in WAL mode with synchronous=FULL, so that a committed batch survives anything the disk survives.

Rows are the truth, events the audit. Blocking; the loop calls it from worker threads: `commit` and `begin_term` from one,
everything that reads from another, `checkpoint` from a third (each has a connection of its own).
"""

import contextlib
import os
import sqlite3
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from hs_controller.loading import loaded, readable
from hs_controller.outdated import Kept, Outdated
from hs_controller.rows import (
    HOST,
    JOB,
    USER,
    Account,
    Batch,
    Event,
    Loaded,
    Sample,
    Usage,
)
from hs_controller.sqlite import (
    SCHEMA,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
    check_not_newer,
    check_ours,
    check_private,
    check_schema,
    clear_unfinished,
    create_schema,
    engine,
    locked,
    mark,
    not_opened,
    settle,
    told,
    unclosed,
    wal,
    why_no_file,
)
from hs_controller.tables import (
    CREDENTIALS,
    EVENTS,
    HOSTS,
    JOBS,
    REQUESTS,
    SAMPLES,
    USAGE,
    USERS,
    account,
    among,
    credential_key,
    credential_row,
    docs,
    event_of,
    event_row,
    figures,
    insert,
    job_row,
    nearest_samples,
    of_array,
    put_meta,
    read_meta,
    sample_of,
    upsert,
)
from hs_core.facts import TRADES
from hs_core.model import Job
from hs_core.names import JobId
from hs_daemon.there import exists

ARRAY_IDS = 10_000  # an array's tasks have numbers within so many: they are of one request
MOST = (1 << 63) - 1  # that SQLite can be asked about; numbers on the wire may be larger


class Journal:
    """An open store. Only one process at a time has a state folder open."""

    def __init__(self, folder: Path, lock: int, writer: sa.Engine, reader: sa.Engine) -> None:
        self.folder = folder
        self._lock = lock
        self._writing = writer
        self._reading = reader
        self._writer = writer.connect()
        self._reader = reader.connect()
        self._keeper = reader.connect()
        # Else, where nobody closes it, SQLite would take the log away with its last connection, and that would be missed.
        self._closes = weakref.finalize(self, _close, folder, self._writer, self._reader, self._keeper)
        self._outdated = Outdated()

    # --- opening ----------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, folder: Path) -> "Journal":
        """Raises StoreRefusedError, or StoreFullError, with the reason; what is there is left as it is."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise not_opened(error, f"state_dir: {folder}: cannot be made") from None
        check_ours(folder)
        lock = locked(folder)
        try:
            check_not_newer(folder / "journal.db")
            clear_unfinished(folder)
            return cls._opened(folder, lock)
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def _opened(cls, folder: Path, lock: int) -> "Journal":
        file = folder / "journal.db"
        marker = folder / "initialized"
        new = not exists(file) or file.stat().st_size == 0
        if new and (exists(marker) or exists(wal(file))):
            raise StoreRefusedError(
                f"{file}: missing or empty, though a controller has kept its state here; put it back from a backup"
                f" (or, to start empty and forget every job, remove {marker} and {wal(file)})"
            )
        if exists(unclosed(folder)) and not exists(wal(file)):
            raise StoreRefusedError(
                f"{wal(file)}: missing, though the controller before did not end in good order: what was committed last was in it;"
                f" put it, or a backup, back (where another program has taken it into the file, or to go on without it, remove {unclosed(folder)})"
            )
        writer, reader = engine(file, "IMMEDIATE"), engine(file, "DEFERRED")
        try:
            if new:
                file.touch()
                file.chmod(0o600)
                create_schema(writer)
            elif exists(unclosed(folder)):
                with writer.connect() as db:
                    settle(db, folder)
            check_schema(writer, file)
            check_private(file)
            journal = cls(folder, lock, writer, reader)
        except sa.exc.DBAPIError as error:
            why = told(error.orig, f"{file}: cannot be used")
            if isinstance(why, StoreUnavailableError):
                why = why_no_file(folder) or why
            raise (why if isinstance(why, StoreFullError) else StoreRefusedError(str(why))) from None
        except OSError as error:
            raise not_opened(error, f"{file}: cannot be made") from None
        if not exists(marker):
            mark(marker)
        return journal

    def close(self) -> None:
        self._closes()
        self._writing.dispose()
        self._reading.dispose()
        os.close(self._lock)

    # --- writing ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _write(self, doing: str) -> Iterator[sa.Connection]:
        try:
            with self._writer.begin():
                yield self._writer
        except sa.exc.DBAPIError as error:
            raise told(error.orig, doing) from error

    def begin_term(self) -> int:
        """The next term, committed: higher than that of any controller that was in office before."""
        with self._write("taking office") as db:
            term = int(read_meta(db).get("term", 0)) + 1
            put_meta(db, {"term": term})
            db.exec_driver_sql(f"PRAGMA user_version = {SCHEMA}")
        mark(
            unclosed(self.folder)
        )  # the log is there from now on, and a power cut does not take its name back
        return term

    def commit(self, batch: Batch) -> None:
        """All of it or, with a StoreError, nothing."""
        with self._write("committing") as db:
            upsert(db, JOBS, [job_row(job) for job in batch.jobs])
            upsert(db, USERS, [{"name": u.name, "doc": USER.dump_json(u).decode()} for u in batch.users])
            for user in batch.gone_users:
                db.execute(sa.delete(USERS).where(USERS.c.name == user))
            upsert(db, HOSTS, [{"name": h.name, "doc": HOST.dump_json(h).decode()} for h in batch.hosts])
            for name in batch.gone_hosts:
                db.execute(sa.delete(HOSTS).where(HOSTS.c.name == name))
            put_meta(db, batch.meta)
            insert(db, EVENTS, [event_row(event) for event in batch.events])
            upsert(db, USAGE, [account(who) | figures(usage) for who, usage in batch.usage.items()])
            upsert(
                db,
                SAMPLES,
                [
                    account(s.account) | figures(s.usage) | {"tier": s.tier, "at_s": s.at_s}
                    for s in batch.samples
                ],
            )
            upsert(
                db,
                REQUESTS,
                [
                    {"caller": a.caller, "key": a.key, "digest": a.digest, "answer": a.answer, "at_s": a.at_s}
                    for a in batch.answered
                ],
            )
            for row in batch.gone_credentials:
                db.execute(sa.delete(CREDENTIALS).filter_by(**credential_key(row)))
            upsert(db, CREDENTIALS, [credential_row(row) for row in batch.credentials])

    def prune(self, kept: Kept) -> bool:
        """Drop what is older than anybody was promised, a bounded amount at a time: whether there is more."""
        with self._write("pruning") as db:
            return self._outdated.drop(db, kept)

    # --- the write-ahead log ----------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Takes what is committed into the file, while commits go on. Raises StoreError."""
        self._checkpoint(self._keeper)

    def checkpoint_rest(self) -> None:
        """What was committed meanwhile, from the thread that commits: little. From then on the log is written from its beginning again."""
        self._checkpoint(self._writer)

    @staticmethod
    def _checkpoint(db: sa.Connection) -> None:
        try:
            driver = db.connection.driver_connection
            assert driver is not None
            driver.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # within no transaction
        except sqlite3.Error as error:
            raise told(error, "taking the log into the file") from error

    # --- reading ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _read(self) -> Iterator[sa.Connection]:
        # Short: an open snapshot keeps the WAL from being taken into the file.
        try:
            with self._reader.begin():
                yield self._reader
        except sa.exc.DBAPIError as error:
            raise told(error.orig, "reading") from error

    def load(self) -> Loaded:
        """Raises StoreRefusedError where a row is none that this version knows."""
        with readable(self.folder / "journal.db", instead="put it back from a backup"), self._read() as db:
            return loaded(db)

    def job(self, job: JobId) -> Job | None:
        if job > MOST:
            return None
        with self._read() as db:
            doc = db.scalar(docs(JOBS.c.id == job))
        return None if doc is None else JOB.validate_json(doc)

    def ended_among(self, jobs: Sequence[JobId]) -> tuple[Job, ...]:
        with self._read() as db:
            found = list(db.scalars(docs(JOBS.c.ended, among(JOBS.c.id, frozenset(jobs)))))
        return tuple(JOB.validate_json(doc) for doc in found)

    def answer(self, caller: str, key: str) -> bytes | None:
        which = (REQUESTS.c.caller == caller) & (REQUESTS.c.key == key)
        with self._read() as db:
            return db.scalar(sa.select(REQUESTS.c.answer).where(which))

    def ended_jobs(
        self,
        *,
        user: str = "",
        states: Sequence[str] = (),
        array: int = 0,
        before: int = MOST,
        limit: int,
    ) -> tuple[Job, ...]:
        """The newest ones of those with numbers less than `before`, newest first."""
        which: list[sa.ColumnElement[bool]] = [JOBS.c.ended, JOBS.c.id < before]
        if user:
            which.append(JOBS.c.user == user)
        if states:
            which.append(JOBS.c.state.in_(states))
        if array:
            first = min(array, MOST - ARRAY_IDS)
            which += [JOBS.c.id.between(first, first + ARRAY_IDS), of_array(first)]
        query = sa.select(JOBS.c.doc).where(*which).order_by(JOBS.c.id.desc()).limit(limit)
        with self._read() as db:
            docs = list(db.scalars(query))
        return tuple(JOB.validate_json(doc) for doc in docs)

    def events(
        self,
        *,
        after_seq: int = 0,
        job: int = 0,
        user: str = "",
        kind: str = "",
        deeds: bool = False,
        limit: int = 1000,
        newest: bool = False,
    ) -> tuple[Event, ...]:
        """In order; at most `limit`, the first ones after `after_seq` or the newest. Of `user`: those that concern it (`Fact.concerns`)."""
        which = [EVENTS.c.seq > min(after_seq, MOST), *_events_of(job, kind, deeds=deeds)]
        query, seq = _concerning(user, sa.select(EVENTS).where(*which))
        query = query.order_by(seq.desc() if newest else seq).limit(limit)
        with self._read() as db:
            rows = db.execute(query).all()
        return tuple(event_of(row) for row in (reversed(rows) if newest else rows))

    def before_newest(self, count: int, *, job: int = 0, user: str = "", deeds: bool = False) -> int:
        """After which event the newest `count` of these come; 0: there are no others."""
        query, seq = _concerning(user, sa.select(EVENTS.c.seq).where(*_events_of(job, "", deeds=deeds)))
        with self._read() as db:
            return db.scalar(query.order_by(seq.desc()).offset(count).limit(1)) or 0

    def usage_at(self, at_s: float) -> dict[Account, Usage]:
        """What each account had received by then, on a straight line between samples; accounts that had nothing are absent."""
        with self._read() as db:
            before = _by_account(db.execute(nearest_samples(later=False), {"at_s": at_s}), max)
            after = _by_account(db.execute(nearest_samples(later=True), {"at_s": at_s}), min)
        found: dict[Account, Usage] = {}
        for who, was in before.items():
            then = after.get(who)
            part = 0.0 if then is None else (at_s - was.at_s) / (then.at_s - was.at_s)
            found[who] = was.usage if then is None else was.usage.towards(then.usage, part)
        return found


def _close(folder: Path, writer: sa.Connection, *others: sa.Connection) -> None:
    for other in others:
        other.close()
    settle(writer, folder)
    writer.close()
    if not exists(wal(folder / "journal.db")):
        with contextlib.suppress(OSError):
            unclosed(folder).unlink(missing_ok=True)


def _concerning(
    user: str, which: sa.Select[Any]
) -> tuple[sa.Select[Any] | sa.CompoundSelect[Any], sa.ColumnElement[int]]:
    """Of these events those that concern the user, if one is named, and what they go in order by.

    Put together of what has an index each, so that of very many the first ones are soon found.
    """
    if not user:
        return which, EVENTS.c.seq
    receives = sa.func.json_extract(EVENTS.c.data, "$.receives") == user
    trades = (which.where(EVENTS.c.kind == kind, receives) for kind in TRADES)
    both = sa.union_all(which.where(EVENTS.c.user == user), *trades)
    return both, both.selected_columns.seq


def _events_of(job: int, kind: str, *, deeds: bool) -> Iterator[sa.ColumnElement[bool]]:
    if job:
        yield EVENTS.c.job == min(job, MOST)
    if kind:
        yield EVENTS.c.kind == kind
    if deeds:
        yield EVENTS.c.deed


def _by_account(rows: Iterable[Any], which: Callable[..., Sample]) -> dict[Account, Sample]:
    """Of each account the latest (`max`) or earliest (`min`), whatever tier it is of."""
    found: dict[Account, Sample] = {}
    for sample in map(sample_of, rows):
        known = found.get(sample.account, sample)
        found[sample.account] = which(known, sample, key=attrgetter("at_s"))
    return found
