"""The one dominant reason why a job is where it is, with the evidence and what comes next."""

from hs_core.cluster.why.end import exit_text, explain_end
from hs_core.cluster.why.explain import explain
from hs_core.cluster.why.reason import Reason, Why
from hs_core.cluster.why.scene import AWAY, Scene

__all__ = ["AWAY", "Reason", "Scene", "Why", "exit_text", "explain", "explain_end"]
