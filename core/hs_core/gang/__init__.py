"""The ranks of one job as one, on one host or several. Pure."""

from hs_core.gang.machine import GangMachine, Order, Step
from hs_core.gang.messages import MAX_RANKS, PROTOCOL, Connection, Message

__all__ = ["MAX_RANKS", "PROTOCOL", "Connection", "GangMachine", "Message", "Order", "Step"]
