"""How often each job was suspended."""

import numpy as np

from hs_sim.quanta.rows import Ints

MANY_STOPS = 64


class Suspends:
    """Mutable. Counted late, many stops together: in every quantum some stop, and nobody asks before the end."""

    def __init__(self, jobs: int) -> None:
        self._counts: Ints = np.zeros(jobs, dtype=np.int64)
        self._stopped: list[Ints] = []

    def add(self, jobs: Ints) -> None:
        self._stopped.append(jobs)
        if len(self._stopped) >= MANY_STOPS:
            self._count()

    def counts(self) -> Ints:
        """By job of the workload."""
        self._count()
        return self._counts

    def _count(self) -> None:
        if self._stopped:
            self._counts += np.bincount(np.concatenate(self._stopped), minlength=self._counts.size)
            self._stopped.clear()
