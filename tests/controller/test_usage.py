"""Totals charged from cumulative counters: repeats charge nothing, new incarnations nothing twice."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_controller.journal import Journal
from hs_controller.rows import Batch, Sample, Usage
from hs_controller.tables import COARSE
from hs_controller.usage import Ledger
from hs_core.model import Job, JobSpec, JobState, Switches
from hs_core.names import HostName, JobId, UserName
from hs_core.reports import Exit, JobReport, Phase

ANN = UserName("ann")
H1 = HostName("h1")
V100 = (ANN, "V100")
BOB = (UserName("bob"), "V100")
JOB = Job(
    id=JobId(1),
    user=ANN,
    spec=JobSpec(name="j", command=("true",)),
    arrival_s=0.0,
    gpu_models=("V100",),
    hosts=(H1,),
)


def with_counters(gpu_s: float, epoch: int = 0, **more: object) -> Job:
    report = JobReport(job=JobId(1), epoch=epoch, phase=Phase.RUNNING, gpu_s=gpu_s, **more)
    return replace(JOB, epoch=epoch, reports={H1: report})


def ledger(every_s: float = 1.0, samples: tuple[Sample, ...] = ()) -> Ledger:
    return Ledger({}, (), samples, now_s=0.0, every_s=every_s)


@given(st.lists(st.floats(0, 100), min_size=1), st.integers(1, 3))
def test_the_total_is_the_last_counter_however_often_it_is_told(growth: list[float], times: int) -> None:
    book = ledger()
    told = 0.0
    for more in growth:
        told += more
        for _ in range(times):
            book.charge(with_counters(told))
    assert book.totals.get(V100, Usage()).gpu_s == pytest.approx(told)
    assert book.totals.get(V100, Usage()).jobs == (1 if told else 0)


def test_a_new_incarnation_is_charged_from_its_own_beginning_on_its_own_model() -> None:
    book = ledger()
    book.charge(with_counters(5.0, suspends=2))
    again = replace(
        with_counters(3.0, epoch=1, suspends=1),
        gpu_models=("K80",),
        past_gpu_s=5.0,
        past_gpu_s_by_model={"V100": 5.0},
        past_switches=Switches(suspends=3),
    )
    book.charge(again)
    book.charge(again)
    assert book.totals[V100] == Usage(gpu_s=5.0, suspends=3, jobs=1), "the last with its move"
    assert book.totals[ANN, "K80"] == Usage(gpu_s=3.0, suspends=1, jobs=1)


def test_what_was_charged_before_a_restart_is_not_charged_after_it() -> None:
    totals = {V100: Usage(gpu_s=5.0, jobs=1)}
    book = Ledger(totals, (with_counters(5.0),), (), now_s=0.0, every_s=1.0)
    book.charge(replace(with_counters(7.0), state=JobState.SUCCEEDED, exit=Exit()))
    assert book.totals[V100].gpu_s == 7.0


def test_received_gpus_are_the_mean_over_the_window() -> None:
    book = ledger()
    for second in range(101):  # two GPUs until 50, then one
        book.charge(with_counters(2.0 * min(second, 50) + max(0, second - 50)))
        book.sample(float(second))
    assert book.received_gpus(V100, 50.0, 100.0) == pytest.approx(1.0)
    assert book.received_gpus(V100, 100.0, 100.0) == pytest.approx(1.5)
    assert book.received_gpus(V100, 75.0, 100.0) == pytest.approx((25 * 2 + 50) / 75)
    assert book.covered_s(1000.0, 100.0) == 100.0


def test_where_nothing_happens_any_more_nothing_is_received() -> None:
    book = ledger(every_s=10.0)
    for second in range(20):
        book.charge(with_counters(8.0 * second))
        book.sample(float(second))
    assert book.received_gpus(V100, 5.0, 19.0) == pytest.approx(8.0)
    assert book.received_gpus(V100, 5.0, 21.0) == pytest.approx(8.0 * 3 / 5)
    assert book.received_gpus(V100, 5.0, 24.0) == 0.0
    assert book.received_gpus(V100, 5.0, 3600.0) == 0.0


def test_what_comes_after_a_pause_is_not_smeared_over_the_pause() -> None:
    book = ledger()
    for second in range(100):
        if second <= 10 or second > 90:
            book.charge(with_counters(float(min(second, 10) + max(0, second - 90))))
        book.sample(float(second))
    assert book.received_gpus(V100, 9.0, 99.0) == pytest.approx(1.0)
    assert book.gpu_s_at(V100, 50.0) == 10.0


def test_samples_that_were_kept_go_on_after_a_restart() -> None:
    book = ledger()
    kept = []
    for second in range(60):
        book.charge(with_counters(4.0 * second))
        kept += book.sample(float(second))
    again = Ledger(book.totals, (with_counters(4.0 * 59),), kept, now_s=60.0, every_s=1.0)
    again.charge(with_counters(4.0 * 65))
    assert again.received_gpus(V100, 30.0, 65.0) == pytest.approx(4.0)


def test_usage_since_less_than_from_one_sample_to_the_next_is_no_more_than_there_are_gpus() -> None:
    book = ledger(every_s=10.0)
    for second in range(27):  # 4 GPUs
        book.charge(with_counters(4.0 * second))
        book.sample(float(second))
    for ago_s in (1.0, 3.0, 6.0):
        then = book.unsampled_at(V100, 26.0 - ago_s)
        assert then is not None
        assert book.totals[V100].gpu_s - then.gpu_s == pytest.approx(4.0 * ago_s)
    assert book.unsampled_at(V100, 19.0) is None, "a sample is newer"
    assert ledger(every_s=10.0).unsampled_at(V100, 1.0) is None


def test_usage_since_a_pause_began_to_end_is_all_that_was_received_after_it() -> None:
    book = ledger(every_s=10.0)
    for second in range(115):  # it receives in the first ten seconds, and from 111 on
        book.charge(with_counters(4.0 * (min(second, 10) + max(0, second - 111))))
        book.sample(float(second))
    then = book.unsampled_at(V100, 109.0)
    assert then is not None
    assert book.totals[V100].gpu_s - then.gpu_s == pytest.approx(12.0)


def test_usage_between_two_coarse_samples_is_on_the_line_between_them(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "state")
    book = ledger(every_s=10.0)
    for minute in range(601):  # one GPU but for a pause from 100 to 500
        now_s = 60.0 * minute
        book.charge(with_counters(now_s - 60.0 * max(0, min(minute, 500) - 100)))
        samples = tuple(sample for sample in book.sample(now_s) if sample.tier == COARSE)
        journal.commit(Batch(samples=samples, usage=book.take()))
    for minute, gpu_s in ((95, 5700.0), (303, 6000.0), (507.5, 6450.0), (555, 9300.0)):
        assert journal.usage_at(60.0 * minute)[V100].gpu_s == pytest.approx(gpu_s)
    journal.close()


def test_who_came_a_minute_ago_is_due_what_it_was_entitled_to_since_then() -> None:
    book = ledger(every_s=10.0)
    nobody, alone, both = {}, {BOB: 4.0}, {V100: 2.0, BOB: 2.0}
    for second in range(3601):
        book.entitle(nobody if second < 1000 else alone if second < 3540 else both, float(second))
        book.sample(float(second))
    assert book.due_gpus(V100, 3600.0, 3600.0) == pytest.approx(2.0 * 60 / 3600)
    assert book.due_gpus(V100, 60.0, 3600.0) == pytest.approx(2.0)
    assert book.due_gpus(BOB, 3600.0, 3600.0) == pytest.approx((4.0 * 2540 + 2.0 * 60) / 3600)
    assert book.due_gpus(BOB, 120.0, 3600.0) == pytest.approx(3.0)
    assert book.usage(3603.0)[V100].entitled_gpu_s == pytest.approx(2.0 * 63), "also since the last sample"


def test_what_one_was_due_is_not_smeared_over_the_time_in_which_nothing_is_kept() -> None:
    book = ledger(every_s=10.0)
    book.entitle({V100: 2.0}, 0.0)
    book.sample(0.0)
    book.entitle({}, 5.0)
    assert book.due_gpus(V100, 60.0, 3600.0) == 0.0
    assert book.due_gpus(V100, 3600.0, 3600.0) == pytest.approx(2.0 * 5 / 3600)
    then = book.unsampled_at(V100, 4.0)
    assert then is not None
    assert then.entitled_gpu_s == pytest.approx(8.0)


def test_what_was_received_while_there_was_no_controller_was_due_and_what_came_after_is_by_entitlements() -> (
    None
):
    book = ledger()
    kept = []
    for second in range(60):
        book.entitle({V100: 4.0}, float(second))
        book.charge(with_counters(4.0 * second))
        kept += book.sample(float(second))
    again = Ledger(book.totals, (with_counters(4.0 * 59),), kept, now_s=259.0, every_s=1.0)
    entitled = {V100: 4.0}
    for second in range(259, 309):
        again.entitle(entitled, float(second))
        again.sample(float(second))
    again.charge(with_counters(4.0 * 59 + 250.0))  # one GPU of four: others had more
    due_s = again.spread(V100, 250.0, 59.0, 309.0)
    assert due_s == pytest.approx(200.0), "until there was a controller"
    again.sample(309.0)
    assert again.due_gpus(V100, 50.0, 309.0) == pytest.approx(4.0)
    assert again.received_gpus(V100, 50.0, 309.0) == pytest.approx(1.0)
    assert again.due_gpus(V100, 150.0, 309.0) == pytest.approx((50 * 4 + 100 * 1) / 150)
    assert again.due_gpus(V100, 300.0, 309.0) == pytest.approx((50 * 4 + 200 * 1 + 50 * 4) / 300)
    assert again.take()[V100].entitled_gpu_s == pytest.approx(59 * 4 + 200 + 50 * 4)


def test_what_users_were_due_goes_on_after_a_restart_but_for_what_no_sample_tells(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "state")
    book = ledger(every_s=10.0)
    entitled = {V100: 3.0}
    for second in range(26):
        book.entitle(entitled, float(second))
        samples = book.sample(float(second))
        journal.commit(Batch(samples=samples, usage=book.take()))
    loaded = journal.load()
    journal.close()
    assert loaded.usage[V100].entitled_gpu_s == pytest.approx(60.0)
    again = Ledger(loaded.usage, (), loaded.samples, now_s=26.0, every_s=10.0)
    again.entitle(entitled, 26.0)
    assert again.due_gpus(V100, 30.0, 30.0) == pytest.approx(72.0 / 30)
