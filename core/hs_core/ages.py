"""What a job's age is made of: it waits, comes up, runs, leaves for elsewhere, is paused, or is being ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Stage(StrEnum):
    """At any moment of its life a job is in one of them."""

    WAITING = "waiting"  # in the queue, or on its servers for its turn
    STARTING = "starting"  # it has a home, and its process is coming up, or is about to
    RUNNING = "running"  # it has its turn
    LEAVING = "leaving"  # it stops and writes a checkpoint, to go on elsewhere or in another shape
    PAUSED = "paused"  # by its owner
    ENDING = "ending"  # it was cancelled, and is not gone yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """Seconds in each stage until a moment, by the controller's clock. They add up to the job's age then."""

    until_s: float  # that moment
    spent_s: Mapping[Stage, float] = field(default_factory=dict)

    def after(self, stage: Stage, now_s: float) -> "Ages":
        """It has been in that stage since. A clock that was set back adds nothing."""
        more_s = max(0.0, now_s - self.until_s)
        if not more_s:
            return self
        spent_s = {**self.spent_s, stage: self.spent_s.get(stage, 0.0) + more_s}
        return Ages(until_s=now_s, spent_s=spent_s)
