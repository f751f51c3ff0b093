"""The agents' streams (AgentLink in agent.proto): Hello first, then reports up and what is wanted down."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypeAlias

import grpc
import structlog

from hs_controller import permissions
from hs_controller.gate import CALLER, SOURCE
from hs_controller.links import Hub, Link, unlike_ours
from hs_controller.loop import Loop
from hs_controller.permissions import Caller, Reach
from hs_core.errors import Kind, RefusedError
from hs_core.events.cluster import HostDoubled, HostJoined, HostLeft, HostReported
from hs_core.names import HostName
from hs_daemon import boot_s, version
from hs_proto import convert, dialect
from hs_proto.v1 import agent_pb2, agent_pb2_grpc

log = structlog.get_logger("hs_controller.agents")

HELLO_S = 10.0  # for each message of it
HELLO_MESSAGES = 256
TOLD = "word of what it was told of its jobs"
LONG_S = 0.005  # that it may take to read what a message says
TROUBLES, TROUBLE_CHARS = 8, 500
STILL_HERE = (
    3  # so many reports may be missing of one that is connected: no machine is booted again meanwhile
)
DOUBLED_AGAIN_S = 600.0  # people are told no oftener

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # generic in the stubs only


class AgentService(agent_pb2_grpc.AgentLinkServicer):
    def __init__(self, loop: Loop, hub: Hub) -> None:
        self._loop = loop
        self._hub = hub
        self._doubled_s: dict[HostName, float] = {}  # when people were told last

    # grpc.aio takes handlers that write as well as those that yield; the stubs know only the latter.
    async def Connect(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[agent_pb2.FromAgent], context: Context
    ) -> None:
        messages = aiter(request_iterator)
        link = await self._greeted(messages)
        self._refuse_double(link)
        self._hub.attach(link)
        why = "the connection ended"
        try:
            machine = self._loop.mind.machine
            # One that speaks otherwise is asked for nothing that it may not know.
            first, past = (0, 0) if link.unlike else machine.unknown
            welcome = agent_pb2.Welcome(
                term=machine.term,
                report_interval_s=self._loop.config.heartbeat_s,
                version=version(),
                dialect=dialect.of_agents(),
                unknown_from=first,
                unknown_until=past,
            )
            await context.write(agent_pb2.ToAgent(sent_s=boot_s(), welcome=welcome))
            if first < past:
                await self._asked(link, messages, range(first, past))
            await self._take_in(link, partial(self._joined, CALLER.get(), link))
            why = await self._serve(link, messages, context)
        except RefusedError as refused:
            why = str(refused)
            if link.unlike and refused.kind is Kind.INVALID:
                raise RefusedError(f"{refused} ({link.unlike})") from None
            raise
        finally:
            if self._hub.detach(link, why):
                log.info("agent-away", host=link.host.name, why=why)
                self._loop.tell(lambda now_s, _machine: [HostLeft(now_s=now_s, host=link.host.name)])

    async def Clock(self, request: agent_pb2.ClockRequest, context: Context) -> agent_pb2.ClockReply:  # noqa: N802
        del request, context
        return agent_pb2.ClockReply(wall_s=time.time())

    def _joined(self, caller: Caller, link: Link, now_s: float) -> HostJoined:
        """Looked at once more where nothing comes between: it may have been removed while it said Hello, and would be there again."""
        why = self._loop.mind.registry.why_refused(caller, time.time()) if caller.node else ""
        if why:
            raise RefusedError(why, Kind.NOT_ALLOWED)
        return link.joined(now_s)

    async def _greeted(self, messages: AsyncIterator[agent_pb2.FromAgent]) -> Link:
        hello = await _hello(messages, "a Hello")
        try:
            link = Link(hello, convert.to_host(hello), self._loop.clock.now_s())
        except RefusedError as refused:
            why = unlike_ours(hello)
            raise (RefusedError(f"{refused} ({why})", refused.kind) if why else refused) from None
        if link.unlike:
            log.warning("agent-of-another-version", host=link.host.name, why=link.unlike)
        _must_be_its_own(CALLER.get(), link.host.name)
        for _ in range(HELLO_MESSAGES - 1):
            if not hello.more:
                return link
            hello = await _hello(messages, "the rest of the Hello")
            link.greeted(hello, self._loop.clock.now_s())
        raise RefusedError(f"a Hello of more than {HELLO_MESSAGES} messages")

    async def _asked(self, link: Link, messages: AsyncIterator[agent_pb2.FromAgent], unknown: range) -> None:
        """A backup was put back: jobs of these numbers it may have that were submitted since."""
        for _ in range(HELLO_MESSAGES):
            message = await _next(messages, TOLD)
            if (came := message.WhichOneof("body")) != "told":
                raise RefusedError(f"{came or 'nothing'} came after a Welcome that asks for {TOLD}")
            link.told_of(message.told, unknown)
            if not message.told.more:
                return
        raise RefusedError(f"{TOLD}, in more than {HELLO_MESSAGES} messages")

    def _refuse_double(self, link: Link) -> None:
        """Two agents with one identity, as copies of a disk or a folder have, would push each other out for ever: who is here stays.

        Of one machine an agent that was killed and started again has a new process, too: its old link ends as its sockets are
        closed, and may be heard a moment later here. So people are told once who was here has reported since.
        """
        host, now_s = link.host, self._loop.clock.now_s()
        here = self._hub.link(host.name)
        if here is None:
            return
        same_boot = here.host.boot_id == host.boot_id
        if same_boot and here.process == link.process:
            return
        if now_s > here.last_report_s + STILL_HERE * self._loop.config.heartbeat_s:
            return  # it is the same machine, booted again, or its agent, started again
        if here.rival_s is None:
            here.rival_s = now_s
        sure = not same_boot or here.last_report_s > here.rival_s
        if sure and now_s >= self._doubled_s.get(host.name, -DOUBLED_AGAIN_S) + DOUBLED_AGAIN_S:
            self._doubled_s[host.name] = now_s
            address = SOURCE.get()
            log.warning("host-doubled", host=host.name, address=address, boot_id=host.boot_id)
            self._loop.tell(
                lambda now_s, _: [
                    HostDoubled(now_s=now_s, host=host.name, address=address, same_boot=same_boot)
                ]
            )
        if same_boot:
            raise RefusedError(
                f"another agent of this machine is connected as {host.name}: stop one of them; if its state_dir is a copy, or"
                " it has a configuration of its own, give it a name of its own and join anew",
                Kind.CONFLICT,
            )
        raise RefusedError(
            f"another machine is connected as {host.name}: it was booted as {here.host.boot_id}, this one as {host.boot_id}."
            " If its disk is a copy, give this one a name of its own and join anew",
            Kind.CONFLICT,
        )

    async def _serve(self, link: Link, messages: AsyncIterator[agent_pb2.FromAgent], context: Context) -> str:
        """Until one side ends; says why."""
        reading = asyncio.create_task(self._read(link, messages))
        writing = asyncio.create_task(self._write(link, context))
        closing = asyncio.create_task(link.closed.wait())
        watching = asyncio.create_task(self._watch(link, CALLER.get().until_s))
        tasks = {reading, writing, closing, watching}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if closing in done:
            raise RefusedError(link.why_closed, Kind.UNAVAILABLE)
        if watching in done:
            raise RefusedError(watching.result(), Kind.UNAVAILABLE)
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
                case "exec":
                    link.errand_data(message.exec)
                case "doctor":
                    link.doctor_said(message.doctor)
                case other:
                    raise RefusedError(
                        f"{other or 'nothing'} came after Hello; a report or an answer was expected"
                    )

    async def _report(self, link: Link, report: agent_pb2.Report) -> None:
        if report.HasField("memory"):
            link.memory = report.memory
        link.troubles = tuple(text[:TROUBLE_CHARS] for text in report.troubles[:TROUBLES])
        began_s = time.monotonic()
        link.shows(report.said_s)
        told = link.heard(report.jobs, report.gpus, self._loop.clock.now_s())
        spent_s = time.monotonic() - began_s
        if spent_s > LONG_S:
            await asyncio.sleep(spent_s)  # who says much without end leaves as much time to all others
        gpus = link.host.gpus if report.gpus else ()
        heard = (report.heard_term, report.heard_seq)
        if not told and not gpus and heard == link.taken_in:
            return  # a heartbeat
        link.taken_in = heard
        host = link.host.name

        # Of what another controller has said the numbers tell nothing here.
        obeys = heard[0] if heard > self._loop.mind.machine.newest_order else None

        def make(now_s: float) -> HostReported:
            return HostReported(
                now_s=now_s,
                host=host,
                reports=told,
                gpus=gpus,
                heard=heard if obeys is None else None,
                obeys=obeys,
                said_s=link.clock_s,
            )

        await self._take_in(link, make)

    async def _take_in(self, link: Link, make: Callable[[float], HostJoined | HostReported]) -> None:
        link.unread_s = math.inf
        try:
            await self._loop.tell(lambda now_s, _machine: [make(now_s)])
        except RefusedError as refused:
            # While the journal cannot be written the link remembers what was said; it is taken in when it can.
            if refused.kind is not Kind.UNAVAILABLE:
                raise
        finally:
            link.unread_s = self._loop.clock.now_s()

    async def _write(self, link: Link, context: Context) -> None:
        quiet_s = self._loop.config.heard_s
        while True:
            try:
                async with asyncio.timeout(quiet_s):
                    message = await link.next(self._loop.clock.now_s)
            except TimeoutError:
                message = agent_pb2.ToAgent()  # a sign of life: jobs that fence count from the last one
            message.sent_s = boot_s()
            await context.write(message)

    async def _watch(self, link: Link, until_s: float) -> str:
        """Until the agent has been silent for too long, or what it showed has ended; says which.

        What a slow disk keeps unread is no silence of the agent's.
        """
        clock, lease_s = self._loop.clock, self._loop.config.lease_s
        while True:
            silent_s = clock.now_s() - max(link.last_report_s, link.unread_s)
            left_s = min(lease_s - silent_s, until_s - time.time())
            if left_s <= 0:
                break
            await asyncio.sleep(min(left_s, lease_s))
        if time.time() >= until_s:
            return f"the certificate of {link.host.name} has expired: connect with the new one"
        return f"{link.host.name} said nothing for {lease_s:g} s"


async def _next(messages: AsyncIterator[agent_pb2.FromAgent], what: str) -> agent_pb2.FromAgent:
    try:
        async with asyncio.timeout(HELLO_S):
            return await anext(messages)
    except TimeoutError:
        raise RefusedError(f"no {what.removeprefix('a ')} within {HELLO_S:.0f} s") from None
    except StopAsyncIteration:
        raise RefusedError(f"the stream ended before {what}") from None


async def _hello(messages: AsyncIterator[agent_pb2.FromAgent], what: str) -> agent_pb2.Hello:
    message = await _next(messages, what)
    if message.WhichOneof("body") != "hello":
        raise RefusedError(
            f"{message.WhichOneof('body') or 'nothing'} came first; {what.removeprefix('a ')} was expected"
        )
    return message.hello


def _must_be_its_own(caller: Caller, host: HostName) -> None:
    if permissions.reach(caller, "/hs.v1.AgentLink/Connect") is not Reach.ALL and host != caller.node:
        raise RefusedError(
            f"host: {host!r}: the certificate is {caller.node}'s; a node speaks for itself only",
            Kind.NOT_ALLOWED,
        )
