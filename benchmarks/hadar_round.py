"""One round of Hadar; goal: 2,048 jobs on 1,000 GPUs in at most 0.1 s (the paper: up to 7 minutes)."""

import time

import numpy as np

from hs_core.mechanism.hadar import decide
from hs_core.mechanism.hadar_exact import exact
from hs_core.mechanism.prices import Ints, Jobs

REPEATS = 3


def instance(jobs: int, servers: int, seed: int) -> tuple[Jobs, Ints]:
    """Three types, servers of four GPUs of one type."""
    dice = np.random.default_rng(seed)
    workers = dice.choice([1, 2, 4, 8], jobs, p=[0.6, 0.2, 0.15, 0.05])
    rates = dice.uniform(0.7, 1.3, (jobs, 3)) * np.array([4.0, 2.0, 1.0]) * dice.uniform(1, 20, (jobs, 1))
    hours = np.exp(dice.normal(0.5, 1.5, jobs))
    iterations = hours * 3600 * rates.mean(axis=1) * workers
    facts = Jobs(
        rates=rates,
        workers=workers,
        iterations=iterations,
        left=iterations * dice.uniform(0.1, 1, jobs),
        age_s=dice.uniform(0, 36_000, jobs),
    )
    capacity = np.zeros((servers, 3), np.int64)
    capacity[np.arange(servers), np.arange(servers) % 3] = 4
    return facts, capacity


def main() -> None:
    exact(*instance(20, 2, 0))  # imports
    print(f"CPU time of one round, 3 types, servers of 4 GPUs, median of {REPEATS}")
    for jobs, servers in ((256, 30), (512, 60), (1024, 125), (2048, 250)):
        for fresh in (True, False):
            facts, capacity = instance(jobs, servers, jobs)
            held = None if fresh else decide(facts, capacity).holdings
            took = []
            for _ in range(REPEATS):
                start_s = time.process_time()
                found = decide(facts, capacity) if held is None else decide(facts, capacity, held=held)
                took.append(time.process_time() - start_s)
            used, where = (
                found.holdings.gpus.sum(),
                "all new" if fresh else "those of the last round hold GPUs",
            )
            print(
                f"{jobs:>5} jobs {4 * servers:>5} GPUs  {sorted(took)[1] * 1e3:6.1f} ms  {used:>4} in use  {where}"
            )
            if fresh:
                start_s = time.process_time()
                best = exact(facts, capacity)
                took_s = time.process_time() - start_s
                print(
                    f"{'':>10} exact    {took_s * 1e3:6.1f} ms  gap {best.gap:.4%}, greedy worth {found.worth.sum() / best.worth:.3f} of it"
                )


if __name__ == "__main__":
    main()
