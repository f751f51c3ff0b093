"""HadarE's copies: no node idles, steps add up, averages are averages."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import nn

from hs_core.errors import RefusedError
from hs_core.mechanism.hadare import (
    IDLE,
    Jobs,
    Merge,
    Report,
    State,
    Tracker,
    assign,
    copy_id,
    first_guess,
    job_of,
    merged,
    orders,
    portions,
)

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


@given(st.integers(1, 100), st.data())
def test_a_copys_id_says_whose_copy_it_is(most: int, data: st.DataObject) -> None:
    job, copy = data.draw(st.integers(0, most - 1)), data.draw(st.integers(1, 50))
    assert job_of(copy_id(job, copy, most), most) == (job, copy)


def test_the_tracker_adds_up_and_drops_what_is_finished() -> None:
    tracker = Tracker.new(10).add(3, 100).add(4, 50)
    tracker, merges = tracker.after([Report(13, 30), Report(23, 10), Report(14, 50), Report(24, 0)])
    assert merges == (
        Merge(3, (13, 23), (0.75, 0.25), 13, finished=False),
        Merge(4, (14,), (1.0,), 14, finished=True),
    )
    assert tracker.left(3) == 60
    assert tracker.steps == {3: 100}
    tracker, merges = tracker.after([Report(13, 60)])
    assert merges[0].finished
    assert tracker == Tracker.new(10)


def test_a_round_in_which_nothing_was_done_merges_nothing() -> None:
    tracker = Tracker.new(10).add(3, 100)
    assert tracker.after([Report(13, 0)]) == (tracker, ())


@pytest.mark.parametrize(
    ("reports", "said"),
    [
        ([Report(15, 1)], "job 5, which is not tracked"),
        ([Report(13, 1), Report(13, 2)], "copy 13 reports twice"),
        ([Report(13, -1)], "copy 13 reports -1 steps"),
        ([Report(3, 1)], "3 is no copy's id"),
    ],
)
def test_reports_that_cannot_be_are_refused(reports: list[Report], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        Tracker.new(10).add(3, 100).after(reports)


def test_merging_averages_parameters_and_keeps_the_counters_of_the_busiest() -> None:
    states = {
        13: {"w": np.array([1.0, 2.0], np.float32), "seen": np.array(30)},
        23: {"w": np.array([5.0, 2.0], np.float32), "seen": np.array(10)},
    }
    found = merged(states, Merge(3, (13, 23), (0.75, 0.25), 13, finished=False))
    assert found["w"].tolist() == [2.0, 2.0]
    assert found["w"].dtype == np.float32
    assert found["seen"] == 30
    states[23].pop("seen")
    with pytest.raises(RefusedError, match=r"differ in entries \['seen'\]"):
        merged(states, Merge(3, (13, 23), (0.75, 0.25), 13, finished=False))


def test_averaged_copies_fit_as_well_as_one_that_saw_all() -> None:
    """Linear regression by gradient steps: three copies on their own batches, averaged each round, against one."""
    dice = np.random.default_rng(0)
    truth = dice.normal(size=8)
    inputs = dice.normal(size=(3000, 8))
    targets = inputs @ truth + 0.1 * dice.normal(size=3000)

    def train(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
        for batch in np.array_split(rows, max(len(rows) // 10, 1)):
            error = inputs[batch] @ weights - targets[batch]
            weights = weights - 0.05 * inputs[batch].T @ error / len(batch)
        return weights

    alone, together = train(np.zeros(8), np.arange(3000)), np.zeros(8)
    for rows in np.array_split(np.arange(3000), 5):
        parts = np.split(rows, np.cumsum(portions(600, [3.0, 2.0, 1.0]))[:-1])
        steps = [len(part) for part in parts]
        merge = Tracker.new(1).add(0, 10**6).after([Report(copy + 1, steps[copy]) for copy in range(3)])[1][0]
        together = merged({copy + 1: {"w": train(together, parts[copy])} for copy in range(3)}, merge)["w"]

    def loss(weights: np.ndarray) -> float:
        return float(((inputs @ weights - targets) ** 2).mean())

    assert loss(together) == pytest.approx(loss(alone), rel=0.02)


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


STEPS, ROUNDS, SIZE = 1200, 6, 32
NODES = [10.0, 6.0, 6.0, 2.0, 2.0]  # speeds


class Digits:
    """Handwritten digits and a small network with running statistics: parameters, averages and counters in its state."""

    def __init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        self.x, self.y = torch.tensor(images).float()[order] / 16, torch.tensor(labels)[order]

    def fresh(self) -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))

    def train(self, state: State, first: int, steps: int, seed: int) -> dict[str, np.ndarray]:
        """These steps of a run over the first 1,200 images, shuffled anew in each epoch."""
        model = self.fresh()
        model.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        dice, in_epoch = torch.Generator().manual_seed(seed), 1200 // SIZE
        orders = [torch.randperm(1200, generator=dice) for _ in range(1 + (first + steps) // in_epoch)]
        for step in range(first, first + steps):
            epoch, batch = divmod(step, in_epoch)
            rows = orders[epoch][batch * SIZE : (batch + 1) * SIZE]
            loss = nn.functional.cross_entropy(model(self.x[rows]), self.y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {name: value.numpy() for name, value in model.state_dict().items()}

    def judge(self, state: State) -> tuple[float, float]:
        """Loss and accuracy on the other images."""
        model = self.fresh().eval()
        model.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
        with torch.no_grad():
            said = model(self.x[1200:])
        right = (said.argmax(1) == self.y[1200:]).float().mean()
        return float(nn.functional.cross_entropy(said, self.y[1200:])), float(right)


def test_a_network_trained_as_averaged_copies_is_as_good_as_one_trained_alone() -> None:
    """The state dicts of real training, five copies of unlike speed, each on its part of the batches."""
    torch.set_num_threads(1)
    task = Digits()
    start = {name: value.numpy() for name, value in task.fresh().state_dict().items()}
    alone, together = [], []
    for seed in range(3):
        alone.append(task.judge(task.train(start, 0, STEPS, seed)))
        state: State = start
        tracker, done = Tracker.new(1).add(0, STEPS), 0
        for _ in range(ROUNDS):
            parts = portions(STEPS // ROUNDS, NODES).tolist()
            copies = {
                at + 1: task.train(state, done + sum(parts[:at]), steps, seed)
                for at, steps in enumerate(parts)
            }
            tracker, [merge] = tracker.after([Report(at + 1, steps) for at, steps in enumerate(parts)])
            state, done = merged(copies, merge), done + sum(parts)
        assert merge.finished
        assert state["1.num_batches_tracked"] == ROUNDS * parts[0], "whole numbers are the busiest copy's"
        together.append(task.judge(state))
    (loss_alone, right_alone), (loss, right) = np.mean(alone, axis=0), np.mean(together, axis=0)
    assert loss <= 1.02 * loss_alone
    assert right >= right_alone - 0.005
