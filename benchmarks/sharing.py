"""SJF-BSBF's choice of partners for one pending job: all running jobs at once against the paper's loop.

Goal: 15 times as fast at 240 running.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
from literal import Length, Old, sharing_loop

from hs_core.mechanism.sharing import (
    Floats,
    Interference,
    Ints,
    Pending,
    Running,
    StepTimes,
    accumulations,
    table,
    willing,
)

GIB = 2.0**30
REPEATS = 41


BATCH = 128
TIMES = StepTimes(compute_fixed_s=0.02, compute_per_sample_s=0.003, reduce_fixed_s=0.05, overlap=2)
LENGTH = Length(10_000, BATCH, 0.02, 0.003, 0.05, 2)


def instance(jobs: int) -> tuple[Running, Ints, Interference]:
    """Running jobs, their GPUs, and how much they hinder each other."""
    dice = np.random.default_rng(jobs)
    classes = 12
    left_s, gpus = dice.exponential(3000, jobs), dice.choice([1, 2, 4], jobs)
    running = Running(
        left_s=left_s,
        memory_bytes=dice.uniform(2, 6, jobs) * GIB,
        gpu_bytes=np.full(jobs, 11 * GIB),
        job_class=dice.integers(classes, size=jobs),
    )
    shape = (classes, classes, len(accumulations(BATCH)))
    return running, gpus, Interference(dice.uniform(1, 2, shape), dice.uniform(1, 2, shape))


def memory() -> Floats:
    return (1 + 6 / accumulations(BATCH)) * GIB


def fast(running: Running, gpus: Ints, interference: Interference) -> list[int] | None:
    alone_s = LENGTH.iterations * TIMES.iteration_s(BATCH, 4, accumulations(BATCH))
    job = Pending(alone_s=alone_s, memory_bytes=memory(), job_class=3)
    order = willing(table(running, job, interference))
    needed = int(np.searchsorted(np.cumsum(gpus[order]), 4)) + 1
    return None if needed > len(order) else order[:needed].tolist()


def olds(running: Running, gpus: Ints, interference: Interference) -> list[Old]:
    newer, older = interference.ratios(3, running.job_class, len(accumulations(BATCH)))
    free = (running.gpu_bytes - running.memory_bytes).tolist()
    return list(map(Old, running.left_s.tolist(), free, gpus.tolist(), newer.tolist(), older.tolist()))


def median_us(call: Callable[[], object]) -> float:
    took = []
    for _ in range(REPEATS):
        start = time.process_time_ns()
        for _ in range(5):
            call()
        took.append((time.process_time_ns() - start) / 5_000)
    return statistics.median(took)


def main() -> None:
    print("CPU time for one pending job, 8 sub-batches; the same partners from both")
    print(f"{'running':>8}  {'at once':>11}  {'loop':>12}  {'ratio':>6}")
    for jobs in (16, 60, 240, 960):
        running, gpus, interference = instance(jobs)
        loop, sizes = olds(running, gpus, interference), memory().tolist()
        assert fast(running, gpus, interference) == sharing_loop(loop, 4, LENGTH, sizes)
        quick = median_us(lambda: fast(running, gpus, interference))  # noqa: B023
        slow = median_us(lambda: sharing_loop(loop, 4, LENGTH, sizes))  # noqa: B023
        print(f"{jobs:>8}  {quick:8.1f} us  {slow:9.1f} us  {slow / quick:5.1f}x")


if __name__ == "__main__":
    main()
