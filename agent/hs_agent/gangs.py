"""The gang of a job as its host has it: at the first node the machine that has all ranks, at the others a link to it.

Orders of this host's own machine and messages of local ranks go in; messages to local ranks and what happened to the whole gang come out.
A member whose link is lost hangs up on its ranks: they keep their state, dial again, and what they say then goes on when
the link is back, so that the first node learns all anew. The same happens when the agent of the first node was restarted.
"""

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import grpc
import structlog

from hs_agent.folder import Key
from hs_agent.gangwire import event_json, event_of
from hs_agent.now_and_then import NowAndThen
from hs_agent.unsent import Unsent
from hs_core.errors import RefusedError
from hs_core.events.host import Checkpoint, HostEvent, Resume, Suspend, SuspendFailed
from hs_core.gang import GangMachine, Step
from hs_core.reports import Tier
from hs_core.wanted import Peer
from hs_daemon import boot_s
from hs_proto.v1 import agent_pb2, agent_pb2_grpc

MAX_JSON = 64 << 10
FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 2.0
HEARD_S = 5.0  # ranks that train say so each second
FIRST_HAS_ENDED = "its first node has ended"
LASTING_S = 10.0  # a link that ended sooner need not be better than none

Order = Suspend | Resume | Checkpoint
Tell = Callable[[int, Mapping[str, Any]], None]
Post = Callable[[HostEvent], None]

log = structlog.get_logger("gangs")


class Member:
    """A link from another node. Its ranks' connections are told from those of an earlier link by `number`."""

    def __init__(self, node: int, number: int) -> None:
        self.node, self.number = node, number
        self.connections: set[int] = set()
        self.heard_s = boot_s()
        self.down = Unsent[agent_pb2.GangDown]()


class Gang(Protocol):
    def order(self, order: Order) -> None: ...

    def heard(self, connection: int, message: Mapping[str, Any]) -> None: ...

    def gone(self, connection: int) -> None: ...

    def meet(self, nodes: Sequence[Peer]) -> None:
        """Where its nodes are now: an agent may come back at another address."""
        ...

    @property
    def in_touch(self) -> bool:
        """With all of its other nodes that it is linked with, or was until its ranks there had ended: they are not cut off."""
        ...

    async def close(self) -> None: ...


class HeadGang:
    """Node 0, and every job of one node."""

    def __init__(self, key: Key, machine: GangMachine, tell: Tell, post: Post) -> None:
        self.key, self.machine = key, machine
        self._tell, self._post = tell, post
        self._members: dict[int, Member] = {}
        self._apart = set(
            range(1, machine.nodes)
        )  # nodes that never came, or had ranks when their link ended
        self._links = 0

    def order(self, order: Order) -> None:
        self._do(self.machine.order(order, boot_s()))

    def heard(self, connection: int, message: Mapping[str, Any]) -> None:
        self._do(self.machine.heard((0, 0, connection), message, boot_s()))

    def gone(self, connection: int) -> None:
        self._do(self.machine.gone((0, 0, connection), boot_s()))

    def meet(self, nodes: Sequence[Peer]) -> None:
        """They come to it."""

    @property
    def in_touch(self) -> bool:
        now_s = boot_s()
        heard = (not m.connections or now_s - m.heard_s < HEARD_S for m in self._members.values())
        return self.machine.nodes > 1 and not self._apart and all(heard)

    async def close(self) -> None:
        for member in self._members.values():
            member.down.end()

    # --- members

    def join(self, node: int) -> Member:
        """A link from this node; one from before is dead, whatever its socket says."""
        before = self._members.get(node)
        if before is not None:
            before.down.cut()
            self.left(before)
        self._links += 1
        member = self._members[node] = Member(node, self._links)
        self._apart.discard(node)
        log.info("a node of the gang is linked", job=self.key.job, epoch=self.key.epoch, node=node)
        return member

    def left(self, member: Member) -> None:
        if self._members.get(member.node) is not member:
            return
        del self._members[member.node]
        if member.connections:
            self._apart.add(member.node)
        log.info("a node of the gang is gone", job=self.key.job, epoch=self.key.epoch, node=member.node)
        for connection in sorted(member.connections):
            self._do(self.machine.gone((member.node, member.number, connection), boot_s()))

    def take(self, member: Member, message: agent_pb2.GangUp) -> bool:
        """False: it makes no sense."""
        if self._members.get(member.node) is not member:
            return False
        now_s = member.heard_s = boot_s()
        match message.WhichOneof("body"):
            case "heard":
                value = _message(message.heard.json)
                if value is None:
                    return False
                member.connections.add(message.heard.connection)
                connection = (member.node, member.number, message.heard.connection)
                self._do(self.machine.heard(connection, value, now_s))
            case "gone":
                member.connections.discard(message.gone)
                self._do(self.machine.gone((member.node, member.number, message.gone), now_s))
            case "order":
                order = _order(message.order, self.key)
                if order is None:
                    return False
                self._do(self.machine.order(order, now_s, node=member.node))
            case _:
                return False
        return True

    def _do(self, step: Step) -> None:
        # To other nodes events go first: a rank that is told to leave must not be seen to exit before its checkpoint is known.
        for event in step.events if self._members else ():
            for member in self._members.values():
                said = self.machine.for_node(event, member.node)
                member.down.put(agent_pb2.GangDown(event=event_json(said)))
        for (node, _, connection), message in step.tell:
            if node == 0:
                self._tell(connection, message)
            elif node in self._members:
                tell = agent_pb2.RankMessage(connection=connection, json=json.dumps(dict(message)).encode())
                self._members[node].down.put(agent_pb2.GangDown(tell=tell))
        # All are answers to what was ordered until now: what is said of the first may bring the next order about at once.
        for said in [self.machine.for_node(event, 0) for event in step.events]:
            self._post(said)


