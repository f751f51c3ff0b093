"""How long jobs are, where their users said how many steps they have and their class was measured."""

from math import inf

from hs_core.policy import JobFacts, Snapshot


class Lengths:
    def __init__(self, snapshot: Snapshot) -> None:
        models = {host.model for host in snapshot.hosts}
        self._rates = snapshot.rates
        self._best: dict[str, float] = {}
        for (job_class, model), rate in snapshot.rates.items():
            if model in models and rate > self._best.get(job_class, 0.0):
                self._best[job_class] = rate

    def total_s(self, job: JobFacts) -> float | None:
        """Seconds on the fastest GPU model of the cluster; None: nobody knows."""
        return self._seconds(job, job.steps)

    def left_s(self, job: JobFacts) -> float | None:
        return self._seconds(job, job.steps_left or 0.0)

    def _seconds(self, job: JobFacts, steps: float) -> float | None:
        rate = self._best.get(job.job_class, 0.0)
        return steps / rate if job.steps and rate else None

    def rank(self, job: JobFacts, value: float | None) -> tuple[int, float]:
        """Sorts by `value`. A class that was never measured comes first, which is how it gets measured; who has not said its steps comes last."""
        if value is not None:
            return 1, value
        return (0, 0.0) if job.steps else (2, inf)

    def why(self, job: JobFacts) -> str:
        """For people: what is missing, empty if nothing is."""
        if not job.steps:
            return "its number of steps was not said (--steps), so those with a known length come first"
        return "" if self._best.get(job.job_class) else "its class was not measured yet"
