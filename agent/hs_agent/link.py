"""The agent's one stream to the controller: tells everything on connect, then what changed; takes what is wanted; sends logs, and what commands beside jobs say.

Nothing here is needed for jobs to run: without the controller the host goes on with what was wanted last.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol

import grpc
import structlog

from hs_agent import checkup, credentials, dialling, streams, tidings
from hs_agent.config import Config
from hs_agent.delay import Delay
from hs_agent.now_and_then import NowAndThen
from hs_agent.secure import Secure
from hs_core.errors import Kind, RefusedError
from hs_core.wanted import Wanted
from hs_daemon import boot_s, version
from hs_daemon.notify import status
from hs_proto import certified, convert, dialect
from hs_proto.v1 import agent_pb2, agent_pb2_grpc

MAX_BACKOFF_S = 5.0
FIRST_BACKOFF_S = 0.1

_Call = grpc.aio.StreamStreamCall[agent_pb2.FromAgent, agent_pb2.ToAgent]

log = structlog.get_logger("link")


class Side(tidings.Host, streams.Jobs, Protocol):
    """What the link needs of the agent."""

    @property
    def described(self) -> str: ...

    def wanted(self, wanted: Wanted, late_s: float) -> None: ...

    def heard_controller(self, late_s: float) -> None: ...

    def cast_out(self) -> None: ...

    def term(self) -> int: ...


class Link:
    def __init__(self, config: Config, side: Side, identity: Secure | None = None) -> None:
        self.config, self.side = config, side
        self._identity = identity if config.secure else None
        self.connected = False
        self._complaints = NowAndThen()

    async def run(self) -> None:
        """Until cancelled, or refused for good (RefusedError). Agents that lost one controller together come back spread out: full jitter."""
        attempt = 0
        while True:
            began_s = boot_s()
            why = await self._once()
            self.connected = False
            if not why:
                continue
            attempt = 0 if boot_s() - began_s > MAX_BACKOFF_S else attempt + 1
            most_s = min(FIRST_BACKOFF_S * 2 ** min(attempt, 10), MAX_BACKOFF_S)
            wait_s = random.random() * most_s  # noqa: S311 — jitter
            self._complain(why)
            await asyncio.sleep(wait_s)

    def _complain(self, why: str) -> None:
        status(f"{self.side.described}; no controller: {why}")
        if self._complaints.is_due(why, boot_s()):
            log.warning("no controller", controller=self.config.controller, why=why)

    async def _once(self) -> str:
        """One connection; why it ended. Empty: it begins anew with the certificate that this host has now."""
        options = [
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            # What it wants of this host is said as a whole, however many jobs that are.
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        try:
            if self._identity is not None:
                self._identity.keeper.look()
            async with dialling.channel(self.config, self._identity, options) as channel:
                stub = agent_pb2_grpc.AgentLinkStub(channel)
                call = stub.Connect(metadata=dialling.metadata(self.config))
                connection = _Connection(self.config, self.side, call)
                if self._identity is not None:
                    self._identity.renewed.clear()
                try:
                    renewed = await connection.run(self._welcomed, self._identity)
                finally:
                    call.cancel()
            return "" if renewed else "the controller ended the stream"
        except grpc.aio.AioRpcError as error:
            if self._is_removed(error):
                self.side.cast_out()
                return str(error.details())
            if self._identity is not None and error.code() is grpc.StatusCode.PERMISSION_DENIED:
                why = f"the controller at {self.config.controller} refuses this host: {error.details()}"
                log.error(why, name=self.config.name)
                raise RefusedError(why, Kind.NOT_ALLOWED) from None
            return self._why_not_let_in(error) or f"{error.code().name}: {error.details()}"
        except (TimeoutError, OSError, RefusedError, asyncio.InvalidStateError) as error:
            return str(error) or type(error).__name__
        except Exception as error:
            log.exception("the link broke")
            return f"{type(error).__name__}: {error}"

    def _why_not_let_in(self, error: grpc.aio.AioRpcError) -> str:
        if self._identity is None:
            return ""
        shown = credentials.of_another_ca(
            self.config.controller, self.config.name, str(error.details() or "")
        )
        return self._identity.keeper.why_not_good() or shown

    def _is_removed(self, error: grpc.aio.AioRpcError) -> bool:
        """Said by nobody but the controller: over TLS only, to who has a certificate that the cluster's CA signed for it. On this machine nobody is removed so."""
        refusals = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
        if self._identity is None or error.code() not in refusals:
            return False
        return (error.details() or "").startswith(f"{certified.removed(self.config.name)};")

    def _welcomed(self, welcome: agent_pb2.Welcome) -> None:
        self.connected = True
        self._complaints.worked()
        status(f"{self.side.described}; connected to {self.config.controller}")
        log.info("connected", controller=self.config.controller, term=welcome.term)
        unlike = dialect.unlike(
            dialect.Speaker("the controller", welcome.version, welcome.dialect),
            dialect.Speaker("this agent", version(), dialect.of_agents()),
        )
        if unlike:
            log.warning("controller of another version", why=unlike)
        if welcome.term < self.side.term():
            log.error(
                "this host has obeyed a controller of a later term: orders of this one are refused",
                term=welcome.term, heard=self.side.term(), hint=f"if its state was reset on purpose, end the jobs and "
                f"remove {self.config.state_dir}/host.json",
            )  # fmt: skip


