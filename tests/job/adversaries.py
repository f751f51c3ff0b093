"""Two optimizers that step in turn: prints one line `step loss` (repr) per mini-batch and a digest of the final weights. Not a test."""

import hashlib
import os
import sys

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

import hs_job

HOW = sys.argv[1]
torch.manual_seed(1)
torch.set_num_threads(1)
numbers = torch.randn(64, 4, generator=torch.Generator().manual_seed(5))
loader = DataLoader(TensorDataset(numbers), batch_size=8, shuffle=True)
words = nn.Embedding(6, 3, sparse=True)
maker = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
judge = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
makes = torch.optim.Adam(maker.parameters(), 1e-3)
judges = torch.optim.Adam(judge.parameters(), 1e-3)
speaks = torch.optim.SparseAdam(words.parameters(), 1e-3)
state = hs_job.state(
    maker=maker, judge=judge, words=words, makes=makes, judges=judges, speaks=speaks, loader=loader
)
for optimizer in (makes, judges, speaks):
    optimizer.zero_grad()
step = state.step


def verdict(x: torch.Tensor, true: float) -> torch.Tensor:
    return binary_cross_entropy_with_logits(judge(x), torch.full((len(x), 1), true))


def noise(x: torch.Tensor) -> torch.Tensor:
    return torch.randn(len(x), 3)


def train_judge(x: torch.Tensor, *, steps: bool = True) -> torch.Tensor:
    loss = verdict(x, 1.0) + verdict(maker(noise(x)).detach(), 0.0)
    loss.backward()
    if steps:
        judges.step()
        judges.zero_grad()
    return loss


def train_maker(x: torch.Tensor) -> torch.Tensor:
    """What it leaves in the judge is nobody's, and cleared where the judge's does not add up."""
    loss = verdict(maker(noise(x)), 1.0)
    for parameter, gradient in zip(
        maker.parameters(), torch.autograd.grad(loss, list(maker.parameters())), strict=True
    ):
        parameter.grad = gradient
    makes.step()
    return loss


def train_words(x: torch.Tensor, *, steps: bool) -> None:
    """Their gradient is sparse."""
    said = words(torch.randint(6, (len(x),)))
    verdict(maker(said), 1.0).backward(inputs=[words.weight])
    if steps:
        speaks.step()
        speaks.zero_grad()


for _ in range(state.epoch, 3):
    for (x,) in loader:
        if HOW == "both":
            train_judge(x)
            loss = train_maker(x)
        elif HOW == "turns":
            loss = train_judge(x) if step % 2 == 0 else train_maker(x)
        else:
            train_judge(x, steps=step % 4 == 3)
            train_words(x, steps=step % 5 == 4)
            loss = train_maker(x)
        step += 1
        os.write(1, f"0:{step} {loss.item()!r}\n".encode())

digest = hashlib.sha256()
for model in (words, maker, judge):
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
os.write(1, f"0:weights {digest.hexdigest()}\n".encode())
