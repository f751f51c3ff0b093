"""hs-sim run."""

from pathlib import Path
from typing import Any

import click

from hs_core.errors import RefusedError
from hs_daemon.strays import Command
from hs_sim.cli.options import (
    check_generator,
    check_policies,
    cluster_of,
    cluster_options,
    experiment_of,
    generator,
    input_options,
    run_options,
    seeds_of,
    tell_unnamed,
    tell_unused,
    workload_of,
)
from hs_sim.cli.outputs import FileName, check_outputs
from hs_sim.model import Result

MEANT = {
    "--policies": "expected --policy with one name; `hs-sim compare` takes several",
    "--trace": "expected the file alone: hs-sim run FILE",
    "--workload": "expected the file alone: hs-sim run FILE",
}


@click.command(cls=Command, stray="one workload at a time", elsewhere=MEANT)
@click.argument("workload", required=False, type=FileName())
@click.option("--policy", default="gandiva-fair", show_default=True)
@click.option(
    "--seed",
    "--seeds",
    "seed",
    default="0",
    show_default=True,
    help="One, several with commas, or a range 0-9.",
)
@input_options
@cluster_options
@run_options
@generator
@click.option("--json", "json_out", type=FileName(), help="Write the summary and every job here.")
@click.option("--csv", "csv_out", type=FileName(), help="Write one line a job here.")
@click.option(
    "--plot",
    type=FileName(),
    help="Draw shares, times to completion and utilization here (PNG): of the first seed.",
)
def run(
    workload: Path | None,
    *,
    policy: str,
    seed: str,
    json_out: Path | None,
    csv_out: Path | None,
    plot: Path | None,
    **given: Any,
) -> None:
    """Simulate WORKLOAD (.yaml, .csv, Philly's CSV, or with --throughputs a trace of Gavel's or Shockwave's; without one the generator makes it) under one policy.

    \b
    hs-sim run --jobs 500 --jobs-per-hour 60 --cluster v100:24,p100:48,k80:128
    hs-sim run my.yaml --policy las --until 86400 --json out.json --plot out.png
    """
    from hs_core.policies import POLICIES
    from hs_sim import writers
    from hs_sim.cli import show
    from hs_sim.metrics import summarize

    check_policies("--policy", (policy,))
    if workload is not None and str(workload) in POLICIES and not workload.exists():
        raise RefusedError(f"WORKLOAD: {str(workload)!r} is a policy; expected --policy {workload}")
    check_generator(workload, given)
    inputs = (workload, given["throughputs"], given["slowdowns"])
    check_outputs(inputs, {"--json": json_out, "--csv": csv_out, "--plot": plot})
    results: list[Result] = []
    for number in seeds_of(seed):
        load = workload_of(workload, number, given, (policy,))
        if not results:
            tell_unnamed(load)
            tell_unused(load, cluster_of(given))
        results.append(
            show.simulate(
                experiment_of(load, policy, number, given), given["depth"], f"{policy}, seed {number}"
            )
        )
    if json_out is not None:
        writers.write_json(json_out, [writers.run_row(result) for result in results])
    if csv_out is not None:
        writers.write_jobs_csv(csv_out, results)
    if plot is not None:
        from hs_sim import pictures

        pictures.overview(plot, results[0])
    show.comparison([summarize(result) for result in results], results[0].experiment.workload)
