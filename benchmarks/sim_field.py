"""Whole simulations under a policy of Gavel's.

- 480 jobs on 60 GPUs: goal 0.5 s of CPU (Gavel itself: 1.3).
- 900 jobs on 80 GPUs: goal 4 s (Gavel: 17).
- A trace ten times as long, and memory.

Rounds of 6 minutes, made true as Gavel's simulator does (`gavel-compat`); speeds of Gandiva_fair's table 1.
"""

import resource
import sys
import time

from hs_sim.cluster import parse_cluster
from hs_sim.drawn import STATIC, shockwave_like
from hs_sim.generate import Recipe, gang_rates, generate
from hs_sim.model import Experiment, Result, Workload, gavel_compat
from hs_sim.quanta import run_quanta

ROUND_S = 360.0


def timed(experiment: Experiment) -> tuple[float, Result]:
    began_s = time.process_time()
    result = run_quanta(experiment)
    return time.process_time() - began_s, result


def small(jobs: int = 480) -> tuple[float, Result]:
    """Users have a job each, 8 come an hour, and keep two thirds of the cluster busy."""
    load = generate(
        Recipe(jobs=jobs, users=jobs, jobs_per_hour=8.0, service_s=4 * 3600.0, service_spread=1.2)
    )
    return timed(_experiment(load, "v100:20,p100:20,k80:20"))


def large() -> tuple[float, Result]:
    """Tesserae's setting: Shockwave-like jobs, 80 an hour, GPUs of one model."""
    return timed(
        _experiment(shockwave_like(gang_rates(), jobs=900, jobs_per_hour=80.0, modes=STATIC), "v100:80")
    )


def _experiment(load: Workload, cluster: str) -> Experiment:
    return gavel_compat(
        Experiment(cluster=parse_cluster(cluster), workload=load, policy="gavel-max-min", quantum_s=ROUND_S)
    )


def line(name: str, took_s: float, result: Result) -> str:
    ended = sum(job.ended_s is not None for job in result.jobs)
    return (
        f"{name}: {took_s:.2f} s of CPU; {result.quanta:,} rounds, {result.decisions:,} decisions of {1e3 * result.decision_s_mean:.2f} ms "
        f"({result.decisions * result.decision_s_mean:.2f} s together), {ended:,} jobs ended"
    )


def main() -> None:
    small(48)  # imports
    best = min((small() for _ in range(3)), key=lambda run: run[0])
    print(line("480 jobs on 60 GPUs, gavel-max-min", *best), flush=True)
    print(line("900 jobs on 80 GPUs, gavel-max-min", *large()), flush=True)
    ten_s, ten = small(4_800)
    print(
        line("4,800 jobs on 60 GPUs, gavel-max-min", ten_s, ten)
        + f": {ten_s / best[0]:.1f} times that of 480"
    )
    print(f"memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most")


if __name__ == "__main__":
    main()
    sys.exit(0)
