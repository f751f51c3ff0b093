"""The store: SQLite in WAL mode with synchronous=FULL, so that a committed batch survives anything the disk survives.

Rows are the truth, events the audit. Blocking; the loop calls it from worker threads: `commit` and `begin_term` from one,
everything that reads from another (each has a connection of its own).
"""

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from hs_controller.rows import (
    HOST,
    JOB,
    USER,
    Account,
    Answered,
    Batch,
    Event,
    Loaded,
    Sample,
    Usage,
    after_of,
)
from hs_core.events import Fact
from hs_core.model import ENDED_STATES, HostName, Job, JobId, UserName

SCHEMA = 1
APPLICATION_ID = 0x48535348  # "HSSH": tells our file from any other SQLite file
FINE, COARSE = 0, 1  # tiers of usage samples


class StoreError(Exception):
    """The store did not do what was asked; nothing of the batch is in it."""


class StoreUnavailableError(StoreError):
    """It cannot be written just now (disk full, busy): try again later."""


class StoreBrokenError(StoreError):
    """What is on the disk is not known (a failed fsync, a corrupt page): stop, never retry."""


class StoreRefusedError(StoreError):
    """It cannot be opened, and starting empty would lose what is in it."""


_TABLES = sa.MetaData()
_META = sa.Table(
    "meta",
    _TABLES,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),  # JSON
)
_JOBS = sa.Table(
    "jobs",
    _TABLES,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("ended", sa.Boolean, nullable=False),
    sa.Column("doc", sa.Text, nullable=False),
    sa.Index("jobs_by_end", "ended", "id"),
    sa.Index("jobs_by_user", "user", "id"),
)
_USERS = sa.Table(
    "users",
    _TABLES,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("doc", sa.Text, nullable=False),
)
_HOSTS = sa.Table(
    "hosts",
    _TABLES,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("doc", sa.Text, nullable=False),
)
_EVENTS = sa.Table(
    "events",
    _TABLES,
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("job", sa.Integer),
    sa.Column("user", sa.Text),
    sa.Column("host", sa.Text),
    sa.Column("data", sa.Text, nullable=False),  # JSON
    sa.Index("events_by_job", "job", "seq"),
    sa.Index("events_by_user", "user", "seq"),
)
_USAGE = sa.Table(
    "usage",
    _TABLES,
    sa.Column("user", sa.Text, primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("gpu_s", sa.Float, nullable=False),
    sa.Column("lost_gpu_s", sa.Float, nullable=False),
    sa.Column("suspends", sa.Integer, nullable=False),
    sa.Column("jobs", sa.Integer, nullable=False),
)
_SAMPLES = sa.Table(
    "samples",
    _TABLES,
    sa.Column("tier", sa.Integer, primary_key=True),
    sa.Column("user", sa.Text, primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("at_s", sa.Float, primary_key=True),
    sa.Column("gpu_s", sa.Float, nullable=False),
    sa.Column("lost_gpu_s", sa.Float, nullable=False),
    sa.Column("suspends", sa.Integer, nullable=False),
    sa.Column("jobs", sa.Integer, nullable=False),
)
_REQUESTS = sa.Table(
    "requests",
    _TABLES,
    sa.Column("caller", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("digest", sa.LargeBinary, nullable=False),
    sa.Column("answer", sa.LargeBinary, nullable=False),
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Index("requests_by_age", "at_s"),
)

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


def _told(error: sa.exc.DBAPIError, doing: str) -> StoreError:
    """A driver's error as one of ours."""
    original = error.orig
    code = getattr(original, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    name = getattr(original, "sqlite_errorname", "")
    text = f"{doing}: {original}{f' ({name})' if name else ''}"
    if code in _TEMPORARY or code & 0xFF in _TEMPORARY:
        return StoreUnavailableError(text)
    return StoreBrokenError(text)


class Journal:
    """An open store. Only one process at a time has a state folder open."""

    def __init__(self, folder: Path, lock: int, writer: sa.Engine, reader: sa.Engine) -> None:
        self.folder = folder
        self._lock = lock
        self._writing = writer
        self._reading = reader
        self._writer = writer.connect()
        self._reader = reader.connect()

    # --- opening ----------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, folder: Path) -> "Journal":
        """Raises StoreRefusedError with the reason; what is there is left as it is."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreRefusedError(f"{folder}: cannot be made: {error.strerror}") from None
        lock = _locked(folder)
        try:
            return cls._opened(folder, lock)
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def _opened(cls, folder: Path, lock: int) -> "Journal":
        file = folder / "journal.db"
        marker = folder / "initialized"
        new = not file.exists() or file.stat().st_size == 0
        if new and (marker.exists() or _wal(file).exists()):
            raise StoreRefusedError(
                f"{file}: missing or empty, though a controller has kept its state here; put it back from a backup"
                f" (or, to start empty and forget every job, remove {marker} and {_wal(file)})"
            )
        writer, reader = _engine(file, "IMMEDIATE"), _engine(file, "DEFERRED")
        try:
            if new:
                file.touch(mode=0o600)
                _create(writer)
            _check(writer, file)
            journal = cls(folder, lock, writer, reader)
        except sa.exc.DBAPIError as error:
            raise StoreRefusedError(f"{file}: {_told(error, 'cannot be used')}") from None
        if not marker.exists():
            _mark(marker)
        return journal

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
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
            raise _told(error, doing) from error

    def begin_term(self) -> int:
        """The next term, committed: higher than that of any controller that was in office before."""
        with self._write("taking office") as db:
            term = int(_meta(db).get("term", 0)) + 1
            _put_meta(db, {"term": term})
            return term

    def commit(self, batch: Batch) -> None:
        """All of it or, with a StoreError, nothing."""
        with self._write("committing") as db:
            _upsert(db, _JOBS, [_job_row(job) for job in batch.jobs])
            _upsert(db, _USERS, [{"name": u.name, "doc": USER.dump_json(u).decode()} for u in batch.users])
            _upsert(db, _HOSTS, [{"name": h.name, "doc": HOST.dump_json(h).decode()} for h in batch.hosts])
            for name in batch.gone_hosts:
                db.execute(sa.delete(_HOSTS).where(_HOSTS.c.name == name))
            _put_meta(db, batch.meta)
            if batch.events:
                db.execute(sa.insert(_EVENTS), [_event_row(event) for event in batch.events])
            _upsert(
                db, _USAGE, [_account(account) | _figures(usage) for account, usage in batch.usage.items()]
            )
            _upsert(
                db,
                _SAMPLES,
                [
                    _account(s.account) | _figures(s.usage) | {"tier": s.tier, "at_s": s.at_s}
                    for s in batch.samples
                ],
            )
            _upsert(
                db,
                _REQUESTS,
                [
                    {"caller": a.caller, "key": a.key, "digest": a.digest, "answer": a.answer, "at_s": a.at_s}
                    for a in batch.answered
                ],
            )

    def prune(
        self,
        *,
        events: int,
        ended: int,
        requests_before_s: float,
        fine_before_s: float,
        coarse_before_s: float,
    ) -> None:
        """Drop what is older than anybody was promised, a bounded amount at a time."""
        with self._write("pruning") as db:
            newest = db.scalar(sa.select(sa.func.max(_EVENTS.c.seq))) or 0
            oldest = db.scalar(sa.select(sa.func.min(_EVENTS.c.seq))) or 0
            db.execute(sa.delete(_EVENTS).where(_EVENTS.c.seq <= min(newest - events, oldest + 20_000)))
            spare = (
                sa.select(_JOBS.c.id)
                .where(_JOBS.c.ended)
                .order_by(_JOBS.c.id.desc())
                .offset(ended)
                .limit(2_000)
            )
            db.execute(sa.delete(_JOBS).where(_JOBS.c.id.in_(spare)))
            db.execute(sa.delete(_REQUESTS).where(_REQUESTS.c.at_s < requests_before_s))
            for tier, before_s in ((FINE, fine_before_s), (COARSE, coarse_before_s)):
                db.execute(_stale_samples(tier, before_s))

    # --- reading ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _read(self) -> Iterator[sa.Connection]:
        # Short: an open snapshot keeps the WAL from being taken into the file.
        try:
            with self._reader.begin():
                yield self._reader
        except sa.exc.DBAPIError as error:
            raise _told(error, "reading") from error

    def load(self) -> Loaded:
        with self._read() as db:
            meta = _meta(db)
            live = tuple(JOB.validate_json(doc) for doc in db.scalars(_docs(_JOBS.c.ended.is_(False))))
            waited_for = _in(_JOBS.c.id, after_of(live))
            last_s = db.scalar(sa.select(sa.func.max(_EVENTS.c.at_s)).where(_EVENTS.c.seq > _tail(1000)))
            return Loaded(
                term=int(meta.get("term", 0)),
                jobs=live,
                ended=tuple(JOB.validate_json(doc) for doc in db.scalars(_docs(_JOBS.c.ended, waited_for))),
                users=tuple(
                    USER.validate_json(doc)
                    for doc in db.scalars(sa.select(_USERS.c.doc).order_by(_USERS.c.name))
                ),
                hosts=tuple(
                    HOST.validate_json(doc)
                    for doc in db.scalars(sa.select(_HOSTS.c.doc).order_by(_HOSTS.c.name))
                ),
                meta=meta,
                last_seq=db.scalar(sa.select(sa.func.max(_EVENTS.c.seq))) or 0,
                last_s=last_s or 0.0,
                usage={_account_of(row): _usage_of(row) for row in db.execute(sa.select(_USAGE))},
                samples=tuple(
                    _sample_of(row)
                    for row in db.execute(
                        sa.select(_SAMPLES).where(_SAMPLES.c.tier == FINE).order_by(_SAMPLES.c.at_s)
                    )
                ),
                answered=tuple(
                    Answered(caller=r.caller, key=r.key, digest=r.digest, answer=r.answer, at_s=r.at_s)
                    for r in db.execute(sa.select(_REQUESTS).order_by(_REQUESTS.c.at_s))
                ),
            )

    def job(self, job: JobId) -> Job | None:
        with self._read() as db:
            doc = db.scalar(_docs(_JOBS.c.id == job))
        return None if doc is None else JOB.validate_json(doc)

    def answer(self, caller: str, key: str) -> bytes | None:
        which = (_REQUESTS.c.caller == caller) & (_REQUESTS.c.key == key)
        with self._read() as db:
            return db.scalar(sa.select(_REQUESTS.c.answer).where(which))

    def ended_jobs(self, *, user: str = "", states: Sequence[str] = (), limit: int) -> tuple[Job, ...]:
        """The newest ones, newest first."""
        which: list[sa.ColumnElement[bool]] = [_JOBS.c.ended]
        if user:
            which.append(_JOBS.c.user == user)
        if states:
            which.append(_JOBS.c.state.in_(states))
        query = sa.select(_JOBS.c.doc).where(*which).order_by(_JOBS.c.id.desc()).limit(limit)
        with self._read() as db:
            docs = list(db.scalars(query))
        return tuple(JOB.validate_json(doc) for doc in docs)

    def events(
        self, *, after_seq: int = 0, job: int = 0, user: str = "", limit: int = 1000, newest: bool = False
    ) -> tuple[Event, ...]:
        """In order; at most `limit`, the first ones after `after_seq` or the newest."""
        query = sa.select(_EVENTS).where(_EVENTS.c.seq > after_seq)
        if job:
            query = query.where(_EVENTS.c.job == job)
        if user:
            query = query.where(_EVENTS.c.user == user)
        query = query.order_by(_EVENTS.c.seq.desc() if newest else _EVENTS.c.seq).limit(limit)
        with self._read() as db:
            rows = db.execute(query).all()
        return tuple(_event_of(row) for row in (reversed(rows) if newest else rows))

    def usage_at(self, at_s: float) -> dict[Account, Usage]:
        """What each account had received by then, as the newest sample before it says; accounts that had nothing are absent."""
        newest = (
            sa.select(_SAMPLES.c.user, _SAMPLES.c.model, sa.func.max(_SAMPLES.c.at_s).label("at_s"))
            .where(_SAMPLES.c.at_s <= at_s)
            .group_by(_SAMPLES.c.user, _SAMPLES.c.model)
            .subquery()
        )
        same = (
            (_SAMPLES.c.user == newest.c.user)
            & (_SAMPLES.c.model == newest.c.model)
            & (_SAMPLES.c.at_s == newest.c.at_s)
        )
        with self._read() as db:
            return {
                _account_of(row): _usage_of(row) for row in db.execute(sa.select(_SAMPLES).join(newest, same))
            }


# --- opening, in parts ----------------------------------------------------------------------------------------------


def _locked(folder: Path) -> int:
    """The folder's lock, held until the descriptor is closed, which the system does when the process ends however it ends."""
    file = folder / "lock"
    try:
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreRefusedError(f"{file}: cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise StoreRefusedError(f"{folder}: another controller (pid {holder}) has this state open") from None
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        pass  # a full disk: the number is for people only
    return lock


def _wal(file: Path) -> Path:
    return file.with_name(file.name + "-wal")


def _mark(marker: Path) -> None:
    """Best effort: it only guards against a journal that somebody removes later."""
    try:
        marker.touch(mode=0o600)
    except OSError:
        return


def _engine(file: Path, mode: str) -> sa.Engine:
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(file)),
        poolclass=sa.NullPool,
        connect_args={"check_same_thread": False, "timeout": 5.0},
    )

    def connected(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves: the driver would do so too late
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            "temp_store = MEMORY",
            "journal_size_limit = 67108864",
        ):
            connection.execute(f"PRAGMA {pragma}")

    def begun(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"BEGIN {mode}")

    sa.event.listen(engine, "connect", connected)
    sa.event.listen(engine, "begin", begun)
    return engine


def _create(engine: sa.Engine) -> None:
    """One transaction: a crash leaves an empty file, which is created again, or the whole schema."""
    with engine.begin() as db:
        db.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        db.exec_driver_sql(f"PRAGMA user_version = {SCHEMA}")
        _TABLES.create_all(db)
        _put_meta(db, {"schema": SCHEMA, "term": 0})


def _check(engine: sa.Engine, file: Path) -> None:
    with engine.connect() as db:
        application = db.exec_driver_sql("PRAGMA application_id").scalar()
        schema = db.exec_driver_sql("PRAGMA user_version").scalar_one()
        if application != APPLICATION_ID:
            raise StoreRefusedError(f"{file}: is not a HeteroShare journal (application id {application})")
        if schema > SCHEMA:
            raise StoreRefusedError(
                f"{file}: has schema {schema}; this version of the controller knows up to {SCHEMA}: install the newer one"
            )
        if schema < SCHEMA:
            raise StoreRefusedError(
                f"{file}: has schema {schema}, which no version of the controller ever wrote"
            )
        verdict = db.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        if verdict != "ok":
            raise StoreRefusedError(f"{file}: is corrupt ({verdict}); put it back from a backup")
        missing = set(_TABLES.tables) - set(sa.inspect(db).get_table_names())
        if missing:
            raise StoreRefusedError(
                f"{file}: lacks the tables {', '.join(sorted(missing))}; put it back from a backup"
            )


# --- rows -----------------------------------------------------------------------------------------------------------

_Row = dict[str, Any]


def _upsert(db: sa.Connection, table: sa.Table, rows: Sequence[_Row]) -> None:
    if rows:
        db.execute(_UPSERTS[table.name], rows)


def _upsert_of(table: sa.Table) -> sa.Insert:
    statement = insert(table)
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key.columns),
        set_={c.name: statement.excluded[c.name] for c in table.columns if not c.primary_key},
    )


_UPSERTS: Mapping[str, sa.Insert] = {name: _upsert_of(table) for name, table in _TABLES.tables.items()}


def _docs(*which: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return sa.select(_JOBS.c.doc).where(*which).order_by(_JOBS.c.id)


def _in(column: sa.Column[Any], values: set[JobId]) -> sa.ColumnElement[bool]:
    # A JSON array: a list of parameters has a limit, this has none.
    return column.in_(sa.select(sa.text("value")).select_from(sa.func.json_each(json.dumps(sorted(values)))))


def _tail(count: int) -> Any:
    return sa.select(sa.func.coalesce(sa.func.max(_EVENTS.c.seq), 0) - count).scalar_subquery()


def _stale_samples(tier: int, before_s: float) -> sa.Delete:
    """Older than `before_s`, but for the newest such one of each account: it says what had been received by then."""
    newer = _SAMPLES.alias()
    return sa.delete(_SAMPLES).where(
        _SAMPLES.c.tier == tier,
        _SAMPLES.c.at_s < before_s,
        sa.exists().where(
            newer.c.tier == tier,
            newer.c.user == _SAMPLES.c.user,
            newer.c.model == _SAMPLES.c.model,
            newer.c.at_s > _SAMPLES.c.at_s,
            newer.c.at_s < before_s,
        ),
    )


def _meta(db: sa.Connection) -> dict[str, Any]:
    return {row.key: json.loads(row.value) for row in db.execute(sa.select(_META))}


def _put_meta(db: sa.Connection, values: Mapping[str, Any]) -> None:
    _upsert(db, _META, [{"key": key, "value": json.dumps(value)} for key, value in values.items()])


def _job_row(job: Job) -> _Row:
    return {
        "id": job.id,
        "user": job.user,
        "state": job.state.value,
        "ended": job.state in ENDED_STATES,
        "doc": JOB.dump_json(job).decode(),
    }


def _event_row(event: Event) -> _Row:
    fact = event.fact
    return {
        "seq": event.seq,
        "at_s": fact.now_s,
        "kind": fact.kind,
        "text": fact.text,
        "job": fact.job,
        "user": fact.user,
        "host": fact.host,
        "data": json.dumps(fact.data),
    }


def _event_of(row: Any) -> Event:
    return Event(
        seq=row.seq,
        fact=Fact(
            now_s=row.at_s,
            kind=row.kind,
            text=row.text,
            job=None if row.job is None else JobId(row.job),
            user=None if row.user is None else UserName(row.user),
            host=None if row.host is None else HostName(row.host),
            data=json.loads(row.data),
        ),
    )


def _account(account: Account) -> _Row:
    return {"user": account[0], "model": account[1]}


def _account_of(row: Any) -> Account:
    return UserName(row.user), row.model


def _figures(usage: Usage) -> _Row:
    return {
        "gpu_s": usage.gpu_s,
        "lost_gpu_s": usage.lost_gpu_s,
        "suspends": usage.suspends,
        "jobs": usage.jobs,
    }


def _usage_of(row: Any) -> Usage:
    return Usage(gpu_s=row.gpu_s, lost_gpu_s=row.lost_gpu_s, suspends=row.suspends, jobs=row.jobs)


def _sample_of(row: Any) -> Sample:
    return Sample(tier=row.tier, at_s=row.at_s, account=_account_of(row), usage=_usage_of(row))
