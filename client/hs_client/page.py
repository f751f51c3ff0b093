"""The one page of `hsctl top`: pools, who gets what, servers, jobs with why. Made of messages; draws nothing itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.text import Text

from hs_client import forms, tables
from hs_client.api import Client
from hs_client.ends import ENDED
from hs_client.fitting import Fitting
from hs_client.printing import printable
from hs_client.quantities import span_text
from hs_client.screen import STYLES, clock
from hs_proto.v1 import common_pb2 as common
from hs_proto.v1 import controller_pb2 as wire

COLOURS = (
    "cyan",
    "magenta",
    "green",
    "yellow",
    "blue",
    "red",
    "bright_cyan",
    "bright_magenta",
    "bright_green",
)
_NEWEST_EVENTS = 5
_HOUR_S = 3600.0
_FAIR = 0.8  # received for each GPU entitled to; less is pointed out
_FEWEST = 3  # jobs that are listed however low the terminal is
_FIXED = 15  # lines of the page: its head, those of its four tables, what is between them, and how many jobs are not listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    info: wire.InfoReply
    shares: wire.SharesReply
    trades: Sequence[wire.TradeView]
    nodes: Sequence[wire.NodeView]
    jobs: Sequence[wire.JobView]  # the newest
    totals: wire.JobTotals  # of all
    events: Sequence[wire.Event]


def look(client: Client) -> Seen:
    listed = client.newest_jobs()
    return Seen(
        info=client.info(),
        shares=client.shares(window_s=_HOUR_S),
        trades=client.trades(),
        nodes=client.nodes(),
        jobs=listed.jobs,
        totals=listed.totals,
        events=list(client.events(tail=_NEWEST_EVENTS)),
    )


def page(seen: Seen, *, height: int = 0) -> Group:
    """`height`: lines that there are (0: as many as it takes); the list of jobs is what gets shorter."""
    colours = _colours(seen)
    upper: list[Any] = [
        _head(seen), _fairness(seen.shares),
        _pools(seen), Text(),
        _who(seen, colours), Text(),
        _servers(seen.nodes, colours), Text(),
    ]  # fmt: skip
    used = _FIXED + len(seen.shares.pools) + len(seen.shares.shares) + len(seen.nodes)
    newest = max(1, height - used - min(_FEWEST, len(seen.jobs))) if height else _NEWEST_EVENTS
    events = [Text(line, style="dim", no_wrap=True) for line in tables.event_lines(seen.events[-newest:])]
    most = max(_FEWEST, height - used - len(events)) if height else len(seen.jobs)
    below = [Text(), *events] if events else []
    return Group(*upper, _jobs(seen, colours, most), *below)


def _colours(seen: Seen) -> dict[str, str]:
    names = sorted({job.user for job in seen.jobs} | {share.user for share in seen.shares.shares})
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def _head(seen: Seen) -> Text:
    info = seen.info
    lost = seen.totals.lost_gpu_s
    words = Text(
        f"{clock(info.now)}  {printable(info.policy)}, quantum {info.quantum_s:g} s, up {span_text(info.uptime_s)}  ",
        no_wrap=True,
    )
    words.append(f"lost work {lost:.0f} GPU-seconds", style="bold red" if lost >= 1 else "green")
    if info.read_only:
        words.append("  READ-ONLY: the controller's disk", style="bold red")
    return words


def _fairness(reply: wire.SharesReply) -> Text:
    """Or an empty line."""
    words = Text(no_wrap=True)
    if not reply.fair:
        words.append("it does not hold shares to tickets: entitled is what these come to", style="dim")
    elif furthest := _furthest_below(reply):
        ratio, user = furthest
        words.append(f"furthest below its share: {printable(user)}, ")
        words.append(f"{100 * ratio:.0f} %", style="yellow" if ratio < _FAIR else "green")
        words.append(f" of it in the last {span_text(reply.window_s)}")
    return words


def _furthest_below(reply: wire.SharesReply) -> tuple[float, str] | None:
    """What it received of what it was entitled to in that time, and of whom that is least, of those who are entitled to any; None: nobody is."""
    due: dict[str, float] = {}
    got: dict[str, float] = {}
    there = {share.user for share in reply.shares if share.entitled_gpus > 0}
    for share in (share for share in reply.shares if share.user in there):
        due[share.user] = due.get(share.user, 0.0) + share.due_gpus
        got[share.user] = got.get(share.user, 0.0) + share.received_gpus
    return min(((got[user] / gpus, user) for user, gpus in due.items() if gpus > 0), default=None)


def _pools(seen: Seen) -> Fitting:
    rows = []
    for pool in seen.shares.pools:
        there = [gpu for node in seen.nodes if node.state == "up" for gpu in node.gpus]
        percent = [gpu.utilization_percent for gpu in there if gpu.model == pool.gpu_model]
        utilized = f"{sum(percent) / len(percent):.0f} %" if percent else "-"
        whole = max(pool.gpus, 1)
        filled = "█" * round(pool.busy / whole * tables.BAR_WIDTH)
        bar = f"{filled:·<{tables.BAR_WIDTH}} {tables.out_of_use(pool)}".rstrip()
        rows.append((pool.gpu_model, str(pool.gpus), str(pool.busy), utilized, bar))
    names = ("pool", "GPUs", "busy", "utilized", "")
    return Fitting(names, rows, right={"GPUs", "busy", "utilized"}, spare=("utilized",), long={"": 20})


def _who(seen: Seen, colours: Mapping[str, str]) -> Fitting:
    """Who gets what, and which trades made it so."""
    names = (
        "user",
        "tickets",
        "pool",
        "base",
        "entitled",
        "receiving",
        "receiving | entitled",
        "gives → receives",
    )
    rows: list[tuple[Text | str, ...]] = []
    given = _given(seen.trades)
    size = {pool.gpu_model: float(pool.gpus) for pool in seen.shares.pools}
    shown = ""
    for row in sorted(seen.shares.shares, key=lambda s: (s.user, s.gpu_model)):
        first = row.user != shown
        shown = row.user
        rows.append(
            (
                Text(printable(row.user) if first else "", style=colours.get(row.user, "")),
                f"{row.tickets:g}" if first else "",
                row.gpu_model,
                *(
                    ("-", "-")
                    if seen.shares.read_only  # it is not known then
                    else (f"{row.base_gpus:.2f}", f"{row.entitled_gpus:.2f}")
                ),
                f"{row.received_gpus:.2f}",
                tables.bar(row.received_gpus, row.entitled_gpus, size.get(row.gpu_model, row.entitled_gpus)),
                given.get((row.user, row.gpu_model), ""),
            )
        )
    return Fitting(
        names,
        rows,
        right={"tickets", "base", "entitled", "receiving"},
        spare=("base", "tickets", "receiving | entitled"),
        long={"user": 12, "gives → receives": 20},
    )


def _given(trades: Sequence[wire.TradeView]) -> dict[tuple[str, str], str]:
    """(user, model it gives) -> what goes and what comes, over all trades that stand."""
    sums: dict[tuple[str, str, str], list[float]] = {}
    for trade in trades:
        if trade.undone:
            continue
        sides = (
            (trade.gives, trade.fast, trade.slow, trade.fast_gpus, trade.slow_gpus),
            (trade.receives, trade.slow, trade.fast, trade.slow_gpus, trade.fast_gpus),
        )
        for user, gives, receives, out, back in sides:
            entry = sums.setdefault((user, gives, receives), [0.0, 0.0])
            entry[0] += out
            entry[1] += back
    made: dict[tuple[str, str], list[str]] = {}
    for (user, gives, receives), (out, back) in sums.items():
        made.setdefault((user, gives), []).append(f"{out:.2f} → {back:.2f} {receives}")
    return {key: ", ".join(words) for key, words in made.items()}


def _servers(nodes: Sequence[wire.NodeView], colours: Mapping[str, str]) -> Fitting:
    """A square per GPU: full in its user's colour, open where idle (a square in it where suspended jobs stand on it), hatched where drained, crossed where it cannot be used."""
    rows: list[tuple[Text | str, ...]] = []
    for node in nodes:
        uses = {use.gpu_id: use for use in node.uses}
        squares = Text()
        for gpu in node.gpus:
            squares.append_text(_square(gpu, uses.get(gpu.id), node, colours))
        state = tables.node_state(node)
        note = tables.draining(node) or (node.warnings[0] if node.warnings else "")
        models = ",".join(sorted({gpu.model for gpu in node.gpus}))
        rows.append(
            (
                node.name,
                Text(printable(state), style=STYLES.get(state, "")),
                models,
                squares,
                str(node.jobs),
                note,
            )
        )
    return Fitting(
        ("server", "state", "pool", "GPUs", "jobs", ""), rows, right={"jobs"}, long={"server": 16, "": 20}
    )


