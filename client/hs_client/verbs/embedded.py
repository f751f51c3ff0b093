"""`up` and `down`: a cluster of this machine alone."""

import os
import time
from pathlib import Path
from typing import Any

import click

from hs_client import cluster_files, embedded, process
from hs_client.address import default_state
from hs_client.cluster_files import Folders, Options
from hs_client.completing import folders
from hs_client.verbs.common import Seconds, out, warn
from hs_client.verbs.strays import Command

_DESCRIBES = (
    "devices",
    "emulate",
    "hosts",
    "quantum",
    "policy",
    "users",
    "pace",
    "slowdown",
    "preload",
    "page",
)


@click.command(cls=Command, stray="expected --emulate {}, or --host NAME={}")
@click.option(
    "--state",
    metavar="DIR",
    shell_complete=folders,
    help="everything of the cluster is kept here  [HS_STATE, ~/.local/state/heteroshare]",
)
@click.option("--devices", type=click.Choice(["auto", "nvml", "emulated"]), default="auto", help="[auto]")
@click.option(
    "--emulate", metavar="MODEL:N[:MEMORY]", multiple=True, help="pretend to have these GPUs, e.g. V100:4:16G"
)
@click.option(
    "--host",
    "hosts",
    metavar="NAME=MODEL:N[:MEMORY]",
    multiple=True,
    help="several servers on this machine, each with emulated GPUs and an agent of its own",
)
@click.option("--quantum", type=Seconds(0.1, 86400), default=60.0, help="seconds of a slice  [60]")
@click.option("--policy", default="gandiva-fair", help="[gandiva-fair]")
@click.option(
    "--user",
    "users",
    metavar="NAME[:TICKETS]",
    multiple=True,
    help="somebody to share with; their jobs run as you",
)
@click.option(
    "--pace", metavar="[CLASS=]S[:MODEL=X,…]", multiple=True, help="seconds a step takes on emulated GPUs"
)
@click.option(
    "--slowdown",
    metavar="[CLASS=]X,…",
    multiple=True,
    help="how many times as long a step takes on each emulated GPU of a server",
)
@click.option(
    "--page", type=click.IntRange(1, 65535), metavar="PORT", help="show the page on this port of this machine"
)
@click.option("--preload", type=click.IntRange(0, 64), help="jobs started ahead of their turn")
@click.option(
    "--timeout",
    type=Seconds(1, 3600),
    default=60.0,
    show_default=True,
    help="seconds until it must answer",
)
@click.option("--foreground", is_flag=True, help="stay, show the logs, and stop it all at Ctrl-C")
@click.pass_context
def up(ctx: click.Context, /, *, state: str | None, timeout: float, foreground: bool, **given: Any) -> int:
    """Start a controller and an agent for this machine, or several agents that play servers (--host).

    Jobs of all users run as you. `hsctl down` stops it; what it knows stays in the state folder.
    """
    explicit = any(
        ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE for name in _DESCRIBES
    )
    options = Options(
        devices=given["devices"],
        emulated=tuple(map(cluster_files.emulated, given["emulate"])),
        hosts=tuple(map(cluster_files.host, given["hosts"])),
        paces=tuple(map(cluster_files.pace, given["pace"])),
        slowdowns=tuple(map(cluster_files.slowdown, given["slowdown"])),
        quantum_s=given["quantum"],
        policy=given["policy"],
        users=cluster_files.users(given["users"]),
        preload=given["preload"],
        page=given["page"],
    )
    folder = Path(state).expanduser().absolute() if state else default_state()
    if os.geteuid() == 0:
        warn("you are root: jobs will run as root")
    where, started = embedded.up(folder, options, explicit=explicit, deadline_s=timeout, report=warn)
    _tell(where, started, usual=folder == default_state())
    for name, jobs in embedded.left_behind(where).items():
        wait = "1 job of before waits" if jobs == 1 else f"{jobs} jobs of before wait"
        warn(
            f"{wait} for {name}, which is not part of this cluster: `hsctl up` as it was then goes on with {'it' if jobs == 1 else 'them'}, `hsctl node remove --force {name}` queues {'it' if jobs == 1 else 'them'} again"
        )
    if foreground:
        _stay(where)
    return 0


def _tell(where: Folders, started: bool, *, usual: bool) -> None:
    out(f"{'up' if started else 'already up'}: state, logs and configuration are in {where.state}")
    if not usual:
        out(f"export HS_STATE={where.state}")
    cluster = cluster_files.read_cluster(where.state)
    if cluster is not None and cluster.options["page"] is not None:
        token = where.state / cluster_files.CONTROLLER / "admin.token"
        out(f"page: http://127.0.0.1:{cluster.options['page']}/ (its token is in {token})")
    out("next: hsctl gpus; hsctl submit -G 1 -- python train.py; hsctl share --watch; hsctl down")


def _stay(where: Folders) -> None:
    """Logs to standard error until Ctrl-C or until a daemon ends, then everything down."""
    cluster = cluster_files.read_cluster(where.state)
    assert cluster is not None
    files = {name: where.log(name).open("rb") for name in cluster.daemons}
    try:
        for file in files.values():
            file.seek(0, os.SEEK_END)
        while all(process.alive(who) for who in cluster.daemons.values()):
            for name, file in files.items():
                for line in file.read().decode("utf-8", "replace").splitlines():
                    click.echo(f"{name}: {line}", err=True)
            time.sleep(0.5)
        warn("a daemon has ended")
    except KeyboardInterrupt:
        warn("stopping")
    finally:
        for file in files.values():
            file.close()
        embedded.down(where.state, keep_jobs=False, deadline_s=60.0, report=warn)


@click.command(cls=Command)
@click.option("--state", metavar="DIR", shell_complete=folders, help="[HS_STATE, ~/.local/state/heteroshare]")
@click.option("--keep-jobs", is_flag=True, help="leave jobs running; the next `hsctl up` takes them up again")
@click.option(
    "--timeout",
    type=Seconds(1, 3600),
    default=60.0,
    show_default=True,
    help="seconds until all must have ended",
)
def down(state: str | None, keep_jobs: bool, timeout: float) -> None:
    """End the jobs and stop what `hsctl up` started; safe to repeat."""
    folder = Path(state).expanduser().absolute() if state else default_state()
    stopped = embedded.down(folder, keep_jobs=keep_jobs, deadline_s=timeout, report=warn)
    out("down" if stopped else f"nothing is up in {folder}")
