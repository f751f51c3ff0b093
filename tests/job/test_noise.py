"""The gradient noise scale against a problem of which it is known: gradients g + e with e from a normal distribution, so tr(S)/|g|^2 exactly."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from job_stub import StubAgent
from moving import let_go
from warm import Warm

from hs_core.events.host import JobProgressed
from hs_core.forms import ENOUGH_NOISE
from hs_job import noise
from hs_job.noise import Estimate, Meter

WIDTH, SIGMA, MEAN = 200, 0.5, 0.1
KNOWN = SIGMA**2 / MEAN**2  # in each direction, and so in all


def squared_norm(dice: Random, examples: int) -> float:
    """Of the mean gradient of so many examples."""
    return sum((MEAN + SIGMA * dice.gauss(0, 1) / examples**0.5) ** 2 for _ in range(WIDTH))


@pytest.mark.parametrize(("small", "big"), [(8, 32), (4, 8), (16, 512)])
def test_an_estimate_is_right_in_the_mean(small: int, big: int) -> None:
    dice, found = Random(7), Estimate(small, big)
    for _ in range(noise.RECENT):
        found.add(squared_norm(dice, small), squared_norm(dice, big))
    assert found.scale == pytest.approx(KNOWN, rel=0.1)


def test_an_estimate_follows_noise_that_grows_as_training_goes_on() -> None:
    dice, found = Random(7), Estimate(8, 32)
    for at in range(6 * noise.RECENT):
        factor = 1.0 if at < noise.RECENT else 0.25  # the gradient has become half as long
        spread = SIGMA**2 * WIDTH
        found.add(
            factor * MEAN**2 * WIDTH + spread / 8 * dice.gauss(1, 0.1),
            factor * MEAN**2 * WIDTH + spread / 32 * dice.gauss(1, 0.1),
        )
    assert found.scale == pytest.approx(4 * KNOWN, rel=0.1)


def test_nothing_but_noise_has_no_scale_and_no_noise_has_zero() -> None:
    found = Estimate(8, 32)
    assert found.scale is None
    found.add(4.0, 1.0)
    assert found.scale is None, "norms fall as they would without any gradient"
    exact = Estimate(8, 32)
    exact.add(2.0, 2.0)
    assert (exact.scale, exact.samples) == (0.0, 1)
    exact.add(float("inf"), 2.0)
    exact.add(2.0, float("nan"))
    assert exact.samples == 1


@pytest.mark.parametrize(("small", "big"), [(0, 8), (8, 8), (9, 8)])
def test_one_batch_size_is_refused(small: int, big: int) -> None:
    with pytest.raises(ValueError, match="expected 0 < the first < the second"):
        Estimate(small, big)


def train(meter: Meter, *, batch: int = 32, parts: int = 4, steps: int = 200, spoil: Any = None) -> None:
    torch.manual_seed(3)
    weights = torch.nn.Parameter(torch.zeros(WIDTH))
    optimizer = torch.optim.SGD([weights], lr=0.0)
    for _ in range(steps * noise.EVERY + 1):
        optimizer.zero_grad()
        for part in (MEAN + SIGMA * torch.randn(batch, WIDTH)).chunk(parts):
            ((part @ weights).mean() / parts).backward()
        if spoil is not None:
            spoil([weights])
        optimizer.step()
        meter.stepped(optimizer, 1)


def test_gradients_that_are_accumulated_tell_it() -> None:
    meter = Meter(torch, 32, 4)
    train(meter)
    assert meter.told is not None
    scale, samples = meter.told
    assert (scale, samples) == (pytest.approx(KNOWN, rel=0.1), 199)


def test_clipped_gradients_and_other_parts_than_were_told_are_not_measured() -> None:
    clipped = Meter(torch, 32, 4)
    train(clipped, steps=3, spoil=lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.1))
    assert clipped.told is None
    other = Meter(torch, 32, 2)
    train(other, steps=3)
    assert other.told is None


def test_one_part_on_one_rank_and_several_optimizers_tell_nothing() -> None:
    alone = Meter(torch, 32, 1)
    train(alone, parts=1, steps=3)
    assert alone.estimate is None
    two = Meter(torch, 32, 4)
    for _ in range(2):
        train(two, steps=3)
    assert two.estimate is None


@pytest.mark.parametrize(
    ("batch", "parts"),
    [("", "1"), ("8", "x"), ("2", "4"), ("-8", "1")],
    ids=["rigid", "no number", "too many", "less"],
)
def test_who_was_not_told_how_mini_batches_are_made_has_no_meter(
    monkeypatch: pytest.MonkeyPatch, batch: str, parts: str
) -> None:
    monkeypatch.setenv("HS_BATCH_PER_GPU", batch)
    monkeypatch.setenv("HS_ACCUMULATION_STEPS", parts)
    assert noise.meter(torch) is None


SCRIPT = f"""
import os, torch, hs_job
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
ranks = int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1:
    distributed.init_process_group("gloo")
torch.manual_seed(5 + int(os.environ.get("RANK", "0")))
batch, parts = hs_job.batch_per_gpu(8), hs_job.accumulation_steps()
class Slope(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros({WIDTH}))
    def forward(self, x):
        return (x @ self.weights).mean()
model = Slope()
if ranks > 1:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
loader = DataLoader(TensorDataset({MEAN} + {SIGMA} * torch.randn(batch * {120 * noise.EVERY}, {WIDTH})), batch_size=batch)
for xs, in loader:
    optimizer.zero_grad()
    for part in xs.chunk(parts):
        (model(part) / parts).backward()
    optimizer.step()
if ranks > 1:
    distributed.barrier()
os.write(1, b"done")
"""


@pytest.mark.parametrize(
    ("ranks", "batch", "parts"), [(1, 16, 4), (2, 8, 1), (2, 8, 2)], ids=["parts", "ranks", "parts of ranks"]
)
def test_a_real_job_says_its_noise_scale_with_its_progress(
    tmp_path: Path, warm: Warm, ranks: int, batch: int, parts: int
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with StubAgent(tmp_path, warm, progress_s=0.2) as agent:
        told = {"HS_BATCH_PER_GPU": str(batch), "HS_ACCUMULATION_STEPS": str(parts)}
        job = agent.run(str(script), env=told, ranks=ranks if ranks > 1 else 0)
        let_go(agent)
        assert job.stdout is not None
        assert job.stdout.read() == "done" * ranks
        said = [one for one in agent.events if isinstance(one, JobProgressed) and one.noise_samples]
    assert [one.noise_samples for one in said] == sorted(one.noise_samples for one in said)
    assert said[-1].noise_samples >= ENOUGH_NOISE
    assert said[-1].noise_scale == pytest.approx(KNOWN, rel=0.35)


def test_a_job_that_is_not_elastic_says_nothing_of_it(tmp_path: Path, warm: Warm) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with StubAgent(tmp_path, warm, progress_s=0.2) as agent:
        job = agent.run(str(script), env={"HS_ACCUMULATION_STEPS": "1"})
        let_go(agent)
        assert job.stdout is not None
        assert job.stdout.read() == "done"
        said = [one for one in agent.events if isinstance(one, JobProgressed)]
    assert said
    assert all(one.noise_samples == 0 for one in said)
