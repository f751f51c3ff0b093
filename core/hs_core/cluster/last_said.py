"""What the policy said last: it stands until it says something else."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction

from hs_core.failures import Failure
from hs_core.names import HostName, JobId, UserName
from hs_core.policy import Trade, Trial
from hs_core.wanted import Turn

LOCAL = Turn()
"""Of a server about which nothing is said: it shares its GPUs out itself."""


@dataclass(slots=True)
class LastSaid:
    """Mutable."""

    trades: tuple[Trade, ...] = ()
    failure: Failure | None = None  # of the newest decision: then the rest is older
    turns: Mapping[HostName, Turn] = field(default_factory=dict)  # of the quantum that is now
    planned_turns: Mapping[HostName, Turn] = field(default_factory=dict)  # of the one after it
    in_step: frozenset[HostName] = frozenset()  # as in the plan
    # Incarnations over several servers that the freezer holds and that are to leave: beside what the policy said, they are let go to save …
    woken: frozenset[tuple[JobId, int]] = frozenset()  # … in the quantum that is now
    waking: frozenset[tuple[JobId, int]] = frozenset()  # … in the one after it
    tickets: Mapping[JobId, object] = field(default_factory=dict)  # as in the plan
    why: Mapping[JobId, str] = field(default_factory=dict)
    waits: Mapping[JobId, str] = field(default_factory=dict)  # as in the verdict …
    within_a_round: bool = False  # the same
    waits_in_round: Mapping[JobId, str] = field(default_factory=dict)  # … and as the round began
    ahead: Mapping[JobId, int] = field(default_factory=dict)  # as in the verdict …
    quantum: int = 0  # … that was about this one
    how: Mapping[JobId, str] = field(default_factory=dict)
    trials: Mapping[JobId, Trial] = field(default_factory=dict)  # profiling runs that are on
    entitled: Mapping[tuple[UserName, str], Fraction] = field(default_factory=dict)
    base: Mapping[tuple[UserName, str], Fraction] = field(default_factory=dict)

    def forget(self) -> None:
        """Nothing of it stands any more."""
        nothing = LastSaid()
        for each in fields(self):
            setattr(self, each.name, getattr(nothing, each.name))
