"""How often the policy was asked, and how long it took."""


class Asked:
    """Mutable."""

    def __init__(self) -> None:
        self.times = 0
        self.longest_s = 0.0
        self._all_s = 0.0

    def took(self, seconds: float) -> None:
        self.times += 1
        self._all_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    @property
    def mean_s(self) -> float:
        return self._all_s / self.times if self.times else 0.0
