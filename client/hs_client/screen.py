"""What people see: tables with rich on a terminal, plain columns into a pipe."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import click

from hs_client import forms
from hs_client.api import ENDED, exit_code
from hs_client.quantities import size_text, span_text
from hs_proto.v1 import controller_pb2 as wire

STYLES = {
    "running": "green", "starting": "cyan", "suspended": "yellow", "queued": "default", "paused": "magenta",
    "cancelling": "red", "failed": "bold red", "cancelled": "dim", "succeeded": "dim green",
    "up": "green", "away": "bold red", "busy": "green", "idle": "dim", "unhealthy": "bold red",
}  # fmt: skip
BAR_WIDTH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[str] = frozenset()
    title: str = ""
    empty: str = ""
    footer: Sequence[str] = field(default_factory=tuple)


def print_table(table: Table, *, header: bool = True) -> None:
    if table.title and header:
        click.echo(table.title)
    if not table.rows:
        if table.empty:
            click.echo(table.empty, err=True)
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(_rich(table, header))
    else:
        for line in plain_lines(table, header=header):
            click.echo(line)
    for line in table.footer:
        click.echo(line, err=True)


def plain_lines(table: Table, *, header: bool = True) -> list[str]:
    """Columns padded with blanks, no colour, no frame."""
    everything = [[*table.columns], *table.rows] if header else [*table.rows]
    widths = [max(len(printable(row[i])) for row in everything) for i in range(len(table.columns))]
    lines = []
    for row in everything:
        cells = []
        for name, cell, width in zip(table.columns, row, widths, strict=True):
            text = printable(cell)
            cells.append(text.rjust(width) if name in table.numeric else text.ljust(width))
        lines.append("  ".join(cells).rstrip())
    return lines


def printable(text: str) -> str:
    """A job's name or reason cannot move the cursor or paint the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _rich(table: Table, header: bool) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(
        box=SIMPLE_HEAD if header else None, show_header=header, pad_edge=False, header_style="bold"
    )
    for name in table.columns:
        made.add_column(
            name,
            justify="right" if name in table.numeric else "left",
            overflow="ellipsis",
            no_wrap=name != "reason",
        )
    for row in table.rows:
        made.add_row(*(Text(printable(cell), style=STYLES.get(cell, "")) for cell in row))
    return made


@contextmanager
def live() -> Iterator[Callable[[Table, bool], None]]:
    """On a terminal one picture that changes; into a pipe a new table whenever it changed."""
    if not sys.stdout.isatty():
        last: list[str] = []

        def again(table: Table, header: bool) -> None:
            nonlocal last
            lines = plain_lines(table, header=header) if table.rows else [table.empty]
            if lines != last:
                print("\n".join([*lines, ""]), flush=True)
                last = lines

        yield again
        return
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as picture:

        def change(table: Table, header: bool) -> None:
            body = _rich(table, header) if table.rows else Text(table.empty)
            picture.update(Group(Text(table.title), body), refresh=True)

        yield change


# --- the tables ----------------------------------------------------------------------------------------------------


def queue(views: Sequence[wire.JobView]) -> Table:
    columns = ("id", "name", "user", "state", "reason", "gpus", "host", "step", "gpu time", "switches")
    rows = [
        (
            job_label(view), view.name, view.user, view.state, _reason(view), str(view.gpus), view.host or "-",
            str(view.step) if view.step else "-", span_text(view.gpu_s), str(view.suspends),
        )
        for view in views
    ]  # fmt: skip
    return Table(
        columns=columns,
        rows=rows,
        numeric=frozenset({"gpus", "step", "gpu time", "switches"}),
        empty="no jobs",
    )


def job_label(view: wire.JobView) -> str:
    return (
        f"{view.id} ({view.array_id}_{view.array_index})"
        if view.array_id and view.HasField("array_index")
        else str(view.id)
    )


def _reason(view: wire.JobView) -> str:
    if view.state in ENDED:
        return "" if view.state == "succeeded" else f"exit {exit_code(view)}"
    return view.reason


