"""hs-sim compare."""

from pathlib import Path
from typing import Any

import click

from hs_core.errors import RefusedError
from hs_sim.cli.options import cluster_options, experiment_of, generator, run_options, workload_of


@click.command()
@click.option("--policies", required=True, help="Names, comma-separated.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="A workload (.yaml, .csv), or with --throughputs a trace of Gavel's; without it the generator's.",
)
@click.option("--throughputs", type=click.Path(path_type=Path), help="Gavel's throughputs.json.")
@click.option("--seeds", type=int, default=1, show_default=True, help="So many, from 0.")
@cluster_options
@run_options
@generator
@click.option(
    "--json", "json_out", type=click.Path(path_type=Path), help="Write one object per policy and seed here."
)
def compare(
    policies: str,
    trace: Path | None,
    throughputs: Path | None,
    seeds: int,
    json_out: Path | None,
    **given: Any,
) -> None:
    """Simulate one workload under several policies.

    \b
    hs-sim compare --policies gandiva-fair,las,fifo --jobs 300 --jobs-per-hour 40
    """
    from hs_sim import writers
    from hs_sim.cli import show
    from hs_sim.metrics import summarize

    names = [word.strip() for word in policies.split(",") if word.strip()]
    if not names:
        raise RefusedError(f"--policies: {policies!r}; expected names with commas between them")
    if not 1 <= seeds <= 10_000:
        raise RefusedError(f"--seeds: {seeds}; expected 1 to 10000")
    if throughputs is not None and trace is None:
        raise RefusedError("--throughputs: given without --trace; expected both")
    rows = []
    for seed in range(seeds):
        load = workload_of(trace, seed, given["gpus_per_server"], given, throughputs)
        rows += [
            summarize(
                show.simulate(experiment_of(load, name, seed, given), given["depth"], f"{name}, seed {seed}")
            )
            for name in names
        ]
    show.table(rows)
    if json_out is not None:
        writers.write_json(json_out, [row.as_dict() for row in rows])
