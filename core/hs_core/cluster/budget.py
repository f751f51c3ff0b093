"""How many started jobs may still be moved: a bucket that fills with time and survives the controller."""

BURST_S = 300.0  # as many at once as come in this time
LEAST = 1.0  # but one can always be saved up


class Budget:
    """`left` tokens were there at `at_s`; what has come in since is worked out when somebody asks."""

    def __init__(self, per_hour: float, saved: tuple[float, float] | None) -> None:
        self._per_s = per_hour / 3600.0
        self._most = max(LEAST, self._per_s * BURST_S) if per_hour > 0 else 0.0
        self.saved = saved

    def hold(self, seconds: float) -> None:
        """As many at once as come in this time, from now on, and no fewer than in `BURST_S`: for who could not ask for so long."""
        if self._most > 0:
            self._most = max(LEAST, self._per_s * max(BURST_S, seconds))

    def left(self, now_s: float) -> int:
        return int(self._tokens(now_s) + 1e-9)

    def take(self, now_s: float) -> None:
        """One job moves."""
        self.saved = (max(0.0, self._tokens(now_s) - 1.0), now_s)

    def _tokens(self, now_s: float) -> float:
        if self.saved is None:
            return self._most
        left, at_s = self.saved
        # A clock that was set back brings nothing and takes nothing away.
        return min(self._most, left + max(0.0, now_s - at_s) * self._per_s)
