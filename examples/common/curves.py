"""Counters that only grow, sampled while a cluster runs, and what can be read off them: means and curves."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Sample(Generic[Key]):
    at_s: float
    value: Mapping[Key, float]  # cumulative; 0 where it is not named


@dataclass(slots=True)
class Curves(Generic[Key]):
    samples: list[Sample[Key]] = field(default_factory=list)

    def take(self, at_s: float, value: Mapping[Key, float]) -> None:
        self.samples.append(Sample(at_s, value))

    @property
    def start_s(self) -> float:
        return self.samples[0].at_s

    @property
    def end_s(self) -> float:
        return self.samples[-1].at_s

    def at(self, key: Key, at_s: float) -> float:
        """By straight lines between samples."""
        before = self.samples[0]
        for sample in self.samples:
            old, new = before.value.get(key, 0.0), sample.value.get(key, 0.0)
            if sample.at_s >= at_s:
                width = sample.at_s - before.at_s
                return old + ((at_s - before.at_s) / width if width > 0 else 0.0) * (new - old)
            before = sample
        return before.value.get(key, 0.0)

    def mean(self, key: Key, from_s: float, to_s: float) -> float:
        assert to_s > from_s
        return (self.at(key, to_s) - self.at(key, from_s)) / (to_s - from_s)

    def curve(self, key: Key, window_s: float) -> tuple[list[float], list[float]]:
        """Times, and the mean over the window that ends then."""
        ends = [sample.at_s for sample in self.samples if sample.at_s > self.start_s]
        return ends, [self.mean(key, max(self.start_s, end - window_s), end) for end in ends]
