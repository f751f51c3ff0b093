"""Commands beside jobs: on the server where the job has its turn, and in the journal before they begin."""

from collections.abc import AsyncGenerator, Sequence

from hs_controller.calls import seconds
from hs_controller.links import Hub, Link
from hs_controller.loop import Loop
from hs_controller.permissions import Caller
from hs_controller.rows import Kept
from hs_core.errors import Kind, RefusedError
from hs_core.facts import Fact
from hs_core.model import Job
from hs_core.names import HostName
from hs_proto.v1 import controller_pb2 as pb

LIMIT_S = 3600.0
SHOWN_CHARS = 100  # of a program's name


async def run(
    loop: Loop, hub: Hub, job: Job, caller: Caller, request: pb.ExecRequest
) -> AsyncGenerator[pb.ExecChunk]:
    """What it says, then how it ended. Raises RefusedError."""
    limit_s = seconds(request.limit_s, "limit_s", LIMIT_S) or LIMIT_S
    if not request.command or not request.command[0]:
        raise RefusedError("command is empty: expected a program and its arguments")
    link = _link(hub, job, request.rank)
    await loop.ask(
        lambda now_s, _: _audit(now_s, job, caller, link.host.name, request.command[0]), lambda _: b"", None
    )
    reader = link.exec(
        job.id,
        job.epoch,
        request.command,
        whose=caller.name,
        limit_s=limit_s,
        window_bytes=loop.config.limits.log_buffer_bytes,
    )
    try:
        async for data in reader:
            chunk = pb.ExecChunk(data=data.data, is_error=data.is_error)
            if data.HasField("end"):
                chunk.end.CopyFrom(data.end)
            yield chunk
    finally:
        link.cancel(reader)


def _link(hub: Hub, job: Job, rank: int) -> Link:
    if job.state.ended or not job.hosts:
        has = f"has ended ({job.state})" if job.state.ended else f"has no server yet ({job.state})"
        raise RefusedError(f"job {job.id} {has}: a command runs beside one that has its turn", Kind.CONFLICT)
    if rank >= len(job.hosts):
        last = len(job.hosts) - 1
        raise RefusedError(
            f"rank = {rank}: job {job.id} is on {', '.join(job.hosts)}; expected 0{f' to {last}' if last else ''}"
        )
    link = hub.link(job.hosts[rank])
    if link is None:
        raise RefusedError(f"{job.hosts[rank]}, where job {job.id} is, is away", Kind.UNAVAILABLE)
    return link


def _audit(now_s: float, job: Job, caller: Caller, host: HostName, program: str) -> Sequence[Kept]:
    """Only the program: its arguments may hold what events, which everybody reads, must not. It is told before it begins, and the server may refuse it."""
    shown = program[:SHOWN_CHARS]
    fact = Fact(
        now_s=now_s,
        kind="exec",
        text=f"{caller.name} asks {host} to run {shown} beside it",
        job=job.id,
        user=job.user,
        host=host,
        data={"by": caller.name, "program": shown},
        deed=caller.name != job.user,
    )
    return [Kept(now_s=now_s, facts=(fact,))]
