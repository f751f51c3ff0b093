"""When quanta begin: their number only grows, whatever the clock does."""

SLACK_S = 1e-3  # a timer that fires this much early has fired


class Edges:
    """`at_s` is when the quantum that is now ends; None: nobody needs edges."""

    def __init__(self, quantum_s: float, quantum: int) -> None:
        self.quantum_s = quantum_s
        self.quantum = quantum
        self.at_s: float | None = None

    def keep(self, now_s: float, *, needed: bool) -> None:
        if not needed:
            self.at_s = None
        elif self.at_s is None:
            self.at_s = now_s + self.quantum_s

    def passed(self, now_s: float) -> int:
        """Quanta that have ended since it was asked last; a timer that comes late ends several."""
        if self.at_s is None:
            return 0
        # The clock may have been set back: no quantum takes longer than a quantum.
        self.at_s = min(self.at_s, now_s + self.quantum_s)
        if now_s < self.at_s - SLACK_S:
            return 0
        ended = 1 + max(0, int((now_s - self.at_s + SLACK_S) // self.quantum_s))
        self.quantum += ended
        self.at_s += ended * self.quantum_s
        return ended
