"""When the policy is asked: whether there is something that it should know, when it was last asked, and what it is at."""

from dataclasses import dataclass

from hs_core.cluster.edges import SLACK_S
from hs_core.question import Question


@dataclass(slots=True)
class Asking:
    """Mutable."""

    stale: bool = True  # something changed that the policy should know
    decided_s: float | None = None
    question: Question | None = None  # that the policy is at, beside the machine
    took_s: float = 0.0  # the last one, until its answer was here
    put_off: bool = False  # a decision was, as if one had just been made

    def begins(self, now_s: float) -> None:
        """It is asked about all that there is."""
        self.stale = self.put_off = False
        self.decided_s = now_s

    def is_early(self, now_s: float, settle_s: float) -> bool:
        """Decisions are at least so far apart; a clock that was set back does not put them off."""
        return self.decided_s is not None and 0 <= now_s - self.decided_s < settle_s - SLACK_S

    def at_it_s(self, now_s: float) -> float:
        """For how long the policy has been at its question; 0: it is at none."""
        return 0.0 if self.question is None else max(0.0, now_s - self.question.snapshot.now_s)

    def next_s(self, settle_s: float) -> float | None:
        """When it is to be asked again; None: not because of what has changed until now."""
        if not self.stale or self.decided_s is None or self.question is not None:
            return None
        return self.decided_s + settle_s
