"""Speeds of job classes on GPU models, also where nobody has measured them yet: what LPs and prices are made of.

A class that was measured on some model is taken to be as much faster or slower elsewhere as the classes that were measured on both (the
median). One that was measured nowhere is taken as the median class. That serves until it has run where it is sent.
"""

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from hs_core.policy import Snapshot

Floats = NDArray[np.float64]


class Estimates:
    """Mini-batches a second on `models`, by class."""

    def __init__(self, snapshot: Snapshot, models: Sequence[str]) -> None:
        self._models = tuple(models)
        self._at = {model: at for at, model in enumerate(self._models)}
        self._known: dict[str, dict[int, float]] = {}
        for (job_class, model), rate in snapshot.rates.items():
            if model in self._at:
                self._known.setdefault(job_class, {})[self._at[model]] = rate
        self._found: dict[str, Floats] = {}
        self._typical: Floats | None = None

    def measured(self, job_class: str) -> bool:
        """On any of the models."""
        return job_class in self._known

    def speeds(self, job_class: str) -> Floats:
        """(models,) steps/s; 0.0 where it was measured not to run."""
        if job_class not in self._found:
            self._found[job_class] = self._estimate(self._known.get(job_class, {}))
        return self._found[job_class]

    def _estimate(self, known: Mapping[int, float]) -> Floats:
        if len(known) == len(self._models):
            return np.array([known[at] for at in range(len(self._models))])
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
            for at in range(1, len(self._models)):
                ratios = [
                    rates[at] / rates[at - 1]
                    for rates in self._known.values()
                    if rates.get(at) and rates.get(at - 1)
                ]
                found[at] = found[at - 1] * (median(ratios) if ratios else 1.0)
            self._typical = found
        return self._typical
