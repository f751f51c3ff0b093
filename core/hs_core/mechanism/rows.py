"""The jobs of a round as arrays: what policies hand to solvers."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.estimates import Estimates
from hs_core.mechanism.placing import by_arrival
from hs_core.mechanism.seats import Seats
from hs_core.model import UserName
from hs_core.policy import JobFacts, Snapshot

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """J jobs, by arrival, over T GPU models, newest first."""

    jobs: tuple[JobFacts, ...]
    models: tuple[str, ...]
    speed: Floats  # (J, T) steps/s, measured or estimated; 0: it can't go there in this round
    gang: Ints  # (J,)
    gpus: Ints  # (T,) that can be handed out
    tickets: Floats  # (J,) of the job: its user's, divided among the user's jobs here; of all they sum to 1
    steps: Floats  # (J,) in all
    steps_left: Floats  # (J,) above 0
    age_s: Floats  # (J,)


def steps_left(jobs: Sequence[JobFacts], rates: Sequence[float]) -> Floats:
    """Above 0. Who has not said how many there are is taken to have as many seconds left as the median job that has (an hour if none has)."""
    known_s = [
        job.steps_left / rate for job, rate in zip(jobs, rates, strict=True) if job.steps_left and rate > 0
    ]
    typical_s = median(known_s) if known_s else 3600.0
    return np.array(
        [job.steps_left or max(1.0, typical_s * rate) for job, rate in zip(jobs, rates, strict=True)],
        dtype=float,
    )


def rows(snapshot: Snapshot, seats: Seats, jobs: Sequence[JobFacts] | None = None) -> Rows:
    """Of `jobs`, or all that are not bound to where they run and could run somewhere."""
    taken = [job for job in (snapshot.jobs if jobs is None else jobs) if seats.choices(job)]
    taken.sort(key=by_arrival)
    models = seats.models
    estimates = Estimates(snapshot, models)
    speed = np.zeros((len(taken), len(models)))
    for at, job in enumerate(taken):
        able = [models.index(model) for model in seats.choices(job)]
        speed[at, able] = estimates.speeds(job.job_class)[able]
    best = speed.max(axis=1, initial=0.0)
    left = steps_left(taken, best.tolist())
    several: dict[UserName, int] = {}
    for job in taken:
        several[job.user] = several.get(job.user, 0) + 1
    whole = sum((snapshot.tickets[user] for user in several), Fraction(0))
    part = {  # exact: the scale of tickets does not matter
        user: snapshot.tickets[user] / whole / count for user, count in several.items()
    }
    return Rows(
        jobs=tuple(taken),
        models=models,
        speed=speed,
        gang=np.array([job.gang for job in taken], dtype=np.int64),
        gpus=np.array([seats.free(model) for model in models], dtype=np.int64),
        tickets=np.array([float(part[job.user]) for job in taken], dtype=float),
        steps=left + np.array([job.steps_done for job in taken], dtype=float),
        steps_left=left,
        age_s=np.array([max(0.0, snapshot.now_s - job.arrival_s) for job in taken], dtype=float),
    )
