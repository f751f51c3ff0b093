"""How fast jobs are, and what they are charged, where that depends on which GPUs they have or who shares these."""

import numpy as np

from hs_sim.quanta.charges import Charges
from hs_sim.quanta.foresight import Foresight
from hs_sim.quanta.state import State


class Paces:
    def __init__(self, state: State, charges: Charges, foresight: Foresight) -> None:
        self._state = state
        self._fleet = state.fleet
        self._gpus = state.gpus
        self._pairs = state.pairs
        self._charges = charges
        self._foresight = foresight

    def pace(self, now_s: float, end_s: float) -> None:
        """Who has which GPUs has changed, or who shares them: from now on they are as fast, and charged, as they are there and together."""
        if self._gpus.any:
            self._seat(now_s, end_s)
        if not self._pairs.any:
            return
        fleet = self._fleet
        for job, rate, charged in self._pairs.pace():
            one = np.array([job])
            if fleet.running[job]:
                self._charges.charge(one, now_s)
            fleet.pays(job, rate, charged)
            if fleet.running[job]:
                self._foresight.foresee(one, end_s)

    def _seat(self, now_s: float, end_s: float) -> None:
        fleet = self._fleet
        for job, times, lost_s in self._gpus.seat(self._state.run_now.tolist()):
            one = np.array([job])
            self._charges.charge(one, now_s)
            fleet.slow(job, times)
            fleet.from_s[job] = max(float(fleet.from_s[job]), now_s) + lost_s
            self._foresight.foresee(one, end_s)
