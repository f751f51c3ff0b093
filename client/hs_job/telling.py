"""What the agent has been told of this rank, over a link that comes and goes, and what it is to be told next."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, List, Optional

from hs_job import said
from hs_job.agreement import Agreement, Phase
from hs_job.noted import Noted
from hs_job.place import Place
from hs_job.steps import Steps
from hs_job.tiers import Tiers
from hs_job.untold import Mark, Untold

if TYPE_CHECKING:
    from hs_job.link import Link, Message


class Telling:
    """`lock`: its owner's, reentrant. `noted`: where it is told that which may find no agent."""

    def __init__(
        self,
        lock: threading.Condition,
        place: Place,
        agreement: Agreement,
        steps: Steps,
        tiers: Tiers,
        *,
        noted: Noted,
    ) -> None:
        self.link: Optional[Link] = None
        self.untold = Untold()
        self._lock = lock
        self._place = place
        self._agreement = agreement
        self._steps = steps
        self._tiers = tiers
        self._noted = noted
        self._can: List[str] = []
        self._needs_bytes = 0

    @property
    def is_heard(self) -> bool:
        return self.link is not None and self.link.connected

    def send(self, message: Message) -> None:
        with self._lock:
            if self.link is not None:
                self.link.send(message)

    def greet(self) -> List[Message]:
        """A new connection begins with it."""
        agreement, place = self._agreement, self._place
        phase, written = agreement.phase, agreement.written
        state = {Phase.NEW: "new", Phase.WAITING: "new", Phase.HELD: "held"}.get(phase, "running")
        self._can = self._able()
        hello = said.hello(
            (place.rank, place.world),
            self._steps.count,
            state,
            agreement.tier,
            self._can,
            last_id=agreement.last_id,
            generation=self._tiers.keeper.newest if written is None else written.generation,
            bound=agreement.bound,
        )
        return [hello, self._arrived()] if phase is Phase.WAITING else [hello]

    def arrive(self) -> None:
        self.send(self._arrived())

    def _arrived(self) -> Message:
        self._can = self._able()
        return said.arrived(self._steps.count, self._can, self._place.rank, self._place.world)

    # --- how far it is ---------------------------------------------------------------------------------------------

    def tick(self, *, stands: bool = False) -> None:
        """Tells of the steps since the last time. `stands`: as `Untold.since` has it."""
        with self._lock:
            self.note()
            runs, mark = self._agreement.phase is Phase.RUNNING, self._steps.mark
            base = self.untold.since(mark, stands=stands) if runs else None
            if base is not None:
                self._tell(base, mark)

    def end(self) -> None:
        """Tells of all steps, also where nothing says how long the last ones took."""
        with self._lock:
            self.tick(stands=True)
            if self._agreement.phase is Phase.RUNNING and self._steps.count > self.untold.told:
                self._tell(self._steps.mark, self._steps.mark)

    def note(self) -> None:
        """Whoever hears of it, or nobody."""
        with self._lock:
            if self._agreement.phase is not Phase.NEW or self._needs_bytes:
                self._noted.note(self._place.rank, self._steps.count, self._needs_bytes)

    def starved(self, asked_bytes: int) -> None:
        """It ends as it has asked for so much of its device's memory in vain."""
        with self._lock:
            self._needs_bytes = self._tiers.needed_bytes(asked_bytes)
            self.note()

    def _tell(self, base: Mark, mark: Mark) -> None:
        self.untold.tell(mark)
        noise = self._steps.noise
        self.send(said.progress(base, mark, self._tiers.device_bytes, noise))

    # --- what it can -----------------------------------------------------------------------------------------------

    def tell_can(self) -> None:
        with self._lock:
            can = self._able()
            if can != self._can and self.is_heard:
                self._can = can
                self.send(said.can(can))

    def _able(self) -> List[str]:
        return self._tiers.can(by_hand=self._steps.by_hand)
