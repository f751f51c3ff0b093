"""The tables that people see, made from the protocol's messages."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from hs_client import forms
from hs_client.ends import ENDED, exit_code
from hs_client.printing import printable
from hs_client.quantities import size_text, span_text
from hs_client.screen import Table, clock
from hs_proto.v1 import controller_pb2 as wire

NAMED = 8  # jobs

BAR_WIDTH = 20


def queue(views: Sequence[wire.JobView]) -> Table:
    columns = (
        "id",
        "name",
        "user",
        "state",
        "reason",
        "gpus",
        "gpu type",
        "nodes",
        "step",
        "gpu time",
        "switches",
        "moves",
    )
    rows = [
        (
            job_label(view), view.name, view.user, view.state, _reason(view), str(view.gpus), view.gpu_model or "-",
            ",".join(forms.homes(view)) or "-", str(view.step) if view.step else "-", span_text(view.gpu_s),
            str(view.suspends), str(view.migrations),
        )
        for view in views
    ]  # fmt: skip
    return Table(
        columns=columns,
        rows=rows,
        numeric=frozenset({"gpus", "step", "gpu time", "switches", "moves"}),
        empty="no jobs",
        spare=("moves", "switches", "gpu time", "step", "gpu type"),
        long={"name": 16, "user": 10, "reason": 16, "nodes": 12},
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
    return f"moving to {view.moving_to}" if view.moving_to else view.reason


def share(reply: wire.SharesReply) -> Table:
    rows = [
        (
            row.user, row.gpu_model, f"{row.tickets:g}", f"{row.demand_gpus:g}",
            *(("-",) * 3 if reply.read_only else (f"{row.base_gpus:.2f}", traded(row), f"{row.entitled_gpus:.2f}")),
            f"{row.received_gpus:.2f}", bar(row.received_gpus, row.entitled_gpus, _pool_size(reply, row.gpu_model)),
        )
        for row in sorted(reply.shares, key=lambda s: (s.gpu_model, s.user))
    ]  # fmt: skip
    pools = ", ".join(
        f"{p.gpu_model}: {p.busy} of {p.healthy} busy" + (f" ({out})" if (out := out_of_use(p)) else "")
        for p in reply.pools
    )
    if reply.read_only:
        pools += "; the controller cannot write its journal just now: this is what was written last, running jobs go on"
    elif not reply.fair:
        pools += f"; {reply.policy} does not hold shares to tickets: entitled is what these come to"
    return Table(
        columns=(
            "user",
            "gpu type",
            "tickets",
            "wants",
            "base",
            "traded",
            "entitled",
            "received",
            "received | entitled",
        ),
        rows=rows,
        numeric=frozenset({"tickets", "wants", "base", "traded", "entitled", "received"}),
        title=f"received: mean of the last {span_text(reply.window_s)}{'; ' + pools if pools else ''}",
        empty="nobody has jobs",
        spare=("wants", "base", "tickets", "received | entitled"),
        long={"user": 12},
    )


def out_of_use(pool: wire.Pool) -> str:
    """GPUs of it that nobody has just now, and why."""
    out = pool.gpus - pool.away - pool.healthy
    return ", ".join(f"{gpus} {why}" for gpus, why in ((out, "not usable"), (pool.away, "away")) if gpus)


def traded(row: wire.ShareView) -> str:
    """What trades add to, or take from, the base."""
    change = row.entitled_gpus - row.base_gpus
    return f"{change:+.2f}" if abs(change) >= 0.005 else "-"


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
        columns=("user", "gpu type", "entitled hours", "gpu hours", "lost gpu s", "jobs", "suspends"),
        rows=[
            (
                r.user,
                r.gpu_model,
                f"{r.entitled_gpu_s / 3600:.3f}",
                f"{r.gpu_s / 3600:.3f}",
                f"{r.lost_gpu_s:.1f}",
                str(r.jobs),
                str(r.suspends),
            )
            for r in rows
        ],
        numeric=frozenset({"entitled hours", "gpu hours", "lost gpu s", "jobs", "suspends"}),
        empty="no usage",
        spare=("suspends", "jobs", "entitled hours"),
        long={"user": 12},
    )


def nodes(reply: wire.ListNodesReply) -> Table:
    rows, views = [], reply.nodes
    for view in views:
        models = sorted({gpu.model for gpu in view.gpus})
        ago = (
            span_text(max(0.0, reply.now - view.last_report_at)) + " ago"
            if view.last_report_at
            else "not yet"
        )
        rows.append(
            (view.name, node_state(view), ",".join(models) or "-", f"{_in_use(view)}/{len(view.gpus)}", str(view.jobs), _memory(view),
             view.version, ago, _certificate(view, reply.wall_now), str(len(view.warnings)))
        )  # fmt: skip
    footer = [f"{view.name}: {draining(view)}" for view in views if view.draining or view.drained_gpus]
    footer += [f"{view.name}: {printable(warning)}" for view in views for warning in view.warnings]
    return Table(
        columns=("name", "state", "gpu type", "busy/usable/all", "jobs", "memory left", "version", "last report", "certificate", "warnings"),
        rows=rows,
        numeric=frozenset({"jobs"}),
        empty="no nodes",
        footer=footer,
        spare=("version", "certificate", "last report", "memory left"),
        long={"name": 16},
    )  # fmt: skip


def _in_use(view: wire.NodeView) -> str:
    """Busy and usable ones, as in `hsctl share`; of a server that is away nobody knows."""
    if view.state == "away":
        return "-/-"
    busy = {use.gpu_id for use in view.uses if use.running_job}
    usable = {gpu.id for gpu in view.gpus if gpu.healthy and gpu.index not in view.drained_gpus}
    return f"{len(busy)}/{len(busy | (usable if not view.draining else set()))}"


def _memory(view: wire.NodeView) -> str:
    if not view.memory_bytes:
        return "-"
    return f"{size_text(view.memory_available_bytes)} of {size_text(view.memory_bytes)}"


def node_state(view: wire.NodeView) -> str:
    return "draining" if view.draining and view.state == "up" else view.state


def draining(view: wire.NodeView) -> str:
    """In words: what is being emptied, why and until when."""
    parts = []
    if view.draining:
        parts.append(
            "is drained" + (f" by {clock(view.drain_deadline_at)}" if view.drain_deadline_at else "")
        )
        parts.append(f"{view.jobs} job{'s' * (view.jobs != 1)} left")
        if view.needed_by:
            parts.append(
                f"has the only checkpoint of job{'s' * (len(view.needed_by) > 1)} {numbers(view.needed_by)}"
            )
    if view.drained_gpus:
        parts.append(f"GPU {','.join(map(str, view.drained_gpus))} drained")
    if view.drain_reason:
        parts.append(printable(view.drain_reason))
    return "; ".join(parts)


def numbers(jobs: Sequence[int]) -> str:
    more = f" and {len(jobs) - NAMED} more" if len(jobs) > NAMED else ""
    return ", ".join(map(str, jobs[:NAMED])) + more


def _certificate(view: wire.NodeView, wall_now_s: float) -> str:
    if not view.certificate_until:
        return "-"
    left = view.certificate_until - wall_now_s
    return f"{span_text(left)} left" if left > 0 else "expired"


def gpus(rows: Sequence[forms.Row]) -> Table:
    made = []
    for row in rows:
        running = [str(row[name]) for name in ("running_job", "second_job") if row[name]]
        users = dict.fromkeys(row[name] for name in ("user", "second_user") if row[name])
        held = [str(j["id"]) for j in row["jobs"] if str(j["id"]) not in running]
        memory = f"{size_text(row['memory_used_bytes'])}/{size_text(row['memory_bytes'])}"
        made.append(
            (row["node"], str(row["index"]), row["model"], row["state"], "+".join(users) or "-", "+".join(running) or "-",
             ",".join(held) or "-", memory, f"{row['utilization_percent']}%", _gpu_note(row))
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
        spare=("util", "memory", "suspended here"),
        long={"node": 12, "user": 10, "suspended here": 12, "note": 20},
    )


def _gpu_note(row: forms.Row) -> str:
    drained = "drained" if row["drained"] and row["state"] != "drained" else ""
    return "; ".join(word for word in (row["why_unhealthy"], drained) if word)


def trades(views: Sequence[wire.TradeView]) -> Table:
    """A line for each trade, worded from the side of who gives the fast GPUs."""
    rows = [
        (clock(t.at), t.gives, f"{t.fast_gpus:.2f} {t.fast}", f"{t.slow_gpus:.2f} {t.slow}", t.receives,
         f"{t.price:.2f} {t.slow} for a {t.fast}", f"{t.giver_speedup:.2f}", f"{t.taker_speedup:.2f}",
         f"undone {clock(t.undone)}{': ' + t.why_undone if t.why_undone else ''}" if t.undone else "stands")
        for t in views
    ]  # fmt: skip
    return Table(
        columns=("at", "user", "gives", "receives", "of user", "price", "its speed-up", "theirs", "state"),
        rows=rows,
        numeric=frozenset({"gives", "receives", "its speed-up", "theirs"}),
        empty="no trades",
        spare=("theirs", "its speed-up", "at"),
        long={"user": 12, "of user": 12, "state": 16},
    )


def users(views: Sequence[wire.UserView]) -> Table:
    rows = [
        (
            u.name,
            "admin" if u.admin else "user",
            f"{u.tickets:g}",
            u.run_as or u.name,
            str(u.live_jobs),
            size_text(u.spec_bytes),
            f"{u.gpu_s / 3600:.3f}",
            str(u.tokens),
        )
        for u in views
    ]
    return Table(
        columns=("user", "role", "tickets", "jobs run as", "live jobs", "their specs", "gpu hours", "tokens"),
        rows=rows,
        numeric=frozenset({"tickets", "live jobs", "their specs", "gpu hours", "tokens"}),
        empty="no users",
        spare=("their specs", "tokens", "jobs run as"),
        long={"user": 12, "jobs run as": 12},
    )


def tokens(reply: wire.ListTokensReply) -> Table:
    rows = [
        (
            t.id,
            t.user,
            f"invitation of {t.node}" if t.node else t.label or "-",
            token_state(t, reply.now),
            clock(t.created_at),
            clock(t.not_after),
            clock(t.last_used_at),
        )
        for t in reply.tokens
    ]
    return Table(
        columns=("id", "user", "label", "state", "made", "until", "last used"),
        rows=rows,
        empty="no tokens",
        spare=("last used", "made"),
        long={"user": 12, "label": 12},
    )


def token_state(view: wire.TokenView, now_s: float) -> str:
    if view.revoked:
        return "revoked"
    return "expired" if view.not_after and view.not_after < now_s else "valid"


def event_lines(events: Sequence[wire.Event], *, about: bool = True) -> list[str]:
    """`about`: with the job, user and server that each is about."""
    columns = EventColumns(about=16 if about else 0)
    columns.widen(events)
    return [columns.line(event) for event in events]


@dataclass(slots=True)
class EventColumns:
    """How wide the columns of events are: as what they have held so far, so that a text begins below the one before.

    A word that is longer than MOST pushes its own line's text aside, not everybody's from then on.
    """

    moment: int = 8
    kind: int = 12
    about: int = 16  # 0: no such column

    MOST: ClassVar = 40

    def widen(self, events: Iterable[wire.Event]) -> None:
        for event in events:
            self.moment = max(self.moment, len(clock(event.at)))
            self.kind = max(self.kind, min(self.MOST, len(printable(event.kind))))
            if self.about:
                self.about = max(self.about, min(self.MOST, len(_about(event))))

    def line(self, event: wire.Event) -> str:
        self.widen((event,))
        words = f"{clock(event.at):<{self.moment}}  {printable(event.kind):<{self.kind}}"
        about = f"  {_about(event):<{self.about}}" if self.about else ""
        return f"{words}{about}  {printable(event.text)}".rstrip()


def _about(event: wire.Event) -> str:
    words = (f"job {event.job_id}" if event.job_id else "", event.user, event.host)
    return printable(" ".join(filter(None, words)))