class MemberGang:
    """Nodes 1 and on."""

    def __init__(  # noqa: PLR0917 — one name per thing it talks to
        self,
        key: Key,
        hello: agent_pb2.GangHello,
        head: Peer,
        dial: Callable[[Peer], grpc.aio.Channel],
        tell: Tell,
        hang_up: Callable[[], None],
        post: Post,
    ) -> None:
        self.key = key
        self._hello, self._head, self._dial = hello, head, dial
        self._tell, self._hang_up, self._post = tell, hang_up, post
        self._standing: Suspend | Resume | None = None
        self._up = Unsent[agent_pb2.GangUp]()
        self._is_linked = False
        self._in_touch = False
        self._is_over = False  # the first node has ended: nobody tells these ranks anything any more
        self._complaints, self._links = NowAndThen(), NowAndThen()
        self._task = asyncio.create_task(self._run())

    # --- from this host

    def order(self, order: Order) -> None:
        if not isinstance(order, Checkpoint):
            self._standing = order
        if self._is_linked:
            self._up.put(_order_up(order))
        elif self._is_over:
            self._refuse(order)

    def _refuse(self, order: Order | None) -> None:
        """A stop: the freezer can take what is left, and is not to wait for an answer that will not come."""
        if isinstance(order, Suspend):
            key = self.key
            self._post(
                SuspendFailed(
                    now_s=boot_s(), job=key.job, epoch=key.epoch, why=FIRST_HAS_ENDED, order=order.order
                )
            )

    def heard(self, connection: int, message: Mapping[str, Any]) -> None:
        up = agent_pb2.GangUp(
            heard=agent_pb2.RankMessage(connection=connection, json=json.dumps(dict(message)).encode())
        )
        if self._is_linked:
            self._up.put(up)
        elif message.get("type") != "progress":
            self._up.put(up)
            if self._up.is_cut:
                self._begin_anew()

    def gone(self, connection: int) -> None:
        if self._is_linked:
            self._up.put(agent_pb2.GangUp(gone=connection))
        else:
            self._up.drop(lambda up: up.heard.connection == connection)

    def meet(self, nodes: Sequence[Peer]) -> None:
        if nodes:
            self._head = nodes[0]

    @property
    def in_touch(self) -> bool:
        return self._in_touch

    def _begin_anew(self) -> None:
        self._is_linked = False
        self._up = Unsent()
        self._hang_up()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # --- the link

    async def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            began_s = boot_s()
            why = await self._once()
            if self._is_linked:
                self._begin_anew()
                if boot_s() - began_s > LASTING_S:
                    pause_s = FIRST_PAUSE_S
                    self._complaints.worked()
                    self._links.worked()
            wait_s = random.random() * pause_s  # noqa: S311 — jitter
            if self._complaints.is_due(why, boot_s()):
                log.info(
                    "no link to the gang's first node", job=self.key.job, epoch=self.key.epoch, head=self._head.host,
                    why=why,
                )  # fmt: skip
            await asyncio.sleep(wait_s)
            pause_s = min(pause_s * 2, LAST_PAUSE_S)

    async def _once(self) -> str:
        """One link; why it ended."""
        tasks: list[asyncio.Task[None]] = []
        try:
            async with self._dial(self._head) as channel:
                call = agent_pb2_grpc.AgentPeerStub(channel).Gang()
                try:
                    await call.write(agent_pb2.GangUp(hello=self._hello))
                    await call.initial_metadata()
                    if call.done():
                        raise await _why(call)
                    reading = asyncio.create_task(self._read(call))
                    sending = asyncio.create_task(self._send(call))
                    tasks += reading, sending
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    if self._up.is_cut:
                        return "the first node does not read"
                    await reading  # that the call has ended it learns as well, and why
                    self._in_touch = (
                        await call.code() is grpc.StatusCode.OK
                    )  # its first node's ranks had ended
                    return str((await _why(call)).details() or "the first node ended it")
                finally:
                    call.cancel()
        except grpc.aio.AioRpcError as error:
            self._in_touch = self._in_touch and not self._is_linked
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION and not self._is_over:
                self._is_over = True
                self._refuse(self._standing)
            return f"{error.code().name}: {error.details()}"
        except (RefusedError, OSError, asyncio.InvalidStateError) as error:
            return str(error) or type(error).__name__
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, call: "grpc.aio.StreamStreamCall[agent_pb2.GangUp, agent_pb2.GangDown]") -> None:
        self._is_linked = self._in_touch = True
        self._is_over = False
        if self._standing is not None:
            self._up.put(_order_up(self._standing))
        if self._links.is_due(self._head.host, boot_s()):
            log.info(
                "linked to the gang's first node",
                job=self.key.job,
                epoch=self.key.epoch,
                head=self._head.host,
            )
        await self._up.send(call.write)

    async def _read(self, call: "grpc.aio.StreamStreamCall[agent_pb2.GangUp, agent_pb2.GangDown]") -> None:
        async for down in call:
            self._take(down)

    def _take(self, down: agent_pb2.GangDown) -> None:
        match down.WhichOneof("body"):
            case "tell":
                value = _message(down.tell.json)
                if value is None:
                    raise RefusedError("the first node said what is no message to a rank")
                self._tell(down.tell.connection, value)
            case "event":
                event = event_of(down.event, self.key, boot_s())
                if event is not None:
                    self._post(event)
            case _:
                pass


