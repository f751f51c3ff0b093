"""What a server's jobs get of its GPUs, and how many of these idle: its turns, played ahead.

`mechanism.time_load` says for how long jobs need a server. Who runs how much where gangs of several sizes leave GPUs idle in each other's turns follows
from the turns alone, so a server's stride (`mechanism.stride`) is played for some quanta: in floats, and always from the same beginning.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from hs_core.mechanism.stride import DEBT
from hs_core.mechanism.time_load import Weighed

BEGINNING = 8  # quanta that do not count: nobody is behind in the first ones
QUANTA = 48  # that do
LEAST = 1e-4  # tickets per GPU: whoever has none gets what nobody else could use
ASKED = 1 << 12  # questions whose answers are kept


class Played(NamedTuple):
    parts: Sequence[float]  # of the time that each job runs, in the order of the jobs
    free: Sequence[float]  # by a number of GPUs: of the time that so many idle, or more

    def idle(self, gpus: int) -> float:
        """Part of the time in which so many GPUs idle."""
        return self.free[gpus] if gpus < len(self.free) else 0.0


@lru_cache(maxsize=ASKED)
def played(gpus: int, jobs: Weighed) -> Played:
    """A gang over several servers counts as one of each of them."""
    left = gpus - sum([width for width, _ in jobs])
    if left >= 0:
        return Played([1.0] * len(jobs), [1.0] * (left + 1))
    widths = [width for width, _ in jobs]
    strides = [1.0 / max(LEAST, weight) for _, weight in jobs]
    tickets = [width / stride for width, stride in zip(widths, strides, strict=True)]
    narrowest, every = min(widths), list(range(len(jobs)))
    passes, virtual, total = [0.0] * len(jobs), 0.0, sum(tickets)
    runs, idle = [0] * len(jobs), [0] * (gpus + 1)
    for quantum in range(-BEGINNING, QUANTA):
        every.sort(key=passes.__getitem__)
        last, before, free, counts = passes[every[0]], virtual, gpus, quantum >= 0
        for at in every:
            if widths[at] > free:
                continue
            free -= widths[at]
            runs[at] += counts
            virtual += widths[at] / total
            if passes[at] > before and passes[at] > (most := last + DEBT * strides[at]):
                most = max(most, before)  # nobody behind it could have had its GPUs
                virtual -= (passes[at] - most) * tickets[at] / total
                passes[at] = most
            passes[at] += strides[at]
            if free < narrowest:
                break
        idle[free] += counts
    return Played([ran / QUANTA for ran in runs], [sum(idle[at:]) / QUANTA for at in range(gpus + 1)])
