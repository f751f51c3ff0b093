"""How far a modelled incarnation has trained: steps, counted by time at a rate that is constant until it is told another."""

ROUNDING = 1e-9


class Progress:
    __slots__ = ("_done", "_since_s", "_trained_s", "last", "rate")

    def __init__(self, last: int, rate: float) -> None:
        self.last = last  # step at which it ends
        self.rate = rate  # steps a second, while it trains
        self._done = 0.0  # steps, until it began to train
        self._trained_s = 0.0
        self._since_s: float | None = None  # it trains since then

    @property
    def trains(self) -> bool:
        return self._since_s is not None

    @property
    def left_s(self) -> float:
        """From when it began to train at this rate until its end."""
        return (self.last - self._done) / self.rate

    def step(self, now_s: float) -> int:
        """Whole steps done."""
        return min(self.last, int(self._reached(now_s) + ROUNDING))

    def training_s(self, now_s: float) -> float:
        """In all."""
        since_s = self._since_s
        return self._trained_s + (now_s - since_s if since_s is not None else 0.0)

    def goes_on_from(self, step: int) -> None:
        """What was begun of a step beyond is done again."""
        self._done = float(step)

    def begins(self, now_s: float) -> None:
        self._since_s = now_s

    def stands(self, now_s: float) -> None:
        """What it has begun of a step it keeps."""
        if self._since_s is not None:
            self._done = min(self._reached(now_s), float(self.last))
            self._trained_s += now_s - self._since_s
            self._since_s = None

    def _reached(self, now_s: float) -> float:
        since_s = self._since_s
        return self._done if since_s is None else self._done + (now_s - since_s) * self.rate
