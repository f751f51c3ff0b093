"""When what the machine knows is saved: before anything is done that it orders, else soon; where the disk is full, once it has room."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog

from hs_agent.memory import Memory
from hs_agent.now_and_then import NowAndThen, reason
from hs_core.events.host import Launch
from hs_daemon import boot_s

log = structlog.get_logger("agent")

Knows = Callable[[], tuple[Mapping[str, Any], Iterable[Launch]]]
"""What is to be saved: as `Memory.save` has it."""


class Saving:
    def __init__(self, memory: Memory, knows: Knows) -> None:
        self._memory, self._knows = memory, knows
        self.is_due = False
        self.why_not = ""  # it cannot be saved just now
        self._complaints = NowAndThen()

    def changed(self) -> None:
        self.is_due = True

    def save(self) -> None:
        try:
            self._memory.save(*self._knows(), boot_s())
            self.is_due, self.why_not = False, ""
            self._complaints.worked()
        except OSError as error:
            # A full disk: jobs go on; what is lost is what a killed agent would want to know.
            self.is_due, self.why_not = True, reason(error)
            if self._complaints.is_due(self.why_not, boot_s()):
                log.error("host.json cannot be written", why=self.why_not)
