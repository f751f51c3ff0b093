"""How long switching takes on this host, which its quanta are to be long against."""

from collections import deque
from dataclasses import dataclass, field
from statistics import fmean, median

MEAN_WEIGHT = 1 / 8
RECENT = 3  # quanta


@dataclass(slots=True)
class Usual:
    """The mean time that one kind of order takes.

    In one quantum all of them can take long without a reason of their own: the agent stood still, or the host was short of everything. So it
    counts what is in the middle of the last few quanta.
    """

    mean_s: float = 0.0
    _recent: deque[tuple[float, list[float]]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def took(self, asked_s: float, took_s: float, quantum_s: float) -> None:
        """`quantum_s`: orders that were given within so long of the first one are of its quantum."""
        if not self._recent or asked_s - self._recent[-1][0] >= quantum_s:
            self._recent.append((asked_s, []))
        self._recent[-1][1].append(took_s)
        times = [fmean(took) for _, took in self._recent]
        times += [self.mean_s] * (RECENT - len(times))
        sample = median(times)
        self.mean_s = sample if self.mean_s == 0.0 else self.mean_s + MEAN_WEIGHT * (sample - self.mean_s)