async def _why(
    call: "grpc.aio.StreamStreamCall[agent_pb2.GangUp, agent_pb2.GangDown]",
) -> grpc.aio.AioRpcError:
    empty = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(await call.code(), empty, empty, details=await call.details())


def _message(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data) if len(data) <= MAX_JSON else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _order_up(order: Order) -> agent_pb2.GangUp:
    if isinstance(order, Suspend):
        up = agent_pb2.GangOrder(kind="suspend", tier=order.tier.value, number=order.order)
    elif isinstance(order, Resume):
        up = agent_pb2.GangOrder(kind="resume", number=order.order)
    else:
        up = agent_pb2.GangOrder(kind="checkpoint")
    return agent_pb2.GangUp(order=up)


def _order(pb: agent_pb2.GangOrder, key: Key) -> Order | None:
    if pb.kind == "suspend" and pb.tier in {Tier.HOLD.value, Tier.SWAP.value, Tier.CHECKPOINT.value}:
        return Suspend(job=key.job, epoch=key.epoch, tier=Tier(pb.tier), order=pb.number)
    if pb.kind == "resume":
        return Resume(job=key.job, epoch=key.epoch, order=pb.number)
    return Checkpoint(job=key.job, epoch=key.epoch) if pb.kind == "checkpoint" else None
