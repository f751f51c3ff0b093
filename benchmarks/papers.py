"""Other papers' comparisons, on workloads built as these describe them (`hs_sim.papers`).

Prints each policy's figures, and their ratio to the first policy's.

    python -m benchmarks.papers fft --philly philly.csv [--jobs 200 --gang 4] --policies fft,gavel-sjf,srsf

`hadar`, `tesserae` and `tesserae-gavel` want `--throughputs throughputs.json` (Gavel's). Policies know all speeds and
decide at the edges of rounds, as in these papers.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from hs_core.errors import RefusedError
from hs_sim import papers
from hs_sim.colocated import load_interference
from hs_sim.gavel import load_throughputs
from hs_sim.metrics import Summary, summarize
from hs_sim.model import Costs, Experiment
from hs_sim.philly import load_philly
from hs_sim.quanta import run_quanta

HEAD = f"{'policy':20s} {'finished':>9s} {'mean JCT':>9s} {'ratio':>6s} {'makespan':>9s} {'ratio':>6s} {'FTF':>6s} {'worst':>6s} {'wait':>7s} {'suspends':>9s} {'moves':>6s} {'median':>9s} {'used':>5s}"


def experiment(given: argparse.Namespace) -> Experiment:
    common = {"jobs": given.jobs, "seed": given.seed}
    if given.paper == "fft":
        philly = load_philly(given.philly)
        return Experiment(
            cluster=papers.FFT_CLUSTER,
            workload=papers.fft_trace(philly, gang=given.gang, load=given.load, **common),
            quantum_s=papers.FFT_ROUND_S,
            costs=papers.FFT_COSTS,
            known_rates=True,
            rounds=True,
        )
    if given.paper.startswith("bsbf"):
        lab = given.paper == "bsbf-lab"
        ratio = {"seed": given.seed, "ratio": given.ratio}
        made = papers.bsbf_lab(**ratio) if lab else papers.bsbf_trace(jobs=given.jobs, **ratio)
        return Experiment(
            cluster=papers.bsbf_cluster(given.servers or (4 if lab else 16)),
            workload=papers.bsbf_elastic(made, anywhere=given.anywhere)
            if given.elastic or given.anywhere
            else made,
            costs=Costs(),
            known_rates=True,
        )
    if given.paper == "pal":
        return Experiment(
            cluster=papers.pal_cluster(
                given.servers or papers.PAL_SERVERS, spread=given.spread, seed=given.seed
            ),
            workload=papers.pal_trace(**common, jobs_per_hour=given.jobs_per_hour),
            quantum_s=papers.PAL_ROUND_S,
            known_rates=True,
            rounds=True,
        )
    speeds = load_throughputs(given.throughputs)
    if given.paper == "hadar":
        return Experiment(
            cluster=papers.hadar_cluster(given.servers or papers.HADAR_SERVERS),
            workload=papers.hadar_trace(
                load_philly(given.philly), speeds, longest_h=given.longest_h, **common
            ),
            quantum_s=papers.HADAR_ROUND_S,
            costs=papers.HADAR_COSTS,
            known_rates=True,
            rounds=True,
        )
    make = papers.tesserae_default if given.paper == "tesserae" else papers.tesserae_gavel
    load = make(speeds, **common, jobs_per_hour=given.jobs_per_hour)
    pairs = load_interference(given.throughputs, {name for name, _ in load.rates})
    return Experiment(
        cluster=papers.tesserae_cluster(given.servers or papers.TESSERAE_SERVERS),
        workload=load if given.alone else replace(load, interference=pairs),
        quantum_s=papers.TESSERAE_ROUND_S,
        costs=Costs(),
        known_rates=True,
        rounds=True,
    )


def line(one: Summary, first: Summary) -> str:
    jct, span = one.mean_jct_s or 0.0, one.makespan_s or 0.0
    return (
        f"{one.policy:20s} {f'{one.finished}/{one.jobs}':>9s} {jct / 3600:7.2f} h {jct / (first.mean_jct_s or 1.0):6.2f}"
        f" {span / 3600:7.2f} h {span / (first.makespan_s or 1.0):6.2f} {one.ftf_mean or 0.0:6.2f} {one.ftf_max or 0.0:6.1f}"
        f" {one.longest_wait_s / 3600:5.1f} h {one.suspends:9d} {one.migrations:6d}"
        f" {(one.median_jct_s or 0.0) / 3600:7.2f} h {one.utilization:5.2f}"
    )


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "paper", choices=["fft", "hadar", "tesserae", "tesserae-gavel", "bsbf", "bsbf-lab", "pal"]
    )
    parser.add_argument("--policies", required=True, help="the first is what the others are compared with")
    parser.add_argument("--philly", type=Path, default=Path("philly.csv"))
    parser.add_argument("--throughputs", type=Path, default=Path("throughputs.json"))
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--alone",
        action="store_true",
        help="tesserae: without Gavel's speeds of pairs, so that nobody shares a GPU",
    )
    parser.add_argument("--gang", type=int, default=0, help="fft: 4 is its trace 1; 0 its trace 2")
    parser.add_argument("--load", type=float, default=1.0, help="fft: GPU time asked for over what there is")
    parser.add_argument("--servers", type=int, default=0, help="fewer than the paper's (of each GPU model)")
    parser.add_argument("--longest-h", type=float, default=float("inf"), help="hadar: of a job on V100")
    parser.add_argument(
        "--one-by-one", default="", help="policies for which a gang of N GPUs is N servers with one each"
    )
    parser.add_argument(
        "--ratio", type=float, default=0.0, help="bsbf: how much any two jobs on a GPU slow each other"
    )
    parser.add_argument(
        "--anywhere", action="store_true", help="bsbf: all jobs are elastic, on any number of servers"
    )
    parser.add_argument("--elastic", action="store_true", help="bsbf: jobs on one server are elastic")
    parser.add_argument("--jobs-per-hour", type=float, default=80.0, help="tesserae, pal")
    parser.add_argument(
        "--spread", type=float, default=papers.PAL_SPREAD, help="pal: of the logarithm of GPUs' slowdowns"
    )
    parser.add_argument(
        "--own-costs", action="store_true", help="fft, hadar: the simulator's costs instead of the paper's"
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="policies also decide between edges, as they do on a cluster: newcomers have idle GPUs at once",
    )
    parser.add_argument("--json", type=Path)
    return parser


def main(words: list[str]) -> int:
    given = options().parse_args(words)
    base = experiment(given)
    if given.own_costs:
        base = replace(base, costs=Costs())
    if given.live:
        base = replace(base, rounds=False)
    print(f"{base.workload.name}: {len(base.workload.jobs)} jobs", flush=True)
    print(HEAD, flush=True)
    done: list[Summary] = []
    for name in given.policies.split(","):
        done.append(summarize(run_quanta(_under(base, name, given))))
        print(line(done[-1], done[0]), flush=True)
    if given.json:
        given.json.write_text(json.dumps([one.as_dict() for one in done], indent=1), encoding="utf-8")
    return 0


def _under(base: Experiment, policy: str, given: argparse.Namespace) -> Experiment:
    spread = policy in given.one_by_one.split(",")
    workload = papers.one_by_one(base.workload) if spread else base.workload
    return replace(base, policy=policy, workload=workload, seed=given.seed)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RefusedError as error:
        sys.exit(str(error))
