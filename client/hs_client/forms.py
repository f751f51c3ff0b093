"""JSON as scripts see it (docs/hsctl.md): the contract's names first, then the protocol's own; names are never changed.

Times are seconds since 1970, UTC, null where it has not happened yet. Numbers are numbers.
"""

import json
import math
from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message

from hs_client import quantities
from hs_client.ends import ENDED, exit_code
from hs_proto.v1 import common_pb2 as common
from hs_proto.v1 import controller_pb2 as wire

Row = dict[str, Any]


def plain(message: Message) -> Row:
    """A message as JSON-able values under the protocol's field names; defaults are there, optional fields unset are null."""
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return dict(value)
        return [plain(item) if field.message_type is not None else item for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    if field.message_type is not None:
        return plain(value)
    if isinstance(value, float):
        return _number(value, is_time=field.name.endswith("_at"))
    return value


def _number(value: float, *, is_time: bool = False) -> float | None:
    if not math.isfinite(value) or (is_time and value == 0):
        return None
    return value


def text(value: object, *, indent: int | None = None) -> str:
    made = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    if made.replace("\n", "").isprintable():
        return made
    # It may go to a terminal, which takes more for orders than JSON has to escape.
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in made)


def job(view: wire.JobView) -> Row:
    own = plain(view)
    return (
        {
            "id": view.id,
            "user": view.user,
            "name": view.name,
            "state": view.state,
            "reason": view.reason,
            "gpus": view.gpus,
            "gpu_type": view.gpu_model,
            "nodes": homes(view),
            "gpu_ids": list(view.gpu_ids),
            "epoch": view.epoch,
            "share": own["entitled_gpus"],
            "rate": own["steps_per_s"],
            "steps": view.step,
            "suspends": view.suspends,
            "migrations": view.migrations,
            "lost_gpu_s": own["lost_gpu_s"],
            "submitted_at": own["submitted_at"],
            "started_at": own["started_at"],
            "ended_at": own["ended_at"],
            "exit_code": exit_code(view) if view.state in ENDED else None,
            "node_count": max(view.nodes, 1),
        }
        | {name: value for name, value in own.items() if name not in _IN_CONTRACT}
        | {
            "strategies": [strategy(each) for each in view.strategies],
            "strategy": strategy(view.strategy) if view.HasField("strategy") else None,
        }
    )


def strategy(said: common.Strategy) -> str:
    """`tp=2,pp=2`, as users write it."""
    return str(quantities.Strategy((said.data, said.tensor, said.pipeline), tuple(said.layers)))


_IN_CONTRACT = frozenset(
    {"id", "suspends", "migrations", "nodes"}
)  # there already, `nodes` as something else


def homes(view: wire.JobView) -> list[str]:
    """The servers that the job is on, by node rank."""
    return list(view.hosts) or ([view.host] if view.host else [])


def detail(found: wire.JobDetail) -> Row:
    return job(found.view) | {name: told for name, told in plain(found).items() if name != "view"}


def shares(reply: wire.SharesReply) -> list[Row]:
    """One object per user, pools inside."""
    rows: dict[str, Row] = {}
    for share in reply.shares:
        row = rows.setdefault(
            share.user,
            {"user": share.user, "tickets": share.tickets, "entitled": {}, "receiving": {}, "fairness": None,
             "base": {}, "demand": {}, "due": {}, "received_gpu_s": {}, "window_s": reply.window_s},
        )  # fmt: skip
        row["entitled"][share.gpu_model] = None if reply.read_only else share.entitled_gpus
        row["receiving"][share.gpu_model] = share.received_gpus
        row["base"][share.gpu_model] = None if reply.read_only else share.base_gpus
        row["demand"][share.gpu_model] = share.demand_gpus
        row["due"][share.gpu_model] = share.due_gpus
        row["received_gpu_s"][share.gpu_model] = share.received_gpu_s
    for row in rows.values() if reply.fair and not reply.read_only else ():
        row["fairness"] = fairness(sum(row["receiving"].values()), sum(row["due"].values()))
    return list(rows.values())


def fairness(received: float, due: float) -> float | None:
    """1: exactly what one was entitled to; null where that was nothing."""
    return received / due if due > 0 and math.isfinite(received) else None


def usage(row: wire.UsageRow) -> Row:
    return {"user": row.user, "gpu_type": row.gpu_model, "gpu_seconds": row.gpu_s} | plain(row)


def node(view: wire.NodeView, epochs: dict[int, int]) -> Row:
    return {
        "name": view.name,
        "state": view.state,
        "version": view.version,
        "gpus": gpus(view, epochs),
        "warnings": list(view.warnings),
        "last_report_at": _number(view.last_report_at, is_time=True),
        "draining": view.draining,
        "drain_reason": view.drain_reason,
        "drain_deadline_at": _number(view.drain_deadline_at, is_time=True),
        "jobs": view.jobs,
        "drained_gpus": list(view.drained_gpus),
        "certificate_until": _number(view.certificate_until, is_time=True),
        "datasets": list(view.datasets),
        "needed_by": list(view.needed_by),
        "memory_bytes": view.memory_bytes or None,
        "memory_available_bytes": view.memory_available_bytes if view.memory_bytes else None,
    }


def gpus(view: wire.NodeView, epochs: dict[int, int]) -> list[Row]:
    """A node's GPUs with who uses them: the running job first, then suspended ones whose state stays there."""
    uses = {use.gpu_id: use for use in view.uses}
    drained = set(view.drained_gpus)
    rows = []
    for gpu in view.gpus:
        use = uses.get(gpu.id, wire.GpuUse())
        running = [job for job in (use.running_job, use.second_job) if job]
        jobs = running + [job for job in use.bound_jobs if job not in running]
        kept = view.draining or gpu.index in drained
        state = "busy" if use.running_job else "drained" if kept else "idle"
        state = "away" if view.state == "away" else state if gpu.healthy else "unhealthy"
        rows.append(
            {"index": gpu.index, "uuid": gpu.id, "model": gpu.model, "state": state,
             "jobs": [{"id": j, "epoch": epochs.get(j)} for j in jobs],
             "node": view.name, "user": use.user, "running_job": use.running_job or None,
             "second_job": use.second_job or None, "second_user": use.second_user or None, "drained": gpu.index in drained}
            | {name: value for name, value in plain(gpu).items() if name not in {"index", "model"}}
        )  # fmt: skip
    return rows


def why(reply: wire.WhyReply) -> Row:
    row = plain(reply)
    if reply.expected_wait_s < 0:
        row["expected_wait_s"] = None
    return {"id": reply.job_id} | row


def trade(view: wire.TradeView) -> Row:
    return {
        "at": _number(view.at, is_time=True),
        "fast": view.fast,
        "slow": view.slow,
        "gives": view.gives,
        "receives": view.receives,
        "fast_gpus": view.fast_gpus,
        "slow_gpus": view.slow_gpus,
        "price": view.price,
        "speedups": {view.gives: _number(view.giver_speedup), view.receives: _number(view.taker_speedup)},
        "undone": _number(view.undone, is_time=True),
        "why_undone": view.why_undone,
    }


def token(view: wire.TokenView) -> Row:
    row = plain(view)
    return row | {"not_after": row["not_after"] or None}


def event(found: wire.Event) -> Row:
    return plain(found)


def lines(rows: Iterable[Row]) -> str:
    return "".join(f"{text(row)}\n" for row in rows)