def share(reply: wire.SharesReply) -> Table:
    rows = [
        (
            row.user, row.gpu_model, f"{row.tickets:g}", f"{row.demand_gpus:g}", f"{row.entitled_gpus:.2f}",
            f"{row.received_gpus:.2f}", bar(row.received_gpus, row.entitled_gpus, _pool_size(reply, row.gpu_model)),
        )
        for row in sorted(reply.shares, key=lambda s: (s.gpu_model, s.user))
    ]  # fmt: skip
    pools = ", ".join(
        f"{p.gpu_model}: {p.busy} of {p.healthy} busy"
        + (f" ({p.gpus - p.healthy} unhealthy)" if p.gpus > p.healthy else "")
        for p in reply.pools
    )
    return Table(
        columns=("user", "gpu type", "tickets", "wants", "entitled", "received", "received | entitled"),
        rows=rows,
        numeric=frozenset({"tickets", "wants", "entitled", "received"}),
        title=f"received: mean of the last {span_text(reply.window_s)}{'; ' + pools if pools else ''}",
        empty="nobody has jobs",
    )


def _pool_size(reply: wire.SharesReply, model: str) -> float:
    known = [pool.gpus for pool in reply.pools if pool.gpu_model == model]
    return float(known[0]) if known else max((s.entitled_gpus for s in reply.shares), default=1.0)


def bar(received: float, entitled: float, whole: float) -> str:
    """`█████▏···|····`: received of the pool, with a mark where the entitlement is."""
    scale = BAR_WIDTH / max(whole, received, entitled, 1e-9)
    filled = min(BAR_WIDTH, round(received * scale))
    cells = ["█"] * filled + ["·"] * (BAR_WIDTH - filled)
    if entitled > 0:
        cells[min(BAR_WIDTH - 1, max(0, round(entitled * scale) - 1))] = "|"
    return "".join(cells)


def usage(rows: Sequence[wire.UsageRow]) -> Table:
    return Table(
        columns=("user", "gpu type", "gpu hours", "lost gpu s", "jobs", "suspends"),
        rows=[
            (
                r.user,
                r.gpu_model,
                f"{r.gpu_s / 3600:.3f}",
                f"{r.lost_gpu_s:.1f}",
                str(r.jobs),
                str(r.suspends),
            )
            for r in rows
        ],
        numeric=frozenset({"gpu hours", "lost gpu s", "jobs", "suspends"}),
        empty="no usage",
    )


def nodes(views: Sequence[wire.NodeView]) -> Table:
    rows = []
    for view in views:
        models = sorted({gpu.model for gpu in view.gpus})
        healthy = sum(gpu.healthy for gpu in view.gpus)
        busy = sum(1 for use in view.uses if use.running_job)
        ago = (
            span_text(max(0.0, time.time() - view.last_report_at)) + " ago"
            if view.last_report_at
            else "never"
        )
        rows.append(
            (
                view.name,
                view.state,
                ",".join(models) or "-",
                f"{busy}/{healthy}/{len(view.gpus)}",
                view.version,
                ago,
                str(len(view.warnings)),
            )
        )
    footer = [f"{view.name}: {printable(warning)}" for view in views for warning in view.warnings]
    return Table(
        columns=("name", "state", "gpu type", "busy/healthy/all", "version", "last report", "warnings"),
        rows=rows,
        empty="no nodes",
        footer=footer,
    )


def gpus(rows: Sequence[forms.Row]) -> Table:
    made = []
    for row in rows:
        held = [str(j["id"]) for j in row["jobs"] if j["id"] != row["running_job"]]
        memory = f"{size_text(row['memory_used_bytes'])}/{size_text(row['memory_bytes'])}"
        made.append(
            (row["node"], str(row["index"]), row["model"], row["state"], row["user"] or "-", str(row["running_job"] or "-"),
             ",".join(held) or "-", memory, f"{row['utilization_percent']}%", row["why_unhealthy"])
        )  # fmt: skip
    return Table(
        columns=(
            "node",
            "gpu",
            "gpu type",
            "state",
            "user",
            "job",
            "suspended here",
            "memory",
            "util",
            "note",
        ),
        rows=made,
        numeric=frozenset({"gpu", "memory", "util"}),
        empty="no GPUs",
    )


def event_line(event: wire.Event) -> str:
    about = " ".join(
        word for word in (f"job {event.job_id}" if event.job_id else "", event.user, event.host) if word
    )
    return printable(f"{clock(event.at)}  {event.kind:<12}  {about:<16}  {event.text}".rstrip())


def clock(at: float) -> str:
    """Local time, with the date when it is not today's."""
    if not at:
        return "-"
    moment = datetime.fromtimestamp(at).astimezone()
    today = moment.date() == datetime.now(moment.tzinfo).date()
    return moment.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")
