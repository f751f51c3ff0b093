"""Verbs that need no controller."""

import click

from hs_client import forms, jobfile
from hs_client.verbs.common import out
from hs_client.verbs.strays import Command


@click.command(cls=Command)
def schema() -> None:
    """Print the job file's JSON Schema.

    For editors: put `# yaml-language-server: $schema=job.schema.json` on the first line of a job file.
    """
    out(forms.text(jobfile.schema(), indent=2))


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print SHELL's completion script, e.g. eval "$(hsctl completion bash)"."""
    from click.shell_completion import get_completion_class

    maker, root = get_completion_class(shell), ctx.find_root()
    assert maker is not None
    assert root.info_name
    click.echo(maker(root.command, {}, root.info_name, f"_{root.info_name.upper()}_COMPLETE").source())
