"""Jobs whose batch size changes as they train: from the edge after they got there they are of another class, in fewer or more steps."""

from bisect import bisect_right
from math import ceil, floor

from hs_sim.model import Growth, Stage
from hs_sim.quanta.fleet import Fleet

EPOCH = 1e-9  # so little less is a whole one


class Stages:
    """`compat`: as in Shockwave's simulator, where a change is seen at one edge and made after the next round in which the job runs, and the
    epoch that it falls into counts as done. Else progress is kept as it is."""

    def __init__(self, fleet: Fleet, *, compat: bool) -> None:
        self._fleet = fleet
        self._compat = compat
        self._now = {at: 0 for at, job in enumerate(fleet.jobs) if job.stages}
        self._seen: dict[int, int] = {}  # job → stage that it goes to after its next round

    @property
    def any(self) -> bool:
        """Some job changes."""
        return bool(self._now)

    def ran(self, jobs: list[int]) -> list[int]:
        """These have run until this edge; those of them that are of another class from now on."""
        return [job for job in jobs if job in self._now and self._advance(job)]

    def _advance(self, job: int) -> bool:
        if not self._compat:
            at = self._reached(job, self._epochs(job))
            changes = at != self._now[job]
            if changes:
                self._become(job, at, self._epochs(job))
            return changes
        seen = self._seen.pop(job, None)
        if seen is not None:
            self._become(job, seen, ceil(self._epochs(job) - EPOCH))
        at = self._decided(job, ceil(self._epochs(job) - EPOCH))
        if self._stages(job)[at].job_class != self._stages(job)[self._now[job]].job_class:
            self._seen[job] = at
        return seen is not None

    def _stages(self, job: int) -> tuple[Stage, ...]:
        return self._fleet.jobs[job].stages

    def _epochs(self, job: int) -> float:
        """Done."""
        done = float(self._fleet.steps[job] - self._fleet.steps_left[job])
        return done / self._stages(job)[self._now[job]].epoch_steps

    def _reached(self, job: int, epochs: float) -> int:
        return bisect_right(self._stages(job), floor(epochs + EPOCH), key=lambda stage: stage.from_epoch) - 1

    def _decided(self, job: int, epochs: int) -> int:
        """As its rule has it, seen at an edge: those that climb look an epoch ahead, and go one stage at a time."""
        now = self._now[job]
        if self._fleet.jobs[job].growth is Growth.JUMP:
            return self._reached(job, epochs)
        return min(now + 1, max(now, self._reached(job, epochs + 1)))

    def _become(self, job: int, at: int, epochs: float) -> None:
        fleet, old, new = self._fleet, self._stages(job)[self._now[job]], self._stages(job)[at]
        steps = float(fleet.steps[job]) / old.epoch_steps * new.epoch_steps
        if self._compat:
            steps = float(ceil(steps - EPOCH))
        self._now[job] = at
        fleet.steps[job] = steps
        fleet.steps_left[job] = max(0.0, steps - epochs * new.epoch_steps)
        fleet.becomes(job, new.job_class)
