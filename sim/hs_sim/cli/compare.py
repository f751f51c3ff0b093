"""hs-sim compare."""

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
    tell_unnamed,
    tell_unused,
    workload_of,
)
from hs_sim.cli.outputs import FileName, check_outputs

MEANT = {
    "--policy": "expected --policies, names with commas between them",
    "--seed": "expected --seeds 3, which runs seeds 0 to 2",
    "--workload": "expected --trace FILE",
}


@click.command(cls=Command, stray="expected the workload as --trace {}", elsewhere=MEANT)
@click.option("--policies", required=True, help="Names, comma-separated.")
@click.option(
    "--trace",
    type=FileName(),
    help="A workload (.yaml, .csv), Philly's CSV, or with --throughputs a trace of Gavel's or Shockwave's; without it the generator's.",
)
@click.option("--seeds", type=int, default=1, show_default=True, help="So many, from 0.")
@input_options
@cluster_options
@run_options
@generator
@click.option(
    "--workers",
    type=int,
    default=0,
    show_default=True,
    help="Runs at once; 0: one a core, where it is worth it. 1: in this process.",
)
@click.option(
    "--on",
    "where",
    type=click.Choice(["local", "ray", "dask"]),
    default="local",
    show_default=True,
    help="Runs are spread over this machine's cores, or over a Ray or Dask cluster.",
)
@click.option("--address", default="", help="Of the Ray or Dask cluster; without it one is started here.")
@click.option("--json", "json_out", type=FileName(), help="Write one object per policy and seed here.")
@click.option("--csv", "csv_out", type=FileName(), help="Write one line per policy and seed here.")
@click.option(
    "--plot",
    type=FileName(),
    help="Draw times to completion, utilization and finish-time fairness here (PNG).",
)
def compare(
    policies: str,
    *,
    trace: Path | None,
    seeds: int,
    workers: int,
    where: str,
    address: str,
    json_out: Path | None,
    csv_out: Path | None,
    plot: Path | None,
    **given: Any,
) -> None:
    """Simulate one workload under several policies.

    \b
    hs-sim compare --policies gandiva-fair,las,fifo --jobs 300 --jobs-per-hour 40
    hs-sim compare --policies gavel-max-min,fft --trace my.trace --throughputs my.json --round-s 360 --seeds 3 --plot out.png
    """
    from hs_sim import writers
    from hs_sim.cli import show
    from hs_sim.compare import Case

    names = list(dict.fromkeys(word.strip() for word in policies.split(",") if word.strip()))
    if not names:
        raise RefusedError(f"--policies: {policies!r}; expected names with commas between them")
    check_policies("--policies", names)
    if not 1 <= seeds <= 10_000:
        raise RefusedError(f"--seeds: {seeds}; expected 1 to 10000")
    if not 0 <= workers <= 10_000:
        raise RefusedError(f"--workers: {workers}; expected 0 to 10000")
    if address and where == "local":
        raise RefusedError(f"--address: {address!r} without --on; expected --on ray or --on dask")
    check_generator(trace, given)
    inputs = (trace, given["throughputs"], given["slowdowns"])
    check_outputs(inputs, {"--json": json_out, "--csv": csv_out, "--plot": plot})
    cases = []
    for seed in range(seeds):
        load = workload_of(trace, seed, given, names)
        if not seed:
            tell_unnamed(load)
            tell_unused(load, cluster_of(given))
        cases += [
            Case(experiment=experiment_of(load, name, seed, given), depth=given["depth"]) for name in names
        ]
    outcomes = show.run_all(cases, where=where, workers=workers, address=address)
    if json_out is not None:
        writers.write_json(json_out, [outcome.summary.as_dict() for outcome in outcomes])
    if csv_out is not None:
        writers.write_csv(csv_out, [outcome.summary.as_dict() for outcome in outcomes])
    if plot is not None:
        from hs_sim import pictures

        pictures.comparison(plot, outcomes, cases[0].experiment.workload.name)
    show.comparison([outcome.summary for outcome in outcomes], cases[0].experiment.workload)
