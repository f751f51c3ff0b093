"""Journals with something in them, and their sudden ends."""

import os

from hs_controller.journal import Journal
from hs_controller.rows import Event
from hs_core.facts import Fact
from hs_core.model import Job, JobSpec
from hs_core.names import JobId, UserName

ANN = UserName("ann")


def job(number: int, **more: object) -> Job:
    return Job(id=JobId(number), user=ANN, spec=JobSpec(name="j", command=("true",)), arrival_s=1.0, **more)


def event(seq: int, **more: object) -> Event:
    return Event(seq=seq, fact=Fact(now_s=float(seq), kind="placed", text=f"event {seq}", **more))


def crash(journal: Journal) -> None:
    """As after kill -9: nothing is flushed, nothing is closed in order; only the lock goes, as the system does it."""
    os.close(journal._lock)
