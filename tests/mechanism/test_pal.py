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
    gang = int(dice.integers(1, 5))
    able = [nodes for nodes in range(1, gang + 1) if gang % nodes == 0]
    over = tuple((nodes, 1.0 if nodes == 1 else float(dice.choice([1.0, 1.3, 2.0]))) for nodes in able)
    if dice.random() < 0.3:
        over = over[:1]
    (found,) = place(pool, [Want(gang=gang, over=over)])
    best = np.inf
    for taken in combinations(np.flatnonzero(pool.free).tolist(), gang):
        parts = np.unique(pool.host[list(taken)], return_counts=True)[1]
        times = dict(over).get(len(parts)) if len(set(parts.tolist())) == 1 else None
        if times is not None:
            best = min(best, pool.score[0, list(taken)].max() * times)
    if np.isinf(best):
        assert found is None
        return
    assert found is not None
    assert found.slowdown == pytest.approx(best)
    assert pool.free[list(found.gpus)].all()
    assert len(set(found.gpus)) == gang


@given(SEEDS)
@settings(max_examples=40)
def test_no_gpu_is_given_twice(seed: int) -> None:
    dice = np.random.default_rng(seed)
    pool = Pool(host=np.arange(12) // 4, score=dice.uniform(0.8, 2, (2, 12)), free=dice.random(12) < 0.9)
    wants = [
        Want(gang=2 * int(dice.integers(1, 3)), feels=int(dice.integers(0, 2)), over=((1, 1.0), (2, 1.4)))
        for _ in range(6)
    ]
    taken = [gpu for found in place(pool, wants) if found is not None for gpu in found.gpus]
    assert len(taken) == len(set(taken))
    assert pool.free[taken].all()


def test_who_feels_it_most_chooses_first() -> None:
    pool = pool_of([[1.0, 1.0, 1.0, 1.05], [1.0, 1.0, 1.0, 3.0]], per_host=1)
    wants = [Want(gang=1, feels=0), Want(gang=3, feels=1, over=((3, 1.0),))]
    assert sensitive_first(pool, wants) == [1, 0]
    small, large = place(pool, wants)
    assert small is not None
    assert large is not None
    assert large.gpus == (0, 1, 2)
    assert small.gpus == (3,)


def taken(pool: Pool, *over: tuple[int, float], gang: int = 2) -> tuple[tuple[int, ...], float]:
    (found,) = place(pool, [Want(gang=gang, over=over)])
    assert found is not None
    return found.gpus, found.slowdown


def test_spreading_is_weighed_against_a_slow_gpu() -> None:
    """The paper's table of (locality, score): 2.0 within a server, 1.0 times the penalty across."""
    pool = pool_of([[1.0, 2.0, 1.0, 2.0]])
    assert taken(pool, (1, 1.0), (2, 3.0)) == ((0, 1), 2.0)
    assert taken(pool, (1, 1.0), (2, 1.5)) == ((0, 2), 1.5)
    assert taken(pool, (1, 1.0), (2, 2.0)) == ((0, 1), 2.0), "of equal ones the one on fewer servers"
    assert taken(pool, (1, 1.0)) == ((0, 1), 2.0), "it may not be spread"


def test_a_gang_is_spread_where_no_server_has_room_however_much_that_costs() -> None:
    pool = pool_of([[1.0] * 4])
    full = Pool(host=pool.host, score=pool.score, free=np.array([True, False, False, True]))
    assert taken(full, (1, 1.0), (2, 9.0)) == ((0, 3), 9.0)


def test_of_several_numbers_of_servers_each_has_its_own_penalty() -> None:
    pool = pool_of([[1.0, 1.0, 3.0, 3.0] + [1.0, 3.0, 3.0, 3.0] * 2], per_host=4)
    pays = (1, 1.0), (2, 1.2), (4, 1.3)
    assert taken(pool, *pays, gang=4) == ((0, 1, 2, 3), 3.0), "half of it has no two fast ones on another"
    assert taken(pool_of([[1.0, 3.0, 3.0, 3.0] * 4], per_host=4), *pays, gang=4) == ((0, 4, 8, 12), 1.3)


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
    for over in (((2, 1.0),), ((1, 0.9),)):
        with pytest.raises(BrokenError, match="in equal parts, penalties of 1 or more"):
            place(pool_of([[1.0, 1.0]]), [Want(gang=3, over=over)])
