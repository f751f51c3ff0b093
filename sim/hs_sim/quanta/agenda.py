"""What is to happen inside quanta, each at its own time."""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from hs_sim.model import SpeedChange

# What happens to a job; in this order where it is at the same time. Of CHANGE the number is not a job's but that of a change of the workload's speeds.
END, STAND, WRITTEN, CHANGE, TRIED = range(5)

Entry = tuple[float, int, int]  # time, what, job or change


class Agenda:
    """Mutable. Jobs that come are not on it: they stand in the workload, by time."""

    def __init__(self, changes: Sequence[SpeedChange]) -> None:
        self._later: list[Entry] = [(change.at_s, CHANGE, at) for at, change in enumerate(changes)]
        heapify(self._later)

    def add(self, at_s: float, what: int, job: int) -> None:
        heappush(self._later, (at_s, what, job))

    @property
    def next_s(self) -> float:
        """Infinite where there is nothing."""
        return self._later[0][0] if self._later else np.inf

    def next_by(self, at_s: float) -> int | None:
        """What is first, if it is until then; None: nothing is."""
        return self._later[0][1] if self._later and self._later[0][0] <= at_s else None

    def due(self, until_s: float) -> Iterator[Entry]:
        """Takes them off, one by one: also those that are added meanwhile."""
        while self._later and self._later[0][0] <= until_s:
            yield heappop(self._later)

    def due_with(self, at_s: float, what: int) -> list[int]:
        """The jobs to which the same happens at the same time: at the beginning thousands. Takes them off."""
        jobs = []
        while self._later and self._later[0][:2] == (at_s, what):
            jobs.append(heappop(self._later)[2])
        return jobs
