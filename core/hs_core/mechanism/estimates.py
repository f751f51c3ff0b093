"""Speeds of job classes on GPU models, also where nobody has measured them yet: what LPs and prices are made of.

A class that was measured on some model is taken to be as much faster or slower elsewhere as the classes that were measured on both (the
median). One that was measured nowhere is taken as the median class. That serves until it has run where it is sent.
"""

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from hs_core.newest import Newest
from hs_core.policy import Snapshot

Floats = NDArray[np.float64]
Rates = Mapping[tuple[str, str], float]


class Estimates:
    """Mini-batches a second on `models`, by class."""

    def __init__(self, rates: Rates, models: Sequence[str]) -> None:
        """`rates`: as in a snapshot."""
        self._models = tuple(models)
        self._rates = rates
        self._found: dict[str, tuple[float, ...]] = {}
        self._fastest: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {}
        self._typical: Floats | None = None

    def fastest(self, job_class: str, models: tuple[str, ...]) -> tuple[str, ...]:
        """Those of these models where the class runs, the fastest first; of equals those that were measured; else as they come."""
        found = self._fastest.get((job_class, models))
        if found is None:
            speeds = dict(zip(self._models, self.speeds(job_class), strict=True))
            guessed = {model: (job_class, model) not in self._rates for model in models}
            able = [model for model in models if speeds[model] != 0.0]
            able.sort(key=lambda model: (-speeds[model], guessed[model]))
            found = self._fastest[job_class, models] = tuple(able)
        return found

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
        """Of an imagined class in the middle: its speed on each model, as far as classes were measured on two."""
        if self._typical is None:
            found = np.ones(len(self._models))
            classes = dict.fromkeys(job_class for job_class, _ in self._rates)
            for at in range(1, len(self._models)):
                pairs = (
                    (self._rates.get((name, self._models[at])), self._rates.get((name, self._models[at - 1])))
                    for name in classes
                )
                ratios = [here / there for here, there in pairs if here and there]
                found[at] = found[at - 1] * (median(ratios) if ratios else 1.0)
            self._typical = found
        return self._typical


_estimates: Newest[tuple[Rates, tuple[str, ...]], Estimates] = Newest(lambda asked: Estimates(*asked))


def estimated(snapshot: Snapshot, models: Sequence[str]) -> Estimates:
    """The same while rates and models are."""
    return _estimates((snapshot.rates, tuple(models)))
