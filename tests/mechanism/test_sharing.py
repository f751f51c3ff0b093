"""SJF-BSBF's arithmetic against searches and the paper's own loops."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.literal import Length, Old, ends_by_search, share_one, sharing_loop
from hs_core.errors import RefusedError
from hs_core.mechanism.sharing import (
    Interference,
    Pending,
    Running,
    StepTimes,
    accumulations,
    ends,
    fitting,
    table,
    willing,
)

lengths = st.floats(1, 1e4)
ratios = st.floats(1, 6)
GIB = 2.0**30


TIMES = StepTimes(compute_fixed_s=0.02, compute_per_sample_s=0.003, reduce_fixed_s=0.05, overlap=2)


@dataclass(frozen=True)
class Case:
    running: Running
    gpus: list[int]  # of each running job's gang
    pending: Pending
    gang: int
    interference: Interference
    olds: list[Old]
    length: Length


def instance(seed: int, jobs: int) -> Case:
    dice = np.random.default_rng(seed)
    steps = 6
    classes = 5
    left_s, gpus = dice.exponential(3000, jobs) + 1, dice.choice([1, 2, 4, 8], jobs).tolist()
    running = Running(
        left_s=left_s,
        memory_bytes=dice.uniform(2, 9, jobs) * GIB,
        gpu_bytes=np.full(jobs, 11 * GIB),
        job_class=dice.integers(classes, size=jobs),
    )
    length = Length(int(dice.integers(100, 20_000)), 32, 0.02, 0.003, 0.05, 2)
    gang = int(dice.choice([1, 2, 4, 8, 16]))
    pending = Pending(
        alone_s=length.iterations * TIMES.iteration_s(32, 4, accumulations(32)),
        memory_bytes=(1 + 8 / accumulations(32)) * GIB,
        job_class=int(dice.integers(classes)),
    )
    shape = (classes, classes, steps)
    interference = Interference(dice.uniform(1, 3, shape), dice.uniform(1, 3, shape))
    newer, older = interference.ratios(pending.job_class, running.job_class, steps)
    free = (running.gpu_bytes - running.memory_bytes).tolist()
    olds = list(map(Old, running.left_s.tolist(), free, gpus, newer.tolist(), older.tolist()))
    return Case(running, gpus, pending, gang, interference, olds, length)


@given(lengths, lengths, ratios, ratios)
def test_the_best_moment_to_share_is_now_or_never(
    older_s: float, newer_s: float, older: float, newer: float
) -> None:
    found = ends(older_s, newer_s, older, newer)
    sums = (found.shared_older_s + found.shared_newer_s, found.apart_older_s + found.apart_newer_s)
    best = float(min(sums)) / 2
    assert best == pytest.approx(ends_by_search(older_s, newer_s, older, newer, 201), rel=1e-9)


def test_one_pair_by_hand() -> None:
    found = ends(10.0, 20.0, 1.5, 2.0)  # A ends at 15; B has then done 15 of 40 and has 12.5 left alone
    assert (found.shared_older_s, found.shared_newer_s) == (15.0, 27.5)
    assert (found.apart_older_s, found.apart_newer_s) == (10.0, 30.0)


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_the_table_is_what_algorithm_2_finds_pair_by_pair(seed: int, jobs: int) -> None:
    case = instance(seed, jobs)
    found = table(case.running, case.pending, case.interference)
    for job in range(jobs):
        pair = share_one(case.olds[job], case.length, case.pending.memory_bytes.tolist())
        if pair is None:
            assert found.step[job] == -1
            assert not found.share[job]
        else:
            assert (found.share[job], found.step[job]) == pair[1:]
            assert found.mean_s[job] == pytest.approx(pair[0])


@given(st.integers(0, 10**6), st.integers(1, 60))
def test_partners_are_willing_in_the_order_of_algorithm_1(seed: int, jobs: int) -> None:
    case = instance(seed, jobs)
    expected = sharing_loop(case.olds, case.gang, case.length, case.pending.memory_bytes.tolist())
    order = willing(table(case.running, case.pending, case.interference)).tolist()
    if expected is None:
        assert sum(case.gpus[job] for job in order) < case.gang
    else:
        assert order[: len(expected)] == expected


@given(st.lists(st.integers(0, 12), min_size=1, max_size=20))
def test_the_largest_sub_batch_that_fits_is_taken(rooms: list[int]) -> None:
    memory = (1 + 8 / accumulations(32)).tolist()
    found = fitting(np.array(rooms, float), np.array(memory))
    for room, step in zip(rooms, found.tolist(), strict=True):
        fit = [at for at, needed in enumerate(memory) if needed <= room]
        assert step == (fit[0] if fit else -1)


@pytest.mark.parametrize(("ratio", "share"), [(1.0, True), (1.49, True), (1.5, False), (6.0, False)])
def test_jobs_of_equal_length_share_below_a_ratio_of_one_and_a_half(ratio: float, *, share: bool) -> None:
    running = Running(
        left_s=np.array([100.0]),
        memory_bytes=np.array([4 * GIB]),
        gpu_bytes=np.array([11 * GIB]),
        job_class=np.array([0]),
    )
    pending = Pending(alone_s=np.array([100.0]), memory_bytes=np.array([4 * GIB]), job_class=0)
    assert bool(table(running, pending, Interference.uniform(1, ratio)).share[0]) is share


def test_jobs_that_do_not_hinder_each_other_share_wherever_memory_allows() -> None:
    running, pending = instance(3, 20).running, instance(3, 20).pending
    found = table(running, pending, Interference.uniform(5, 1.0))
    fits = running.memory_bytes + pending.memory_bytes.min() <= running.gpu_bytes
    assert found.share.tolist() == fits.tolist()


def test_sub_batches_halve_down_to_one_sample() -> None:
    assert accumulations(1).tolist() == [1]
    assert accumulations(32).tolist() == [1, 2, 4, 8, 16, 32]
    assert accumulations(48).tolist() == [1, 2, 4, 8, 16, 32]


def test_an_iteration_is_the_papers_formula() -> None:
    times = StepTimes(
        compute_fixed_s=0.1,
        compute_per_sample_s=0.01,
        reduce_fixed_s=0.2,
        reduce_per_byte_s=1e-9,
        message_bytes=1e8,
        overlap=2,
    )
    compute, reduce = 0.1 + 0.01 * 8, 0.3
    assert times.iteration_s(32, 2, 4) == pytest.approx(3 * compute + (compute**2 + reduce**2) ** 0.5)
    assert times.iteration_s(32, 1, 1) == pytest.approx(0.42)  # one GPU reduces nothing


@given(st.integers(1, 512), st.floats(1, 1e6))
def test_accumulating_is_never_faster(batch: int, overlap: float) -> None:
    times = StepTimes(compute_fixed_s=0.01, compute_per_sample_s=0.002, reduce_fixed_s=0.3, overlap=overlap)
    found = times.iteration_s(batch, 8, accumulations(batch))
    assert (np.diff(found) >= -1e-12).all()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: StepTimes(compute_fixed_s=-1, compute_per_sample_s=0),
            "compute_fixed_s is -1; expected at least 0",
        ),
        (lambda: StepTimes(compute_fixed_s=1, compute_per_sample_s=0, overlap=0.5), "overlap is 0.5"),
        (lambda: accumulations(0), "batch is 0"),
        (lambda: Interference.uniform(2, 0.9), "ratios below 1"),
        (lambda: Interference(np.ones((2, 3, 1)), np.ones((2, 2, 1))), "of_newer has shape"),
    ],
)
def test_nonsense_is_refused(make: object, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        make()  # type: ignore[operator]
