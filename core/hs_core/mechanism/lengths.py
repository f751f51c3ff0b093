"""How long jobs are, where their users said how many steps they have and their class was measured: on the fastest of the GPU models that a job may have."""

from math import inf

from hs_core.mechanism.floor import floor
from hs_core.model import Migrate
from hs_core.policy import JobFacts, Snapshot


class Lengths:
    def __init__(self, snapshot: Snapshot) -> None:
        self._floor = floor(snapshot.hosts)
        self._rates = snapshot.rates
        self._best: dict[tuple[str, tuple[str, ...]], float] = {}

    def total_s(self, job: JobFacts) -> float | None:
        """Seconds on the fastest GPU model that it may have; None: nobody knows."""
        return self._seconds(job, job.steps)

    def left_s(self, job: JobFacts) -> float | None:
        return self._seconds(job, job.steps_left or 0.0)

    def _seconds(self, job: JobFacts, steps: float) -> float | None:
        rate = self._rate(job) if job.steps else 0.0
        return steps / rate if rate else None

    def _rate(self, job: JobFacts) -> float:
        """0.0: not measured on any of them."""
        models = self._models(job)
        best = self._best.get((job.job_class, models))
        if best is None:
            best = max((self._rates.get((job.job_class, model), 0.0) for model in models), default=0.0)
            self._best[job.job_class, models] = best
        return best

    def _models(self, job: JobFacts) -> tuple[str, ...]:
        home = self._floor.hosts.get(job.hosts[0]) if job.hosts else None
        if home is None:
            return self._floor.usable(job)
        if job.rooted or (job.started and job.migrate is not Migrate.AUTO):
            return (home.model,)
        return self._floor.usable_from(job, home.model)

    def rank(self, job: JobFacts, value: float | None) -> tuple[int, float]:
        """Sorts by `value`. A class that was not measured where the job may run comes first, which is how it gets measured; who has not said its steps comes last."""
        if value is not None:
            return 1, value
        return (0, 0.0) if job.steps else (2, inf)

    def why(self, job: JobFacts) -> str:
        """For people: what is missing, empty if nothing is."""
        if not job.steps:
            return "its number of steps was not said (--steps), so those with a known length come first"
        if self._rate(job):
            return ""
        return "its class was not measured yet, so it comes before those that were and after those like it that came earlier"
