"""POP keeps near the whole program; Themis' auction is the best of all, and leaves nothing that somebody could use."""

from itertools import product
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.dice import roll
from hs_core.errors import BrokenError
from hs_core.mechanism.gavel.fair import max_min
from hs_core.mechanism.gavel.finish import Lives
from hs_core.mechanism.gavel.question import Allocation, Question, isolated_speed
from hs_core.mechanism.pop import NEW, deal, pop
from hs_core.mechanism.themis import Way, auction, running_rho, waiting_rho
from hs_core.solve import Method
from tests.mechanism import gavelsim
from tests.mechanism.worlds_lp import question, used_gpus

SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, st.integers(1, 4))
@settings(max_examples=50)
def test_parts_together_keep_within_the_cluster_and_below_the_whole(seed: int, parts: int) -> None:
    asked = question(seed, sharing=True)
    where = deal(asked.gang, parts, roll(seed))
    found = pop(asked, where, parts, lambda part, _: max_min(part))
    assert (found.time() <= 1 + 1e-6).all()
    assert (used_gpus(found, asked) <= asked.gpus + 1e-6).all()
    whole = max_min(asked)
    assert found.value <= whole.value + 1e-6
    if parts == 1:
        assert found.value == pytest.approx(whole.value, abs=1e-6)


def test_a_thousand_jobs_in_four_parts_lose_little() -> None:
    dice = np.random.default_rng(5)
    of = dice.integers(0, 30, 1_000)
    asked = Question(
        speed=dice.uniform(1, 10, (30, 3))[of],
        gang=dice.choice([1, 2, 4], 30)[of],
        gpus=np.array([96, 96, 96]),
    )
    whole = max_min(asked)
    found = pop(asked, deal(asked.gang, 4, roll(1)), 4, lambda part, _: max_min(part))
    assert found.value >= 0.9 * whole.value


def test_parts_are_even_and_who_was_dealt_stays() -> None:
    gang = np.array([1] * 20 + [4] * 5)
    first = deal(gang, 4, roll(1))
    assert np.ptp(np.bincount(first, gang, 4)) <= 4
    before = np.concatenate([first, [NEW] * 3])
    again = deal(np.concatenate([gang, [1, 1, 1]]), 4, roll(2), before)
    assert again[:25].tolist() == first.tolist()
    with pytest.raises(BrokenError, match="parts is 0"):
        deal(gang, 0, roll(1))


@pytest.mark.skipif(not gavelsim.DATA.is_dir(), reason=f"no data at {gavelsim.DATA}")
def test_gavels_own_simulation_with_four_parts_comes_out_alike() -> None:
    tables = gavelsim.Tables.read(gavelsim.DATA / "gavel" / "throughputs.json")
    jobs = gavelsim.read_trace(gavelsim.DATA / "traces" / "gen120_multi_lam300_seed0.trace", tables)
    where: dict[int, int] = {}

    def solve(asked: Question, _: Lives, ids: list[int]) -> Allocation:
        before = np.array([where.get(job, NEW) for job in ids])
        now = deal(asked.gang, 4, roll(0, *ids[-1:]), before)
        where.update(zip(ids, now.tolist(), strict=True))
        return pop(asked, now, 4, lambda part, _: max_min(part, method=Method.CENTRE))

    done = gavelsim.simulate(jobs, tables, (12, 12, 12), solve)
    assert done.mean_jct_s == pytest.approx(19731, rel=0.03)
    assert done.makespan_s == pytest.approx(69072, rel=0.03)


def lives_of(asked: Question, seed: int) -> Lives:
    dice = np.random.default_rng(seed)
    jobs = len(asked.gang)
    left = dice.uniform(100, 1e5, jobs)
    alone = isolated_speed(asked)
    return Lives(
        age_s=dice.uniform(0, 1e4, jobs),
        steps_left=left,
        alone_s=left / np.where(alone > 0, alone, 1.0) + 1.0,
    )


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_no_other_division_makes_a_larger_product(seed: int) -> None:
    asked = question(seed)
    if len(asked.gang) > 5:
        asked = asked.part(np.arange(5))
    lives = lives_of(asked, seed)
    found = auction(asked, lives, 600.0, worst=1.0)
    wait, run = waiting_rho(asked, lives, 600.0), running_rho(asked, lives, 600.0)
    best = 0.0
    for choice in product(range(-1, len(asked.gpus)), repeat=len(asked.gang)):
        used = [
            sum(g for g, on in zip(asked.gang, choice, strict=True) if on == type_)
            for type_ in range(len(asked.gpus))
        ]
        if (np.array(used) <= asked.gpus).all() and all(
            asked.can[job, on] for job, on in enumerate(choice) if on >= 0
        ):
            best = max(best, sum(log(wait[job] / run[job, on]) for job, on in enumerate(choice) if on >= 0))
    won = [job for job, way in enumerate(found.way) if way is Way.AUCTION]
    got = sum(log(wait[job] / run[job, found.on[job]]) for job in won)
    assert got >= best * (1 - 2e-3) - 1e-5


@given(SEEDS, st.sampled_from([0.2, 0.5, 1.0]))
@settings(max_examples=60, deadline=None)
def test_no_gpu_is_leased_twice_and_none_stays_free_that_a_job_could_use(seed: int, worst: float) -> None:
    asked = question(seed)
    found = auction(asked, lives_of(asked, seed), 600.0, worst=worst)
    used = np.array([asked.gang[found.on == type_].sum() for type_ in range(len(asked.gpus))])
    assert (used <= asked.gpus).all()
    for job in range(len(asked.gang)):
        if found.on[job] >= 0:
            assert asked.can[job, found.on[job]]
        else:
            assert not (asked.can[job] & (asked.gang[job] <= asked.gpus - used)).any()


def test_the_job_furthest_from_fair_is_offered_first() -> None:
    asked = Question(speed=np.ones((5, 1)), gang=np.ones(5, int), gpus=np.array([1]))
    lives = Lives(
        age_s=np.array([10.0, 900, 20, 30, 40]), steps_left=np.full(5, 1_000.0), alone_s=np.full(5, 1_000.0)
    )
    found = auction(asked, lives, 100.0)
    assert found.on.tolist() == [-1, 0, -1, -1, -1]
    assert found.way[1] is Way.AUCTION
    assert found.rho[1] == pytest.approx(2.0)
    assert found.bid[1] == pytest.approx(1.9)
    with pytest.raises(BrokenError, match="worst is 0"):
        auction(asked, lives, 100.0, worst=0)


def test_where_jobs_can_run_is_found_once_for_all_that_ask() -> None:
    asked = question(1)
    assert asked.can is asked.can
