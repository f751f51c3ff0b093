"""Microseconds for one quantum's decision of a server's stride queue; goal: under 5 at 64 jobs."""

import statistics
import time
from fractions import Fraction

from hs_core.mechanism.stride import StrideQueue

BATCH = 500
BATCHES = 41
MIXES = {"1, 2 and 4 GPUs": (1, 2, 4), "1 GPU": (1,), "4 GPUs": (4,)}


def median_us(jobs: int, free: int, gangs: tuple[int, ...]) -> float:
    queue: StrideQueue[int] = StrideQueue()
    for job in range(jobs):
        gang = gangs[job % len(gangs)]
        queue.add(job, gang, Fraction(gang * free, (1 + job % 5) * jobs), (job,))
    queue.pick(free)
    took = []
    for _ in range(BATCHES):
        start = time.process_time_ns()
        for _ in range(BATCH):
            queue.pick(free)
        took.append((time.process_time_ns() - start) / BATCH / 1_000)
    return statistics.median(took)


def main() -> None:
    print(f"CPU time of one pick, median of {BATCHES} batches of {BATCH}")
    print(f"{'jobs':>5} {'GPUs':>5}  " + "  ".join(f"{name:>16}" for name in MIXES))
    for jobs in (8, 16, 64):
        for free in (4, 8):
            times = "  ".join(f"{median_us(jobs, free, gangs):13.2f} us" for gangs in MIXES.values())
            print(f"{jobs:>5} {free:>5}  {times}")


if __name__ == "__main__":
    main()
