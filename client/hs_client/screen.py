"""What people see: tables with rich on a terminal, plain columns into a pipe."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from unicodedata import combining, east_asian_width

import click

from hs_client import zone

STYLES = {
    "running": "green", "starting": "cyan", "suspended": "yellow", "queued": "default", "paused": "magenta",
    "cancelling": "red", "failed": "bold red", "cancelled": "dim", "succeeded": "dim green",
    "up": "green", "draining": "yellow", "drained": "yellow", "revoked": "dim", "away": "bold red", "busy": "green", "idle": "dim", "unhealthy": "bold red",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[str] = frozenset()
    title: str = ""
    empty: str = ""
    footer: Sequence[str] = field(default_factory=tuple)
    spare: Sequence[str] = ()  # columns that a narrow terminal does without, the first of them first
    long: Mapping[str, int] = field(
        default_factory=dict
    )  # texts, and to how many cells they are cut before that


def print_table(table: Table, *, header: bool = True) -> None:
    if table.title and header:
        click.echo(printable(table.title))
    if not table.rows:
        if table.empty:
            click.echo(table.empty, err=True)
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(on_terminal(table, header, tell=True))
    else:
        for line in plain_lines(table, header=header):
            click.echo(line)
    for line in table.footer:
        click.echo(printable(line), err=True)


def plain_lines(table: Table, *, header: bool = True) -> list[str]:
    """Columns padded with blanks, no colour, no frame."""
    everything = [[*table.columns], *table.rows] if header else [*table.rows]
    widths = [max(cells(printable(row[i])) for row in everything) for i in range(len(table.columns))]
    lines = []
    for row in everything:
        made = []
        for name, cell, width in zip(table.columns, row, widths, strict=True):
            text = printable(cell)
            blank = " " * (width - cells(text))
            made.append(blank + text if name in table.numeric else text + blank)
        lines.append("  ".join(made).rstrip())
    return lines


def cells(text: str) -> int:
    """Columns of a terminal that it takes: letters of East Asia are two wide, accents that are letters of their own none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def printable(text: str) -> str:
    """A job's name or reason cannot move the cursor or paint the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def escaped(text: str) -> str:
    """The same of words whose line breaks matter: `\\n` for one, as in `$'…'` of a shell."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shell_word(word: str) -> str:
    """Quoted, to be copied into a shell, and printable."""
    if word.isprintable():
        return shlex.quote(word)
    quoted = word.replace("\\", r"\\").replace("'", r"\'")
    return f"$'{escaped(quoted)}'"


def printed(text: str) -> str:
    """The same of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def on_terminal(table: Table, header: bool, *, tell: bool) -> Any:
    from rich.text import Text

    from hs_client.fitting import Fitting

    return Fitting(
        table.columns,
        [[Text(printable(cell), style=STYLES.get(cell, "")) for cell in row] for row in table.rows],
        right=table.numeric,
        spare=table.spare,
        long=table.long,
        header=header,
        tell=tell,
    )


def repaints() -> bool:
    """Standard output is a terminal that can show one picture over another (TERM=dumb can not: rich would show nothing on it until the end)."""
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in {"dumb", "unknown"}


@contextmanager
def live() -> Iterator[Callable[[Table, bool], None]]:
    """On a terminal one picture that changes; into a pipe, or on one that cannot repaint, a new table whenever it changed."""
    if not repaints():
        last: tuple[list[str], list[str]] = [], []

        def again(table: Table, header: bool) -> None:
            nonlocal last
            lines = [printable(table.title)] if table.title and header else []
            lines += plain_lines(table, header=header) if table.rows else []
            beside = [*([] if table.rows or not table.empty else [table.empty]), *table.footer]
            if (lines, beside) != last:
                print("\n".join([*lines, ""]), flush=True)
                for line in beside:  # as in a list that is printed once
                    click.echo(printable(line), err=True)
                last = lines, beside

        yield again
        return
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as picture:

        def change(table: Table, header: bool) -> None:
            body = on_terminal(table, header, tell=False) if table.rows else Text(table.empty)
            above = [Text(printable(table.title))] if table.title and header else []
            below = [Text(printable(line)) for line in table.footer]
            picture.update(Group(*above, body, *below), refresh=True)

        yield change


def clock(at: float) -> str:
    """Local time, with the date when it is not today's; in a time zone that nobody knows it is UTC, and says so."""
    if not at:
        return "-"
    moment = datetime.fromtimestamp(at).astimezone()
    today = moment.date() == datetime.now(moment.tzinfo).date()
    return moment.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S") + "Z" * bool(zone.unknown())
