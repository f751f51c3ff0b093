"""Where other agents reach this one: checkpoints that are lent, and gangs whose first node is here.

Whoever calls shows the grant that the controller gave for the (job, epoch); to all others there is no such thing.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, TypeAlias

import grpc
import structlog

from hs_agent.carried import TornError
from hs_agent.config import Config, split_address
from hs_agent.folder import Key
from hs_agent.gangs import FIRST_HAS_ENDED, HeadGang, Member
from hs_agent.secure import Secure
from hs_agent.sending import Sender
from hs_core.errors import BrokenError, Kind, RefusedError
from hs_core.names import JobId
from hs_core.wanted import Lend, Peer, Wanted, WantedJob
from hs_daemon import host_name
from hs_daemon.addresses import is_loopback
from hs_proto.v1 import agent_pb2, agent_pb2_grpc

HELLO_S = 10.0
MAX_MESSAGE = 1 << 20
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # generic in the stubs only
UNKNOWN = "there is no such thing here"

log = structlog.get_logger("peers")


class Grants:
    """Who may have to do with what, as the controller said last."""

    def __init__(self) -> None:
        self.newest = (-1, -1)
        self._lends: dict[tuple[JobId, int, int], Lend] = {}
        self._jobs: dict[Key, WantedJob] = {}

    def take(self, wanted: Wanted) -> None:
        self.newest = (wanted.term, wanted.seq)
        self._lends = {(lend.job, lend.epoch, lend.generation): lend for lend in wanted.lends}
        self._jobs = {Key(job.job, job.epoch): job for job in wanted.jobs}

    def lends(self) -> frozenset[JobId]:
        return frozenset(job for job, _, _ in self._lends)

    def lend(self, request: agent_pb2.FetchRequest) -> Lend | None:
        """What is asked for: what is lent, or the one before, which a job's processes keep beside it."""
        job, epoch, generation = JobId(request.job_id), request.epoch, request.generation
        lend = self._lends.get((job, epoch, generation))
        if lend is None and (newer := self._lends.get((job, epoch, generation + 1))) is not None:
            lend = replace(newer, generation=generation) if newer.copy < 0 else None
        return lend if lend is not None and _same(lend.grant, request.grant) else None

    def member(self, hello: agent_pb2.GangHello, node: str | None) -> WantedJob | None:
        """`node`: whose certificate the caller showed; None: it has none, in development."""
        job = self._jobs.get(Key(JobId(hello.job_id), hello.epoch))
        if job is None or job.node_rank != 0 or not 0 < hello.node_rank < len(job.nodes):
            return None
        if node is not None and job.nodes[hello.node_rank].host != node:
            return None
        return job if _same(job.grant, hello.grant) else None


def _same(expected: str, shown: str) -> bool:
    return bool(expected) and hmac.compare_digest(expected.encode(), shown.encode())


class PeerDoor(agent_pb2_grpc.AgentPeerServicer):
    def __init__(
        self,
        config: Config,
        grants: Grants,
        sender: Sender,
        gang: Callable[[Key], HeadGang | None],
        identity: Secure | None,
        *,
        has_ended: Callable[[Key], bool] = lambda _: False,
    ) -> None:
        """`gang`, `has_ended`: of a job whose first node is here; it is not started any more where it has ended."""
        self.config, self.grants = config, grants
        self.address = ""
        self._sender, self._gang, self._identity = sender, gang, identity
        self._has_ended = has_ended
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """`address` is known from here on."""
        place = split_address(self.config.peer_listen)
        if place is None:
            return
        self._server = grpc.aio.server(options=[
            ("grpc.so_reuseport", 0),  # a second agent must not share the port
            ("grpc.max_receive_message_length", MAX_MESSAGE),
            ("grpc.http2.min_ping_interval_without_data_ms", 5000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000),
        ])  # fmt: skip
        agent_pb2_grpc.add_AgentPeerServicer_to_server(self, self._server)
        try:
            if self._identity is None:
                port = self._server.add_insecure_port(self.config.peer_listen)
            else:
                port = self._server.add_secure_port(
                    self.config.peer_listen, self._identity.server_credentials()
                )
        except RuntimeError:
            port = 0
        if not port:
            raise RefusedError(f"peer_listen {self.config.peer_listen}: cannot listen there", Kind.CONFLICT)
        await self._server.start()
        self.address = self.config.peer_address or f"{_told(place[0])}:{port}"
        log.info("peers are served", address=self.address)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
            await self._sender.close()

    def _node(self, context: Any) -> str | None:
        """The caller's, from its certificate; a certificate of anybody but an agent gets nothing."""
        return None if self._identity is None else self._identity.node_of(context)

    # grpc.aio takes handlers that write as well as those that yield; the stubs know only the latter.
    async def Fetch(  # type: ignore[override]  # noqa: N802
        self, request: agent_pb2.FetchRequest, context: Context
    ) -> None:
        lend = self.grants.lend(request)
        if lend is None or self._node(context) == "":
            await context.abort(grpc.StatusCode.NOT_FOUND, UNKNOWN)
        log.info("lends", job=lend.job, epoch=lend.epoch, generation=lend.generation, peer=context.peer())
        try:
            await self._sender.send(lend, request, context.write)
        except TornError as error:
            log.error("what is lent is torn", job=lend.job, generation=lend.generation, why=str(error))
            await context.abort(grpc.StatusCode.DATA_LOSS, str(error))
        except RefusedError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except OSError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error.strerror or error))

    async def Gang(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[agent_pb2.GangUp], context: Context
    ) -> None:
        try:
            async with asyncio.timeout(HELLO_S):
                first = await anext(request_iterator)
        except (TimeoutError, StopAsyncIteration):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected a hello first")
        hello = first.hello
        job = self.grants.member(hello, self._node(context))
        if job is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, UNKNOWN)
        key = Key(job.job, job.epoch)
        gang = self._gang(key)
        if gang is None and self._has_ended(key):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, FIRST_HAS_ENDED)
        if gang is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "its first node has not started it yet")
        await context.send_initial_metadata(())  # what the other side waits for
        member = gang.join(hello.node_rank)
        reading = asyncio.create_task(_read(request_iterator, gang, member))
        try:
            await member.down.send(context.write)
        finally:
            reading.cancel()
            gang.left(member)


async def _read(messages: AsyncIterator[agent_pb2.GangUp], gang: HeadGang, member: Member) -> None:
    try:
        async for message in messages:
            if not gang.take(member, message):
                log.warning("a member of a gang said what makes no sense", job=gang.key.job, node=member.node)
                break
    except grpc.aio.UsageError:
        pass  # the call has ended
    finally:
        member.down.cut()


def _told(host: str) -> str:
    """As others can reach it."""
    if host not in {"0.0.0.0", "::"}:  # noqa: S104 — what a configuration may say
        return f"[{host}]" if ":" in host else host
    return host_name()


class PeerDialer:
    """Channels to other agents."""

    def __init__(self, config: Config, identity: Secure | None) -> None:
        self._config, self._identity = config, identity

    def __call__(self, peer: Peer) -> grpc.aio.Channel:
        options = [
            ("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0),
            ("grpc.max_receive_message_length", MAX_MESSAGE), ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 1000),
        ]  # fmt: skip
        if self._identity is not None:
            return self._identity.channel(peer.address, peer.host, options)
        place = split_address(peer.address)
        if place is None or not is_loopback(place[0]):
            raise BrokenError(f"peer {peer.host} at {peer.address!r} is not on loopback, and dev = true")
        return grpc.aio.insecure_channel(peer.address, options=options)