def _square(
    gpu: common.Gpu, use: wire.GpuUse | None, node: wire.NodeView, colours: Mapping[str, str]
) -> Text:
    if use is not None and use.running_job:
        return Text("■", style=colours.get(use.user, ""))
    if not gpu.healthy:
        return Text("☒", style="red")
    if node.draining or gpu.index in node.drained_gpus:
        return Text("▨", style="yellow")
    return Text("▣" if use is not None and use.bound_jobs else "□", style="dim")


def _jobs(seen: Seen, colours: Mapping[str, str], most: int) -> Group:
    names = (
        "job",
        "name",
        "user",
        "state",
        "gpus",
        "on",
        "share",
        "steps/s",
        "suspends",
        "moves",
        "why / next",
    )
    rows: list[tuple[Text | str, ...]] = []
    order = {"running": 0, "starting": 1, "suspended": 2, "queued": 3}
    live = sorted(
        (job for job in seen.jobs if job.state not in ENDED),
        key=lambda j: (order.get(j.state, 4), j.user, j.id),
    )
    for job in live[:most]:
        why = f"moving to {job.moving_to}: {job.moving_why}" if job.moving_to else job.reason_text
        rows.append(
            (
                tables.job_label(job),
                job.name,
                Text(printable(job.user), style=colours.get(job.user, "")),
                Text(printable(job.state), style=STYLES.get(job.state, "")),
                str(job.gpus),
                ",".join(forms.homes(job)) or "-",
                f"{job.entitled_gpus:.2f}" if job.tickets else "-",
                f"{job.steps_per_s:.1f}" if job.steps_per_s else "-",
                str(job.suspends),
                str(job.migrations),
                why,
            )
        )
    made = Fitting(
        names,
        rows,
        right={"job", "gpus", "share", "steps/s", "suspends", "moves"},
        spare=("suspends", "moves", "steps/s", "share", "gpus"),
        long={"name": 16, "user": 10, "on": 12, "why / next": 28},
    )
    left = seen.totals.jobs - min(most, len(live))
    return Group(made, Text(f"… and {left} more (hsctl queue)", style="dim")) if left > 0 else Group(made)
