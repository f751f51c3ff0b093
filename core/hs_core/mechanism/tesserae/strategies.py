"""Parallelism strategies as data: which there are, what a pair of jobs gets with the best of each, and which to measure next.

Tesserae, sections 4.2 (parallelism strategy) and 4.3 (minimizing profiling cost).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import erf, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from hs_core.errors import BrokenError, RefusedError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NONE = -1


@dataclass(frozen=True, slots=True, order=True)
class Strategy:
    """How a model is laid over GPUs: copies, slices of each layer, stages and the layers of each stage."""

    data: int = 1
    tensor: int = 1
    stages: tuple[int, ...] = (1,)  # layers of each pipeline stage

    @property
    def gpus(self) -> int:
        return self.data * self.tensor * len(self.stages)

    def features(self) -> tuple[float, ...]:
        """For estimates between strategies: degrees on a logarithmic scale, and how unlike the stages are."""
        layers = np.array(self.stages, float)
        return (
            np.log2(self.data),
            np.log2(self.tensor),
            np.log2(len(layers)),
            float(layers.std() / layers.mean()),
        )


def strategies(gpus: int, layers: int, most_tensor: int = 8) -> tuple[Strategy, ...]:
    """All that use exactly `gpus`: degrees that multiply to it, tensor slices up to `most_tensor` (GPUs of a server).

    Layers are split evenly, larger stages last; and once more with one layer moved from the first stage to the last, which has
    no embedding to hold.
    """
    if gpus < 1 or layers < 1:
        raise RefusedError(f"{gpus} GPUs and {layers} layers; expected at least 1 each")
    found = set()
    for tensor in range(1, min(gpus, most_tensor) + 1):
        for depth in range(1, min(gpus, layers) + 1):
            if gpus % (tensor * depth) == 0:
                even = [layers * (stage + 1) // depth - layers * stage // depth for stage in range(depth)]
                found.add(Strategy(gpus // (tensor * depth), tensor, tuple(even)))
                if depth > 1 and even[0] > 1:
                    found.add(
                        Strategy(gpus // (tensor * depth), tensor, (even[0] - 1, *even[1:-1], even[-1] + 1))
                    )
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants:
    """V pairs (class of jobs, strategy), all on one type of GPU with `gpu_bytes` of memory each."""

    job_class: Ints  # (V,) 0 to C - 1, every class at least once
    alone: Floats  # (V,) steps/s; 0: it doesn't fit even alone
    memory_bytes: Floats  # (V,) per GPU
    packed: Floats  # (V, V) steps/s of the first beside the second; 0: fails or wasn't measured
    gpu_bytes: float

    def __post_init__(self) -> None:
        count = len(self.job_class)
        for name, shape in (("alone", (count,)), ("memory_bytes", (count,)), ("packed", (count, count))):
            if getattr(self, name).shape != shape:
                raise BrokenError(f"{name} has shape {getattr(self, name).shape}; expected {shape}")
            if not (getattr(self, name) >= 0).all():
                raise RefusedError(f"{name} has {getattr(self, name).min()}; expected at least 0")


@dataclass(frozen=True, slots=True)
class Weights:
    """(C, C), by class of the placed and of the pending job."""

    weight: Floats  # sum of normalized throughputs; 0: they can't share
    placed: Ints  # the variant that each should run in; NONE where they can't share
    pending: Ints


def best_strategies(variants: Variants) -> Weights:
    """The best pair of variants for each pair of classes (figure 7): each job's packed throughput over that of its class's best variant alone."""
    classes = int(variants.job_class.max(initial=-1)) + 1
    alone = np.zeros(classes)
    np.maximum.at(alone, variants.job_class, variants.alone)
    each = alone[variants.job_class][:, None]
    normal = np.divide(variants.packed, each, out=np.zeros(variants.packed.shape), where=each > 0)
    fits = variants.memory_bytes[:, None] + variants.memory_bytes <= variants.gpu_bytes
    runs = (variants.packed > 0) & (variants.packed.T > 0)
    total = np.where(fits & runs, normal + normal.T, 0.0)
    best, first, second = np.zeros((classes, classes)), *(np.full((classes, classes), NONE) for _ in range(2))
    members = [np.flatnonzero(variants.job_class == number) for number in range(classes)]
    for a, mine in enumerate(members):
        for b, theirs in enumerate(members):
            block = total[np.ix_(mine, theirs)]
            if block.size and block.max() > 0:
                i, j = divmod(int(block.argmax()), len(theirs))
                best[a, b], first[a, b], second[a, b] = block[i, j], mine[i], theirs[j]
    return Weights(best, first, second)


def best_alone(variants: Variants) -> Ints:
    """(C,) the variant in which a class runs when it shares with nobody; NONE where none fits."""
    classes = int(variants.job_class.max(initial=-1)) + 1
    found = np.full(classes, NONE)
    speed = np.where(variants.memory_bytes <= variants.gpu_bytes, variants.alone, 0.0)
    for variant in np.argsort(speed, kind="stable"):
        if speed[variant] > 0:
            found[variants.job_class[variant]] = variant
    return found


def data_parallel(one_gpu: Floats, gpus: int) -> Floats:
    """Steps/s on `gpus` from those on one, alone or packed: proportional (4.3, for models with data parallelism only)."""
    if gpus < 1:
        raise RefusedError(f"gpus is {gpus}; expected at least 1")
    found: Floats = one_gpu * gpus
    return found


def next_probe(features: Floats, tried: Sequence[int], measured: Sequence[float]) -> int | None:
    """The strategy to measure next: the one of largest expected improvement; None: all were tried.

    Bayesian optimization with a Gaussian process (unit squared-exponential kernel on scaled features, a little noise). `features` (S, F);
    `tried` indices with the speeds `measured` for them, 0 for one that failed. The first is the one nearest to the middle.
    """
    if len(tried) != len(measured):
        raise BrokenError(f"{len(tried)} tried and {len(measured)} measured; expected as many")
    open_ = np.setdiff1d(np.arange(len(features)), np.asarray(tried, np.int64))
    if not len(open_):
        return None
    spread = features.std(axis=0)
    scaled = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    if not len(tried):
        return int((scaled**2).sum(axis=1).argmin())
    known = np.asarray(measured, float)
    unit = float(known.std()) or 1.0
    values = (known - known.mean()) / unit
    seen, rest = scaled[list(tried)], scaled[open_]
    covariance = _kernel(seen, seen) + 1e-4 * np.eye(len(seen))
    across = _kernel(rest, seen)
    solved = np.linalg.solve(covariance, np.column_stack([values, across.T]))
    mean = across @ solved[:, 0]
    deviation = np.sqrt(np.maximum(1 - (across * solved[:, 1:].T).sum(axis=1), 1e-12))
    z = (mean - values.max()) / deviation
    below = np.array([0.5 * (1 + erf(value / sqrt(2))) for value in z])
    gain = deviation * (z * below + np.exp(-(z**2) / 2) / sqrt(2 * pi))
    return int(open_[gain.argmax()])


def _kernel(a: Floats, b: Floats) -> Floats:
    found: Floats = np.exp(-0.5 * ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2))
    return found
