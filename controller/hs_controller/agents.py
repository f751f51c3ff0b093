"""The agents' streams (AgentLink in agent.proto): Hello first, then reports up and what is wanted down."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import grpc
import structlog

from hs_controller.links import Hub, Link
from hs_controller.loop import Loop
from hs_core.errors import Kind, RefusedError
from hs_core.events import HostJoined, HostLeft, HostReported
from hs_proto import convert
from hs_proto.v1 import agent_pb2, agent_pb2_grpc

log = structlog.get_logger("hs_controller.agents")

HELLO_S = 10.0

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # generic in the stubs only


class AgentService(agent_pb2_grpc.AgentLinkServicer):
    def __init__(self, loop: Loop, hub: Hub) -> None:
        self._loop = loop
        self._hub = hub

    # grpc.aio takes handlers that write as well as those that yield; the stubs know only the latter.
    async def Connect(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[agent_pb2.FromAgent], context: Context
    ) -> None:
        messages = aiter(request_iterator)
        link = await self._greeted(messages)
        self._hub.attach(link)
        why = "the connection ended"
        try:
            term = self._loop.mind.machine.term
            welcome = agent_pb2.Welcome(term=term, report_interval_s=self._loop.config.heartbeat_s)
            await context.write(agent_pb2.ToAgent(welcome=welcome))
            await self._take_in(link.joined)
            why = await self._serve(link, messages, context)
        except RefusedError as refused:
            why = str(refused)
            raise
        finally:
            if self._hub.detach(link, why):
                log.info("agent-away", host=link.host.name, why=why)
                self._loop.tell(lambda now_s, _machine: [HostLeft(now_s=now_s, host=link.host.name)])

    async def _greeted(self, messages: AsyncIterator[agent_pb2.FromAgent]) -> Link:
        try:
            async with asyncio.timeout(HELLO_S):
                first = await anext(messages)
        except TimeoutError:
            raise RefusedError(f"no Hello within {HELLO_S:.0f} s") from None
        except StopAsyncIteration:
            raise RefusedError("the stream ended before a Hello") from None
        if first.WhichOneof("body") != "hello":
            raise RefusedError(f"{first.WhichOneof('body') or 'nothing'} came first; Hello was expected")
        return Link(first.hello, convert.to_host(first.hello), self._loop.clock.now_s())

    async def _serve(self, link: Link, messages: AsyncIterator[agent_pb2.FromAgent], context: Context) -> str:
        """Until one side ends; says why."""
        reading = asyncio.create_task(self._read(link, messages))
        writing = asyncio.create_task(self._write(link, context))
        closing = asyncio.create_task(link.closed.wait())
        tasks = {reading, writing, closing}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if closing in done:
            raise RefusedError(link.why_closed, Kind.UNAVAILABLE)
        for task in done:
            task.result()
        return "it hung up"

    async def _read(self, link: Link, messages: AsyncIterator[agent_pb2.FromAgent]) -> None:
        # One message at a time: an agent that reports faster than the journal takes it in is slowed down by the wire.
        async for message in messages:
            match message.WhichOneof("body"):
                case "report":
                    await self._report(link, message.report)
                case "log":
                    link.log_data(message.log)
                case other:
                    raise RefusedError(
                        f"{other or 'nothing'} came after Hello; a report or a log was expected"
                    )

    async def _report(self, link: Link, report: agent_pb2.Report) -> None:
        told = link.heard(report.jobs, report.gpus, self._loop.clock.now_s())
        gpus = link.host.gpus if report.gpus else ()
        if not told and not gpus:
            return  # a heartbeat
        host = link.host.name

        def make(now_s: float) -> HostReported:
            return HostReported(now_s=now_s, host=host, reports=told, gpus=gpus)

        await self._take_in(make)

    async def _take_in(self, make: Callable[[float], HostJoined | HostReported]) -> None:
        try:
            await asyncio.shield(self._loop.tell(lambda now_s, _machine: [make(now_s)]))
        except RefusedError as refused:
            # While the journal cannot be written the link remembers what was said; it is taken in when it can.
            if refused.kind is not Kind.UNAVAILABLE:
                raise

    async def _write(self, link: Link, context: Context) -> None:
        while True:
            await context.write(await link.next())
