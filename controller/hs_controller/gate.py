"""What stands before every call: who calls, whether they may, and how a refusal is told. Default deny."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any, NoReturn, TypeAlias

import grpc
import structlog

from hs_controller import permissions
from hs_controller.bodies import Bodies
from hs_controller.callers import SAY_WHO, StrangerError
from hs_controller.doors import Guests
from hs_controller.permissions import Caller, Role
from hs_controller.refusals import Refusals, Why, token_id
from hs_core.errors import Kind, RefusedError
from hs_proto import convert

log = structlog.get_logger("hs_controller.gate")

CALLER: ContextVar[Caller] = ContextVar("caller")
"""Who calls, within a call."""
SOURCE: ContextVar[str] = ContextVar("source")
"""The address of the caller's machine, within a call; empty: it is this one."""

JOIN = "/hs.v1.Identity/Join"
TEXT_BYTES = 2000  # of a refusal: it goes in a header, three octets for one, and clients take 8 KiB
LOOK_S = 2.0  # how often it is looked who has a stream in which nothing happens
_END = object()

CODES = {kind: getattr(grpc.StatusCode, name) for kind, name in convert.GRPC_CODES.items()}

# Quoted: these are generic in the stubs only.
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class ResyncError(Exception):
    """The watcher is too far behind: it is dropped and begins again."""


class Gate(grpc.aio.ServerInterceptor):
    def __init__(self, guests: Guests, bodies: Bodies, refusals: Refusals) -> None:
        self._guests = guests
        self._bodies = bodies
        self._refusals = refusals

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], "Awaitable[_Handler | None]"],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_Handler | None":
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler  # there is no such call: gRPC says so
        method = str(handler_call_details.method)
        return _wrapped(handler, _Entry(self._guests, self._refusals, method), self._bodies)


def _wrapped(handler: Any, entry: "_Entry", bodies: Bodies) -> _Handler:
    """The same call behind the gate; whether it answers by yielding or by writing stays as it is."""
    serial = {
        "request_deserializer": handler.request_deserializer,
        "response_serializer": handler.response_serializer,
    }

    async def unary(request: Any, context: _Context) -> Any:
        await entry.enter(context)
        async with entry.told(context, request):
            with bodies.held(CALLER.get().name, request.ByteSize()):
                return await handler.unary_unary(request, context)

    async def stream(request: Any, context: _Context) -> AsyncIterator[Any]:
        await entry.enter(context)
        async with (
            entry.told(context),
            contextlib.aclosing(handler.unary_stream(request, context)) as answers,
        ):
            async for answer in _as_they_come(answers, lambda: entry.enter(context)):
                await entry.enter(context)
                yield answer

    async def duplex(requests: Any, context: _Context) -> None:
        await entry.enter(context)
        async with entry.told(context):
            await handler.stream_stream(requests, context)

    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(unary, **serial)
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(stream, **serial)
    assert handler.stream_stream, f"{entry.method}: calls of this shape are not served"
    return grpc.stream_stream_rpc_method_handler(duplex, **serial)


async def _as_they_come(
    answers: AsyncIterator[Any], look: Callable[[], Awaitable[None]]
) -> AsyncIterator[Any]:
    """With a look while there are none: what was shown may not be good any more, and a job may be silent for days."""
    while True:
        coming = asyncio.ensure_future(anext(answers, _END))
        try:
            while not (await asyncio.wait({coming}, timeout=LOOK_S))[0]:
                await look()
        finally:
            if not coming.done():
                coming.cancel()
                await asyncio.wait({coming})  # nothing of theirs may run on when they are closed
        answer = coming.result()
        if answer is _END:
            return
        yield answer


class _Entry:
    """Into one call."""

    def __init__(self, guests: Guests, refusals: Refusals, method: str) -> None:
        self.method = method
        self._guests = guests
        self._refusals = refusals

    async def enter(self, context: _Context) -> None:
        try:
            caller = self._who(context)
        except StrangerError as error:
            if error.why is not None:
                self._tell(context, error.why, str(error), who=error.who, token=error.token)
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, str(error), (("hs-kind", Kind.NOT_ALLOWED.value),)
            )
        try:
            permissions.check(caller, self.method)
        except RefusedError as refused:
            self._tell(context, Why.RIGHTS, str(refused), who=caller.name)
            await _refuse(context, refused)
        CALLER.set(caller)
        SOURCE.set(self._guests.source(context.peer()))

    def _who(self, context: _Context) -> Caller:
        guest = self._guests.find(context.peer())
        if guest is None:
            raise StrangerError("the connection has ended")
        caller = guest.caller(tuple(context.invocation_metadata() or ()))
        if Role.ANONYMOUS in caller.roles and permissions.reach(caller, self.method) is None:
            raise StrangerError(SAY_WHO, Why.NOBODY)
        if Role.ANONYMOUS not in caller.roles:
            self._guests.meet(context.peer())
        return caller

    @contextlib.asynccontextmanager
    async def told(self, context: _Context, request: Any = None) -> AsyncIterator[None]:
        """Errors inside, as the caller is to see them."""
        try:
            yield
        except RefusedError as refused:
            if refused.kind is Kind.NOT_ALLOWED:
                joins = self.method == JOIN
                self._tell(
                    context,
                    Why.INVITATION if joins else Why.RIGHTS,
                    str(refused),
                    who=CALLER.get().name,
                    token=token_id(request.token) if joins else "",
                )
            await _refuse(context, refused)
        except ResyncError as error:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"resync: {error}",
                (("hs-kind", Kind.UNAVAILABLE.value),),
            )
        except (grpc.aio.AbortError, asyncio.CancelledError, GeneratorExit):
            raise
        except Exception:
            log.exception("call-failed", call=self.method)
            await context.abort(grpc.StatusCode.INTERNAL, "a mistake of the controller; its log says more")

    def _tell(self, context: _Context, why: Why, text: str, *, who: str = "", token: str = "") -> None:
        guest = self._guests.find(context.peer())
        address = self._guests.source(context.peer()) or ("" if guest is None else guest.whose)
        self._refusals.tell(self.method, why, text, who=who, token=token, address=address)


async def _refuse(context: _Context, refused: RefusedError) -> NoReturn:
    await context.abort(CODES[refused.kind], _cut(str(refused)), (("hs-kind", refused.kind.value),))


def _cut(text: str) -> str:
    """There may be words of the caller's in it, of any length: a client that is sent more than it takes loses all of the refusal."""
    octets = text.encode()
    return text if len(octets) <= TEXT_BYTES else f"{octets[:TEXT_BYTES].decode(errors='ignore')}…"
