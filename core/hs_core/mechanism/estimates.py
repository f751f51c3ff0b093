"""Speeds of job classes on GPU models, also where nobody has measured them yet: what LPs and prices are made of.

A class that was measured on some model is taken to be as much faster or slower elsewhere as the classes that were measured on both (the
median), or on both and on models between. One that was measured nowhere is taken as the median class. That serves until it has run where it is sent.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import median

import numpy as np
from numpy.typing import NDArray

from hs_core.newest import Newest
from hs_core.policy import Snapshot

Floats = NDArray[np.float64]
Rates = Mapping[tuple[str, str], float]

NEWER = 1.01  # times as fast: more than the gaps to which programs are solved (1e-3 at most), less than what is worth a move


class Estimates:
    """Mini-batches a second on `models`, by class."""

    def __init__(self, rates: Rates, models: Sequence[str]) -> None:
        """`rates`: as in a snapshot; `models`: newest first."""
        self._models = tuple(models)
        self._rates = rates
        self._classes = tuple(dict.fromkeys(job_class for job_class, _ in rates))
        self._found: dict[str, tuple[float, ...]] = {}
        self._fastest: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {}
        self._typical: Floats | None = None
        self._group: list[int] = []  # of each model: alike for those between which measured classes tell

    def fastest(self, job_class: str, models: tuple[str, ...]) -> tuple[str, ...]:
        """Those of these models where the class runs, the fastest first; of equals those that were measured; else as they come.

        One of which nothing tells how fast it is beside those that the class was measured on goes before those that come after it, as newer models come
        first: who stays on the others never finds out.
        """
        found = self._fastest.get((job_class, models))
        if found is None:
            found = self._fastest[job_class, models] = tuple(self._rank(job_class, models))
        return found

    def _rank(self, job_class: str, models: tuple[str, ...]) -> list[str]:
        speeds = dict(zip(self._models, self.speeds(job_class), strict=True))
        able = [model for model in models if speeds[model] != 0.0]
        unknown = self._unknown(job_class)
        ranked = [model for model in able if model not in unknown]
        ranked.sort(key=lambda model: (-speeds[model], (job_class, model) not in self._rates))
        for model in reversed([model for model in able if model in unknown]):
            later = set(able[able.index(model) :])
            ranked.insert(next((at for at, one in enumerate(ranked) if one in later), len(ranked)), model)
        return ranked

    def _unknown(self, job_class: str) -> frozenset[str]:
        """Models that no measured class compares with any on which this one was measured; none, if it was measured nowhere."""
        known = {at for at, model in enumerate(self._models) if self._rates.get((job_class, model))}
        if not 0 < len(known) < len(self._models):
            return frozenset()
        self._medians()
        told = {self._group[at] for at in known}
        return frozenset(
            model for model, group in zip(self._models, self._group, strict=True) if group not in told
        )

    def measured(self, job_class: str) -> bool:
        """On some of the models, so that it is known how long its mini-batches take."""
        return any(self._rates.get((job_class, model)) for model in self._models)

    def speeds(self, job_class: str) -> tuple[float, ...]:
        """On each of the models steps/s; 0.0 where it was measured not to run."""
        found = self._found.get(job_class)
        if found is None:
            rates = [self._rates.get((job_class, model)) for model in self._models]
            known = {at: rate for at, rate in enumerate(rates) if rate is not None}
            all_known = len(known) == len(self._models)
            found = tuple(known.values() if all_known else self._estimate(known).tolist())
            self._found[job_class] = found
        return found

    def _estimate(self, known: Mapping[int, float]) -> Floats:
        typical = self._medians()
        of = [rate / typical[at] for at, rate in known.items() if rate > 0]
        scale = median(of) if of else 1.0
        speeds: Floats = typical * scale
        for at, rate in known.items():
            speeds[at] = rate
        return speeds

    def _medians(self) -> Floats:
        """Of an imagined class in the middle: its speed on each model, as far as classes were measured on two; the nearest two first."""
        if self._typical is None:
            count = len(self._models)
            found, self._group = np.ones(count), list(range(count))
            left, ratio = list(range(1, count)), cache(self._ratio)
            while left:
                ways = ((at, at + step) for gap in range(1, count) for at in left for step in (-gap, gap))
                known = ((at, to) for at, to in ways if 0 <= to < count and to not in left)
                at, to = next(((at, to) for at, to in known if ratio(at, to)), (left[0], left[0] - 1))
                if told := ratio(at, to):
                    self._group[at] = self._group[to]
                found[at] = found[to] * (told or 1 / NEWER)
                left.remove(at)
            self._typical = found
        return self._typical

    def _ratio(self, at: int, to: int) -> float:
        """How much faster classes are on one model than on the other; 0.0: none was measured on both."""
        here, there = self._models[at], self._models[to]
        pairs = ((self._rates.get((name, here)), self._rates.get((name, there))) for name in self._classes)
        ratios = [one / other for one, other in pairs if one and other]
        return median(ratios) if ratios else 0.0


_estimates: Newest[tuple[Rates, tuple[str, ...]], Estimates] = Newest(lambda asked: Estimates(*asked))


def estimated(snapshot: Snapshot, models: Sequence[str]) -> Estimates:
    """The same while rates and models are."""
    return _estimates((snapshot.rates, tuple(models)))
