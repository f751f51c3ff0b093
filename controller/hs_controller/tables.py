"""The journal's tables, and its rows ↔ the values of rows.py."""

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter

from hs_controller.rows import CREDENTIAL_KINDS, JOB, Account, Credential, Event, NodeIdentity, Sample, Usage
from hs_core.facts import Fact
from hs_core.model import ENDED_STATES, Job
from hs_core.names import HostName, JobId, UserName

FINE, COARSE = 0, 1  # tiers of usage samples
COUNTED_BEFORE = (
    "counted_before"  # key of what totals had when a backup was put back, and what was told again after it
)
PUT_BACK = (
    "journal-restored"  # kind of the event about a backup that was put back: the first of those after it
)

TABLES = sa.MetaData()
META = sa.Table(
    "meta",
    TABLES,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),  # JSON
)
JOBS = sa.Table(
    "jobs",
    TABLES,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("ended", sa.Boolean, nullable=False),
    sa.Column("doc", sa.Text, nullable=False),
    sa.Index("jobs_by_end", "ended", "id"),
    sa.Index("jobs_by_user", "user", "id"),
)
USERS = sa.Table(
    "users",
    TABLES,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("doc", sa.Text, nullable=False),
)
HOSTS = sa.Table(
    "hosts",
    TABLES,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("doc", sa.Text, nullable=False),
)
EVENTS = sa.Table(
    "events",
    TABLES,
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("job", sa.Integer),
    sa.Column("user", sa.Text),
    sa.Column("host", sa.Text),
    sa.Column("data", sa.Text, nullable=False),  # JSON
    sa.Column("deed", sa.Boolean, nullable=False),
    sa.Index("events_by_job", "job", "seq"),
    sa.Index("events_by_user", "user", "seq"),
    sa.Index("events_by_kind", "kind", "seq"),
    sa.Index("events_by_deed", "deed", "seq"),
)
USAGE = sa.Table(
    "usage",
    TABLES,
    sa.Column("user", sa.Text, primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("gpu_s", sa.Float, nullable=False),
    sa.Column("entitled_gpu_s", sa.Float, nullable=False),
    sa.Column("lost_gpu_s", sa.Float, nullable=False),
    sa.Column("suspends", sa.Integer, nullable=False),
    sa.Column("jobs", sa.Integer, nullable=False),
)
SAMPLES = sa.Table(
    "samples",
    TABLES,
    sa.Column("tier", sa.Integer, primary_key=True),
    sa.Column("user", sa.Text, primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("at_s", sa.Float, primary_key=True),
    sa.Column("gpu_s", sa.Float, nullable=False),
    sa.Column("entitled_gpu_s", sa.Float, nullable=False),
    sa.Column("lost_gpu_s", sa.Float, nullable=False),
    sa.Column("suspends", sa.Integer, nullable=False),
    sa.Column("jobs", sa.Integer, nullable=False),
)
REQUESTS = sa.Table(
    "requests",
    TABLES,
    sa.Column("caller", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("digest", sa.LargeBinary, nullable=False),
    sa.Column("answer", sa.LargeBinary, nullable=False),
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Index("requests_by_age", "at_s"),
)
CREDENTIALS = sa.Table(
    "credentials",
    TABLES,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("doc", sa.Text, nullable=False),
)

Row = dict[str, Any]


AT_ONCE = 64  # rows of one statement at most
STATEMENTS = 512  # of a connection that stay prepared: one for each number of rows of the tables that are written all the time


def insert(db: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    """New rows, with every column of the table; one whose key is taken is an error.

    Many to a statement: for each statement the driver lets go of the interpreter, and beside a busy loop it has to wait for it.
    """
    _put(db, table, rows, replaces=False)


def upsert(db: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    """Rows with every column of the table; what has the same key is replaced."""
    _put(db, table, rows, replaces=True)


def _put(db: sa.Connection, table: sa.Table, rows: Sequence[Row], *, replaces: bool) -> None:
    names = [column.name for column in table.columns]
    for first in range(0, len(rows), AT_ONCE):
        some = rows[first : first + AT_ONCE]
        values = tuple([each[name] for each in some for name in names])
        db.exec_driver_sql(_statement(table, len(some), replaces=replaces), values)


@lru_cache(maxsize=2 * STATEMENTS)
def _statement(table: sa.Table, rows: int, *, replaces: bool) -> str:
    names = [f'"{column.name}"' for column in table.columns]
    row = f"({', '.join('?' * len(names))})"
    statement = f'INSERT INTO "{table.name}" ({", ".join(names)}) VALUES {", ".join([row] * rows)}'  # noqa: S608 — names from TABLES alone
    if not replaces:
        return statement
    keys = [f'"{column.name}"' for column in table.primary_key.columns]
    new = ", ".join(f"{name} = excluded.{name}" for name in names if name not in keys)
    return f"{statement} ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {new}"


def docs(*which: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return sa.select(JOBS.c.doc).where(*which).order_by(JOBS.c.id)


def among(column: sa.Column[Any], values: AbstractSet[JobId]) -> sa.ColumnElement[bool]:
    # A JSON array: a list of parameters has a limit, this has none.
    return column.in_(sa.select(sa.text("value")).select_from(sa.func.json_each(json.dumps(sorted(values)))))


def of_array(array: int) -> sa.ColumnElement[bool]:
    return sa.func.json_extract(JOBS.c.doc, "$.spec.array_id") == array


def tail(count: int) -> Any:
    return sa.select(sa.func.coalesce(sa.func.max(EVENTS.c.seq), 0) - count).scalar_subquery()


DROP_STALE_SAMPLES = sa.text(
    """
    DELETE FROM samples WHERE rowid IN (
        SELECT old.rowid FROM usage CROSS JOIN samples AS old
        WHERE old.tier = :tier AND old.user = usage.user AND old.model = usage.model AND old.at_s < (
            SELECT max(at_s) FROM samples AS newest
            WHERE newest.tier = :tier AND newest.user = usage.user AND newest.model = usage.model
                AND newest.at_s < :before_s
        )
        LIMIT 20000
    )
    """
)
"""Older than `before_s`, but for the newest such one of each account: it says what had been received by then.

Account by account, in the order that CROSS JOIN fixes, so that it looks at nothing but what it drops: a tier has millions.
"""


def nearest_samples(*, later: bool) -> sa.TextClause:
    """Of each account and tier the newest sample until `at_s`, or the oldest after it; looked up account by account."""
    which = (
        "min(at_s) FROM samples AS other WHERE at_s >"
        if later
        else "max(at_s) FROM samples AS other WHERE at_s <="
    )
    return sa.text(
        f"""
        SELECT found.* FROM usage CROSS JOIN (SELECT {FINE} AS tier UNION SELECT {COARSE}) AS of CROSS JOIN samples AS found
        WHERE found.tier = of.tier AND found.user = usage.user AND found.model = usage.model AND found.at_s = (
            SELECT {which} :at_s AND other.tier = of.tier AND other.user = usage.user AND other.model = usage.model
        )
        """  # noqa: S608 — two words of our own
    )


def read_meta(db: sa.Connection) -> dict[str, Any]:
    return {row.key: json.loads(row.value) for row in db.execute(sa.select(META))}


def put_meta(db: sa.Connection, values: Mapping[str, Any]) -> None:
    upsert(db, META, [{"key": key, "value": json.dumps(value)} for key, value in values.items()])


def job_row(job: Job) -> Row:
    return {
        "id": job.id,
        "user": job.user,
        "state": job.state.value,
        "ended": job.state in ENDED_STATES,
        "doc": JOB.dump_json(job).decode(),
    }


def event_row(event: Event) -> Row:
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
        "deed": fact.deed,
    }


def event_of(row: Any) -> Event:
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
            deed=row.deed,
        ),
    )


def account(account: Account) -> Row:
    return {"user": account[0], "model": account[1]}


def account_of(row: Any) -> Account:
    return UserName(row.user), row.model


def figures(usage: Usage) -> Row:
    return {
        "gpu_s": usage.gpu_s,
        "entitled_gpu_s": usage.entitled_gpu_s,
        "lost_gpu_s": usage.lost_gpu_s,
        "suspends": usage.suspends,
        "jobs": usage.jobs,
    }


def usage_of(row: Any) -> Usage:
    return Usage(
        gpu_s=row.gpu_s,
        entitled_gpu_s=row.entitled_gpu_s,
        lost_gpu_s=row.lost_gpu_s,
        suspends=row.suspends,
        jobs=row.jobs,
    )


def usage_doc(totals: Mapping[Account, Usage]) -> list[Row]:
    """As JSON."""
    return [account(of) | figures(usage) for of, usage in sorted(totals.items())]


def usage_from(doc: Sequence[Row]) -> dict[Account, Usage]:
    return {
        (UserName(row["user"]), row["model"]): Usage(
            **{name: value for name, value in row.items() if name not in {"user", "model"}}
        )
        for row in doc
    }


def sample_of(row: Any) -> Sample:
    return Sample(tier=row.tier, at_s=row.at_s, account=account_of(row), usage=usage_of(row))


_DOCS: Mapping[str, TypeAdapter[Credential]] = {
    kind: TypeAdapter(one) for kind, one in CREDENTIAL_KINDS.items()
}
_KINDS = {one: kind for kind, one in CREDENTIAL_KINDS.items()}


def credential_key(row: Credential) -> Row:
    return {"kind": _KINDS[type(row)], "id": row.node if isinstance(row, NodeIdentity) else row.id}


def credential_row(row: Credential) -> Row:
    key = credential_key(row)
    return key | {"doc": _DOCS[key["kind"]].dump_json(row).decode()}


def credential_of(row: Any) -> Credential:
    return _DOCS[row.kind].validate_json(row.doc)
