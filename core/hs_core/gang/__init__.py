"""The ranks of one job as one, on one host or several. Pure."""

from hs_core.gang.machine import GangMachine, Step

__all__ = ["GangMachine", "Step"]
