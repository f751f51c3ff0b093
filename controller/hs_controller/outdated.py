"""What is older than anybody was promised is dropped from the store, a bounded amount at a time."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import sqlalchemy as sa

from hs_controller.tables import COARSE, DROP_STALE_SAMPLES, EVENTS, FINE, JOBS, PUT_BACK, REQUESTS, among
from hs_core.names import JobId

EVENTS_AT_ONCE, JOBS_AT_ONCE = 20_000, 2_000  # that are dropped
ANYBODYS = (EVENTS.c.kind == "node-renewed") | (
    EVENTS.c.kind.in_(("token-created", "token-revoked"))
    & sa.func.json_extract(EVENTS.c.data, "$.by").is_not_distinct_from(EVENTS.c.user)
)
"""Deeds for which nobody has to be an administrator: a server's renewals, and what users do to tokens of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """So much stays, of each the newest."""

    events: int
    deeds: int  # of administrators; anybody's, as many
    ended: int  # jobs
    awaited: AbstractSet[JobId]  # those that live ones wait for, however old they are
    requests: int
    requests_before_s: float  # older ones go in any case; so do samples of usage
    fine_before_s: float
    coarse_before_s: float


class Outdated:
    """Of one store."""

    def __init__(self) -> None:
        self._deeds_looked_through = 0  # up to which event, when old ones were dropped

    def drop(self, db: sa.Connection, kept: Kept) -> bool:
        """Whether there is more."""
        more = self._drop_events(db, kept)
        more |= _drop_jobs(db, kept)
        _drop_requests(db, kept)
        for tier, before_s in ((FINE, kept.fine_before_s), (COARSE, kept.coarse_before_s)):
            db.execute(DROP_STALE_SAMPLES, {"tier": tier, "before_s": before_s})
        return more

    def _drop_events(self, db: sa.Connection, kept: Kept) -> bool:
        """Of what is older than the newest ones the newest deeds of administrators stay: jobs' chatter does not drive them out. Nor do deeds that
        anybody can do, as often as it likes: of those as many stay for themselves.
        """
        newest = db.scalar(sa.select(sa.func.max(EVENTS.c.seq))) or 0
        chatter = EVENTS.c.deed.is_(False)
        oldest = db.scalar(sa.select(sa.func.min(EVENTS.c.seq)).where(chatter)) or newest
        past = _before(db, newest, kept.events)
        until = min(past, oldest + EVENTS_AT_ONCE)
        db.execute(sa.delete(EVENTS).where(chatter, EVENTS.c.seq <= until))
        old_deeds = sa.and_(EVENTS.c.deed, EVENTS.c.seq <= past)
        come = sa.select(sa.func.count()).where(old_deeds, EVENTS.c.seq > self._deeds_looked_through)
        if (db.scalar(come) or 0) > kept.deeds // 100:  # they are looked at one by one
            for some in (~ANYBODYS, ANYBODYS):
                done = sa.select(EVENTS.c.seq).where(old_deeds, some)
                first = done.order_by(EVENTS.c.seq.desc()).offset(kept.deeds).limit(1).scalar_subquery()
                db.execute(sa.delete(EVENTS).where(old_deeds, EVENTS.c.seq <= first, some))
            self._deeds_looked_through = past
        return until < past


def _drop_jobs(db: sa.Connection, kept: Kept) -> bool:
    over = sa.select(JOBS.c.id).where(JOBS.c.ended, ~among(JOBS.c.id, kept.awaited))
    spare = over.order_by(JOBS.c.id.desc()).offset(kept.ended).limit(JOBS_AT_ONCE)
    return db.execute(sa.delete(JOBS).where(JOBS.c.id.in_(spare))).rowcount == JOBS_AT_ONCE


def _drop_requests(db: sa.Connection, kept: Kept) -> None:
    beyond = sa.select(REQUESTS.c.at_s).order_by(REQUESTS.c.at_s.desc()).offset(kept.requests).limit(1)
    old = (REQUESTS.c.at_s < kept.requests_before_s) | (REQUESTS.c.at_s <= beyond.scalar_subquery())
    db.execute(sa.delete(REQUESTS).where(old))


def _before(db: sa.Connection, newest: int, count: int) -> int:
    """After which event the newest `count` come. Their numbers are counted, as there may be very many, less those that were left out where a backup was put back."""
    seq = newest - count
    put_back = sa.select(EVENTS.c.seq).where(EVENTS.c.kind == PUT_BACK).order_by(EVENTS.c.seq.desc())
    for first in db.scalars(put_back).all():
        if seq >= first:
            break
        last = db.scalar(sa.select(sa.func.max(EVENTS.c.seq)).where(EVENTS.c.seq < first)) or 0
        seq -= first - last - 1
    return seq
