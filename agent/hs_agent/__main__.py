"""hs-agent: runs the node agent, shows what it detects, checks a host."""

import asyncio
import gc
import os
import socket
import sys
import tempfile
import time
from getpass import getpass
from pathlib import Path
from typing import Any

import click

from hs_agent import config as settings
from hs_core.errors import BrokenError, Kind, RefusedError
from hs_daemon import unheard, version
from hs_daemon.exits import EXIT_CODES
from hs_daemon.extras import not_installed
from hs_daemon.notify import give_up
from hs_daemon.there import exists

TYPED, MOST_TOKEN = "-", 1000  # characters

config_option = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Configuration, TOML.  [default: {settings.DEFAULT_FILE}]",
)
end_jobs_option = click.option(
    "--end-jobs-on-stop",
    is_flag=True,
    help="End all jobs when told to stop; else they go on and are adopted later.",
)


@click.group(
    cls=unheard.Group, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(version(), "--version", prog_name="hs-agent")
@config_option
@end_jobs_option
@click.pass_context
def cli(context: click.Context, config_file: Path | None, end_jobs_on_stop: bool) -> None:
    """The HeteroShare agent of one GPU host. Without a command: run."""
    context.obj = config_file
    if context.invoked_subcommand is None:
        context.exit(start(config_file, end_jobs_on_stop))


@cli.command()
@config_option
@end_jobs_option
@click.pass_context
def run(context: click.Context, config_file: Path | None, end_jobs_on_stop: bool) -> None:
    """Run the agent in the foreground (the default)."""
    context.exit(start(config_file or context.obj, end_jobs_on_stop))


@cli.command()
@config_option
@click.pass_context
def detect(context: click.Context, config_file: Path | None) -> None:
    """Show the devices and facilities the agent would use; without a configuration file with what is usual."""
    from hs_agent.doctor import show_detected

    file = config_file or context.obj
    if file is not None or exists(settings.DEFAULT_FILE):
        show_detected(load(file))
        return
    with tempfile.TemporaryDirectory(prefix="hs-detect-") as folder:  # who only looks leaves nothing behind
        usual = {
            "controller": "none.invalid:7443",
            "state_dir": f"{folder}/state",
            "run_dir": f"{folder}/run",
        }
        show_detected(settings.parse(usual))


@cli.command()
@config_option
@click.pass_context
def doctor(context: click.Context, config_file: Path | None) -> None:
    """Check this host; each line ok, warn or fail, with what to do. Exit status 1 if one fails."""
    from hs_agent.doctor import examine

    context.exit(1 if examine(load(config_file or context.obj)) else 0)


@cli.command()
@click.option("--controller", required=True, metavar="HOST:PORT", help="Where the controller listens.")
@click.option(
    "--token",
    required=True,
    help="From `hsctl node enroll`; works once. With - it is read from standard input: whoever has an account on this host sees what commands are given.",
)
@click.option("--ca-sha256", required=True, help="Of the cluster's CA, from `hsctl node enroll`.")
@click.option(
    "--name",
    help="The node's name that the token was made for.  [default: the configuration's, else the host's]",
)
@click.option(
    "--identity",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where key and certificates go.  [default: identity/ in the agent's state folder]",
)
@click.option("--replace", is_flag=True, help="Join anew, though this host has joined.")
@config_option
@click.pass_context
def join(
    context: click.Context,
    *,
    controller: str,
    token: str,
    ca_sha256: str,
    name: str | None,
    folder: Path | None,
    replace: bool,
    config_file: Path | None,
) -> None:
    """Get this host a key and a certificate, so that it may connect to the controller."""
    from hs_agent import identity, joining

    config_file = config_file or context.obj
    if folder is None or config_file is not None:
        place = identity.configured(config_file or settings.DEFAULT_FILE)
        if folder is not None and folder.resolve() != place.folder.resolve():
            raise RefusedError(
                f"--identity {folder}: expected {place.folder}, where the agent of {config_file} looks for it"
            )
    else:
        place = identity.Place(name=socket.gethostname(), folder=folder.absolute())
    made = joining.join(
        controller=controller,
        token=_token(token),
        ca_sha256=ca_sha256,
        name=name or place.name,
        folder=place.folder,
        replace=replace,
    )
    click.echo(f"{made.node} has joined: {made.folder}, good until {time.ctime(made.not_after_s)}")


def _token(said: str) -> str:
    if said != TYPED:
        return said
    typed = (getpass("token: ") if sys.stdin.isatty() else sys.stdin.readline(MOST_TOKEN + 1)).strip()
    if not typed or len(typed) > MOST_TOKEN:
        raise RefusedError("--token -: a token was expected on standard input, in one line")
    return typed


def load(config_file: Path | None, overrides: dict[str, Any] | None = None) -> settings.Config:
    return settings.load(config_file or settings.DEFAULT_FILE, overrides)


def start(config_file: Path | None, end_jobs_on_stop: bool) -> int:
    gc.disable()  # nothing of what is imported is garbage, which is looked for again and again
    try:
        from hs_agent.run import serve
        from hs_daemon import logs
    finally:
        gc.freeze()  # nor when it ends, of a configuration that is wrong, say
        gc.enable()

    config = load(config_file, {"end_jobs_on_stop": True} if end_jobs_on_stop else None)
    logs.set_up()
    status = asyncio.run(serve(config))
    unheard.forget_unsaid()
    return status


def main() -> None:
    os.umask(0o022)
    try:
        cli(prog_name="hs-agent")
    except RefusedError as error:
        give_up("hs-agent", error)
        sys.exit(EXIT_CODES[error.kind])
    except ModuleNotFoundError as error:
        give_up("hs-agent", not_installed(error, "agent"))
        sys.exit(EXIT_CODES[Kind.IMPOSSIBLE])
    except BrokenError as error:
        give_up("hs-agent", error)
        sys.exit(70)


if __name__ == "__main__":
    main()
