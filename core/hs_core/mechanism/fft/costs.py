"""What it costs FFT to run a job on a type of GPU for one round (sections 4.2.1-4.2.3).

Times are rounds, work is epochs or steps; J jobs, I types. A rate of 0 says that the job can't run there (memory, section 4.4.1).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hs_core.errors import BrokenError, RefusedError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The unfinished jobs of one round."""

    rates: Floats  # (J, I) theta: work per round with the whole gang on that type
    work: Floats  # (J,) W: in all, done or not
    gpus: Ints  # (J,) d: of the gang
    age: Floats  # (J,) t - a: rounds since it came
    owed: Floats  # (J,) rho: how far it is behind its fair share; 0 when it comes
    transfer: Floats  # (J, I) s: rounds to move its state there; 0 where it ran last

    def __post_init__(self) -> None:
        jobs, types = self.rates.shape
        shapes = {
            "work": (jobs,),
            "gpus": (jobs,),
            "age": (jobs,),
            "owed": (jobs,),
            "transfer": (jobs, types),
        }
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise BrokenError(f"{name} has shape {getattr(self, name).shape}; expected {shape}")
        for name, least in (("work", np.nextafter(0, 1)), ("gpus", 1), ("age", 0), ("owed", 0), ("rates", 0)):
            if not (getattr(self, name) >= least).all():
                raise RefusedError(f"{name} has {getattr(self, name).min()}; expected at least {least:.3g}")


def round_costs(jobs: Jobs) -> Floats:
    """Equation 6, (J, I): age * rate/work + gpus * work/rate + transfer - owed * rate; inf where the job can't run.

    In the first and the last term the rate is what gets done in the round, so of a job shorter than that its work: by equation 2 `rate/work` is a part of the job, and
    what is owed is work.
    """
    can = jobs.rates > 0
    done = np.minimum(jobs.rates, jobs.work[:, None])
    alone = np.divide(jobs.work[:, None], jobs.rates, out=np.full(jobs.rates.shape, np.inf), where=can)
    costs: Floats = (
        done * (jobs.age / jobs.work - jobs.owed)[:, None] + jobs.gpus[:, None] * alone + jobs.transfer
    )
    return costs


def fair_rounds(rates: Floats, work: Floats, gpus: Ints, part: Floats) -> Floats:
    """tau - a, (J,): rounds that each job takes on its own `part` (I,) of every type, 1/n of its GPUs where n jobs are there, never preempted; inf where it can run nowhere.

    The paper leaves gangs open (footnote 2). Here a share of so many GPUs runs a gang for that part of the time, fastest types
    first, and no job for more than all the time.
    """
    share = part / gpus[:, None]
    order = np.argsort(-rates, axis=1, kind="stable")
    sorted_rates = np.take_along_axis(rates, order, axis=1)
    parts = np.where(sorted_rates > 0, np.take_along_axis(share, order, axis=1), 0.0)
    ends = np.minimum(np.cumsum(parts, axis=1), 1.0)
    rate = (np.diff(ends, axis=1, prepend=0.0) * sorted_rates).sum(axis=1)
    rounds: Floats = np.divide(work, rate, out=np.full(len(work), np.inf), where=rate > 0)
    return rounds


def owed_next(jobs: Jobs, fair: Floats, choice: Ints) -> Floats:
    """Equation 5, (J,): rho after a round in which each job ran on type `choice` (-1: none); `fair` is `fair_rounds`.

    mu grows with age: who waits long is compensated faster.
    """
    done = np.where(
        choice >= 0, np.take_along_axis(jobs.rates, np.maximum(choice, 0)[:, None], axis=1)[:, 0], 0.0
    )
    owed: Floats = np.maximum(0.0, jobs.owed + jobs.age / fair * (jobs.work / fair - done))
    return owed
