"""HadarE: a job forked into copies, one for each node at most, that train at the same time and are averaged after every round (Hadar, section V).

Which job each node trains in a round, and how many steps of it. How copies become one again is `hs_job.average`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hs_core.errors import BrokenError, RefusedError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

SIZES: Mapping[str, int] = {"S": 1, "M": 2, "L": 3, "XL": 4}
IDLE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """J unfinished jobs on N nodes."""

    rates: Floats  # (J, N) steps/s of one copy; 0 where it can't run, the whole column where the node is out of service
    steps: Ints | Floats  # (J,) in all
    left: Ints | Floats  # (J,) of these, at least 1
    age_s: Floats  # (J,) since it came
    unit: Floats | None = None  # (J,) what a step is worth; None: all the same

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("left", 1), ("age_s", 0)):
            values = getattr(self, name)
            if values.shape != (len(self.rates),):
                raise BrokenError(f"{name} has shape {values.shape}; expected {(len(self.rates),)}")
            if not (values >= least).all():
                raise RefusedError(f"{name} has {values.min()}; expected at least {least}")
        if not (self.rates >= 0).all():
            raise RefusedError(f"rates has {self.rates.min()}; expected at least 0")


def assign(jobs: Jobs, round_s: float, copies: int | None = None) -> Ints:
    """(N,) the job of each node, IDLE for none: node by node to the job whose worth grows most by it.

    Worth is effective throughput, steps / (age + left / rate), as in Hadar. Copies share one job's steps, so here a further copy counts for
    what it adds; Hadar on copies as if they were jobs would count the same steps several times. Jobs that have no node yet come first: else
    short ones would starve beside the copies of long ones. Jobs whose nodes finish them within the round come last: no node idles while any job that it can train is left, and none is wasted while another job needs it. `copies`:
    at most so many of a job; default, as many as nodes.
    """
    count, nodes = jobs.rates.shape
    one = np.ones(count, np.int64)
    most = one * (nodes if copies is None else copies)
    found = spread(jobs, round_s, gpus=one, room=np.ones(nodes, np.int64), most=most)
    chosen: Ints = np.where(found.any(axis=0), found.argmax(axis=0), IDLE)
    return chosen


def spread(jobs: Jobs, round_s: float, *, gpus: Ints, room: Ints, most: Ints) -> Bools:
    """(J, N) as `assign`, for nodes with `room` (N,) GPUs and copies that take `gpus` (J,) each, `most` (J,) of a job and one on a node."""
    count = len(jobs.rates)
    chosen = np.zeros(jobs.rates.shape, np.bool_)
    rate, forks, room = np.zeros(count), np.zeros(count, np.int64), room.copy()
    open_ = (jobs.rates > 0) & (gpus[:, None] <= room)
    every = np.arange(count)
    gain = np.where(open_, _grown(jobs, every, rate), -np.inf)
    best = gain.max(axis=1, initial=-np.inf)  # of each job
    while (best > -np.inf).any():
        ranks = (
            np.where(forks == 0, best, -np.inf),
            np.where(rate * round_s < jobs.left, best, -np.inf),
            best,
        )
        job = next(int(rank.argmax()) for rank in ranks if (rank > -np.inf).any())
        node = int(gain[job].argmax())
        chosen[job, node] = True
        rate[job] += jobs.rates[job, node]
        forks[job] += 1
        room[node] -= gpus[job]
        open_[job, node] = False
        if forks[job] >= most[job]:
            open_[job] = False
        gain[job] = np.where(open_[job], _grown(jobs, every[job : job + 1], rate)[0], -np.inf)
        closed = open_[:, node] & (gpus > room[node])
        open_[closed, node] = False
        gain[closed, node] = -np.inf
        closed[job] = True
        best[closed] = gain[closed].max(axis=1)
    return chosen


def _grown(jobs: Jobs, rows: Ints, rate: Floats) -> Floats:
    """What each node would add to the worth of these jobs."""
    now = rate[rows, None]
    return _worth(jobs, rows, now + jobs.rates[rows]) - _worth(jobs, rows, now)


def _worth(jobs: Jobs, rows: Ints, rate: Floats) -> Floats:
    ends = jobs.age_s[rows, None] + np.divide(
        jobs.left[rows, None], rate, out=np.full(rate.shape, np.inf), where=rate > 0
    )
    length = jobs.steps[rows] if jobs.unit is None else jobs.steps[rows] * jobs.unit[rows]
    worth: Floats = length[:, None] / np.maximum(ends, np.finfo(float).tiny)
    return worth


def portions(steps: int, rates: ArrayLike) -> Ints:
    """`steps` in whole portions by the nodes' rates (largest remainders, the first node where they are equal); they add up to `steps`."""
    speed = np.asarray(rates, float)
    if steps < 0 or not (speed >= 0).all() or not speed.sum() > 0:
        raise RefusedError(
            f"{steps} steps over rates {speed.tolist()}; expected at least 0 steps and a positive rate"
        )
    exact = steps * (speed / speed.sum())
    whole: Ints = np.floor(exact).astype(np.int64)
    short = steps - int(whole.sum())
    order = np.argsort(-(exact - whole), kind="stable")
    whole[order[:short]] += 1
    return whole


def orders(jobs: Jobs, chosen: Ints) -> Ints:
    """(N,) steps that each node is to train of its job: what is left of a job over all its nodes, by their rates.

    A node that ends early waits for the next round; one that doesn't end reports what it did.
    """
    steps = np.zeros(len(chosen), np.int64)
    for job in np.unique(chosen[chosen != IDLE]):
        nodes = np.flatnonzero(chosen == job)
        steps[nodes] = portions(int(jobs.left[job]), jobs.rates[job, nodes])
    return steps


def first_guess(
    *,
    tensor_tflops: ArrayLike,
    memory_gib: ArrayLike,
    pcie: ArrayLike,
    batch: ArrayLike,
    model: str,
    data: str,
) -> Floats:
    """Steps/s up to a common factor before anything was measured (equation 10, of which the text has only the words).

    Grows with the performance-memory index, read here as TFLOP/s of the tensor cores per square root of GiB, with the PCIe generation's
    bandwidth (doubling each) and the batch; falls with the weights of model and data set: S, M, L, XL.
    """
    for name, size in (("model", model), ("data", data)):
        if size not in SIZES:
            raise RefusedError(f"{name} is {size!r}; expected one of {', '.join(SIZES)}")
    index = np.asarray(tensor_tflops, float) / np.sqrt(np.asarray(memory_gib, float))
    scale = 2.0 ** (np.asarray(pcie, float) - 3)
    found: Floats = index * scale * np.asarray(batch, float) / (SIZES[model] * SIZES[data])
    return found
