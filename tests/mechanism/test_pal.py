"""PAL's places: the least slowdown that is left, nobody's GPU twice, the sensitive first."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.errors import BrokenError
from hs_core.mechanism.pal import Pool, Want, binned, place, sensitive_first

SEEDS = st.integers(0, 2**32 - 1)


def pool_of(score: list[list[float]], per_host: int = 2) -> Pool:
    gpus = len(score[0])
    return Pool(host=np.arange(gpus) // per_host, score=np.array(score), free=np.ones(gpus, bool))


@given(SEEDS)
@settings(max_examples=80)
def test_no_other_place_slows_a_job_less(seed: int) -> None:
    dice = np.random.default_rng(seed)
    gpus = int(dice.integers(1, 8))
    pool = Pool(
        host=np.sort(dice.integers(0, 3, gpus)),
        score=dice.choice([0.9, 1.0, 1.2, 1.5], (1, gpus)),
        free=dice.random(gpus) < 0.8,
    )
    want = Want(
        gang=int(dice.integers(1, 4)),
        spread=float(dice.choice([1.0, 1.3, 2.0])),
        whole=bool(dice.random() < 0.3),
    )
    (found,) = place(pool, [want])
    best = np.inf
    for taken in combinations(np.flatnonzero(pool.free).tolist(), want.gang):
        spread = len(set(pool.host[list(taken)])) > 1
        if not (spread and want.whole):
            best = min(best, pool.score[0, list(taken)].max() * (want.spread if spread else 1.0))
    if np.isinf(best):
        assert found is None
        return
    assert found is not None
    assert found.slowdown == pytest.approx(best)
    assert pool.free[list(found.gpus)].all()
    assert len(set(found.gpus)) == want.gang


@given(SEEDS)
@settings(max_examples=40)
def test_no_gpu_is_given_twice(seed: int) -> None:
    dice = np.random.default_rng(seed)
    pool = Pool(host=np.arange(12) // 4, score=dice.uniform(0.8, 2, (2, 12)), free=dice.random(12) < 0.9)
    wants = [
        Want(gang=int(dice.integers(1, 5)), feels=int(dice.integers(0, 2)), spread=1.4) for _ in range(6)
    ]
    taken = [gpu for found in place(pool, wants) if found is not None for gpu in found.gpus]
    assert len(taken) == len(set(taken))
    assert pool.free[taken].all()


def test_who_feels_it_most_chooses_first() -> None:
    pool = pool_of([[1.0, 1.0, 1.0, 1.05], [1.0, 1.0, 1.0, 3.0]], per_host=1)
    wants = [Want(gang=1, feels=0), Want(gang=3, feels=1)]
    assert sensitive_first(pool, wants) == [1, 0]
    small, large = place(pool, wants)
    assert small is not None
    assert large is not None
    assert large.gpus == (0, 1, 2)
    assert small.gpus == (3,)


def test_spreading_is_weighed_against_a_slow_gpu() -> None:
    pool = pool_of([[1.0, 2.0, 1.0, 2.0]])
    (dear,) = place(pool, [Want(gang=2, spread=3.0)])
    (cheap,) = place(pool, [Want(gang=2, spread=1.5)])
    (first,) = place(pool, [Want(gang=2, spread=3.0)], by_locality=False)
    (blind,) = place(pool, [Want(gang=2, spread=1.5)], by_score=False)
    assert dear is not None
    assert dear.gpus == (0, 1)
    assert dear.slowdown == 2.0
    assert cheap is not None
    assert cheap.gpus == (0, 2)
    assert cheap.slowdown == 1.5
    assert first is not None
    assert first.gpus == (0, 2)
    assert blind is not None
    assert blind.gpus == (0, 1)


def test_of_equal_servers_the_fullest_is_taken() -> None:
    pool = pool_of([[1.0] * 8], per_host=4)
    free = pool.free.copy()
    free[4:6] = False
    (found,) = place(Pool(host=pool.host, score=pool.score, free=free), [Want(gang=2)])
    assert found is not None
    assert found.gpus == (6, 7)


def test_nearly_equal_gpus_are_made_equal() -> None:
    score = np.array([1.0, 1.01, 0.99, 1.5, 1.51, 1.49, 3.0])
    found = binned(score)
    assert found == pytest.approx([1.0, 1.0, 1.0, 1.5, 1.5, 1.5, 3.0])
    assert len(np.unique(binned(np.array([1.0, 1.001, 1.002])))) == 1
    assert len(np.unique(binned(np.ones(4)))) == 1


def test_scores_that_are_no_slowdowns_are_refused() -> None:
    with pytest.raises(BrokenError, match="no slowdowns"):
        pool_of([[1.0, 0.0]])
    with pytest.raises(BrokenError, match="a class below 1"):
        place(pool_of([[1.0, 1.0]]), [Want(gang=0)])
