"""The links between the agents of a gang's servers: where one side does not read, and how they ended."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import grpc
import pytest
from structlog.testing import capture_logs

from hs_agent.config import Config, parse
from hs_agent.folder import Key
from hs_agent.gangs import HEARD_S, HeadGang, MemberGang
from hs_agent.gangwire import _KINDS, event_of
from hs_agent.peers import Grants, PeerDoor
from hs_core.errors import RefusedError
from hs_core.events.host import (
    CheckpointFailed,
    HostEvent,
    JobReady,
    Resume,
    Suspend,
    SuspendFailed,
    WantedChanged,
    Woke,
)
from hs_core.gang import GangMachine
from hs_core.host import HostConfig, HostMachine
from hs_core.model import Gpu, JobSpec
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.reports import Tier
from hs_core.wanted import Peer, Turn, Wanted, WantedJob
from hs_proto import convert
from hs_proto.v1 import agent_pb2, agent_pb2_grpc

KEY = Key(JobId(7), 1)
FLOOD = 100_000
WITHIN_S = 60.0
NUMBERS = (
    "step", "order", "parked_bytes", "generation", "steps_per_s", "device_memory_bytes", "noise_scale", "noise_samples",
)  # fmt: skip


class Deaf(agent_pb2_grpc.AgentPeerServicer):
    """A first node that answers pings, and reads nothing of the first link after its hello."""

    Fetch: Any = None

    def __init__(self) -> None:
        self.heard: list[list[agent_pb2.GangUp]] = []
        self.changed = asyncio.Event()

    async def Gang(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[agent_pb2.GangUp], context: Any
    ) -> None:
        await anext(request_iterator)
        heard: list[agent_pb2.GangUp] = []
        self.heard.append(heard)
        self.changed.set()
        await context.send_initial_metadata(())
        if len(self.heard) == 1:
            await asyncio.Event().wait()
        async for up in request_iterator:
            heard.append(up)
            self.changed.set()


def member_of(
    head: Peer,
    dial: Callable[[Peer], grpc.aio.Channel],
    dropped: Callable[[], None] = lambda: None,
    post: Callable[[HostEvent], None] = lambda _: None,
) -> MemberGang:
    hello = agent_pb2.GangHello(job_id=7, epoch=1, node_rank=1)
    return MemberGang(KEY, hello, head, dial, lambda *_: None, dropped, post)


def first_node(folder: Path) -> Config:
    """Where a door for the other nodes is to open."""
    return parse(
        {
            "name": "v1",
            "dev": True,
            "controller": f"unix:{folder}/c",
            "peer_listen": "127.0.0.1:0",
            "state_dir": str(folder),
        }
    )


async def until(condition: Any, changed: asyncio.Event) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            changed.clear()
            await changed.wait()


def test_a_first_node_that_does_not_read_has_its_link_ended_and_hears_the_ranks_anew() -> None:
    async def run() -> None:
        server, deaf = grpc.aio.server(), Deaf()
        agent_pb2_grpc.add_AgentPeerServicer_to_server(deaf, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        dropped = asyncio.Event()
        member = member_of(
            Peer(host=HostName("v1"), address=f"127.0.0.1:{port}"),
            lambda peer: grpc.aio.insecure_channel(peer.address),
            dropped.set,
        )
        try:
            await until(lambda: deaf.heard, deaf.changed)
            for step in range(FLOOD):
                if dropped.is_set():
                    break
                member.heard(1, {"type": "progress", "step": step, "text": "x" * 1000})
                await asyncio.sleep(0)
            assert dropped.is_set(), "all was kept for one that does not read"
            await until(lambda: len(deaf.heard) == 2, deaf.changed)
            member.heard(2, {"type": "hello"})
            await until(lambda: deaf.heard[1], deaf.changed)
            assert [up.heard.connection for up in deaf.heard[1]] == [2]
        finally:
            await member.close()
            await server.stop(None)

    asyncio.run(run())


class Fickle(agent_pb2_grpc.AgentPeerServicer):
    """A first node that ends each link as soon as it stands."""

    Fetch: Any = None

    def __init__(self) -> None:
        self.linked_s: list[float] = []
        self.changed = asyncio.Event()

    async def Gang(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[agent_pb2.GangUp], context: Any
    ) -> None:
        await anext(request_iterator)
        await context.send_initial_metadata(())
        self.linked_s.append(time.monotonic())
        self.changed.set()
        await anext(request_iterator)  # that it has taken the link for one


def test_of_a_checkpoint_that_fails_nothing_is_said_as_if_it_answered_the_order_that_comes_of_that() -> None:
    """Its host tells it to stand still as soon as it hears that none was written. That the stop with the checkpoint failed, too, is no answer to that."""
    said: list[HostEvent] = []
    told: list[Mapping[str, Any]] = []

    def post(event: HostEvent) -> None:
        said.append(event)
        if isinstance(event, CheckpointFailed):
            gang.order(Suspend(job=KEY.job, epoch=KEY.epoch, tier=Tier.HOLD, order=3))

    gang = HeadGang(KEY, GangMachine(KEY.job, KEY.epoch), lambda _, message: told.append(message), post)
    hello = {"type": "hello", "protocol": 1, "pid": 9, "rank": 0, "world": 1, "step": 0, "state": "new"}
    gang.heard(1, {**hello, "tier": "hold", "can": ["hold", "checkpoint"], "id": 0, "generation": -1})
    gang.heard(1, {"type": "arrived", "step": 0, "can": ["hold", "checkpoint"], "rank": 0, "world": 1})
    gang.order(Resume(job=KEY.job, epoch=KEY.epoch, order=1))
    gang.heard(1, {"type": "going", "step": 0, "seconds": 0.0})
    gang.order(Suspend(job=KEY.job, epoch=KEY.epoch, tier=Tier.CHECKPOINT, order=2))
    stop = next(message for message in told if message["type"] == "stop")
    gang.heard(1, {"type": "failed", "what": "checkpoint", "id": stop["id"], "why": "no room"})
    failed = [event for event in said if isinstance(event, SuspendFailed)]
    assert [event.order for event in failed] == [2]
    assert [message["type"] for message in told].count("stop") == 2


def test_links_that_end_as_soon_as_they_stand_are_made_less_and_less_often_and_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("random.random", lambda: 1.0)

    async def run() -> None:
        server, fickle = grpc.aio.server(), Fickle()
        agent_pb2_grpc.add_AgentPeerServicer_to_server(fickle, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        with capture_logs() as said:
            member = member_of(
                Peer(host=HostName("v1"), address=f"127.0.0.1:{port}"),
                lambda peer: grpc.aio.insecure_channel(peer.address),
            )
            member.order(Resume(job=KEY.job, epoch=1))
            try:
                await until(lambda: len(fickle.linked_s) == 6, fickle.changed)
            finally:
                await member.close()
                await server.stop(None)
        assert fickle.linked_s[-1] - fickle.linked_s[0] >= 0.05 + 0.1 + 0.2 + 0.4 + 0.8
        assert [line["event"] for line in said] == [
            "linked to the gang's first node",
            "no link to the gang's first node",
        ]

    asyncio.run(run())


def test_of_what_an_agent_of_another_version_says_of_a_gang_what_is_known_is_taken() -> None:
    def read(**body: Any) -> Any:
        return event_of(json.dumps(body).encode(), KEY, 5.0)

    ready = JobReady(now_s=5.0, job=KEY.job, epoch=1, step=3, can_swap=True)
    assert read(kind="JobReady", step=3, can_swap=True) == ready
    assert read(kind="JobReady", step=3, can_swap=True, news={"of": ["later"]}) == ready
    assert read(kind="JobPondered", depth=3) is None
    with pytest.raises(RefusedError, match=r"JobReady with \['can_swap'\]: expected \['step'\] as well"):
        read(kind="JobReady", can_swap=True)
    with pytest.raises(RefusedError, match=r"JobReady\.step = 'x': expected int"):
        read(kind="JobReady", step="x")
    with pytest.raises(RefusedError, match="an event that has no kind"):
        read(kind=["JobReady"], step=3)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_a_gangs_first_node_says_is_refused_or_does_not_end_another_hosts_agent(seed: int) -> None:
    """An agent is root on its own host and nothing elsewhere."""
    draw = random.Random(seed)
    gpus = (Gpu(id=GpuId("G"), index=0, model="V100", memory_bytes=16 << 30),)
    host = HostMachine(gpus, HostConfig(host_memory_budget_bytes=draw.choice([0, 1 << 34])), now_s=0.0)
    nodes = tuple(Peer(host=HostName(name), address=f"{name}:1") for name in ("v1", "v2"))
    spec = JobSpec(name="j", command=("train",), gpus=1, nodes=2)
    part = WantedJob(
        job=KEY.job, epoch=KEY.epoch, user=UserName("u"), run_as="u", job_class="c", spec=spec, tickets=1.0,
        nodes=nodes, node_rank=1, rendezvous="127.0.0.1:1",
    )  # fmt: skip
    turn = Turn(gangs=(KEY.job,), local=False)
    wanted = Wanted(term=1, seq=1, quantum_s=20.0, turn=turn, jobs=(part,))
    host.handle(WantedChanged(now_s=0.0, wanted=wanted, late_s=0.0))
    refused = 0
    for now_s in range(1, 80):
        body: dict[str, Any] = {"kind": draw.choice(sorted(_KINDS)), "why": "x", "note": ""}
        body |= {name: draw.choice([-1, 0, 1, 5, 1 << 31, 1 << 62]) for name in NUMBERS}
        body |= {name: draw.random() < 0.5 for name in ("can_swap", "can_checkpoint", "single")}
        body["tier"] = draw.choice([tier.value for tier in Tier])
        try:
            event = event_of(json.dumps(body).encode(), KEY, float(now_s))
        except RefusedError:
            refused += 1
            continue
        assert event is not None
        host.handle(event)
        host.handle(Woke(now_s=float(now_s)))
        for report in host.reports():
            convert.from_report(report)  # which the controller is told
    assert 0 < refused < 79


def test_that_a_first_node_is_away_is_said_once_however_often_it_is_dialled() -> None:
    async def run() -> None:
        dials, dialled = 0, asyncio.Event()

        def dial(peer: Peer) -> grpc.aio.Channel:
            nonlocal dials
            dials += 1
            dialled.set()
            return grpc.aio.insecure_channel(peer.address)

        with capture_logs() as said:
            member = member_of(Peer(host=HostName("v1"), address="127.0.0.1:1"), dial)
            try:
                await until(lambda: dials == 5, dialled)
            finally:
                await member.close()
        assert [line["head"] for line in said if line["event"] == "no link to the gang's first node"] == [
            "v1"
        ]

    asyncio.run(run())


@pytest.mark.parametrize("reads_then", [True, False])
def test_a_node_that_does_not_read_has_its_link_ended(tmp_path: Any, reads_then: bool) -> None:
    async def run() -> None:
        nodes = (Peer(host=HostName("v1"), address=""), Peer(host=HostName("v2"), address=""))
        job = WantedJob(
            job=KEY.job, epoch=1, user=UserName("u"), run_as="u", job_class="c", spec=JobSpec(name="x", command=("x",), gpus=1), tickets=1.0,
            nodes=nodes, grant="g",
        )  # fmt: skip
        grants = Grants()
        grants.take(Wanted(term=1, seq=1, quantum_s=1.0, turn=Turn(), jobs=(job,)))
        head = HeadGang(KEY, GangMachine(KEY.job, 1, nodes=2), lambda *_: None, lambda _: None)
        config = first_node(tmp_path)
        door = PeerDoor(config, grants, AsyncMock(), lambda _: head, None)
        await door.start()
        try:
            async with grpc.aio.insecure_channel(door.address) as channel:
                call = agent_pb2_grpc.AgentPeerStub(channel).Gang()
                hello = agent_pb2.GangHello(job_id=7, epoch=1, node_rank=1, grant="g")
                await call.write(agent_pb2.GangUp(hello=hello))
                await call.initial_metadata()
                async with asyncio.timeout(WITHIN_S):
                    while 1 not in head._members:  # noqa: ASYNC110 — it is told before it joins, and nobody says when it has
                        await asyncio.sleep(0.01)
                member = head._members[1]
                for connection in range(FLOOD):
                    if 1 not in head._members:
                        break
                    text = agent_pb2.RankMessage(connection=connection, json=b"x" * 1000)
                    member.down.put(agent_pb2.GangDown(tell=text))
                    await asyncio.sleep(0)
                assert 1 not in head._members, "all was kept for one that does not read"
                if reads_then:
                    async with asyncio.timeout(WITHIN_S):
                        assert len([down async for down in call]) < FLOOD
                call.cancel()
        finally:
            async with asyncio.timeout(WITHIN_S):
                await door.stop()

    asyncio.run(run())


def test_a_first_node_is_in_touch_with_those_whose_ranks_it_heard_of_until_they_ended() -> None:
    head = HeadGang(KEY, GangMachine(KEY.job, 1, nodes=2), lambda *_: None, lambda _: None)
    up = agent_pb2.GangUp(heard=agent_pb2.RankMessage(connection=4, json=b'{"type": "progress"}'))
    seen = {"it never came": head.in_touch}
    member = head.join(1)
    assert head.take(member, up)
    seen["its rank was heard"] = head.in_touch
    member.heard_s -= HEARD_S
    seen["for long nothing was heard of its rank"] = head.in_touch
    head.left(member)
    seen["the link was lost"] = head.in_touch
    member = head.join(1)
    assert head.take(member, up)
    assert head.take(member, agent_pb2.GangUp(gone=4))
    head.left(member)
    seen["its rank had ended before"] = head.in_touch
    assert [what for what, so in seen.items() if so] == ["its rank was heard", "its rank had ended before"]


class First(agent_pb2_grpc.AgentPeerServicer):
    """Ends the link so."""

    Fetch: Any = None

    def __init__(self, status: grpc.StatusCode) -> None:
        self.status = status

    async def Gang(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        await anext(request_iterator)
        await context.send_initial_metadata(())
        if self.status is not grpc.StatusCode.OK:
            await context.abort(self.status, "")


@pytest.mark.parametrize("status", [grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE])
def test_a_node_is_in_touch_with_a_first_one_that_has_ended_the_link_and_not_where_that_was_lost(
    status: grpc.StatusCode,
) -> None:
    async def run() -> None:
        server, dropped = grpc.aio.server(), asyncio.Event()
        agent_pb2_grpc.add_AgentPeerServicer_to_server(First(status), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        member = member_of(
            Peer(host=HostName("v1"), address=f"127.0.0.1:{port}"),
            lambda peer: grpc.aio.insecure_channel(peer.address),
            dropped.set,
        )
        try:
            assert not member.in_touch
            async with asyncio.timeout(WITHIN_S):
                await dropped.wait()
            assert member.in_touch == (status is grpc.StatusCode.OK)
        finally:
            await member.close()
            await server.stop(None)

    asyncio.run(run())


def test_a_stop_of_what_is_left_of_a_gang_whose_first_node_has_ended_fails_at_once(
    tmp_path: Any,
) -> None:
    async def run() -> None:
        config = first_node(tmp_path)
        grants, said, heard = Grants(), list[HostEvent](), asyncio.Event()
        nodes = tuple(Peer(host=HostName(name), address="") for name in ("v1", "v2"))
        job = WantedJob(
            job=KEY.job, epoch=1, user=UserName("u"), run_as="u", job_class="c", spec=JobSpec(name="x", command=("x",), nodes=2), tickets=1.0,
            nodes=nodes, grant="secret",
        )  # fmt: skip
        grants.take(Wanted(term=1, seq=1, quantum_s=1.0, turn=Turn(), jobs=(job,)))
        ended = set[Key]()
        door = PeerDoor(config, grants, AsyncMock(), lambda _: None, None, has_ended=ended.__contains__)
        await door.start()

        def post(event: HostEvent) -> None:
            said.append(event)
            heard.set()

        hello = agent_pb2.GangHello(job_id=7, epoch=1, node_rank=1, grant="secret")
        member = MemberGang(
            KEY,
            hello,
            Peer(host=HostName("v1"), address=door.address),
            lambda peer: grpc.aio.insecure_channel(peer.address),
            lambda *_: None,
            lambda: None,
            post,
        )
        stops = [Suspend(job=KEY.job, epoch=1, tier=Tier.HOLD, order=number) for number in (4, 5)]
        try:
            member.order(stops[0])
            await asyncio.sleep(0)
            assert not said, "it may be started yet"
            ended.add(KEY)
            await until(lambda: said, heard)
            member.order(stops[1])
            member.order(Resume(job=KEY.job, epoch=1, order=6))
        finally:
            await member.close()
            await door.stop()
        assert [(type(event), event.why, event.order) for event in said] == [
            (SuspendFailed, "its first node has ended", 4),
            (SuspendFailed, "its first node has ended", 5),
        ]

    asyncio.run(run())
