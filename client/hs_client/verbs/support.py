"""`hsctl support-bundle`."""

import time
from pathlib import Path

import click

from hs_client import quantities, support, whole_file
from hs_client.completing import files
from hs_client.verbs.common import connected, out, warn
from hs_client.verbs.strays import Command
from hs_client.version import VERSION

EVENTS, MOST_EVENTS = 10_000, 100_000


@click.command("support-bundle", cls=Command)
@click.argument("file", metavar="[FILE]", shell_complete=files, required=False)
@click.option(
    "--events",
    type=click.IntRange(1, MOST_EVENTS),
    default=EVENTS,
    show_default=True,
    metavar="N",
    help="the newest so many",
)
@click.pass_context
def support_bundle(ctx: click.Context, /, *, file: str | None, events: int) -> None:
    """Collect what helps to find a fault in one .tar.gz (admins).

    Versions, the configuration, the state in short, events, metrics, and what `hs-agent doctor` says on each server that is connected; CONTENTS.txt in it lists what is
    there and what could not be had. No keys, tokens, environments, commands or output of jobs are in it; names of users, jobs and servers are. FILE is new, yours alone (0600), and there when it
    is whole  [heteroshare-support-TIME.tar.gz]
    """
    now = time.gmtime()
    name = time.strftime("heteroshare-support-%Y%m%dT%H%M%SZ", now)
    path = Path(file or f"{name}.tar.gz").absolute()
    with connected(ctx) as client, whole_file.written(path, replace=False) as stream:
        made = support.parts(client, events)
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", now)
        title = f"HeteroShare support bundle of the controller at {client.address.target}, made {at} by hsctl {VERSION}"
        support.write(stream, name, made, time.time(), title)
        size = stream.tell()
    for part in made:
        if part.missing:
            warn(f"{part.name} is missing: {part.missing}")
    out(f"{path}: {quantities.size_text(size)}, {quantities.counted(len(made), 'file')}")
