"""How fast each GPU is among those of its model, by class of jobs, from rates that jobs reported (PAL, SC'24).

A gang is as fast as its slowest GPU, so a GPU is at least as fast as the fastest gang that it was in: with jobs on one GPU that is its own rate, with gangs
it comes out as they land on different GPUs. A GPU's slowdown is the median of these rates over its own.
"""

from collections import deque
from collections.abc import Collection
from statistics import median
from typing import Any

from hs_core.model import LEAST_SLOWDOWN, MOST_SLOWDOWN
from hs_core.names import GpuId

KEEP = 8  # most recent samples of one gang's GPUs of which the median counts
ENOUGH = 3  # samples, before they count
LEAST_GPUS = 3  # of a model, before their median says what is middling
MOST_GANGS = 512  # sets of GPUs that are remembered of one class on one model

_Of = tuple[str, str]  # class, model


class GpuSpeeds:
    """Mutable; no I/O, no clock."""

    def __init__(self) -> None:
        self._gangs: dict[_Of, dict[tuple[GpuId, ...], deque[float]]] = {}
        self._known: dict[_Of, dict[GpuId, float]] = {}
        self._dumped: dict[_Of, list[Any]] = {}  # since when nothing was measured of these
        self.version = 0  # another one whenever a slowdown may be another

    def add(self, job_class: str, model: str, gpus: Collection[GpuId], steps_per_s: float) -> None:
        """A rate, above 0, that a job reported which had these GPUs for itself."""
        gangs = self._gangs.setdefault((job_class, model), {})
        self._dumped.pop((job_class, model), None)
        key = tuple(sorted(gpus))
        samples = gangs.pop(key, None) or deque(maxlen=KEEP)
        samples.append(steps_per_s)
        gangs[key] = samples  # the newest last
        if len(gangs) > MOST_GANGS:
            del gangs[next(iter(gangs))]
        if len(samples) >= ENOUGH:
            self._known.pop((job_class, model), None)
            self.version += 1

    def slowdowns(self, job_class: str, model: str) -> dict[GpuId, float]:
        """Of the GPUs on which the class was measured; {} while they are fewer than `LEAST_GPUS`."""
        of = (job_class, model)
        found = self._known.get(of)
        if found is None:
            found = self._known[of] = self._measure(of)
        return found

    def _measure(self, of: _Of) -> dict[GpuId, float]:
        best: dict[GpuId, float] = {}
        for gpus, samples in self._gangs.get(of, {}).items():
            if len(samples) >= ENOUGH:
                rate = median(samples)  # as in `profile`: a hiccup or a lie counts little
                for gpu in gpus:
                    best[gpu] = max(rate, best.get(gpu, 0.0))
        if len(best) < LEAST_GPUS:
            return {}
        middling = median(best.values())
        return {
            gpu: min(MOST_SLOWDOWN, max(LEAST_SLOWDOWN, middling / rate))
            for gpu, rate in sorted(best.items())
        }

    def classes(self) -> set[str]:
        return {job_class for job_class, _ in self._gangs}

    def forget(self, job_class: str) -> None:
        for of in [of for of in self._gangs if of[0] == job_class]:
            del self._gangs[of]
            self._known.pop(of, None)
            self._dumped.pop(of, None)
        self.version += 1

    def dump(self) -> list[Any]:
        """JSON-able. What was not measured since it was dumped last is the very same."""
        for of in self._gangs.keys() - self._dumped.keys():
            gangs = self._gangs[of].items()
            self._dumped[of] = [*of, [[list(gpus), list(samples)] for gpus, samples in gangs]]
        return [self._dumped[of] for of in sorted(self._dumped)]

    @classmethod
    def load(cls, dumped: list[Any]) -> "GpuSpeeds":
        speeds = cls()
        for job_class, model, gangs in dumped:
            speeds._gangs[job_class, model] = {
                tuple(GpuId(gpu) for gpu in gpus): deque(samples, maxlen=KEEP) for gpus, samples in gangs
            }
        return speeds
