"""Depth *quanta*: a month of the paper's 200-GPU cluster (goal: 60 s), and quanta a second of 10,000 GPUs with 100,000 jobs (goal: 200).

Of the month its first days, and a 25th of the large cluster, as long as the whole takes minutes: `sim_quanta.py month`, `sim_quanta.py large`.
"""

import sys
import time

from hs_sim.cluster import parse_cluster
from hs_sim.generate import Recipe, generate
from hs_sim.model import Experiment, Result
from hs_sim.quanta import run_quanta

MONTH_H = 30 * 24
DAYS_H = 24
LARGE_QUANTA = 4


def timed(experiment: Experiment) -> tuple[float, Result]:
    began_s = time.process_time()
    result = run_quanta(experiment)
    return time.process_time() - began_s, result


def month(hours: int = MONTH_H) -> None:
    load = generate(
        Recipe(jobs=5_000, users=20, jobs_per_hour=5_000 / MONTH_H, service_s=10 * 3600.0, service_spread=1.2)
    )
    took_s, result = timed(
        Experiment(
            cluster=parse_cluster("v100:24,p100:48,k80:128"),
            workload=load,
            until_s=hours * 3600.0,
            sample_s=3600.0,
        )
    )
    ended = sum(job.ended_s is not None for job in result.jobs)
    print(
        f"day 1 to {hours // 24} of a month of 200 GPUs and 5,000 jobs: {took_s:.0f} s; {result.quanta:,} quanta, {result.decisions:,} decisions of "
        f"{1e3 * result.decision_s_mean:.1f} ms, {ended:,} jobs ended"
    )


def large(gpus: int = 2_500) -> None:
    """So many of each of four models, ten jobs a GPU."""
    jobs = 40 * gpus
    load = generate(Recipe(jobs=jobs, users=jobs // 100, service_s=30 * 3600.0, service_spread=0.5))
    cluster = parse_cluster(",".join(f"{model}:{gpus}" for model in ("v100", "p100", "p40", "k80")))
    few, many = 2, 2 + LARGE_QUANTA
    runs = [
        timed(Experiment(cluster=cluster, workload=load, until_s=60.0 * quanta, sample_s=3600.0))
        for quanta in (few, many)
    ]
    (short_s, _), (long_s, result) = runs
    each_s = (long_s - short_s) / (many - few)
    print(
        f"{4 * gpus:,} GPUs, {jobs:,} jobs: {1 / each_s:.1f} quanta/s once all have come ({each_s:.3f} s each; "
        f"decisions {result.decision_s_mean:.2f} s on average, {result.decisions} of them)"
    )


def main() -> None:
    whole = {"month": month, "large": large}
    for part in sys.argv[1:]:
        whole[part]()
    if not sys.argv[1:]:
        month(DAYS_H)
        large(100)


if __name__ == "__main__":
    main()
