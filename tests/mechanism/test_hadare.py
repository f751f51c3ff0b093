"""HadarE's copies: no node idles, and steps add up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.errors import RefusedError
from hs_core.mechanism.hadare import IDLE, Jobs, assign, first_guess, orders, portions

ROUND_S = 360.0


def cluster(seed: int, jobs: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    dice = np.random.default_rng(seed)
    return dice.uniform(0.5, 2, (jobs, nodes)) * dice.uniform(1, 8, nodes), dice.integers(200, 20_000, jobs)


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_no_node_idles_in_any_round_but_the_last(seed: int, count: int, nodes: int) -> None:
    rates, total = cluster(seed, count, nodes)
    left, rounds = total.copy(), []
    while (left > 0).any():
        runs = np.flatnonzero(left > 0)
        facts = Jobs(
            rates=rates[runs],
            steps=total[runs],
            left=left[runs],
            age_s=np.full(len(runs), ROUND_S * len(rounds)),
        )
        chosen = assign(facts, ROUND_S)
        assert (chosen != IDLE).all()
        told = orders(facts, chosen)
        did = np.minimum(told, np.floor(rates[runs][chosen, np.arange(nodes)] * ROUND_S).astype(np.int64))
        rounds.append(did)
        np.subtract.at(left, runs[chosen], did)
        assert (left >= 0).all()
        # Whoever had nothing to do could not have helped: every job that still needs a round has all the nodes that it can use.
        if (did == 0).any():
            finishing = (
                np.bincount(chosen, rates[runs][chosen, np.arange(nodes)], len(runs)) * ROUND_S >= facts.left
            )
            assert finishing.all()
    # Steps are whole: what rounding leaves of a job that should have ended makes the last round.
    assert all((did > 0).all() for did in rounds[:-2])
    assert np.sum(rounds) == total.sum()


def test_forking_finishes_sooner_than_one_node_for_each_job() -> None:
    rates = np.array([[4.0, 3.0, 2.0, 1.0, 1.0]] * 3)
    total = np.array([3000, 6000, 20_000])

    def rounds(copies: int | None) -> int:
        left, count = total.copy(), 0
        while (left > 0).any():
            runs = np.flatnonzero(left > 0)
            facts = Jobs(
                rates=rates[runs],
                steps=total[runs],
                left=left[runs],
                age_s=np.full(len(runs), ROUND_S * count),
            )
            chosen = assign(facts, ROUND_S, copies)
            told = orders(facts, chosen)
            for node in np.flatnonzero(chosen != IDLE):
                left[runs[chosen[node]]] -= min(told[node], int(rates[0, node] * ROUND_S))
            count += 1
        return count

    assert rounds(None) <= np.ceil(total.sum() / (rates[0].sum() * ROUND_S)) + 1  # all nodes busy throughout
    assert rounds(1) >= 1.7 * rounds(None)


def test_a_node_out_of_service_gets_nothing() -> None:
    facts = Jobs(
        rates=np.array([[2.0, 0.0, 1.0]]), steps=np.array([90]), left=np.array([90]), age_s=np.zeros(1)
    )
    chosen = assign(facts, ROUND_S)
    assert chosen.tolist() == [0, IDLE, 0]
    assert orders(facts, chosen).tolist() == [60, 0, 30]


@given(st.integers(0, 10**6), st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_portions_add_up_and_are_within_a_step_of_the_rates(steps: int, rates: list[float]) -> None:
    found = portions(steps, rates)
    assert found.sum() == steps
    assert np.abs(found - steps * np.array(rates) / sum(rates)).max() < 1


def test_the_first_guess_follows_hardware_batch_and_sizes() -> None:
    def guess(
        tflops: float = 65, memory: float = 16, *, pcie: int = 3, batch: int = 32, model: str = "M"
    ) -> float:
        return float(
            first_guess(
                tensor_tflops=tflops, memory_gib=memory, pcie=pcie, batch=batch, model=model, data="M"
            )
        )

    base = guess()
    assert guess(130) == pytest.approx(2 * base)
    assert guess(65, 64) == pytest.approx(base / 2)
    assert guess(pcie=4) == pytest.approx(2 * base)
    assert guess(batch=64) == pytest.approx(2 * base)
    assert guess(model="XL") == pytest.approx(base / 2)
    with pytest.raises(RefusedError, match="model is 'XXL'"):
        guess(model="XXL")
