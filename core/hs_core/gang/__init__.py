"""The ranks of one job as one, on one host or several. Pure."""

from hs_core.gang.machine import GangMachine, Step
from hs_core.gang.messages import MAX_RANKS, PROTOCOL, Connection, Message
from hs_core.gang.stops import Order

__all__ = ["MAX_RANKS", "PROTOCOL", "Connection", "GangMachine", "Message", "Order", "Step"]
