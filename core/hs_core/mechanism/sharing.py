"""Two jobs on the same GPUs: when it pays to share, and with which sub-batch (SJF-BSBF, sections IV, V).

Non-preemptive, at most two jobs on a GPU. Times are seconds, batches are samples per GPU, memory is bytes per GPU. A *step* is one index of
the accumulation steps 1, 2, 4, …: sub-batches B, B/2, B/4, …
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hs_core.errors import BrokenError, RefusedError

UNMEASURED = 1.4
"""How many times as long mini-batches take beside another job's, before it was measured. With 1.5 on both sides nothing is won or lost beside a longer
job: a little less, so that pairs are tried, and measured."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """What an iteration takes on one type of GPU (equations 3, 4, 7).

    Compute: `compute_fixed_s + compute_per_sample_s * batch`; all-reduce: `reduce_fixed_s + reduce_per_byte_s * message_bytes`.
    `overlap` (the paper's delta, at least 1) says how far the two hide each other: 1 not at all, large: fully.
    """

    compute_fixed_s: float
    compute_per_sample_s: float
    reduce_fixed_s: float = 0.0
    reduce_per_byte_s: float = 0.0
    message_bytes: float = 0.0
    overlap: float = 1.0

    def __post_init__(self) -> None:
        for name in (
            "compute_fixed_s",
            "compute_per_sample_s",
            "reduce_fixed_s",
            "reduce_per_byte_s",
            "message_bytes",
        ):
            if not getattr(self, name) >= 0:
                raise RefusedError(f"{name} is {getattr(self, name)}; expected at least 0")
        if not self.overlap >= 1:
            raise RefusedError(f"overlap is {self.overlap}; expected at least 1")

    def iteration_s(self, batch: int, gpus: int, accumulation: ArrayLike = 1) -> Floats:
        """Seconds of one iteration over `batch` samples a GPU in `accumulation` sub-batches; the shape is that of `accumulation`."""
        steps = np.asarray(accumulation, float)
        compute = self.compute_fixed_s + self.compute_per_sample_s * batch / steps
        reduce = 0.0 if gpus == 1 else self.reduce_fixed_s + self.reduce_per_byte_s * self.message_bytes
        # The larger one outside the power: large overlaps would overflow.
        longer, shorter = np.maximum(compute, reduce), np.minimum(compute, reduce)
        ratio = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
        last: Floats = longer * (1 + ratio**self.overlap) ** (1 / self.overlap)
        return (steps - 1) * compute + last


def accumulations(batch: int) -> Ints:
    """1, 2, 4, … up to sub-batches of one sample: what a job of `batch` samples a GPU can be asked to do. Shape (K,)."""
    if batch < 1:
        raise RefusedError(f"batch is {batch}; expected at least 1")
    return 1 << np.arange(batch.bit_length(), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Interference:
    """How many times as long an iteration takes beside another job: measured ratios by class.

    `table[a, b, k]`: class a beside class b when the newer of the two accumulates over 2**k sub-batches; at least 1. Two tables, as it
    matters who is the newer: `of_newer` and `of_older`, each indexed [newer, older, k].
    """

    of_newer: Floats  # (classes, classes, steps)
    of_older: Floats

    def __post_init__(self) -> None:
        for name, table in (("of_newer", self.of_newer), ("of_older", self.of_older)):
            if table.ndim != 3 or table.shape[0] != table.shape[1] or table.shape[2] < 1:
                raise RefusedError(f"{name} has shape {table.shape}; expected (classes, classes, steps)")
            if not (table >= 1).all():
                raise RefusedError(f"{name} has ratios below 1; expected at least 1 everywhere")
        if self.of_newer.shape[0] != self.of_older.shape[0]:
            raise RefusedError("of_newer and of_older differ in classes; expected the same")

    @staticmethod
    def uniform(classes: int, ratio: float) -> "Interference":
        """The same ratio for all pairs: what to assume before anything was measured."""
        table = np.full((classes, classes, 1), float(ratio))
        return Interference(table, table)

    def ratios(self, newer: int, older: Ints, steps: int) -> tuple[Floats, Floats]:
        """Ratios (of the newer, of the older), each (len(older), steps); steps beyond those measured are as the last measured one."""
        return _steps(self.of_newer[newer], steps)[older], _steps(self.of_older[newer], steps)[older]


def _steps(table: Floats, steps: int) -> Floats:
    measured = table.shape[-1]
    if steps <= measured:
        return table[..., :steps]
    return np.concatenate([table, np.repeat(table[..., -1:], steps - measured, axis=-1)], axis=-1)


@dataclass(frozen=True, slots=True)
class Ends:
    """A running job A and a new one B on its GPUs: seconds from now until either ends, shared at once or one after the other."""

    shared_older_s: Floats
    shared_newer_s: Floats
    apart_older_s: Floats
    apart_newer_s: Floats


def ends(older_s: ArrayLike, newer_s: ArrayLike, older_ratio: ArrayLike, newer_ratio: ArrayLike) -> Ends:
    """Theorem 1: the best moment to start B beside A is now or after A's end; this says what either gives. All shapes broadcast.

    `older_s`, `newer_s`: seconds left of A, and of B in all, alone; ratios at least 1. While both run each is slower by its ratio.
    """
    old, new = np.asarray(older_s, float), np.asarray(newer_s, float)
    slow_old, slow_new = old * np.asarray(older_ratio, float), new * np.asarray(newer_ratio, float)
    both = np.minimum(slow_old, slow_new)  # how long they run side by side
    done_old = np.divide(both, slow_old, out=np.ones_like(both), where=slow_old > 0)
    done_new = np.divide(both, slow_new, out=np.ones_like(both), where=slow_new > 0)
    shared_old, shared_new = both + old * (1 - done_old), both + new * (1 - done_new)
    shape = shared_old.shape
    return Ends(shared_old, shared_new, np.broadcast_to(old, shape), np.broadcast_to(old + new, shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Jobs that hold their GPUs alone, R of them; the order is that of first fit and settles ties."""

    left_s: Floats  # (R,) alone
    memory_bytes: Floats  # (R,) per GPU
    gpu_bytes: Floats  # (R,) memory of one of its GPUs
    job_class: Ints  # (R,) index into Interference

    def __post_init__(self) -> None:
        sizes = {len(part) for part in (self.left_s, self.memory_bytes, self.gpu_bytes, self.job_class)}
        if len(sizes) != 1:
            raise BrokenError(f"running jobs' arrays have lengths {sorted(sizes)}; expected one length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A job that asks for GPUs, in each of its K accumulation steps (`accumulations`)."""

    alone_s: Floats  # (K,), or (R, K) where it depends on whose GPUs it would get
    memory_bytes: Floats  # (K,) per GPU, falling
    job_class: int


@dataclass(frozen=True, slots=True)
class Table:
    """For each running job what Algorithm 2 finds. `step` is -1 where no sub-batch fits beside it."""

    step: Ints  # (R,) index of the sub-batch
    share: Bools  # (R,) to start now is better than to wait
    mean_s: Floats  # (R,) of both jobs' ends in the better of the two; inf where nothing fits


def table(running: Running, job: Pending, interference: Interference) -> Table:
    """Algorithm 2 for one pending job beside every running one at once: best sub-batch, share flag and mean end.

    Waiting wins ties: nothing is gained by sharing, and the estimates may be wrong. O(R K), no loop.
    """
    # While both run for `both` seconds they get done what would take both/ratio alone; the mean of the two ends is then, twice,
    # left + alone + both * (2 - 1/older - 1/newer) when shared, and left + alone + left when not.
    steps = job.memory_bytes.shape[-1]
    newer = _steps(interference.of_newer[job.job_class], steps)
    older = _steps(interference.of_older[job.job_class], steps)
    lost = 2 - 1 / older - 1 / newer
    at_class = running.job_class
    left = running.left_s[:, None]
    both = np.minimum(left * older.take(at_class, axis=0), job.alone_s * newer.take(at_class, axis=0))
    both *= lost.take(at_class, axis=0)
    twice = np.minimum(both, left)
    twice += job.alone_s
    room = running.gpu_bytes - running.memory_bytes
    twice[job.memory_bytes > room[:, None]] = np.inf
    step = twice.argmin(axis=1)
    at = np.arange(len(step))
    best = twice[at, step]
    none = best == np.inf
    share = both[at, step] < running.left_s
    share &= ~none
    step[none] = -1
    return Table(step, share, (best + running.left_s) / 2)


def willing(found: Table) -> Ints:
    """Who gains by sharing now, least mean end first (Algorithm 1, lines 10-14): indices into Running."""
    gains = np.flatnonzero(found.share)
    order: Ints = gains[np.argsort(found.mean_s[gains], kind="stable")]
    return order


def fitting(room_bytes: Floats, memory_bytes: Floats) -> Ints:
    """SJF-FFS: for each room (R,) the index of the largest sub-batch (of K) that fits in, -1 if none; whether sharing pays is not asked."""
    fits = memory_bytes <= room_bytes[:, None]
    return np.where(fits.any(axis=1), fits.argmax(axis=1), -1)
