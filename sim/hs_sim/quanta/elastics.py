"""Elastic jobs, which train on as many GPUs as a policy chooses: how they scale, and what is known of that."""

from collections.abc import Iterable, Mapping

from hs_core.forms import ENOUGH_NOISE, Form, Shape
from hs_core.mechanism.goodput import Speed
from hs_sim.elastic import noise_samples, steps_per_s
from hs_sim.model import Workload


class Elastics:
    def __init__(self, workload: Workload, shapes: Mapping[int, Form]) -> None:
        """`shapes`: of jobs that have others than they declared, as they are now."""
        self._jobs = jobs = workload.jobs
        self._speeds = workload.speeds
        self._shapes = shapes
        self.said = [job.elastic for job in jobs]  # as declared, until the noise scale was measured
        self._all = {at for at, job in enumerate(jobs) if job.elastic is not None}
        self.unsure = {at for at, job in enumerate(jobs) if job.elastic != job.truly}

    def __bool__(self) -> bool:
        return bool(self._all)

    def __contains__(self, job: int) -> bool:
        return job in self._all

    def among(self, jobs: Iterable[int]) -> list[int]:
        return sorted(self._all.intersection(jobs))

    def shape_of(self, job: int) -> Shape:
        """Also where nobody chose it."""
        shape, said = self._shapes.get(job), self._jobs[job].elastic
        assert said is not None
        return shape if isinstance(shape, Shape) else said.on(self._jobs[job].gang, self._jobs[job].nodes)

    def speed_on(self, job: int, model: str) -> Speed | None:
        """None: its class cannot run there."""
        return self._speeds.get((self._jobs[job].job_class, model))

    def rate_on(self, job: int, model: str) -> float:
        """Steps a second in the shape that it has."""
        elastic, class_ = self._jobs[job].truly, self._jobs[job].job_class
        assert elastic is not None
        return steps_per_s(elastic, self._speeds[class_, model], self.shape_of(job))

    def trained(self, job: int, model: str, seconds: float) -> bool:
        """For so long as it is now: whether it has measured the noise scale of its gradients often enough by that."""
        speed = self._speeds[self._jobs[job].job_class, model]
        if noise_samples(speed, self.shape_of(job), seconds) < ENOUGH_NOISE:
            return False
        self.said[job] = self._jobs[job].truly
        self.unsure.discard(job)
        return True
