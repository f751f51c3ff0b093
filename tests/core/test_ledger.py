"""GPU-seconds: whatever happens to reports on their way, everybody is charged once."""

from math import inf, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_core.errors import BrokenError
from hs_core.ledger import RING, Ledger
from hs_core.names import JobId, UserName

ANN, BOB = UserName("ann"), UserName("bob")
ONE, TWO = JobId(1), JobId(2)


def test_a_repeated_report_is_charged_once() -> None:
    ledger = Ledger(0.0)
    assert ledger.report(ONE, 1, ANN, "V100", gpu_s=5.0, now_s=1.0) == 5.0
    assert ledger.report(ONE, 1, ANN, "V100", gpu_s=5.0, now_s=2.0) == 0.0
    assert ledger.totals()[ANN, "V100"] == 5.0


def test_an_older_report_that_comes_late_changes_nothing() -> None:
    ledger = Ledger(0.0)
    ledger.report(ONE, 1, ANN, "V100", gpu_s=9.0, now_s=1.0)
    assert ledger.report(ONE, 1, ANN, "V100", gpu_s=4.0, now_s=2.0) == 0.0
    assert ledger.totals() == {(ANN, "V100"): 9.0}


def test_epochs_of_a_job_add_up_each_on_its_model() -> None:
    ledger = Ledger(0.0)
    ledger.report(ONE, 1, ANN, "V100", gpu_s=9.0, now_s=1.0)
    ledger.report(ONE, 2, ANN, "K80", gpu_s=2.0, now_s=2.0)
    assert ledger.totals() == {(ANN, "V100"): 9.0, (ANN, "K80"): 2.0}


@pytest.mark.parametrize("absurd", [nan, inf, -inf, -1.0])
def test_an_absurd_counter_charges_nothing(absurd: float) -> None:
    ledger = Ledger(0.0)
    assert ledger.report(ONE, 1, ANN, "V100", gpu_s=absurd, now_s=1.0) == 0.0
    assert ledger.totals() == {}


def test_a_job_cannot_be_charged_to_another_user() -> None:
    ledger = Ledger(0.0)
    ledger.report(ONE, 1, ANN, "V100", gpu_s=1.0, now_s=1.0)
    with pytest.raises(BrokenError, match="charged to ann; a report says bob"):
        ledger.report(ONE, 1, BOB, "V100", gpu_s=2.0, now_s=2.0)


counters = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 1000)), min_size=1, max_size=60
)


@given(counters, st.randoms(use_true_random=False))
def test_loss_repetition_and_reordering_never_charge_more_than_the_largest_counter(
    sent: list[tuple[int, int, int]], dice: Random
) -> None:
    arrived = [report for report in sent for _ in range(dice.randint(0, 3))]
    dice.shuffle(arrived)
    ledger = Ledger(0.0)
    for at, (job, epoch, gpu_s) in enumerate(arrived):
        ledger.report(JobId(job), epoch, UserName(f"u{job}"), "V100", gpu_s=float(gpu_s), now_s=float(at))
        ledger.check()
    largest: dict[tuple[int, int], int] = {}
    for job, epoch, gpu_s in arrived:
        largest[job, epoch] = max(gpu_s, largest.get((job, epoch), 0))
    for job in (1, 2, 3):
        want = sum(gpu_s for (of, _), gpu_s in largest.items() if of == job)
        assert ledger.totals().get((UserName(f"u{job}"), "V100"), 0.0) == want


def test_received_is_the_mean_over_the_window() -> None:
    ledger = Ledger(0.0, window_s=60.0)
    for second in range(1, 201):
        ledger.report(ONE, 1, ANN, "V100", gpu_s=2.0 * min(second, 140), now_s=float(second))
    # Two GPUs until 140 s, nothing since: 0 of the last 60 s at 200, half at 170.
    assert ledger.received_gpus(200.0)[ANN, "V100"] == pytest.approx(0.0, abs=1e-9)
    assert ledger.received_gpus(140.0 + 30.0)[ANN, "V100"] == pytest.approx(1.0, abs=0.02)


def test_the_first_window_covers_only_what_there_was() -> None:
    ledger = Ledger(100.0, window_s=60.0)
    ledger.report(ONE, 1, ANN, "V100", gpu_s=30.0, now_s=110.0)
    assert ledger.covered_s(110.0) == 10.0
    assert ledger.received_gpus(110.0)[ANN, "V100"] == pytest.approx(3.0)


def test_a_newcomer_is_measured_over_the_whole_window() -> None:
    ledger = Ledger(0.0, window_s=60.0)
    for second in range(1, 301):
        ledger.report(ONE, 1, ANN, "V100", gpu_s=float(second), now_s=float(second))
    for second in range(271, 301):
        ledger.report(TWO, 1, BOB, "V100", gpu_s=2.0 * (second - 270), now_s=float(second))
    assert ledger.received_gpus(300.0)[BOB, "V100"] == pytest.approx(1.0, abs=0.25)


def test_the_ring_is_bounded_and_says_what_it_covers() -> None:
    ledger = Ledger(0.0, window_s=60.0)
    for tick in range(1, 20_001):
        ledger.report(ONE, 1, ANN, "V100", gpu_s=tick * 0.4, now_s=tick * 0.1)
    assert all(len(ring) <= RING for ring in ledger._rings.values())
    assert ledger.received_gpus(2_000.0)[ANN, "V100"] == pytest.approx(4.0, rel=0.01)
    covered = ledger.covered_s(2_000.0, 10_000.0)
    assert 60.0 < covered < 2_000.0
    assert ledger.received_gpus(2_000.0, 10_000.0)[ANN, "V100"] == pytest.approx(4.0, rel=0.01)


def test_a_clock_that_is_set_back_breaks_nothing() -> None:
    ledger = Ledger(0.0, window_s=60.0)
    ledger.report(ONE, 1, ANN, "V100", gpu_s=10.0, now_s=100_000.0)
    ledger.report(ONE, 1, ANN, "V100", gpu_s=20.0, now_s=50.0)
    ledger.report(ONE, 1, ANN, "V100", gpu_s=30.0, now_s=49.0)
    assert ledger.totals()[ANN, "V100"] == 30.0
    assert ledger.received_gpus(60.0)[ANN, "V100"] >= 0.0
    ledger.check()


def test_what_was_received_before_it_began_is_in_totals_and_in_no_window() -> None:
    ledger = Ledger(200.0, window_s=60.0, totals={(ANN, "V100"): 400.0})
    assert ledger.received_gpus(210.0) == {(ANN, "V100"): 0.0}
    ledger.report(ONE, 2, ANN, "V100", gpu_s=40.0, now_s=210.0)
    assert ledger.totals() == {(ANN, "V100"): 440.0}
    assert ledger.received_gpus(210.0)[ANN, "V100"] == pytest.approx(4.0)
    ledger.check()


def test_forgetting_a_job_keeps_its_users_total() -> None:
    ledger = Ledger(0.0)
    ledger.report(ONE, 1, ANN, "V100", gpu_s=5.0, now_s=1.0)
    ledger.forget(ONE)
    ledger.check()
    assert ledger.totals()[ANN, "V100"] == 5.0


def test_a_charge_that_vanished_from_its_user_is_found() -> None:
    ledger = Ledger(0.0)
    ledger.report(ONE, 1, ANN, "V100", gpu_s=5.0, now_s=1.0)
    ledger._users[ANN, "V100"] = 3.0
    with pytest.raises(BrokenError, match=r"ann holds 3.0 GPU-seconds of V100, its jobs 5.0"):
        ledger.check()
