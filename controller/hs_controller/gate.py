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
from hs_core.errors import Kind, RefusedError
from hs_proto import convert

log = structlog.get_logger("hs_controller.gate")

CALLER: ContextVar[Caller] = ContextVar("caller")
"""Who calls, within a call."""
SOURCE: ContextVar[str] = ContextVar("source")
"""The address of the caller's machine, within a call; empty: it is this one."""

CODES = {kind: getattr(grpc.StatusCode, name) for kind, name in convert.GRPC_CODES.items()}

# Quoted: these are generic in the stubs only.
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class ResyncError(Exception):
    """The watcher is too far behind: it is dropped and begins again."""


class Gate(grpc.aio.ServerInterceptor):
    def __init__(self, guests: Guests, bodies: Bodies) -> None:
        self._guests = guests
        self._bodies = bodies

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], "Awaitable[_Handler | None]"],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_Handler | None":
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler  # there is no such call: gRPC says so
        method = str(handler_call_details.method)
        return _wrapped(handler, self._guests, self._bodies, method)


def _wrapped(handler: Any, guests: Guests, bodies: Bodies, method: str) -> _Handler:
    """The same call behind the gate; whether it answers by yielding or by writing stays as it is."""
    serial = {
        "request_deserializer": handler.request_deserializer,
        "response_serializer": handler.response_serializer,
    }

    async def unary(request: Any, context: _Context) -> Any:
        await _enter(guests, method, context)
        async with _told(context, method):
            with bodies.held(CALLER.get().name, request.ByteSize()):
                return await handler.unary_unary(request, context)

    async def stream(request: Any, context: _Context) -> AsyncIterator[Any]:
        await _enter(guests, method, context)
        async with (
            _told(context, method),
            contextlib.aclosing(handler.unary_stream(request, context)) as answers,
        ):
            async for answer in answers:
                await _enter(guests, method, context)  # what was shown may not be good any more
                yield answer

    async def duplex(requests: Any, context: _Context) -> None:
        await _enter(guests, method, context)
        async with _told(context, method):
            await handler.stream_stream(requests, context)

    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(unary, **serial)
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(stream, **serial)
    assert handler.stream_stream, f"{method}: calls of this shape are not served"
    return grpc.stream_stream_rpc_method_handler(duplex, **serial)


async def _enter(guests: Guests, method: str, context: _Context) -> None:
    try:
        caller = _who(guests, method, context)
    except StrangerError as error:
        await context.abort(
            grpc.StatusCode.UNAUTHENTICATED, str(error), (("hs-kind", Kind.NOT_ALLOWED.value),)
        )
    try:
        permissions.check(caller, method)
    except RefusedError as refused:
        await _refuse(context, refused)
    CALLER.set(caller)
    SOURCE.set(guests.source(context.peer()))


def _who(guests: Guests, method: str, context: _Context) -> Caller:
    guest = guests.find(context.peer())
    if guest is None:
        raise StrangerError("the connection has ended")
    caller = guest.caller(tuple(context.invocation_metadata() or ()))
    if Role.ANONYMOUS in caller.roles and permissions.reach(caller, method) is None:
        raise StrangerError(SAY_WHO)
    return caller


@contextlib.asynccontextmanager
async def _told(context: _Context, method: str) -> AsyncIterator[None]:
    """Errors inside, as the caller is to see them."""
    try:
        yield
    except RefusedError as refused:
        await _refuse(context, refused)
    except ResyncError as error:
        await context.abort(
            grpc.StatusCode.RESOURCE_EXHAUSTED, f"resync: {error}", (("hs-kind", Kind.UNAVAILABLE.value),)
        )
    except (grpc.aio.AbortError, asyncio.CancelledError, GeneratorExit):
        raise
    except Exception:
        log.exception("call-failed", call=method)
        await context.abort(grpc.StatusCode.INTERNAL, "a mistake of the controller; its log says more")


async def _refuse(context: _Context, refused: RefusedError) -> NoReturn:
    await context.abort(CODES[refused.kind], str(refused), (("hs-kind", refused.kind.value),))
