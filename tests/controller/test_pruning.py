"""What the journal lets go of when, and what it keeps."""

import pytest
import sqlalchemy as sa

from hs_controller.journal import Journal
from hs_controller.outdated import Kept
from hs_controller.rows import Answered, Batch, Event, Sample, Usage
from hs_controller.tables import COARSE, DROP_STALE_SAMPLES, FINE, PUT_BACK, nearest_samples
from hs_core.facts import Fact
from hs_core.model import JobState
from hs_core.names import JobId, UserName
from hs_core.reports import Exit
from tests.controller.journals import ANN, event, job


def test_pruning_keeps_what_was_promised(journal: Journal) -> None:
    ended = tuple(job(number, state=JobState.SUCCEEDED, exit=Exit(), ended_s=1.0) for number in range(1, 11))
    account = (ANN, "V100")
    samples = tuple(
        Sample(tier=tier, at_s=float(at), account=account, usage=Usage(gpu_s=float(at)))
        for tier in (FINE, COARSE)
        for at in range(10)
    )
    journal.commit(
        Batch(
            jobs=(*ended, job(11)),
            events=tuple(event(seq) for seq in range(1, 101)),
            samples=samples,
            usage={account: Usage(gpu_s=9.0)},
            answered=tuple(
                Answered(caller="c", key=str(n), digest=b"", answer=b"", at_s=float(n)) for n in range(10)
            ),
        )
    )
    journal.prune(
        Kept(
            events=10,
            deeds=0,
            ended=3,
            awaited={JobId(2), JobId(9)},
            requests=4,
            requests_before_s=5.0,
            fine_before_s=5.5,
            coarse_before_s=0.0,
        )
    )
    assert [e.seq for e in journal.events()] == list(range(91, 101))
    assert [row.id for row in journal.ended_jobs(limit=99)] == [10, 9, 8, 7, 2]
    loaded = journal.load()
    assert [row.id for row in loaded.jobs] == [11]
    assert [a.key for a in loaded.answered] == ["6", "7", "8", "9"]
    assert [s.at_s for s in loaded.samples] == [5.0, 6.0, 7.0, 8.0, 9.0], (
        "the newest before the cut still says what was"
    )
    assert journal.usage_at(3.5)[account].gpu_s == 3.5, "the coarse tier was not cut"


def test_what_jobs_do_does_not_drive_out_what_administrators_did(journal: Journal) -> None:
    def prune(events: int, deeds: int) -> bool:
        ages = {"requests_before_s": 0.0, "fine_before_s": 0.0, "coarse_before_s": 0.0}
        return journal.prune(
            Kept(events=events, deeds=deeds, ended=9, awaited=frozenset(), requests=9, **ages)
        )

    deeds = [1, 2, 3, 50, 95]
    journal.commit(Batch(events=tuple(event(seq, deed=seq in deeds) for seq in range(1, 101))))
    prune(events=10, deeds=3)
    assert [e.seq for e in journal.events()] == [2, 3, 50, *range(91, 101)], "of older deeds the newest"
    assert [e.seq for e in journal.events(deeds=True)] == [2, 3, 50, 95]
    assert [e.seq for e in journal.events(deeds=True, limit=2, newest=True)] == [50, 95]
    assert [e.fact.deed for e in journal.events(after_seq=94, limit=2)] == [True, False]
    # A deed at the very beginning does not keep what comes after it: so much is dropped at a time, from there on.
    many = 45_000
    journal.commit(Batch(events=tuple(event(seq) for seq in range(101, many))))
    assert [prune(events=10, deeds=3) for _ in range(3)] == [True, True, False], (
        "it says whether there is more"
    )
    assert [e.seq for e in journal.events()] == [3, 50, 95, *range(many - 10, many)]
    journal._writer.exec_driver_sql("DELETE FROM events WHERE NOT deed")
    journal._writer.commit()
    journal.commit(Batch(events=(event(many, deed=True),)))
    assert not prune(events=10, deeds=3), "where there are deeds alone there is no more"


def test_what_anybody_may_do_all_day_does_not_drive_out_what_administrators_did(journal: Journal) -> None:
    def deed(seq: int, kind: str, by: str = "", user: str | None = None) -> Event:
        data = {"by": by} if by else {}
        name = UserName(user) if user else None
        return Event(seq=seq, fact=Fact(now_s=1.0, kind=kind, text="", user=name, data=data, deed=True))

    journal.commit(
        Batch(
            events=(
                deed(1, "user-set", "root", "ann"),
                deed(2, "token-created", "root", "ann"),
                *(deed(seq, "token-created", "bob", "bob") for seq in range(3, 50)),
                *(deed(seq, "token-revoked", "bob", "bob") for seq in range(50, 90)),
                *(deed(seq, "node-renewed") for seq in range(90, 100)),
                event(100),
            )
        )
    )
    ages = {"requests_before_s": 0.0, "fine_before_s": 0.0, "coarse_before_s": 0.0}
    journal.prune(Kept(events=1, deeds=3, ended=9, awaited=frozenset(), requests=9, **ages))
    assert [e.seq for e in journal.events()] == [1, 2, 97, 98, 99, 100]


def test_events_from_before_a_backup_was_put_back_are_kept_as_long_as_others(journal: Journal) -> None:
    ages = {"requests_before_s": 0.0, "fine_before_s": 0.0, "coarse_before_s": 0.0}

    def kept(events: int) -> list[int]:
        journal.prune(Kept(events=events, deeds=0, ended=9, awaited=frozenset(), requests=9, **ages))
        return [e.seq for e in journal.events()]

    first = 1_000_000
    put_back = Fact(now_s=1.0, kind=PUT_BACK, text="", deed=True)
    after = (Event(seq=first, fact=put_back), *(event(seq) for seq in range(first + 1, first + 5)))
    journal.commit(Batch(events=(*(event(seq) for seq in range(1, 21)), *after)))
    there = [*range(1, 21), *range(first, first + 5)]
    assert [kept(events) for events in (25, 15, 6, 5, 4)] == [
        there,
        there[-15:],
        there[-6:],
        there[-5:],
        there[-4:],
    ]


@pytest.mark.parametrize(
    "what", [DROP_STALE_SAMPLES, nearest_samples(later=False), nearest_samples(later=True)]
)
def test_of_samples_each_account_is_looked_up_and_none_walked_through(journal: Journal, what) -> None:
    asked = sa.text(f"EXPLAIN QUERY PLAN {what.text}")
    steps = [row.detail for row in journal._writer.execute(asked, dict.fromkeys(what.compile().params, 0))]
    journal._writer.rollback()
    looked = [step for step in steps if "samples" in step or " old " in step or " found " in step]
    assert looked, steps
    one = ("(rowid=?)", "(tier=? AND user=? AND model=? AND at_s")
    assert all(any(by in step for by in one) for step in looked), looked
