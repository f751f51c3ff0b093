"""Who ends within a quantum, and when profiling runs are over."""

from collections.abc import Iterable
from math import inf

import numpy as np

from hs_sim.quanta.agenda import END, TRIED
from hs_sim.quanta.rows import Ints
from hs_sim.quanta.state import EPSILON_S, State

NEAR = 16  # quanta for which it is known whose ends are too far away


class Foresight:
    def __init__(self, state: State) -> None:
        self._state = state
        self._agenda = state.agenda
        self._fleet = state.fleet
        self._quantum_s = state.quantum_s
        self._near_s = -inf  # who ends until then is known to be near

    def foresee(self, jobs: Ints, end_s: float) -> None:
        """Who ends in this quantum, and when."""
        fleet = self._fleet
        if end_s > self._near_s:
            self._near_s = end_s + NEAR * self._quantum_s
            fleet.foresee(self._near_s - self._state.edge_s + self._quantum_s)
        jobs = jobs[fleet.near[jobs]]
        if not jobs.size:
            return
        rate = fleet.rate[jobs]
        if self._state.some_stand:
            rate = np.where(rate > 0, rate, np.nan)  # of who makes no progress nobody knows an end
        end = np.maximum(fleet.from_s[jobs], self._state.edge_s) + fleet.steps_left[jobs] / rate
        for at in (end <= end_s + EPSILON_S).nonzero()[0].tolist():
            self._agenda.add(float(min(end[at], end_s)), END, int(jobs[at]))

    def foresee_trials(self, jobs: Iterable[int]) -> None:
        for at_s, job in self._state.trials.due(jobs):
            self._agenda.add(at_s, TRIED, job)
