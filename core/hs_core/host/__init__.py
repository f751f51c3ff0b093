"""The agent's mind: which jobs of this host have its GPUs now, and how they come and go. Pure."""

from hs_core.host.config import HostConfig
from hs_core.host.machine import HostMachine, HostOutcome

__all__ = ["HostConfig", "HostMachine", "HostOutcome"]
