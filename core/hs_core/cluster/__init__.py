"""The controller's mind. `ClusterMachine.handle(event)` is its one door; the rest of it looks things up."""

from hs_core.cluster.machine import ClusterMachine
from hs_core.cluster.rates import WayRate
from hs_core.cluster.state import Limits, Outcome, Settings, State, Touched
from hs_core.cluster.states import TRANSITIONS, Happening
from hs_core.cluster.why import Reason, Why, explain_end

__all__ = [
    "TRANSITIONS",
    "ClusterMachine",
    "Happening",
    "Limits",
    "Outcome",
    "Reason",
    "Settings",
    "State",
    "Touched",
    "WayRate",
    "Why",
    "explain_end",
]
