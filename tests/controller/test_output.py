"""A job's output put together from what its servers have kept."""

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest

from hs_controller.output import Output
from hs_controller.rows import Event
from hs_core.errors import RefusedError
from hs_core.events import Fact
from hs_core.model import Job, JobSpec, JobState
from hs_core.names import HostName, JobId, UserName
from hs_core.reports import Exit
from hs_proto.v1 import controller_pb2 as pb

GANG = JobSpec(name="gang", command=("true",), nodes=2)
LIMITS = SimpleNamespace(log_buffer_bytes=1 << 20)


class Kept:
    """An agent's link: what each incarnation said on it."""

    def __init__(self, name: str, said: Mapping[int, bytes]) -> None:
        self.host = SimpleNamespace(name=name)
        self.said = said

    async def logs_of(self, _job: JobId) -> tuple[int, ...]:
        return tuple(self.said)

    def log(self, _job: JobId, *, epoch: int, **_: object):
        async def chunks():
            yield self.said[epoch]

        return chunks()

    def cancel_log(self, _reader: object) -> None:
        pass


def ran(seq: int, host: str) -> Event:
    return Event(
        seq=seq, fact=Fact(now_s=float(seq), kind="running", text="", job=JobId(1), host=HostName(host))
    )


def output(
    links: Mapping[str, Kept], story: Sequence[Event], *, epoch: int, hosts: tuple[str, ...], rank: int = 0
) -> bytes:
    """All of it, of a gang that has ended on these servers."""
    job = Job(
        id=JobId(1),
        user=UserName("ann"),
        spec=GANG,
        arrival_s=0.0,
        state=JobState.SUCCEEDED,
        epoch=epoch,
        hosts=tuple(map(HostName, hosts)),
        exit=Exit(),
    )

    async def read(_what: object) -> Sequence[Event]:
        return story

    async def all_of_it() -> bytes:
        loop = SimpleNamespace(store=SimpleNamespace(read=read), config=SimpleNamespace(limits=LIMITS))
        made = Output(loop, SimpleNamespace(link=links.get), None, "ann")
        return b"".join(
            [chunk.data async for chunk in made.read(job, pb.LogsRequest(tail_lines=-1, rank=rank))]
        )

    return asyncio.run(all_of_it())


def test_of_a_gang_the_first_server_is_heard_of_every_incarnation() -> None:
    said = {"a": {0: b"a0 ", 1: b"a1 "}, "b": {0: b"b0 ", 1: b"b1 ", 2: b"b2 "}, "c": {2: b"c2 "}}
    links = {name: Kept(name, each) for name, each in said.items()}
    assert output(links, [ran(1, "a"), ran(2, "a")], epoch=1, hosts=("a", "b")) == b"a0 a1 "
    assert output(links, [ran(1, "b"), ran(2, "b"), ran(3, "c")], epoch=2, hosts=("c", "b")) == b"b0 b1 c2 "


def test_of_a_gang_each_server_is_heard_of_the_newest_incarnation_by_its_rank() -> None:
    """Else nobody learns why a part failed that is not on the first one."""
    said = {"a": {0: b"a0 ", 1: b"a1 "}, "b": {0: b"b0 ", 1: b"b1 "}}
    links = {name: Kept(name, each) for name, each in said.items()}
    story = [ran(1, "a"), ran(2, "a")]
    assert output(links, story, epoch=1, hosts=("a", "b"), rank=1) == b"b1 "
    assert output(links, story, epoch=1, hosts=("b", "a"), rank=1) == b"a1 "
    with pytest.raises(RefusedError, match=r"rank = 2: job 1 is on a, b; expected 0 to 1"):
        output(links, story, epoch=1, hosts=("a", "b"), rank=2)
    del links["b"]
    with pytest.raises(RefusedError, match=r"b, where rank 1 of job 1 is, is away"):
        output(links, story, epoch=1, hosts=("a", "b"), rank=1)
