"""Depth *quanta*: a month of the paper's cluster, and a large cluster.

- The month of 200 GPUs: goal 60 s. Only its first days are run, as the whole takes a minute or two; `sim_quanta.py
  month` runs the whole.
- Quanta a second of 10,000 GPUs with 100,000 jobs: goal 200. Measured is what follows once all jobs have come: how
  fast quanta are beside the decisions, and with them.
"""

import sys
import time
from dataclasses import replace

from hs_core.policies import find
from hs_core.policy import Memory, Snapshot, Verdict
from hs_sim.cluster import parse_cluster
from hs_sim.generate import Recipe, generate
from hs_sim.model import Experiment, Result
from hs_sim.quanta import run_quanta
from hs_sim.quanta.engine import Progress

MONTH_H = 30 * 24
DAYS_H = 3 * 24
LARGE_QUANTA = (
    600  # ten hours: some of the decisions that are made while classes become known, and those after
)


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
    policy = find("gandiva-fair")
    decided: list[float] = []  # CPU seconds of each decision
    seen: list[tuple[float, float, int]] = []  # quanta, CPU time, decisions

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        began_s = time.process_time()
        verdict = policy.decide(snapshot, memory)
        decided.append(time.process_time() - began_s)
        return verdict

    def watch(progress: Progress) -> None:
        seen.append((progress.now_s / 60.0, time.process_time(), len(decided)))

    experiment = Experiment(cluster=cluster, workload=load, until_s=60.0 * LARGE_QUANTA, sample_s=3600.0)
    began_s = time.process_time()
    run_quanta(experiment, policy=replace(policy, decide=decide), progress=watch)
    first, last = seen[0], seen[-1]
    quanta, took_s = last[0] - first[0], last[1] - first[1]
    later = decided[first[2] : last[2]]
    print(
        f"{4 * gpus:,} GPUs, {jobs:,} jobs: {first[1] - began_s:.1f} s until all have a home; then {quanta / (took_s - sum(later)):.0f} quanta/s beside what the policy takes, "
        f"{quanta / took_s:.1f} with its {len(later)} decisions of {sum(later) / max(1, len(later)):.2f} s in {quanta:.0f} quanta"
    )


def main() -> None:
    whole = {"month": month, "large": large}
    for part in sys.argv[1:]:
        whole[part]()
    if not sys.argv[1:]:
        month(DAYS_H)
        large()


if __name__ == "__main__":
    main()
