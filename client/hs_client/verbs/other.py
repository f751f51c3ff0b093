"""Verbs that need no controller."""

import click

from hs_client import forms, jobfile
from hs_client.verbs.common import out


@click.command()
def schema() -> None:
    """Print the job file's JSON Schema.

    For editors: put `# yaml-language-server: $schema=job.schema.json` on the first line of a job file.
    """
    out(forms.text(jobfile.schema(), indent=2))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print SHELL's completion script, e.g. eval "$(hsctl completion bash)"."""
    from click.shell_completion import get_completion_class

    from hs_client.program import PROGRAM, cli

    maker = get_completion_class(shell)
    assert maker is not None
    click.echo(maker(cli, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source())
