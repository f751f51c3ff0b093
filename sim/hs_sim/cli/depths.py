"""hs-sim faults and hs-sim fidelity: their entry functions live beside what they drive."""

from importlib import import_module
from importlib.util import find_spec

import click

from hs_core.errors import Kind, RefusedError

_PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def _forward(module: str, arguments: list[str]) -> int:
    if find_spec(module) is None:
        raise RefusedError(f"{module} is not part of this installation", Kind.UNAVAILABLE)
    code = import_module(module).main(arguments)
    return code if isinstance(code, int) else 0


@click.command(context_settings=_PASS_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def faults(arguments: tuple[str, ...]) -> int:
    """Kill controller, agents, jobs and links at random, and check that nothing is lost and nothing runs twice."""
    return _forward("hs_sim.faults", list(arguments))


@click.command(context_settings=_PASS_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def fidelity(arguments: tuple[str, ...]) -> int:
    """Compare a simulated run with a live one of the same workload."""
    return _forward("hs_sim.fidelity", list(arguments))
