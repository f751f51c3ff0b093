"""`hsctl top`: the page, live."""

import sys
import time

import click

from hs_client.screen import repaints
from hs_client.verbs.common import Seconds, connected
from hs_client.verbs.strays import Command


@click.command(cls=Command)
@click.option("--interval", type=Seconds(0.2, 3600), default=2.0, show_default=True, help="seconds")
@click.option(
    "--once", is_flag=True, help="print it once and end (what happens without a terminal, or with TERM=dumb)"
)
@click.pass_context
def top(ctx: click.Context, /, *, interval: float, once: bool) -> None:
    """Show pools, who gets what, servers and jobs with why, until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    from hs_client.page import look, page

    with connected(ctx, patient=not once) as client:
        if once or not repaints():
            console = Console() if sys.stdout.isatty() else Console(width=160, no_color=True)
            with console.capture() as said:
                console.print(page(look(client)))
            click.echo(said.get(), nl=False)  # rich would make a failure of a reader who has had enough
            return
        console = Console()
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(page(look(client), height=console.height), refresh=True)
                time.sleep(interval)
