"""Profiling runs: when each will have told what it is for."""

from collections.abc import Iterable, Iterator, Mapping

from hs_core.cluster.rates import ENOUGH
from hs_core.names import JobId
from hs_core.policy import Trial
from hs_core.profile import SETTLE_S
from hs_sim.quanta.fleet import Fleet

REPORT_S = 1.0  # agents say how far jobs are so often


class Trials:
    """The rate is known as a controller would know it: from reports, each a second, once a turn has settled."""

    def __init__(self, fleet: Fleet, quantum_s: float) -> None:
        self._fleet = fleet
        self._least_s = min(SETTLE_S, quantum_s / 4) + (ENOUGH - 0.5) * REPORT_S
        self._told: Mapping[JobId, Trial] = {}
        self._due_s: dict[int, float] = {}  # of those that train

    @property
    def any(self) -> bool:
        """Somebody is profiled."""
        return bool(self._told or self._due_s)

    def told(self, trials: Mapping[JobId, Trial]) -> None:
        self._told = trials
        self._due_s = {job: due_s for job, due_s in self._due_s.items() if job + 1 in trials}

    def due(self, jobs: Iterable[int]) -> Iterator[tuple[float, int]]:
        """Of those of these, which have their GPUs from now on, that are profiled and not foreseen: when, and which."""
        fleet = self._fleet
        for job in jobs if self._told else ():
            trial = self._told.get(JobId(job + 1))
            if trial is None or job in self._due_s or not fleet.rate[job] > 0:
                continue
            done = fleet.steps[job] - fleet.steps_left[job] - trial.from_step
            seconds = max(self._least_s, (trial.batches - done) / fleet.rate[job])
            self._due_s[job] = due_s = float(fleet.from_s[job]) + seconds
            yield due_s, job

    def over(self, job: int, now_s: float) -> bool:
        """Whether it has told it now: it ran until then."""
        due_s = self._due_s.get(job)
        if due_s is None or now_s < due_s - 1e-6:
            return False
        del self._due_s[job]
        return bool(self._fleet.running[job])

    def stops(self, jobs: Iterable[int]) -> None:
        """Their turns are over: what they had begun to tell is begun anew."""
        for job in jobs if self._due_s else ():
            self._due_s.pop(job, None)
