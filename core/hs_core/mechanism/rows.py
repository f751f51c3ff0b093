"""The jobs of a round as arrays: what policies hand to solvers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from statistics import median

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.estimates import Estimates, estimated
from hs_core.mechanism.placing import by_arrival
from hs_core.mechanism.seats import Seats
from hs_core.names import JobId, UserName
from hs_core.policy import JobFacts, Snapshot

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """J jobs, by arrival, over T GPU models, newest first. What only some ask for, or in some rounds, is made when they do."""

    snapshot: Snapshot
    jobs: tuple[JobFacts, ...]
    models: tuple[str, ...]
    speed: Floats  # (J, T) steps/s, measured or estimated; 0: it can't go there in this round
    gpus: Ints  # (T,) that can be handed out

    @cached_property
    def gang(self) -> Ints:
        """(J,)"""
        return np.array([job.gang for job in self.jobs], dtype=np.int64)

    @cached_property
    def tickets(self) -> Floats:
        """(J,) of the job: its user's, divided among the user's jobs here; of all they sum to 1."""
        several: dict[UserName, int] = {}
        for job in self.jobs:
            several[job.user] = several.get(job.user, 0) + 1
        part = _parts(self.snapshot, several)
        return np.array([part[job.user] for job in self.jobs], dtype=float)

    @cached_property
    def steps(self) -> Floats:
        """(J,) in all."""
        steps: Floats = self.steps_left + np.array([job.steps_done for job in self.jobs], dtype=float)
        return steps

    @cached_property
    def steps_left(self) -> Floats:
        """(J,) above 0"""
        estimates = estimated(self.snapshot, self.models)
        return steps_left(self.jobs, self.speed.max(axis=1, initial=0.0).tolist(), estimates)

    @cached_property
    def age_s(self) -> Floats:
        """(J,)"""
        now_s = self.snapshot.now_s
        return np.array([max(0.0, now_s - job.arrival_s) for job in self.jobs], dtype=float)


def steps_left(jobs: Sequence[JobFacts], rates: Sequence[float], estimates: Estimates) -> Floats:
    """Above 0. Who has not said how many there are is taken to have as many seconds left as the median job of which they are known (an hour if none is).
    So is who is of a class that was measured nowhere: how long a step of it takes is anybody's guess. `rates`: each job's, on its fastest model.
    """
    known = [bool(job.steps_left) and estimates.measured(job.job_class) for job in jobs]
    known_s = [
        (job.steps_left or 0.0) / rate
        for job, rate, is_known in zip(jobs, rates, known, strict=True)
        if is_known and rate > 0
    ]
    typical_s = median(known_s) if known_s else 3600.0
    return np.array(
        [
            (job.steps_left or 0.0) if is_known else max(1.0, typical_s * rate)
            for job, rate, is_known in zip(jobs, rates, known, strict=True)
        ],
        dtype=float,
    )


def rows(
    snapshot: Snapshot,
    seats: Seats,
    jobs: Sequence[JobFacts] | None = None,
    *,
    though: Collection[JobId] = (),
) -> Rows:
    """Of `jobs`, or all that are not bound to where they run and could run somewhere. `though`: these too, though they have their GPUs."""
    models = seats.models
    estimates = estimated(snapshot, models)
    offered, speeds = [], []
    for job in sorted(snapshot.jobs if jobs is None else jobs, key=by_arrival):
        able = seats.suits(job) if job.id in though else seats.choices(job)
        if not able:
            continue
        found = estimates.speeds(job.job_class)
        if len(able) < len(models):
            found = tuple([rate if model in able else 0.0 for model, rate in zip(models, found, strict=True)])
        offered.append(job)
        speeds.append(found)
    return Rows(
        snapshot=snapshot,
        jobs=tuple(offered),
        models=models,
        speed=np.array(speeds, dtype=float).reshape(len(offered), len(models)),
        gpus=np.array([seats.free(model) for model in models], dtype=np.int64),
    )


def _parts(snapshot: Snapshot, several: Mapping[UserName, int]) -> dict[UserName, float]:
    """Of one job of each user, of whom there are so many. Whole numbers until the last: the scale of tickets does not matter."""
    unit = lcm(*{snapshot.tickets[user].denominator for user in several})
    weights = (
        {user: int(snapshot.tickets[user] * unit) for user in several}
        if unit > 1
        else {user: snapshot.tickets[user].numerator for user in several}
    )
    whole = sum(weights.values())
    return {user: weights[user] / (whole * count) for user, count in several.items()}
