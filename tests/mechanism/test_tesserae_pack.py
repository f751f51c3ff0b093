"""Packing against assignment and brute force; strategies."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.mechanism.tesserae.pack import Side, pack, pack_singly
from hs_core.mechanism.tesserae.strategies import Choice, best_alone, best_pair, features, next_probe
from hs_core.strategy import Strategy, parse


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
    """A language model in two strategies and a vision model. The default strategy is faster alone, and doesn't fit beside the other."""
    default, other = parse("pp=8"), parse("dp=2,pp=4")
    language = [Choice(default, "gpt as pp=8", 1.0), Choice(other, "gpt as dp=2,pp=4", 0.9)]
    vision = [Choice(None, "resnet")]
    slowed = {("gpt as dp=2,pp=4", "resnet"): (1.5, 1.25)}
    found = best_pair(language, vision, lambda *pair: slowed.get(pair))
    assert found is not None
    assert (found.placed.strategy, found.waiting.strategy) == (other, None)
    assert found.weight == pytest.approx(0.9 / 1.5 + 1 / 1.25)
    assert best_pair(language[:1], vision, lambda *pair: slowed.get(pair)) is None
    assert best_alone(language).strategy == default


def test_a_strategy_that_is_hardly_better_is_not_worth_a_restart() -> None:
    now, better = Choice(parse("dp=2"), "a as dp=2", 0.95), Choice(parse("tp=2"), "a as tp=2", 1.0)
    assert best_alone([now, replace(better, restarts=True)]) == now
    assert best_alone([now, better]) == better
    much = [replace(now, part=0.5), replace(better, restarts=True)]
    assert best_alone(much) == much[1]


def ways(gpus: int, layers: int) -> list[Strategy]:
    """All that use so many GPUs: layers cut evenly, and once more with one moved from the first stage to the last."""
    found = set()
    for tensor, depth in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16)):
        if gpus % (tensor * depth) == 0:
            even = [layers * (stage + 1) // depth - layers * stage // depth for stage in range(depth)]
            found.add(Strategy(gpus // (tensor * depth), tensor, depth, tuple(even)))
            if depth > 1:
                moved = (even[0] - 1, *even[1:-1], even[-1] + 1)
                found.add(Strategy(gpus // (tensor * depth), tensor, depth, moved))
    return sorted(found)


def test_probing_finds_the_best_strategy_within_a_third_of_the_budget() -> None:
    choices = ways(16, 48)
    table = features(choices)
    speed = 10 - ((table - np.array([2.0, 1.0, 1.0, 0.0])) ** 2).sum(axis=1)
    tried: list[int] = []
    for _ in range(len(choices) // 3):
        probe = next_probe(table, tried, [float(speed[at]) for at in tried])
        assert probe is not None
        assert probe not in tried
        tried.append(probe)
    assert max(speed[tried]) == speed.max()


def test_probing_ends_when_all_were_tried() -> None:
    assert next_probe(np.zeros((2, 1)), [0, 1], [1.0, 2.0]) is None


def test_probing_keeps_to_what_nobody_else_tries() -> None:
    table = features([parse("dp=4"), parse("tp=4"), parse("dp=2,tp=2")])
    assert next_probe(table, [0], [1.0], among=[1]) == 1
    assert next_probe(table, [], [], among=[2]) == 2
