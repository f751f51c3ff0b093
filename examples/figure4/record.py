"""Samples of who has received how much, taken from the controller while the cluster runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from examples.common.curves import Curves
from examples.common.training import ENDED
from hs_proto.v1.controller_pb2 import JobView


@dataclass(slots=True)
class Recorder:
    users: Sequence[str]
    received: Curves[str] = field(default_factory=Curves)  # GPU-seconds by user
    views: list[JobView] = field(default_factory=list)
    all_started_s: float | None = None  # every job has a process that has come up, and may have turns
    first_end_s: float | None = None

    def take(self, at_s: float, views: list[JobView], *, all_there: bool) -> None:
        self.views = views
        received = dict.fromkeys(self.users, 0.0)
        for view in views:
            received[view.user] += view.gpu_s
        self.received.take(at_s, received)
        if self.all_started_s is None and all_there:
            self.all_started_s = at_s
        if self.first_end_s is None and any(view.state in ENDED for view in views):
            self.first_end_s = at_s

    @property
    def done(self) -> bool:
        return bool(self.views) and all(view.state in ENDED for view in self.views)

    def total(self, of: Callable[[JobView], float]) -> float:
        return sum(of(view) for view in self.views)