class _Connection:
    def __init__(self, config: Config, side: Side, call: _Call) -> None:
        self.config, self.side, self.call = config, side, call
        self.interval_s = config.report_interval_s
        self._tidings = tidings.Tidings(config, side)
        self._streams = streams.Streams(config.name, side, self._write)
        self._writing = asyncio.Lock()  # one write at a time on a stream
        self._writes: set[asyncio.Task[None]] = set()
        self._others: set[asyncio.Task[None]] = set()
        self._doctor = asyncio.Lock()  # there is one
        self._is_obeyed = True
        self._delay = Delay()

    async def run(self, welcomed: Callable[[agent_pb2.Welcome], None], identity: Secure | None) -> bool:
        """Until it ends; whether that is because this host has a new certificate."""
        asked_s = boot_s()
        for hello in self._tidings.hello():
            await self._write(agent_pb2.FromAgent(hello=hello))
        first = await self.call.read()
        if not isinstance(first, agent_pb2.ToAgent) or first.WhichOneof("body") != "welcome":
            raise RefusedError("the controller did not begin with a welcome")
        if first.welcome.report_interval_s > 0:
            self.interval_s = min(max(first.welcome.report_interval_s, 0.05), 60.0)
        self._delay.excess_s(first.sent_s, boot_s())
        self._is_obeyed = first.welcome.term >= self.side.term()
        for told in self._tidings.told(range(first.welcome.unknown_from, first.welcome.unknown_until)):
            await self._write(agent_pb2.FromAgent(told=told))
        welcomed(first.welcome)
        self.side.heard_controller(boot_s() - asked_s)  # it answered some time since then
        reporting = asyncio.create_task(self._report_on())
        listening = asyncio.create_task(self._listen())
        ends: set[asyncio.Task[Any]] = {reporting, listening}
        if identity is not None:
            ends.add(asyncio.create_task(identity.renewed.wait()))
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return done.isdisjoint({reporting, listening})
        finally:
            tasks = [*ends, *self._streams.tasks, *self._others, *self._writes]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, message: agent_pb2.FromAgent) -> None:
        """Whoever is cancelled meanwhile leaves the write alone: gRPC would cancel all of the stream with it."""
        write = asyncio.create_task(self._write_in_turn(message))
        self._writes.add(write)
        write.add_done_callback(self._written)
        await asyncio.shield(write)

    def _written(self, write: asyncio.Task[None]) -> None:
        self._writes.discard(write)
        if not write.cancelled():
            write.exception()  # nobody may be left whom it would be told

    async def _write_in_turn(self, message: agent_pb2.FromAgent) -> None:
        async with self._writing:
            await self.call.write(message)

    async def _report_on(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            await self._write(agent_pb2.FromAgent(report=self._tidings.report()))

    # --- what the controller says -----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            message = await self.call.read()
            if not isinstance(message, agent_pb2.ToAgent):  # grpc.aio.EOF
                return
            late_s = self._delay.excess_s(message.sent_s, boot_s())
            self.side.heard_controller(late_s)  # also by one that says nothing else
            match message.WhichOneof("body"):
                case "wanted":
                    self._wanted(message.wanted, late_s)
                case "log":
                    await self._streams.log(message.log)
                case "exec":
                    await self._streams.errand(message.exec, is_obeyed=self._is_obeyed)
                case "doctor":
                    self._spawn(self._send_doctors(message.doctor))
                case "taken":
                    self._streams.taken(message.taken)
                case "cancel":
                    self._streams.cancel(message.cancel.request_id)
                case _:
                    pass

    def _wanted(self, message: agent_pb2.Wanted, late_s: float) -> None:
        try:
            wanted = convert.to_wanted(message)
        except RefusedError as error:
            log.error("what the controller wants makes no sense here and is not done", why=str(error))
            return
        if wanted.edge_in_s is not None:
            wanted = replace(wanted, edge_in_s=wanted.edge_in_s - late_s)
        self.side.wanted(wanted, late_s)

    # --- what the doctor says ---------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def _send_doctors(self, request: agent_pb2.Doctor) -> None:
        async with self._doctor:
            text = await checkup.told(self.config)
        said = agent_pb2.DoctorSaid(request_id=request.request_id, text=text)
        await self._write(agent_pb2.FromAgent(doctor=said))
