"""What a GPU costs while a cluster fills: from low enough for any job to too high for all (Hadar, equations 5-7)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hs_core.errors import BrokenError, RefusedError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LOWEST = 1e-9  # least price of an empty server, of that of a full one

Utility = Callable[[Floats], Floats]
"""(J, n) completion times in s, a row per job → (J, n) what they are worth: at least 0, never more for a later end."""


@dataclass(frozen=True, slots=True)
class Laid:
    """Other numbers of servers over which jobs may be laid, K at most."""

    nodes: Ints  # (J, K), the fewest first, more than `Jobs.nodes`; 0: no more of them
    rates: Floats  # (J, K, R) as `Jobs.rates`, over so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The unfinished jobs of one round: J of them, R types of GPU."""

    rates: Floats  # (J, R) X: iterations/s of one worker; 0 where it can't run
    workers: Ints  # (J,) W: all or none
    iterations: Floats  # (J,) E * N: in all
    left: Floats  # (J,) of these
    age_s: Floats  # (J,) since it came
    nodes: Ints | None = None  # (J,) servers, with as many workers on each; None: workers are anywhere
    laid: Laid | None = None  # only where `nodes` are said

    def __post_init__(self) -> None:
        jobs = len(self.rates)
        for name, least in (("workers", 1), ("iterations", np.nextafter(0, 1)), ("left", 0), ("age_s", 0)):
            values = getattr(self, name)
            if values.shape != (jobs,):
                raise BrokenError(f"{name} has shape {values.shape}; expected {(jobs,)}")
            if not (values >= least).all():
                raise RefusedError(f"{name} has {values.min()}; expected at least {least:.3g}")
        if self.laid is not None and self.laid.rates.shape != (*self.laid.nodes.shape, self.rates.shape[1]):
            raise BrokenError(
                f"laid.rates has shape {self.laid.rates.shape}; expected {(*self.laid.nodes.shape, self.rates.shape[1])}"
            )
        if not (self.rates >= 0).all():
            raise RefusedError(f"rates has {self.rates.min()}; expected at least 0")

    def ends_s(self, restart_s: float = 0.0) -> Floats:
        """(J, R) completion time since arrival if the slowest GPU is of that type from now on; inf where it can't run."""
        return self._ends_s(self.rates, restart_s)

    def laid_ends_s(self, restart_s: float = 0.0) -> Floats:
        """(J, K * R) the same over each other number of servers; inf where there is none."""
        if self.laid is None:
            return np.zeros((len(self.rates), 0))
        rates = np.where(self.laid.nodes[:, :, None] > 0, self.laid.rates, 0.0)
        return self._ends_s(rates.reshape(len(rates), -1), restart_s)

    def _ends_s(self, rates: Floats, restart_s: float) -> Floats:
        gang = rates * self.workers[:, None]
        rest = np.divide(self.left[:, None], gang, out=np.full(gang.shape, np.inf), where=gang > 0)
        ends: Floats = self.age_s[:, None] + restart_s + rest
        return ends


def effective_throughput(jobs: Jobs) -> Utility:
    """Iterations per second of a job's whole life, waiting included: the paper's default."""
    iterations = jobs.iterations[:, None]

    def worth(ends_s: Floats) -> Floats:
        found: Floats = iterations / np.maximum(ends_s, np.finfo(float).tiny)
        return found

    return worth


@dataclass(frozen=True, slots=True)
class Prices:
    least: Floats  # (R,) U_min: of a GPU on an empty server
    most: Floats  # (R,) U_max: on a full one

    def of(self, taken: Ints, capacity: Ints) -> Floats:
        """Equation 5, (H, R): least * (most / least) ** (taken / capacity); inf where a server has none of the type."""
        filled = np.divide(taken, capacity, out=np.zeros(taken.shape), where=capacity > 0)
        prices: Floats = np.where(capacity > 0, self.least * (self.most / self.least) ** filled, np.inf)
        return prices


def prices(jobs: Jobs, capacity: Ints, utility: Utility, round_s: float) -> Prices:
    """Equations 6, 7 for the jobs at hand; `capacity` (H, R).

    U_max: the largest worth per worker of a job that runs at full speed from its arrival to its end. U_min: a quarter of the smallest
    worth, of a job that ends when all have run one after another on their slowest types from now on, per worker and round of its longest
    run, scaled by eta, at least 1 and at least all GPUs over that run. Jobs that can't run on a type have no say in its price.
    """
    can = jobs.rates > 0
    if not can.any():
        unit = np.ones(capacity.shape[1])
        return Prices(unit, unit)
    runs = np.asarray(can.any(axis=1))
    gang = jobs.workers[:, None] * jobs.rates
    fastest = np.where(runs, gang.max(axis=1), 1.0)
    slowest = np.where(runs, np.where(can, gang, np.inf).min(axis=1), 1.0)
    shortest_s, longest_s = jobs.iterations / fastest, jobs.iterations / slowest
    latest_s = jobs.age_s + float(longest_s[runs].sum())  # T - a: of each job since its own arrival
    gpu_rounds = longest_s / round_s * jobs.workers
    eta = max(1.0, float((capacity.sum() / gpu_rounds[runs]).max()))
    high = utility(shortest_s[:, None])[:, 0] / jobs.workers
    low = utility(latest_s[:, None])[:, 0] / gpu_rounds / (4 * eta)
    most = np.where(can, high[:, None], 0.0).max(axis=0)
    least = np.where(can, low[:, None], np.inf).min(axis=0)
    used = most > 0
    most = np.where(used, most, 1.0)
    # A utility may fall to 0 (deadlines); prices can't start there, as they grow by factors.
    return Prices(np.where(used, np.clip(least, LOWEST * most, most), 1.0), most)
