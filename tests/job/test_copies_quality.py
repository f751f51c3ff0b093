"""Copies that are averaged learn as well as one process (HadarE; Hadar, section VI)."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from hs_core.mechanism.hadare import portions
from hs_job import average

Weights = Mapping[str, Tensor]

STEPS, ROUNDS, SIZE = 1200, 6, 32
NODES = [10.0, 6.0, 6.0, 2.0, 2.0]  # speeds


class Digits:
    """Handwritten digits and a small network with running statistics: parameters, averages and counters in its state."""

    def __init__(self) -> None:
        from sklearn.datasets import load_digits  # takes as long as torch, and others here do without

        images, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        self.x, self.y = torch.tensor(images).float()[order] / 16, torch.tensor(labels)[order]

    def fresh(self) -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))

    def train(self, state: Weights, first: int, steps: int, seed: int) -> Weights:
        """These steps of a run over the first 1,200 images, shuffled anew in each epoch."""
        model = self.fresh()
        model.load_state_dict(dict(state))
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
        return copy_of(model)

    def judge(self, state: Weights) -> tuple[float, float]:
        """Loss and accuracy on the other images."""
        model = self.fresh().eval()
        model.load_state_dict(dict(state))
        with torch.no_grad():
            said = model(self.x[1200:])
        right = (said.argmax(1) == self.y[1200:]).float().mean()
        return float(nn.functional.cross_entropy(said, self.y[1200:])), float(right)


def copy_of(model: nn.Module) -> Weights:
    return {name: value.clone() for name, value in model.state_dict().items()}


def averaged(copies: Sequence[Weights], steps: Sequence[int]) -> Weights:
    """As the process makes it that goes on from their checkpoints."""
    kept = [{"objects": {"model": copy}, "data": None} for copy in copies]
    found: Weights = average.merged(kept, steps, sum(steps))["objects"]["model"]
    return found


def test_a_network_trained_as_averaged_copies_is_as_good_as_one_trained_alone() -> None:
    """The state dicts of real training, five copies of unlike speed, each on its part of the batches."""
    torch.set_num_threads(1)
    task = Digits()
    start = copy_of(task.fresh())
    parts = portions(STEPS // ROUNDS, NODES).tolist()
    alone, together = [], []
    for seed in range(3):
        alone.append(task.judge(task.train(start, 0, STEPS, seed)))
        state = start
        for done in range(0, STEPS, STEPS // ROUNDS):
            copies = [
                task.train(state, done + sum(parts[:at]), steps, seed) for at, steps in enumerate(parts)
            ]
            state = averaged(copies, parts)
        assert state["1.num_batches_tracked"] == ROUNDS * parts[0], "whole numbers are the busiest copy's"
        together.append(task.judge(state))
    (loss_alone, right_alone), (loss, right) = np.mean(alone, axis=0), np.mean(together, axis=0)
    assert loss <= 1.02 * loss_alone
    assert right >= right_alone - 0.005
