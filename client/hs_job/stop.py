"""What the agent asked a rank for: to stop at a step, or to save there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hs_job.link import Message


class Stop:
    """Until it is done."""

    __slots__ = ("accepted", "at_step", "committed", "generation", "heard_s", "id", "kind", "tier", "whole")

    def __init__(self, kind: str, message: Message) -> None:
        self.kind = kind
        self.id = int(message["id"])
        self.at_step = int(message["at_step"])
        self.tier = str(message.get("tier", "checkpoint" if kind == "save" else "hold"))
        self.generation = int(message.get("generation", -1))
        self.whole = int(message.get("whole", -1))  # newest generation that all nodes have
        self.heard_s = time.monotonic()
        self.accepted = False
        self.committed = False

    @property
    def binds(self) -> bool:
        """Where there are several nodes: whoever has done it does not go on, unless it is told that others could not."""
        leaves = self.kind == "stop" and self.tier == "checkpoint"
        return leaves and (self.committed or self.accepted)

    def said(self) -> Message:
        """With the hello of a rank that is bound by it."""
        return {
            "id": self.id, "at_step": self.at_step, "generation": self.generation, "committed": self.committed,
        }  # fmt: skip
