"""HadarE's comparison (section VI) simulated.

Seven mixes on five servers: total time and mean completion time against Gavel and Hadar.
"""

from statistics import geometric_mean

from hs_sim import papers
from hs_sim.metrics import Summary, summarize
from hs_sim.model import Experiment
from hs_sim.quanta import run_quanta

POLICIES = ("hadare", "hadar", "gavel-max-min", "gavel-makespan")


def run(mix: str, policy: str, round_s: float) -> Summary:
    return summarize(
        run_quanta(
            Experiment(
                cluster=papers.HADARE_CLUSTER,
                workload=papers.hadare_mix(mix),
                policy=policy,
                quantum_s=round_s,
                costs=papers.HADAR_COSTS,
                known_rates=True,
                rounds=True,
            )
        )
    )


def main() -> None:
    print("total time and mean completion time in s, part of the GPUs in use; below: of each over HadarE's")
    for round_s in (360.0, 90.0):
        print(f"\nrounds of {round_s:g} s\n{'':6s}" + "".join(f"{name:>24s}" for name in POLICIES))
        total: dict[str, list[float]] = {name: [] for name in POLICIES}
        mean: dict[str, list[float]] = {name: [] for name in POLICIES}
        for mix in papers.HADARE_MIXES:
            line = f"{mix:6s}"
            for name in POLICIES:
                done = run(mix, name, round_s)
                assert done.makespan_s is not None, "all jobs end"
                assert done.mean_jct_s is not None, "all jobs end"
                total[name].append(done.makespan_s)
                mean[name].append(done.mean_jct_s)
                line += f"{done.makespan_s:11.0f}{done.mean_jct_s:8.0f}{done.utilization:5.2f}"
            print(line)
        print(
            "ratio "
            + "".join(
                f"{over(total[name], total):10.2f}x{over(mean[name], mean):7.2f}x{'':5s}" for name in POLICIES
            )
        )


def over(values: list[float], all_: dict[str, list[float]]) -> float:
    return geometric_mean(value / own for value, own in zip(values, all_["hadare"], strict=True))


if __name__ == "__main__":
    main()
