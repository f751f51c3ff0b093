"""The command line: a table of verbs, exit codes, and how refusals are shown."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

import click

from hs_core.errors import Kind, RefusedError
from hs_daemon import unheard, version
from hs_daemon.exits import EXIT_CODES
from hs_daemon.extras import not_installed

INTERRUPTED = 130


class _Verb(NamedTuple):
    where: str
    help: str


VERBS = {
    "run": _Verb("hs_sim.cli.run:run", "Simulate a workload under one policy."),
    "compare": _Verb("hs_sim.cli.compare:compare", "Simulate a workload under several policies."),
    "figures": _Verb("hs_sim.cli.figures:figures", "Reproduce the paper's tables and figures."),
    "workload": _Verb("hs_sim.cli.workload:workload", "Make, check and show workload files."),
    "faults": _Verb("hs_sim.cli.depths:faults", "Break things at random and check that nothing is lost."),
    "fidelity": _Verb("hs_sim.cli.depths:fidelity", "Compare a simulated run with a live one."),
}


class _Lazy(unheard.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        module, _, attribute = verb.where.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


ELSEWHERE = {
    "generate": "workload generate", "check": "workload check", "show": "workload show", "simulate": "run", "sweep": "compare",
}  # fmt: skip


@click.group(
    cls=_Lazy,
    elsewhere=ELSEWHERE,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(version(), prog_name="hs-sim")
def hs_sim() -> None:
    """Replays workloads on simulated clusters, with the policies and machines that run live ones."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 ok, 1 failed, 2 bad usage or input, 3 can never run, 4 not found, 130 interrupted, 141 nobody reads on."""
    try:
        code = hs_sim.main(arguments, prog_name="hs-sim", standalone_mode=False)
        sys.stdout.flush()
    except RefusedError as refused:
        click.echo(f"hs-sim: {refused}", err=True)
        return EXIT_CODES[refused.kind]
    except ModuleNotFoundError as error:
        click.echo(f"hs-sim: {not_installed(error, 'sim')}", err=True)
        return EXIT_CODES[Kind.IMPOSSIBLE]
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("hs-sim: interrupted", err=True)
        return INTERRUPTED
    except OSError as error:
        if error.filename is None:
            unheard.silence()
        click.echo(f"hs-sim: {error.filename or 'output'}: {error.strerror}", err=True)
        return EXIT_CODES[Kind.INVALID]
    return code if isinstance(code, int) else 0
