"""When the policy is asked: at the edges of quanta, and in between once something has changed, but not all the time."""

from hs_core.cluster.contents import Contents

DECIDING = 10  # from one question to the next so many times what the last took: a tenth of the time at most is spent deciding
BURST = 256  # rows that one event changes: what is decided about them comes later, once, so that nobody waits for both


class Pace:
    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._asking = contents.asking
        self._settings = contents.settings

    def due(self, now_s: float, *, edge: bool) -> bool:
        if self._contents.backup.awaits:
            return False
        if self._asking.question is not None:
            # The policy is at it. What an edge asks for is asked once it has answered.
            self._asking.stale = self._asking.stale or (edge and self._contents.policy.needs.every_quantum)
            return False
        if edge:
            return True
        if not self._asking.stale:
            return False
        early = self._asking.is_early(now_s, self.settle_s())
        if not early and len(self._contents.event.before) > BURST and not self._asking.put_off:
            self._asking.put_off, self._asking.decided_s = True, now_s
            return self.settle_s() == 0
        return not early

    def settle_s(self) -> float:
        """Decisions are at least so far apart."""
        settings = self._settings
        if not settings.settle_s:
            return 0.0
        by_size = settings.settle_s_per_job * len(self._contents.book.live)
        # Where the controller's core has little left it decides less often, and does the rest in time.
        by_load = DECIDING * self._asking.took_s
        return max(settings.settle_s, min(max(by_size, by_load), settings.quantum_s / 4))
