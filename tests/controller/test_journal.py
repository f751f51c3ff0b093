"""What was committed is there after any end."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_controller.journal import Journal
from hs_controller.rows import JOB, Answered, Batch, Event, Sample, Usage
from hs_controller.sqlite import (
    StoreBrokenError,
)
from hs_controller.tables import FINE
from hs_core.forms import Form, Shape, Spread
from hs_core.model import After, AfterCondition, Gpu, Host, Job, JobSpec, JobState, Migrate, User
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.reports import Exit, JobReport, Phase, Tier
from hs_core.strategy import Strategy
from tests.controller.journals import ANN, crash, event, job

RICH = job(
    7,
    state=JobState.RUNNING,
    epoch=3,
    hosts=(HostName("h1"),),
    gpu_models=("V100",),
    reports={
        HostName("h1"): JobReport(
            job=JobId(7), epoch=3, phase=Phase.RUNNING, gpus=(GpuId("GPU-1"),), tier=Tier.SWAP, gpu_s=1.5
        )
    },
    past_gpu_s_by_model={"V100": 2.5},
)


def test_every_row_comes_back_as_it_was(folder: Path) -> None:
    spec = JobSpec(
        name="Ümlaut",
        command=("python", "x.py"),
        gpu_types=("V100", "K80"),
        after=(After(job=JobId(2), condition=AfterCondition.ANY),),
        env={"A": "ü\n"},
        migrate=Migrate.NEVER,
        array_id=JobId(1),
        array_index=0,
    )
    rich = Job(id=JobId(8), user=ANN, spec=spec, arrival_s=3.25)
    ended = job(2, state=JobState.FAILED, exit=Exit(signal=9, log_tail="…"), ended_s=4.0)
    host = Host(
        name=HostName("h1"),
        boot_id="b",
        gpus=(Gpu(id=GpuId("GPU-1"), index=0, model="V100", memory_bytes=1 << 34),),
    )
    user = User(name=ANN, tickets=33.3, run_as="nobody")
    total = {(ANN, "V100"): Usage(gpu_s=4.0, jobs=1)}
    answered = Answered(caller="account:ann", key="k", digest=b"d", answer=b"a", at_s=5.0)
    sample = Sample(tier=FINE, at_s=5.0, account=(ANN, "V100"), usage=Usage(gpu_s=4.0, jobs=1))
    first = Journal.open(folder)
    first.commit(
        Batch(
            jobs=(RICH, rich, ended),
            users=(user,),
            hosts=(host,),
            meta={"next_job_id": 9, "memory": {"passes": {"7": [1, 3]}}},
            events=(event(1, job=JobId(7), user=ANN, host=HostName("h1"), data={"gpus": 2}),),
            usage=total,
            samples=(sample,),
            answered=(answered,),
        )
    )
    crash(first)
    loaded = Journal.open(folder).load()
    assert loaded.jobs == (RICH, rich)
    assert loaded.ended == (ended,), "an ended job that another waits for is needed"
    assert (loaded.users, loaded.hosts) == ((user,), (host,))
    assert loaded.meta["memory"] == {"passes": {"7": [1, 3]}}
    assert (loaded.usage, loaded.samples, loaded.answered) == (total, (sample,), (answered,))
    assert (loaded.last_seq, loaded.last_s) == (1, 1.0)


@given(
    st.builds(
        JobSpec,
        name=st.text(max_size=5),
        command=st.lists(st.text(max_size=5), min_size=1, max_size=3).map(tuple),
        env=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        max_duration_s=st.floats(0, 1e9),
        after=st.lists(
            st.builds(After, job=st.integers(1, 99), condition=st.sampled_from(AfterCondition)), max_size=2
        ).map(tuple),
        array_index=st.none() | st.integers(0, 5),
    ),
    st.sampled_from(
        [
            None,
            Shape(gpus=1, per_gpu=2),
            Strategy(),
            Strategy(tensor=2),
            Spread(nodes=2),
            Spread(nodes=1, strategy=Strategy(tensor=2)),
        ]
    ),
)
def test_a_job_and_its_json_are_the_same(spec: JobSpec, shape: Form | None) -> None:
    before = Job(id=JobId(1), user=ANN, spec=spec, arrival_s=0.1, shape=shape)
    row = replace(before, epoch=1, given_up=(before,), left_behind=(before,))
    assert JOB.validate_json(JOB.dump_json(row)) == row


def test_terms_only_grow(folder: Path) -> None:
    terms = []
    for _ in range(3):
        opened = Journal.open(folder)
        terms.append(opened.begin_term())
        crash(opened)
    assert terms == [1, 2, 3]


def test_a_batch_that_fails_leaves_nothing_of_itself(journal: Journal) -> None:
    journal.commit(Batch(events=(event(1),)))
    with pytest.raises(StoreBrokenError):  # seq 1 is taken: a mistake of ours, which must not be papered over
        journal.commit(Batch(jobs=(job(1),), users=(User(name=ANN),), events=(event(1),)))
    loaded = journal.load()
    assert (loaded.jobs, loaded.users) == ((), ())


def test_the_lock_goes_with_the_process_that_held_it(folder: Path) -> None:
    code = f"import os; from pathlib import Path; from hs_controller.journal import Journal; Journal.open(Path({str(folder)!r})).begin_term(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    opened = Journal.open(folder)
    assert opened.begin_term() == 2
    opened.close()


def test_a_creation_that_was_cut_off_is_done_again(folder: Path) -> None:
    folder.mkdir()
    (folder / "journal.db").touch()
    opened = Journal.open(folder)
    assert opened.load().jobs == ()
    opened.close()


def test_events_are_found_by_job_user_and_place(journal: Journal) -> None:
    journal.commit(
        Batch(events=tuple(event(n, job=JobId(n % 2), user=UserName("ab"[n % 2])) for n in range(1, 21)))
    )
    assert [e.seq for e in journal.events(job=1, limit=3)] == [1, 3, 5]
    assert [e.seq for e in journal.events(user="a", limit=3, newest=True)] == [16, 18, 20]
    assert [e.seq for e in journal.events(after_seq=18)] == [19, 20]


def test_trades_are_found_from_both_sides(journal: Journal) -> None:
    def trade(seq: int, kind: str, gives: str, receives: str) -> Event:
        fact = event(seq, user=UserName(gives), data={"gives": gives, "receives": receives}).fact
        return Event(seq=seq, fact=replace(fact, kind=kind))

    sides = [("trade", "a", "b"), ("trade", "b", "c"), ("trade-undone", "a", "b"), ("trade", "c", "a")]
    events = [trade(at, *one) for at, one in enumerate(sides, start=1)]
    events.append(event(5, user=UserName("b"), data={"receives": "a"}))  # no trade
    journal.commit(Batch(events=tuple(events)))
    for user, seqs in {"a": [1, 3, 4], "b": [1, 2, 3, 5], "c": [2, 4], "d": []}.items():
        assert [e.seq for e in journal.events(user=user)] == seqs
        assert [e.seq for e in events if e.fact.concerns(user)] == seqs
    assert [e.seq for e in journal.events(user="b", after_seq=1, limit=2)] == [2, 3]
    assert [e.seq for e in journal.events(user="b", limit=2, newest=True)] == [3, 5]
    assert journal.before_newest(2, user="b") == 2
    assert [e.seq for e in journal.events(user="b", kind="trade-undone")] == [3]
