"""Goodput (Pollux, OSDI'21, 3): steps' throughput times how much each example still teaches, of a job by GPUs and batch.

An iteration on K GPUs over N servers, m examples on each GPU, s accumulation steps before the last:
`T = s * grad(m) + (grad(m)^g + sync(K, N)^g)^(1/g)`, batch `M = K * m * (s + 1)`. Of a batch M the part `(noise + M0) / (noise + M)` is worth what the
examples of the user's own batch M0 are, where noise is the gradient noise scale (measured, in examples). Batches stay between M0 and what the job allows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hs_core.errors import BrokenError

Floats = NDArray[np.float64]

SPLITS = 16  # sizes of a GPU's batch that are tried for each number of accumulation steps
MOST_STEPS = 15  # of accumulation, where the job's own mini-batch needs no more
OVERLAPS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds of an iteration, fitted to what was measured."""

    grad_s: float  # fixed part of computing gradients on a GPU
    grad_per_example_s: float
    local_s: float = 0.0  # synchronizing 2 GPUs of a server
    local_per_gpu_s: float = 0.0  # each GPU more
    far_s: float = 0.0  # the same over several servers
    far_per_gpu_s: float = 0.0
    overlap: float = 1.0  # g: 1 nothing of gradients and synchronizing overlaps, towards 10 all of it

    def __post_init__(self) -> None:
        parts = (self.grad_s, self.local_s, self.local_per_gpu_s, self.far_s, self.far_per_gpu_s)
        if min(parts) < 0 or self.grad_per_example_s <= 0 or self.overlap < 1:
            raise BrokenError(
                f"{self}; expected seconds of at least 0, above 0 for an example, an overlap of 1 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured iteration."""

    gpus: int
    servers: int
    per_gpu: int  # examples
    accumulate: int
    seconds: float


def fit(samples: Sequence[Sample]) -> Speed:
    """The speed that explains the samples: least squares of the parts, for each of some overlaps; the least error in ratio wins.

    What was never tried counts as free (the paper's prior): synchronizing costs nothing until the job has been on several GPUs, so that it
    gets to be tried; over several servers as much as on one, until it was measured there, and never less. Departure: the paper fits all at
    once by a quasi-Newton search from random starts.
    """
    if not samples or any(not (one.seconds > 0 and one.gpus >= 1 and one.per_gpu >= 1) for one in samples):
        raise BrokenError(
            f"{len(samples)} samples; expected one or more, with seconds, GPUs and examples above 0"
        )
    found = [_fit(samples, overlap) for overlap in OVERLAPS]
    return min(found, key=lambda speed: _error(samples, speed))


def _fit(samples: Sequence[Sample], overlap: float) -> Speed:
    # Gradients alone: from single GPUs; where there are none, from the fastest there is, as if synchronizing cost nothing.
    fewest = min(one.gpus for one in samples)
    alone = [one for one in samples if one.gpus == fewest]
    per_step = [one.seconds / (one.accumulate + 1) for one in alone]
    grad_s, example_s = _line([one.per_gpu for one in alone], per_step)
    if example_s <= 0:  # all of one size: the fixed part can't be told apart
        grad_s, example_s = (
            0.0,
            float(np.mean([t / one.per_gpu for t, one in zip(per_step, alone, strict=True)])),
        )
    parts = []
    for far in (False, True):
        here = [one for one in samples if one.gpus > 1 and (one.servers > 1) is far]
        syncs = []
        for one in here:
            grad = grad_s + example_s * one.per_gpu
            last = max(grad, one.seconds - one.accumulate * grad)
            syncs.append(max(0.0, last**overlap - grad**overlap) ** (1 / overlap))
        parts.append(_line([one.gpus - 2 for one in here], syncs) if here else (0.0, 0.0))
    (local_s, local_per_gpu_s), (far_s, far_per_gpu_s) = parts
    return Speed(
        grad_s=grad_s,
        grad_per_example_s=example_s,
        local_s=local_s,
        local_per_gpu_s=local_per_gpu_s,
        far_s=max(far_s, local_s),
        far_per_gpu_s=max(far_per_gpu_s, local_per_gpu_s),
        overlap=overlap,
    )


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Intercept and slope, both at least 0, of least squares."""
    at, value = np.asarray(x, float), np.asarray(y, float)
    spread = at - at.mean()
    slope = float(spread @ value / (spread @ spread)) if spread.any() else 0.0
    fixed = float(value.mean() - slope * at.mean())
    if slope < 0:
        return float(value.mean()), 0.0
    if fixed < 0:
        return 0.0, float(at @ value / (at @ at))
    return fixed, slope


def _error(samples: Sequence[Sample], speed: Speed) -> float:
    ratios = [
        one.seconds
        / float(
            iteration_s(
                speed, one.gpus, one.servers, np.array(float(one.per_gpu)), np.array(float(one.accumulate))
            )
        )
        for one in samples
    ]
    return float((np.log(ratios) ** 2).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """What a job declares, and what was measured of it."""

    speed: Speed
    batch: int  # the user's own
    most_batch: int  # the largest that the job allows
    most_per_gpu: int  # examples that fit into a GPU's memory
    noise: float  # gradient noise scale, examples
    least_gpus: int = 1
    most_gpus: int = 64
    servers: int = 0  # that it has its GPUs on, as many on each; 0: the fewest that have room

    def __post_init__(self) -> None:
        if not (1 <= self.batch <= self.most_batch and self.most_per_gpu >= 1 and self.noise >= 0):
            raise BrokenError(
                f"{self}; expected 1 <= batch <= most_batch, most_per_gpu of 1 or more, noise of 0 or more"
            )
        if not 1 <= self.least_gpus <= self.most_gpus:
            raise BrokenError(f"{self}; expected 1 <= least_gpus <= most_gpus")
        if self.servers > 1 and (self.least_gpus != self.most_gpus or self.most_gpus % self.servers):
            raise BrokenError(f"{self}; expected one number of GPUs, as many on each of its servers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The best way to run on some GPUs."""

    goodput: float  # examples a second, in worth of the user's batch; 0: it can't run there
    per_gpu: int = 0
    accumulate: int = 0  # steps before the one that synchronizes
    batch: int = 0
    efficiency: float = 0.0


def iteration_s(speed: Speed, gpus: int, servers: int, per_gpu: Floats, accumulate: Floats) -> Floats:
    grad = speed.grad_s + speed.grad_per_example_s * per_gpu
    if gpus == 1:
        sync = 0.0
    elif servers == 1:
        sync = speed.local_s + speed.local_per_gpu_s * (gpus - 2)
    else:
        sync = speed.far_s + speed.far_per_gpu_s * (gpus - 2)
    last: Floats = (grad**speed.overlap + sync**speed.overlap) ** (1 / speed.overlap)
    return accumulate * grad + last


def efficiency(job: Elastic, batch: Floats) -> Floats:
    worth: Floats = (job.noise + job.batch) / (job.noise + batch)
    return worth


@lru_cache(maxsize=1 << 14)  # from one decision to the next most jobs are as they were
def tune(job: Elastic, gpus: int, servers: int) -> Tuned:
    """The batch with the largest goodput on so many GPUs over so many servers; its own is rounded up to what all have alike."""
    if not job.least_gpus <= gpus <= job.most_gpus or not 1 <= servers <= gpus:
        return Tuned(goodput=0.0)
    if job.servers not in (0, servers):
        return Tuned(goodput=0.0)
    fewest = -(-job.batch // (gpus * job.most_per_gpu)) - 1
    steps = np.arange(MOST_STEPS + 1)[:, None] + (fewest if fewest > MOST_STEPS else 0)
    lanes = gpus * (steps + 1)
    low = -(-job.batch // lanes)
    high = np.minimum(job.most_per_gpu, np.maximum(job.most_batch // lanes, low))
    # Evenly in ratio from the least to the most: goodput is smooth and has one top.
    ratio = np.maximum(high, 1) / np.maximum(low, 1)
    per_gpu = np.rint(np.maximum(low, 1) * ratio ** (np.arange(SPLITS)[None, :] / (SPLITS - 1)))
    fits = (low <= high) & (per_gpu >= low) & (per_gpu <= high) & (per_gpu >= 1)
    if not fits.any():
        return Tuned(goodput=0.0)
    batch = per_gpu * lanes.astype(float)
    worth = efficiency(job, batch)
    goodput = np.where(
        fits, batch / iteration_s(job.speed, gpus, servers, per_gpu, steps.astype(float)) * worth, 0.0
    )
    row, col = np.unravel_index(int(np.argmax(goodput)), goodput.shape)
    return Tuned(
        goodput=float(goodput[row, col]),
        per_gpu=int(per_gpu[row, col]),
        accumulate=int(steps[row, 0]),
        batch=int(batch[row, col]),
        efficiency=float(worth[row, col]),
    )


def goodput(job: Elastic, gpus: int, servers: int, per_gpu: int, accumulate: int) -> float:
    """Of a given way to run, examples a second in worth of the user's batch."""
    batch = gpus * per_gpu * (accumulate + 1)
    seconds = iteration_s(job.speed, gpus, servers, np.array(float(per_gpu)), np.array(float(accumulate)))
    return batch / float(seconds) * float(efficiency(job, np.array(float(batch))))
