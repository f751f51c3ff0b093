"""Trains on handwritten digits on several GPUs (or CPU processes), in the parallelism strategy that the scheduler chose.

    hsctl submit --torchrun -G 2 --strategy dp=2 --strategy tp=2 -- python examples/strategies.py

Started by torchrun. With dp the copies share out each mini-batch and average their gradients. With tp the hidden layer is
cut into slices (Megatron-LM, section 3). Every rank saves the whole model, so a process that is started in another strategy
takes up from it what is its own. Ends with one line of JSON.
"""

import argparse
import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hs_job

BATCH, HIDDEN = 64, 64
SLICED = {
    "w1": 1,
    "b1": 0,
    "w2": 0,
}  # dimension of each weight that is cut into slices; others are whole everywhere


class Summed(torch.autograd.Function):
    """What the slices have of an output, added up; each slice's gradient is that of the sum."""

    @staticmethod
    def forward(_: Any, part: torch.Tensor, group: Any) -> torch.Tensor:
        whole = part.clone()
        distributed.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(_: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


class Model:
    """Two layers, of which this rank has a slice; and plain momentum, which is cut alike."""

    def __init__(self, tp: int, at: int, slices: Any, copies: Any) -> None:
        self._tp, self._at, self._slices, self._copies = tp, at, slices, copies
        torch.manual_seed(0)
        whole = {
            "w1": torch.randn(64, HIDDEN) / 8,
            "b1": torch.zeros(HIDDEN),
            "w2": torch.randn(HIDDEN, 10) / HIDDEN**0.5,
            "b2": torch.zeros(10),
        }
        self.weights = {name: nn.Parameter(self._slice(name, value)) for name, value in whole.items()}
        self.optimizer = torch.optim.SGD(self.weights.values(), lr=0.05, momentum=0.9)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        w = self.weights
        hidden = torch.relu(x @ w["w1"] + w["b1"])
        out: torch.Tensor = Summed.apply(hidden @ w["w2"], self._slices) + w["b2"]
        return out

    def step(self) -> None:
        for weight in self.weights.values():
            distributed.all_reduce(weight.grad, group=self._copies)
            assert weight.grad is not None
            weight.grad /= distributed.get_world_size(self._copies)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Whole, on every rank; all of them ask for it at the same step."""
        momentum = {
            name: self.optimizer.state[weight].get("momentum_buffer", torch.zeros_like(weight))
            for name, weight in self.weights.items()
        }
        own = {name: self._whole(name, weight.detach()) for name, weight in self.weights.items()}
        return own | {f"{name}.momentum": self._whole(name, value) for name, value in momentum.items()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        for name, weight in self.weights.items():
            weight.data.copy_(self._slice(name, state[name]))
            buffer = self._slice(name, state[f"{name}.momentum"]).clone()
            self.optimizer.state[weight]["momentum_buffer"] = buffer

    def _slice(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        if name not in SLICED:
            return whole.clone()
        return whole.chunk(self._tp, SLICED[name])[self._at].clone()

    def _whole(self, name: str, part: torch.Tensor) -> torch.Tensor:
        if name not in SLICED:
            return part
        parts = [torch.empty_like(part) for _ in range(self._tp)]
        distributed.all_gather(parts, part.contiguous(), group=self._slices)
        return torch.cat(parts, SLICED[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--step-s", type=float, default=0.0, help="wait so long after each step, for each copy"
    )
    parser.add_argument("--curve", type=Path, help="write a line of JSON a step to this file")
    args = parser.parse_args()

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    how = hs_job.strategy(dp=world)
    if how.dp * how.tp != world:
        raise SystemExit(f"{world} processes in {how}: expected dp * tp of them")
    copy, at = divmod(rank, how.tp)
    slices = [distributed.new_group(list(range(c * how.tp, (c + 1) * how.tp))) for c in range(how.dp)][copy]
    copies = [distributed.new_group(list(range(a, world, how.tp))) for a in range(how.tp)][at]

    x, y = (torch.as_tensor(each) for each in load_digits(return_X_y=True))
    x = x.float() / 16
    train = TensorDataset(x[:1536], y[:1536])
    sampler = DistributedSampler(train, num_replicas=how.dp, rank=copy, seed=0, drop_last=True)
    loader = DataLoader(train, batch_size=BATCH // how.dp, sampler=sampler, drop_last=True)
    model = Model(how.tp, at, slices, copies)
    state = hs_job.state(model=model, loader=loader)

    step = state.step
    with contextlib.ExitStack() as stack:
        curve = stack.enter_context(args.curve.open("a", buffering=1)) if args.curve and rank == 0 else None
        for epoch in range(state.epoch, args.epochs):
            sampler.set_epoch(epoch)
            for images, labels in loader:
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                model.step()
                step += 1
                mean = loss.detach().clone()
                distributed.all_reduce(mean, group=copies)
                if curve:
                    told = {"step": step, "loss": mean.item() / how.dp, "dp": how.dp, "tp": how.tp}
                    curve.write(json.dumps(told) + "\n")
                time.sleep(args.step_s * how.dp)

    with torch.no_grad():
        accuracy = (model(x[1536:]).argmax(1) == y[1536:]).float().mean().item()
    if rank == 0:
        print(
            json.dumps({"accuracy": round(accuracy, 4), "steps": step, "dp": how.dp, "tp": how.tp}),
            flush=True,
        )
    with contextlib.suppress(RuntimeError):
        distributed.barrier()  # as examples/digits_ddp.py says
    os._exit(0)


if __name__ == "__main__":
    main()
