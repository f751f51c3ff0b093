"""What verbs share: the connection, the flags of lists, and where output goes."""

import math
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from hs_client import forms, quantities
from hs_client.api import Client
from hs_client.errors import InvalidError
from hs_client.follow import follow
from hs_client.printing import printable, printed
from hs_client.screen import Table, print_table
from hs_client.verbs.strays import Command

F = TypeVar("F", bound=Callable[..., Any])
INTERVAL_S = 2.0


class Verbs(click.Group):
    """Answers a verb that it has not with the one that was meant. `elsewhere`: what other systems call one, and what it is here."""

    command_class = Command

    def __init__(self, *args: Any, elsewhere: Mapping[str, str] | None = None, **said: Any) -> None:
        super().__init__(*args, **said)
        self.elsewhere = elsewhere or {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.commands and not name.startswith("-") and not ctx.resilient_parsing:
            here = self.elsewhere.get(name)
            hint = f"; it is `hsctl {here}`" if here else quantities.did_you_mean(name, self.commands)
            known = ", ".join(self.commands)
            ctx.fail(f"no such command {name!r}{hint or f'; expected one of {known}'}")
        return super().resolve_command(ctx, args)


def warn(message: str) -> None:
    print(f"hsctl: {printable(message)}", file=sys.stderr)


def out(text: str = "") -> None:
    print(printed(text))


@contextmanager
def connected(ctx: click.Context, *, patient: bool = False) -> Iterator[Client]:
    """`patient`: as `Client` has it."""
    given = ctx.find_root().obj or {}
    with Client(
        given.get("controller"),
        token_file=given.get("token_file"),
        ca_file=given.get("ca_file"),
        user=given.get("user", ""),
        patient=patient,
    ) as client:
        if client.address.warning:
            warn(client.address.warning)
        yield client


def agreed(question: str, *, instead: str) -> bool:
    """The answer of whoever sits there, or of a pipe (`yes |`); where none can come, `instead` says what answers beforehand."""
    try:
        return click.confirm(question, err=True)
    except click.Abort as stop:
        if not isinstance(stop.__context__, EOFError):  # Ctrl-C is an answer
            raise
    print(file=sys.stderr)  # the question had no end of line
    raise InvalidError(f"{question} Nobody is here to answer: expected {instead}")


def stay(client: Client, job_id: int, *, quiet: bool) -> int:
    """With a job until it has ended; its exit status."""
    try:
        return follow(client, job_id, report=(lambda _: None) if quiet else warn)
    except KeyboardInterrupt:
        warn(
            f"job {job_id} goes on: `hsctl attach {job_id}` follows it again, `hsctl cancel {job_id}` ends it"
        )
        raise  # the connection is to be left as after any interrupt: it may be amid a call (Client.__exit__)


def span(flag: str, text: str | None) -> float:
    """`1h`, `7d`; 0 where nothing was asked. A bare number, which is minutes to sbatch and seconds to timeout(1), is refused."""
    if text is None:
        return 0.0
    if text.strip().isdecimal():
        raise InvalidError(f"{flag} {text!r}: expected a duration with its unit, e.g. 30s, 90m, 2h or 7d")
    try:
        return quantities.duration(text)
    except ValueError as error:
        raise InvalidError(f"{flag} {text!r}: {error}") from None


def list_options(function: F) -> F:
    """`--json --no-header` of every list."""
    function = click.option("--no-header", is_flag=True, help="rows only")(function)
    return json_option(function)


class Seconds(click.FloatRange):
    """Of which `nan` is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return found


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="for scripts (fields: docs/hsctl.md)")(
        function
    )


def watch_options(function: F) -> F:
    """`--watch --jsonl --interval`."""
    for option in (
        click.option(
            "--interval",
            type=Seconds(0.1, 3600),
            help="seconds, with --watch  [2]",
        ),
        click.option(
            "--jsonl",
            is_flag=True,
            help="one JSON object a line; with --watch those that changed, as they change",
        ),
        click.option("--watch", is_flag=True, help="again and again until Ctrl-C"),
    ):
        function = option(function)
    return function


def show_list(
    rows: Sequence[forms.Row], table: Callable[[], Table], *, as_json: bool, jsonl: bool, no_header: bool
) -> None:
    if as_json:
        out(forms.text(rows, indent=2))
    elif jsonl:
        print(forms.lines(rows), end="")
    else:
        print_table(table(), header=not no_header)


def present(
    fetch: Callable[[], tuple[Sequence[forms.Row], Callable[[], Table]]],
    *, as_json: bool, jsonl: bool, no_header: bool, watch: bool, interval: float | None,
) -> None:  # fmt: skip
    """A list once, or live."""
    if as_json and (jsonl or watch):
        raise InvalidError("--json prints one answer: expected --jsonl with --watch")
    if interval is not None and not watch:
        raise InvalidError("--interval: expected --watch with it")
    between_s = INTERVAL_S if interval is None else interval
    if not watch:
        rows, table = fetch()
        show_list(rows, table, as_json=as_json, jsonl=jsonl, no_header=no_header)
    elif jsonl:
        _watch_lines(fetch, between_s)
    else:
        _watch_table(fetch, between_s, header=not no_header)


def _watch_lines(fetch: Callable[[], tuple[Sequence[forms.Row], Any]], interval: float) -> None:
    shown: set[str] = set()
    while True:
        made = [forms.text(row) for row in fetch()[0]]
        for line in made:
            if line not in shown:
                print(line, flush=True)
        shown = set(made)
        _wait_for_changes(interval)


def _wait_for_changes(interval: float) -> None:
    """Raises BrokenPipeError once nobody reads on: where nothing changes nothing is written, by which that would be found out."""
    reader = select.poll()
    reader.register(sys.stdout, 0)  # only that it is gone
    if reader.poll(interval * 1000):
        raise BrokenPipeError


def _watch_table(
    fetch: Callable[[], tuple[Any, Callable[[], Table]]], interval: float, *, header: bool
) -> None:
    from hs_client.screen import live

    with live() as show:
        while True:
            show(fetch()[1](), header)
            time.sleep(interval)
