"""Samples of who has received how much, taken from the controller while the cluster runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hs_proto.v1.controller_pb2 import JobView

STARTING = frozenset({"queued", "starting"})
ENDED = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    received_gpu_s: dict[str, float]  # cumulative, by user


@dataclass(slots=True)
class Recorder:
    users: Sequence[str]
    samples: list[Sample] = field(default_factory=list)
    views: list[JobView] = field(default_factory=list)
    all_started_s: float | None = None  # every job stands at a step edge, or runs
    first_end_s: float | None = None

    def take(self, at_s: float, views: list[JobView]) -> None:
        self.views = views
        received = dict.fromkeys(self.users, 0.0)
        for view in views:
            received[view.user] += view.gpu_s
        self.samples.append(Sample(at_s, received))
        if self.all_started_s is None and not any(view.state in STARTING for view in views):
            self.all_started_s = at_s
        if self.first_end_s is None and any(view.state in ENDED for view in views):
            self.first_end_s = at_s

    @property
    def done(self) -> bool:
        return bool(self.views) and all(view.state in ENDED for view in self.views)

    def received(self, user: str, at_s: float) -> float:
        """GPU-seconds up to then, by straight lines between samples."""
        before = self.samples[0]
        for sample in self.samples:
            if sample.at_s >= at_s:
                width = sample.at_s - before.at_s
                part = (at_s - before.at_s) / width if width > 0 else 0.0
                return before.received_gpu_s[user] + part * (
                    sample.received_gpu_s[user] - before.received_gpu_s[user]
                )
            before = sample
        return before.received_gpu_s[user]

    def mean_gpus(self, user: str, from_s: float, to_s: float) -> float:
        assert to_s > from_s
        return (self.received(user, to_s) - self.received(user, from_s)) / (to_s - from_s)

    def curve(self, user: str, window_s: float) -> tuple[list[float], list[float]]:
        """Times and the mean GPUs over the window that ends then."""
        ends = [s.at_s for s in self.samples if s.at_s > self.samples[0].at_s]
        start = self.samples[0].at_s
        return ends, [self.mean_gpus(user, max(start, end - window_s), end) for end in ends]

    def total(self, of: Callable[[JobView], float]) -> float:
        return sum(of(view) for view in self.views)
