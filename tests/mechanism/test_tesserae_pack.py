"""Packing against assignment and brute force; strategies."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.errors import RefusedError
from hs_core.mechanism.tesserae.pack import Side, pack, pack_singly
from hs_core.mechanism.tesserae.strategies import (
    NONE,
    Strategy,
    Variants,
    best_alone,
    best_strategies,
    data_parallel,
    next_probe,
    strategies,
)


def sides(seed: int, placed: int, pending: int, classes: int) -> tuple[Side, Side, np.ndarray]:
    dice = np.random.default_rng(seed)
    one, other = (
        Side(dice.integers(classes, size=count), dice.choice([1, 2, 4], count)) for count in (placed, pending)
    )
    return (
        one,
        other,
        np.where(dice.random((classes, classes)) < 0.2, 0, dice.uniform(0.7, 1.8, (classes, classes))),
    )


def each(placed: Side, pending: Side, weights: np.ndarray) -> np.ndarray:
    return np.where(
        placed.gpus[:, None] == pending.gpus, weights[placed.job_class[:, None], pending.job_class], 0
    )


@given(st.integers(0, 10**6), st.integers(0, 4), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_no_matching_weighs_more(seed: int, count: int, waiting: int) -> None:
    placed, pending, weights = sides(seed, count, waiting, 3)
    single = each(placed, pending, weights)
    best = 0.0
    for partners in itertools.product(range(-1, waiting), repeat=count):
        used = [partner for partner in partners if partner >= 0]
        if len(set(used)) == len(used):
            pairs = [single[host, guest] for host, guest in enumerate(partners) if guest >= 0]
            best = max(best, sum(pairs) if all(weight > 1 for weight in pairs) else 0.0)
    assert pack(placed, pending, weights).weight == pytest.approx(best)
    assert pack_singly(single).weight == pytest.approx(best)


@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 120), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_classes_weigh_as_much_as_single_jobs(seed: int, count: int, waiting: int, classes: int) -> None:
    placed, pending, weights = sides(seed, count, waiting, classes)
    found, single = pack(placed, pending, weights), each(placed, pending, weights)
    assert found.weight == pytest.approx(pack_singly(single).weight)
    assert found.weight == pytest.approx(single[found.placed, found.pending].sum())
    assert (single[found.placed, found.pending] > 1).all()
    assert len(set(found.placed.tolist())) == len(set(found.pending.tolist())) == len(found.placed)


def test_of_equal_jobs_the_first_ones_are_paired() -> None:
    found = pack(
        Side(np.zeros(2, np.int64), np.ones(2, np.int64)),
        Side(np.zeros(5, np.int64), np.ones(5, np.int64)),
        np.array([[1.5]]),
    )
    assert (found.placed.tolist(), found.pending.tolist()) == ([0, 1], [0, 1])


def test_a_pair_that_only_breaks_even_is_not_made() -> None:
    one = Side(np.zeros(1, np.int64), np.ones(1, np.int64))
    assert len(pack(one, one, np.array([[1.0]])).placed) == 0


def test_figure_7_a_better_strategy_raises_the_edge() -> None:
    """Class 0: a language model in two strategies; class 1: a vision model in one. The default strategy doesn't fit beside it."""
    variants = Variants(
        job_class=np.array([0, 0, 1]),
        alone=np.array([2.0, 1.8, 50.0]),
        memory_bytes=np.array([30.0, 20.0, 15.0]),
        packed=np.array([[0.0, 0.0, 1.6], [0.0, 0.0, 1.2], [40.0, 45.0, 30.0]]),
        gpu_bytes=40.0,
    )
    found = best_strategies(variants)
    assert found.weight[0, 1] == pytest.approx(1.2 / 2.0 + 45 / 50)
    assert (found.placed[0, 1], found.pending[0, 1]) == (1, 2)
    assert found.weight[1, 0] == found.weight[0, 1]
    assert found.weight[1, 1] == pytest.approx(1.2)
    assert (found.weight[0, 0], found.placed[0, 0]) == (0.0, NONE)
    assert best_alone(variants).tolist() == [0, 2]


def test_strategies_use_all_gpus_and_all_layers() -> None:
    found = strategies(8, 32)
    assert all(strategy.gpus == 8 and sum(strategy.stages) == 32 for strategy in found)
    assert {
        Strategy(8, 1, (32,)),
        Strategy(1, 8, (32,)),
        Strategy(2, 2, (16, 16)),
        Strategy(2, 2, (15, 17)),
    } <= set(found)
    assert len(set(found)) == len(found)
    assert strategies(1, 12) == (Strategy(1, 1, (12,)),)
    assert max(strategy.tensor for strategy in strategies(16, 32, most_tensor=4)) == 4
    with pytest.raises(RefusedError, match="0 GPUs"):
        strategies(0, 12)


def test_data_parallel_speeds_are_proportional() -> None:
    assert data_parallel(np.array([3.0, 4.0]), 4).tolist() == [12.0, 16.0]


def test_probing_finds_the_best_strategy_within_a_third_of_the_budget() -> None:
    choices = strategies(16, 48)
    features = np.array([choice.features() for choice in choices])
    speed = 10 - ((features - np.array([2.0, 1.0, 1.0, 0.0])) ** 2).sum(axis=1)
    tried: list[int] = []
    for _ in range(len(choices) // 3):
        probe = next_probe(features, tried, [float(speed[at]) for at in tried])
        assert probe is not None
        assert probe not in tried
        tried.append(probe)
    assert max(speed[tried]) == speed.max()


def test_probing_ends_when_all_were_tried() -> None:
    assert next_probe(np.zeros((2, 1)), [0, 1], [1.0, 2.0]) is None
