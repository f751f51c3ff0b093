"""Pollux: the batch with the best goodput, and a search that keeps within the cluster, never worsens, and finds small optima."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.dice import roll
from hs_core.errors import BrokenError
from hs_core.mechanism.goodput import Elastic, Sample, Speed, efficiency, fit, iteration_s, tune
from hs_core.mechanism.pollux import Candidate, Search, fitness, optimize

SEEDS = st.integers(0, 2**32 - 1)
QUICK = Search(population=16, generations=12)


def job(seed: int = 0, **more: int) -> Elastic:
    dice = np.random.default_rng(seed)
    speed = Speed(
        grad_s=0.01,
        grad_per_example_s=float(dice.uniform(5e-4, 2e-3)),
        local_s=0.02,
        local_per_gpu_s=0.002,
        far_s=0.08,
        far_per_gpu_s=0.005,
        overlap=float(dice.uniform(1, 4)),
    )
    return Elastic(
        speed=speed,
        batch=64,
        most_batch=2_048,
        most_per_gpu=256,
        noise=float(dice.uniform(50, 2_000)),
        **more,
    )


def test_an_iteration_without_overlap_is_the_sum_and_with_all_of_it_the_longer_part() -> None:
    parts = {"grad_s": 0.1, "grad_per_example_s": 0.001, "local_s": 0.05, "far_s": 0.4, "far_per_gpu_s": 0.1}
    none, all_ = Speed(**parts, overlap=1.0), Speed(**parts, overlap=200.0)
    m, s = np.array(100.0), np.array(0.0)
    assert iteration_s(none, 1, 1, m, s) == pytest.approx(0.2)
    assert iteration_s(none, 2, 1, m, s) == pytest.approx(0.25)
    assert iteration_s(none, 4, 2, m, s) == pytest.approx(0.8)
    assert iteration_s(all_, 4, 2, m, s) == pytest.approx(0.6, rel=1e-2)
    assert iteration_s(none, 2, 1, m, np.array(3.0)) == pytest.approx(0.85)


def measured(speed: Speed, gpus: int, servers: int, per_gpu: int, accumulate: int = 0) -> Sample:
    seconds = float(iteration_s(speed, gpus, servers, np.array(float(per_gpu)), np.array(float(accumulate))))
    return Sample(gpus=gpus, servers=servers, per_gpu=per_gpu, accumulate=accumulate, seconds=seconds)


WHERE = [
    (1, 1, 32, 0),
    (1, 1, 64, 0),
    (1, 1, 64, 2),
    (2, 1, 64, 0),
    (4, 1, 32, 1),
    (4, 1, 64, 0),
    (4, 2, 64, 0),
    (8, 2, 64, 0),
]


@pytest.mark.parametrize("overlap", [1.0, 2.0, 4.0])
def test_a_speed_is_found_again_from_what_it_makes(overlap: float) -> None:
    true = Speed(
        grad_s=0.02,
        grad_per_example_s=0.001,
        local_s=0.03,
        local_per_gpu_s=0.004,
        far_s=0.1,
        far_per_gpu_s=0.01,
        overlap=overlap,
    )
    found = fit([measured(true, *where) for where in WHERE])
    for where in (*WHERE, (16, 4, 128, 0), (3, 1, 100, 3)):
        assert measured(found, *where).seconds == pytest.approx(measured(true, *where).seconds, rel=0.02)


def test_what_was_never_tried_counts_as_free_and_over_several_servers_as_on_one() -> None:
    true = Speed(grad_s=0.02, grad_per_example_s=0.001, local_s=0.03, far_s=0.5)
    found = fit([measured(true, 1, 1, 32), measured(true, 1, 1, 64), measured(true, 2, 1, 64)])
    assert found.local_s > 0
    assert (found.far_s, found.far_per_gpu_s) == (found.local_s, found.local_per_gpu_s)
    one = fit([measured(true, 1, 1, 50)])
    assert measured(one, 1, 1, 50).seconds == pytest.approx(measured(true, 1, 1, 50).seconds)
    with pytest.raises(BrokenError, match="0 samples"):
        fit([])


def test_the_users_batch_is_worth_all_of_its_examples_and_larger_ones_less() -> None:
    one = job()
    worth = efficiency(one, np.array([64.0, 128, 2_048]))
    assert worth[0] == 1.0
    assert (np.diff(worth) < 0).all()


@given(SEEDS, st.integers(1, 12))
@settings(max_examples=40)
def test_no_batch_on_a_fine_grid_is_much_better(seed: int, gpus: int) -> None:
    one = job(seed)
    servers = -(-gpus // 4)
    found = tune(one, gpus, servers)
    best = 0.0
    for steps in range(16):
        lanes = gpus * (steps + 1)
        per_gpu = np.arange(
            -(-one.batch // lanes), min(one.most_per_gpu, one.most_batch // lanes) + 1, dtype=float
        )
        if len(per_gpu):
            batch = per_gpu * lanes
            rate = batch / iteration_s(one.speed, gpus, servers, per_gpu, np.array(float(steps)))
            best = max(best, float((rate * efficiency(one, batch)).max()))
    assert best * 0.99 <= found.goodput <= best * (1 + 1e-9)
    assert found.batch == found.per_gpu * gpus * (found.accumulate + 1)
    assert one.batch <= found.batch <= one.most_batch
    assert found.per_gpu <= one.most_per_gpu


def test_a_batch_that_fits_on_no_gpu_at_once_is_accumulated() -> None:
    small = Elastic(
        speed=Speed(grad_s=0.01, grad_per_example_s=0.001),
        batch=100,
        most_batch=100,
        most_per_gpu=25,
        noise=10.0,
    )
    found = tune(small, 1, 1)
    assert (found.per_gpu, found.accumulate, found.batch) == (25, 3, 100)
    assert tune(small, 65, 20).goodput == 0


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_searches_keep_within_the_cluster_and_never_worsen_what_is(seed: int) -> None:
    dice = np.random.default_rng(seed)
    servers = dice.integers(1, 5, int(dice.integers(1, 4)))
    jobs = [
        Candidate(job=job(at, least_gpus=int(dice.integers(1, 3)), most_gpus=6), held_gpus=3)
        for at in range(int(dice.integers(1, 6)))
    ]
    first = optimize(jobs, servers, roll(seed), QUICK)
    again = optimize(jobs, servers, roll(seed), QUICK)
    assert first.gpus.tolist() == again.gpus.tolist()
    later = [
        Candidate(job=one.job, now=tuple(row), age_s=3_000, restarts=1, held_gpus=3)
        for one, row in zip(jobs, first.gpus.tolist(), strict=True)
    ]
    second = optimize(later, servers, roll(seed, 2), QUICK)
    for found in (first, second):
        assert (found.gpus.sum(axis=0) <= servers).all()
        assert (found.gpus >= 0).all()
        counts = found.gpus.sum(axis=1)
        assert all(
            count == 0 or one.job.least_gpus <= count <= one.job.most_gpus
            for one, count in zip(jobs, counts, strict=True)
        )
        spread = (found.gpus > 0).sum(axis=1) > 1
        assert all(len(set(row) - {0}) <= 1 for row in found.gpus.tolist()), "equal parts"
        assert ((found.gpus[spread] > 0).sum(axis=0) <= 1).all()
        assert [one.goodput > 0 for one in found.tuned] == (counts > 0).tolist()
    assert second.fitness >= fitness(later, servers, first.gpus, QUICK) - 1e-12


def test_two_jobs_on_two_servers_are_divided_as_well_as_can_be() -> None:
    jobs = [Candidate(job=job(1), held_gpus=4), Candidate(job=job(2), held_gpus=4)]
    servers = np.array([3, 3])
    best = 0.0
    for row in product(range(4), repeat=4):
        gpus = np.array(row).reshape(2, 2)
        spread = gpus[(gpus > 0).sum(axis=1) > 1]
        equal = all(len(set(row) - {0}) <= 1 for row in gpus.tolist())
        if equal and (gpus.sum(axis=0) <= servers).all() and ((spread > 0).sum(axis=0) <= 1).all():
            best = max(best, fitness(jobs, servers, gpus))
    assert optimize(jobs, servers, roll(1)).fitness == pytest.approx(best)


def test_a_restart_has_to_pay_for_itself() -> None:
    alone = Candidate(job=job(1), now=(1, 0), age_s=100.0, restarts=2, held_gpus=1)
    stays = optimize([alone], np.array([1, 1]), roll(1))
    assert stays.gpus.tolist() == [[1, 0]]
    grows = optimize(
        [Candidate(job=job(1, most_gpus=4), now=(1,), age_s=1e5, held_gpus=2)], np.array([4]), roll(1)
    )
    assert grows.gpus.sum() > 1


def test_a_job_may_have_twice_what_it_ever_had() -> None:
    assert optimize([Candidate(job=job(1), held_gpus=0)], np.array([8]), roll(1)).gpus.sum() <= 2
    assert optimize([Candidate(job=job(1), held_gpus=2)], np.array([8]), roll(1)).gpus.sum() <= 4


def test_nothing_to_divide_is_no_error_and_nonsense_is_refused() -> None:
    assert optimize([], np.array([4]), roll(1)).fitness == 0
    assert optimize([Candidate(job=job(1))], np.array([0]), roll(1)).tuned[0].goodput == 0
    with pytest.raises(BrokenError, match="GPUs on 1 servers; expected a number for each of 2"):
        optimize([Candidate(job=job(1), now=(1,))], np.array([1, 1]), roll(1))
    with pytest.raises(BrokenError, match="overlap of 1 or more"):
        Speed(grad_s=0.1, grad_per_example_s=0.1, overlap=0.5)
    with pytest.raises(BrokenError, match="batch <= most_batch"):
        Elastic(speed=Speed(grad_s=0, grad_per_example_s=1), batch=9, most_batch=8, most_per_gpu=1, noise=1)


def alone(most_gpus: int = 8, **more: object) -> Candidate:
    speed = Speed(grad_s=0.01, grad_per_example_s=0.002)
    limits = {"batch": 64, "most_batch": 2_048, "most_per_gpu": 256, "noise": 5_000.0, "most_gpus": most_gpus}
    return Candidate(job=Elastic(speed=speed, **limits), **{"held_gpus": 64, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("servers", "most", "laid"),
    [
        ([4, 4], 4, [[4], [0]]),
        ([4, 4], 8, [[4], [4]]),
        ([4, 4, 4], 7, [[3], [3], [0]]),
        ([4, 3, 3], 6, [[3], [3], [0]]),
        ([2, 2, 2], 5, [[2], [2], [0]]),
        ([2, 2, 2], 6, [[2], [2], [2]]),
        ([1, 1, 1, 1], 3, [[1], [1], [1], [0]]),
    ],
)
def test_a_job_that_may_be_anywhere_is_laid_in_equal_parts_on_as_few_servers_as_can_be(
    servers: list[int], most: int, laid: list[list[int]]
) -> None:
    found = optimize([alone(most)], np.array(servers), roll(1))
    assert sorted(found.gpus[0].tolist()) == sorted(count for (count,) in laid)


def test_more_servers_are_not_taken_where_synchronizing_over_them_costs_more_than_it_gains() -> None:
    slow = Speed(grad_s=0.01, grad_per_example_s=0.002, far_s=60.0)
    job_ = Elastic(speed=slow, batch=64, most_batch=256, most_per_gpu=256, noise=100.0, most_gpus=8)
    found = optimize([Candidate(job=job_, held_gpus=64)], np.array([4, 4]), roll(1))
    assert sorted(found.gpus[0].tolist()) == [0, 4]


def test_what_was_laid_over_several_servers_stays_so_until_being_together_pays_for_the_restart() -> None:
    apart = alone(2, now=(1, 1), age_s=100.0, restarts=2)
    assert optimize([apart], np.array([2, 2]), roll(1)).gpus.tolist() == [[1, 1]]


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_two_that_are_over_several_servers_are_on_none_together_and_nobody_gets_less_than_it_needs(
    seed: int,
) -> None:
    dice = np.random.default_rng(seed)
    servers = dice.integers(1, 5, int(dice.integers(2, 5)))
    jobs = [
        alone(int(dice.integers(4, 9)))
        if dice.random() < 0.7
        else Candidate(job=job(at, least_gpus=1, most_gpus=4, servers=1), held_gpus=4)
        for at in range(int(dice.integers(2, 6)))
    ]
    found = optimize(jobs, servers, roll(seed), QUICK).gpus
    assert (found.sum(axis=0) <= servers).all()
    spread = (found > 0).sum(axis=1) > 1
    assert ((found[spread] > 0).sum(axis=0) <= 1).all()
    assert all(len(set(row) - {0}) <= 1 for row in found.tolist())
    assert all((found[at] > 0).sum() <= 1 for at, one in enumerate(jobs) if one.job.servers == 1)
