"""The papers' algorithms word for word. The fast ones are compared with them, here and in tests/mechanism."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Ints = NDArray[np.int64]

Pair = tuple[float, bool, int]  # mean end of both in s, share, index of the sub-batch


@dataclass(frozen=True, slots=True)
class Length:
    """A pending job's time alone in each of its sub-batches, from the model of an iteration (SJF-BSBF, equation 7)."""

    iterations: int
    batch: int
    fixed_s: float
    per_sample_s: float
    reduce_s: float
    overlap: float

    def alone_s(self, accumulation: int) -> float:
        compute = self.fixed_s + self.per_sample_s * self.batch / accumulation
        last = (compute**self.overlap + self.reduce_s**self.overlap) ** (1 / self.overlap)
        return self.iterations * ((accumulation - 1) * compute + last)


@dataclass(frozen=True, slots=True)
class Old:
    """A running job, as one of its pair with the pending one."""

    left_s: float
    free_bytes: float
    gpus: int
    newer: Sequence[float]  # ratio of the pending job beside it, by sub-batch
    older: Sequence[float]  # its own


def theorem_1(left_s: float, alone_s: float, older: float, newer: float) -> tuple[float, bool]:
    """Mean end of both in the better of the two ways, and whether that is to share."""
    slow_old, slow_new = left_s * older, alone_s * newer
    if slow_old <= slow_new:
        shared = (slow_old + slow_old + alone_s * (1 - slow_old / slow_new)) / 2
    else:
        shared = (slow_new + slow_new + left_s * (1 - slow_new / slow_old)) / 2
    apart = (left_s + left_s + alone_s) / 2
    return min(shared, apart), shared < apart


def share_one(old: Old, length: Length, memory: Sequence[float]) -> Pair | None:
    """Algorithm 2: each sub-batch in turn beside one running job."""
    best: Pair | None = None
    step, sub_batch = 0, length.batch
    while sub_batch >= 1:
        if memory[step] <= old.free_bytes:
            alone_s = length.alone_s(length.batch // sub_batch)
            found, share = theorem_1(old.left_s, alone_s, old.older[step], old.newer[step])
            if best is None or found < best[0]:
                best = found, share, step
        step, sub_batch = step + 1, sub_batch // 2
    return best


def sharing_loop(
    running: Sequence[Old], gpus: int, length: Length, memory: Sequence[float]
) -> list[int] | None:
    """Algorithm 1, lines 10-17: the running jobs whose GPUs are shared, in the order in which they are taken."""
    pairs: list[tuple[float, int]] = []
    for job, old in enumerate(running):
        found = share_one(old, length, memory)
        if found is not None and found[1]:
            pairs.append((found[0], job))
    pairs.sort()
    taken: list[int] = []
    held = 0
    for _, job in pairs:
        taken.append(job)
        held += running[job].gpus
        if held >= gpus:
            return taken
    return None


def ends_by_search(left_s: float, alone_s: float, older: float, newer: float, starts: int = 2001) -> float:
    """Least mean end of two jobs over the moments at which the second may start, by simulation."""
    best = float("inf")
    for number in range(starts):
        start = left_s * number / (starts - 1)
        old, new, now = left_s - start, alone_s, start
        side_by_side = min(old * older, new * newer)
        old, new, now = old - side_by_side / older, new - side_by_side / newer, now + side_by_side
        end_old, end_new = now + max(old, 0.0), now + max(new, 0.0)
        best = min(best, (end_old + end_new) / 2)
    return best


def node_cost(old: Ints, new: Ints, gpus_of: Mapping[int, int]) -> float:
    """Tesserae, Algorithm 3: the least cost of turning one node's content into another's; both (G, 2)."""
    cost = np.zeros((len(old), len(new)))
    for u, was in enumerate(old.tolist()):
        for v, will in enumerate(new.tolist()):
            cost[u, v] = sum(0.5 / gpus_of[job] for job in set(was) ^ set(will) if job >= 0)
    rows, columns = linear_sum_assignment(cost)
    return float(cost[rows, columns].sum())


def migration_cost(old: Ints, new: Ints) -> float:
    """Tesserae, Algorithm 2: jobs that aren't in both plans removed, all pairs of nodes, one assignment; both (N, G, 2)."""
    both = np.intersect1d(old[old >= 0], new[new >= 0])
    old, new = np.where(np.isin(old, both), old, -1), np.where(np.isin(new, both), new, -1)
    jobs, counts = np.unique(new[new >= 0], return_counts=True)
    gpus_of = dict(zip(jobs.tolist(), counts.tolist(), strict=True))
    cost = np.array([[node_cost(was, will, gpus_of) for will in new] for was in old])
    rows, columns = linear_sum_assignment(cost)
    return float(cost[rows, columns].sum())
