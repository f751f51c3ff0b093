"""Everything that a controller begins with, read out of its store."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from pydantic import ValidationError

from hs_controller.rows import HOST, JOB, USER, Answered, Loaded, after_of
from hs_controller.sqlite import StoreRefusedError, StoreUnreadableError, told
from hs_controller.tables import (
    CREDENTIALS,
    EVENTS,
    FINE,
    HOSTS,
    JOBS,
    REQUESTS,
    SAMPLES,
    USAGE,
    USERS,
    account_of,
    among,
    credential_of,
    docs,
    event_of,
    read_meta,
    sample_of,
    tail,
    usage_of,
)

AT_ONCE = 20_000  # rows of those that are very many


@contextmanager
def readable(file: Path, *, instead: str) -> Iterator[None]:
    """What turns out to be no row that this version knows is the file's fault: StoreRefusedError."""
    try:
        yield
    except (ValueError, KeyError, TypeError, StoreUnreadableError) as error:
        raise StoreRefusedError(
            f"{file}: holds what cannot be read ({_unread(error)}): it is damaged, or was written by another"
            f" version of the controller; {instead}"
        ) from None


def loaded(db: sa.Connection) -> Loaded:
    meta = read_meta(db)
    live = tuple(JOB.validate_json(doc) for doc in db.scalars(docs(JOBS.c.ended.is_(False))))
    waited_for = among(JOBS.c.id, after_of(live))
    last_s = db.scalar(sa.select(sa.func.max(EVENTS.c.at_s)).where(EVENTS.c.seq > tail(1000)))
    return Loaded(
        term=int(meta.get("term", 0)),
        jobs=live,
        ended=tuple(JOB.validate_json(doc) for doc in db.scalars(docs(JOBS.c.ended, waited_for))),
        users=tuple(
            USER.validate_json(doc) for doc in db.scalars(sa.select(USERS.c.doc).order_by(USERS.c.name))
        ),
        hosts=tuple(
            HOST.validate_json(doc) for doc in db.scalars(sa.select(HOSTS.c.doc).order_by(HOSTS.c.name))
        ),
        meta=meta,
        last_seq=db.scalar(sa.select(sa.func.max(EVENTS.c.seq))) or 0,
        last_s=last_s or 0.0,
        usage={account_of(row): usage_of(row) for row in db.execute(sa.select(USAGE))},
        samples=tuple(
            sample_of(row)
            for row in db.execute(sa.select(SAMPLES).where(SAMPLES.c.tier == FINE).order_by(SAMPLES.c.at_s))
        ),
        answered=tuple(
            Answered(caller=r.caller, key=r.key, digest=r.digest, answer=r.answer, at_s=r.at_s)
            for r in db.execute(sa.select(REQUESTS).order_by(REQUESTS.c.at_s))
        ),
        credentials=tuple(credential_of(row) for row in db.execute(sa.select(CREDENTIALS))),
    )


def read_all(db: sa.Connection) -> None:
    """What a controller reads when it starts, and what it reads when somebody asks for it."""
    try:
        loaded(db)
        many = db.execution_options(yield_per=AT_ONCE)
        for doc in many.scalars(docs(JOBS.c.ended)):
            JOB.validate_json(doc)
        for row in many.execute(sa.select(EVENTS)):
            event_of(row)
    except sa.exc.DBAPIError as error:
        raise told(error.orig, "reading") from error


def _unread(error: Exception) -> str:
    """Without the value: it may be a secret."""
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ": ".join([error.title, *map(str, first["loc"]), first["msg"]])
