"""hs-sim workload generate|check|show."""

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from hs_core.errors import RefusedError
from hs_daemon import unheard
from hs_sim.cli.options import (
    check_generator,
    cluster_of,
    cluster_options,
    generator,
    gpus_per_server_of,
    input_options,
    made,
    seed_of,
    tell_unnamed,
    tell_unused,
)
from hs_sim.cli.outputs import FileName, check_outputs

_OF_THE_CLUSTER = ("cluster", "gpu_memory_gib", "dataset_cache_gib", "slowdowns")


@click.group(cls=unheard.Group)
def workload() -> None:
    """Make, check and show workload files."""


@workload.command()
@click.argument("path", type=FileName())
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--gpus-per-server", type=int, default=4, show_default=True)
@click.option(
    "--throughputs",
    type=FileName(),
    help="Speeds of what is generated: Gavel's throughputs.json.",
)
@generator
def generate(path: Path, seed: int, **given: Any) -> None:
    """Write a generated workload to PATH (.yaml or .csv)."""
    from hs_sim import export, writers

    dumps = {".csv": export.dump_csv, ".yaml": export.dump_yaml, ".yml": export.dump_yaml}
    dump = dumps.get(path.suffix.lower())
    if dump is None:
        raise RefusedError(f"{path}: suffix {path.suffix!r}; expected .yaml or .csv")
    check_generator(None, given)
    check_outputs([given["throughputs"]], {"PATH": path})
    load = made(seed_of(seed), given)
    writers.write_text(path, dump(load))
    click.echo(f"{path}: {len(load.jobs)} jobs of {len(load.tickets)} users")


@workload.command()
@click.argument("path", type=FileName())
@input_options
@cluster_options
@click.option(
    "--fits/--no-fits",
    default=None,
    help="Check too that every job could run on --cluster.  [where that is said]",
)
@click.pass_context
def check(ctx: click.Context, /, path: Path, *, fits: bool | None, **given: Any) -> None:
    """Say whether the file at PATH is a workload; every mistake with its line. Exit status 2 if not, 3 if it can never run.

    With --skip-bad all mistakes are listed.
    """
    from hs_sim.cluster import runnable
    from hs_sim.reading import Sieve
    from hs_sim.sources import read

    sieve = Sieve(skip_bad=given["skip_bad"])
    try:
        found = read(path, given["throughputs"], gpus_per_server_of(given), sieve, given["first"])
        tell_unnamed(found)
        if fits is None:  # else the cluster of the command line would say nothing
            fits = any(
                ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in _OF_THE_CLUSTER
            )
        if fits:
            found = runnable(found, cluster_of(given), sieve)
            tell_unused(found, cluster_of(given))
    finally:  # also where no job is left, which is an error
        for reason in sieve.left_out:
            click.echo(reason, err=True)
    bad = f", {len(sieve.left_out)} left out" if sieve.left_out else ""
    click.echo(f"{path}: ok, {len(found.jobs)} jobs of {len(found.tickets)} users{bad}")


@workload.command()
@click.argument("path", type=FileName())
@input_options
@click.option("--gpus-per-server", type=int, default=4, show_default=True)
def show(path: Path, **given: Any) -> None:
    """What is in the file at PATH: users, sizes, classes, arrivals."""
    from collections import Counter

    from hs_sim.reading import Sieve
    from hs_sim.sources import read

    sieve = Sieve(skip_bad=given["skip_bad"])
    found = read(path, given["throughputs"], gpus_per_server_of(given), sieve, given["first"])
    sizes = Counter(job.gang for job in found.jobs)
    click.echo(
        f"{found.name}: {len(found.jobs)} jobs, the last comes after {found.jobs[-1].arrival_s / 3600:.2f} h"
    )
    click.echo("GPUs of a job: " + ", ".join(f"{size}: {count}" for size, count in sorted(sizes.items())))
    jobs = Counter(job.user for job in found.jobs)
    for user in sorted(found.tickets):
        click.echo(f"user {user}: {found.tickets[user]:g} tickets, {jobs[user]} jobs")
    for class_ in dict.fromkeys(name for name, _ in sorted(found.rates)):
        by_model = ", ".join(
            f"{model} {rate:.4g}/s" for (name, model), rate in sorted(found.rates.items()) if name == class_
        )
        click.echo(f"class {class_}: {by_model}")
