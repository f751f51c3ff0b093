"""Parallelism strategies: what a pair of jobs gets with the best of each, and which to measure next.

Tesserae, sections 4.2 (parallelism strategy) and 4.3 (minimizing profiling cost).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import erf, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from hs_core.errors import BrokenError
from hs_core.strategy import Strategy

Floats = NDArray[np.float64]
RESTARTED = 1.1
"""Times as much that must get done where a job is restarted for it: strategies that are nearly as good are not changed to and fro."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A strategy in which a job may run in this round."""

    strategy: Strategy | None  # None: it declared none
    job_class: str  # whose rates are its own there
    part: float = 1.0  # of its speed alone in its best strategy, with its GPUs for itself; 1 where that was not measured
    restarts: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    weight: float  # sum of what both get done beside each other, as parts of what each would alone in its best strategy
    placed: Choice
    waiting: Choice


Slowed = Callable[[str, str], tuple[float, float] | None]
"""How many times as long jobs of two classes take beside each other; None: they do not fit."""


def best_pair(
    placed: Sequence[Choice],
    waiting: Sequence[Choice],
    slowed: Slowed,
    may_be: Callable[[Choice, Choice], bool] = lambda _one, _other: True,
) -> Pair | None:
    """The best choice for both (figure 7) of those that `may_be`, where that is worth the restarts; None: they do not fit in any. Of equal ones the first."""
    best, found = 0.0, None
    for one in placed:
        for other in waiting:
            times = slowed(one.job_class, other.job_class) if may_be(one, other) else None
            if times is None:
                continue
            weight = one.part / times[0] + other.part / times[1]
            score = weight / RESTARTED ** (one.restarts + other.restarts)
            if score > best:
                best, found = score, Pair(weight, one, other)
    return found


def best_alone(choices: Sequence[Choice]) -> Choice:
    """With its GPUs for itself, restart counted. Of equal ones the first."""
    return max(choices, key=lambda choice: choice.part / RESTARTED**choice.restarts)


def features(strategies: Sequence[Strategy]) -> Floats:
    """(S, 4), for estimates between strategies: degrees on a logarithmic scale, and how unlike the stages are."""
    return np.array([
        (np.log2(each.data), np.log2(each.tensor), np.log2(each.pipeline), _unlike(each.layers))
        for each in strategies
    ])  # fmt: skip


def _unlike(layers: Sequence[int]) -> float:
    return float(np.std(layers) / np.mean(layers)) if layers else 0.0


def next_probe(
    features: Floats, tried: Sequence[int], measured: Sequence[float], among: Sequence[int] | None = None
) -> int | None:
    """The strategy to measure next: the one of largest expected improvement; None: all were tried.

    Bayesian optimization with a Gaussian process (unit squared-exponential kernel on scaled features, a little noise). `features` (S, F);
    `tried` indices with the speeds `measured` for them, 0 for one that failed. The first is the one nearest to the middle. `among`: of these; None: of all.
    """
    if len(tried) != len(measured):
        raise BrokenError(f"{len(tried)} tried and {len(measured)} measured; expected as many")
    open_ = np.setdiff1d(
        np.arange(len(features)) if among is None else np.asarray(among, np.int64),
        np.asarray(tried, np.int64),
    )
    if not len(open_):
        return None
    spread = features.std(axis=0)
    scaled = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    if not len(tried):
        return int(open_[(scaled[open_] ** 2).sum(axis=1).argmin()])
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
