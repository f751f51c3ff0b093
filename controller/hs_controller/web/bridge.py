"""The calls of HeteroShare as JSON over HTTP: the same messages, the same table of permissions, the same code behind."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from hs_controller.gate import CALLER
from hs_controller.pieces import Pieces
from hs_controller.service import Service
from hs_controller.web.alike import Alike
from hs_controller.web.session import Session
from hs_core.errors import Kind, RefusedError
from hs_proto.v1 import controller_pb2

CALLS = frozenset(
    {
        "Info",
        "ListJobs",
        "GetJob",
        "Why",
        "Logs",
        "Shares",
        "ListNodes",
        "Events",
        "ListTrades",
        "Cancel",
        "Pause",
        "Unpause",
        "DrainNode",
        "UndrainNode",
        "SetGpuDrain",
        "SetUser",
    }
)
"""What the page asks for; all else is gRPC's alone."""
ALIKE = frozenset({"Shares", "ListNodes", "ListTrades"})
"""Of these, those whose answers do not depend on who asks."""
CHANGES = frozenset({"Cancel", "Pause", "Unpause", "DrainNode", "UndrainNode", "SetGpuDrain", "SetUser"})

CODES = {
    Kind.INVALID: 400,
    Kind.IMPOSSIBLE: 422,
    Kind.NOT_ALLOWED: 403,
    Kind.NOT_FOUND: 404,
    Kind.CONFLICT: 409,
    Kind.UNAVAILABLE: 503,
}
BODY_BYTES = 64 << 10
MOST, STREAM_BYTES = 2000, 8 << 20  # of a stream

_METHODS = controller_pb2.DESCRIPTOR.services_by_name["HeteroShare"].methods_by_name


class Bridge:
    def __init__(self, service: Service, session: Session) -> None:
        self._service = service
        self._session = session
        self._alike = Alike()

    async def answer(self, request: Request) -> Response:
        """POST /api/CALL with the request as JSON; the reply as JSON, of a stream all of it as a list."""
        name = request.path_params["call"]
        if name not in CALLS:
            raise HTTPException(404, f"there is no call {name!r} here")
        caller = self._session.check(request, f"/hs.v1.HeteroShare/{name}")
        asked = await _asked(request, name)
        CALLER.set(caller)
        try:
            if name in ALIKE:
                question = name, asked.SerializeToString(deterministic=True)
                return _json(await self._alike.answer(question, lambda: self._made(name, asked)))
            return _json(await self._made(name, asked))
        except RefusedError as refused:
            raise HTTPException(CODES[refused.kind], str(refused)) from None
        finally:
            if name in CHANGES:
                self._alike.forget()

    async def _made(self, name: str, asked: Message) -> bytes:
        answer = getattr(self._service, name)(asked, None)
        if isinstance(answer, AsyncGenerator):
            return await _all(answer)
        return await json_of(await answer)


def _must_be_json(request: Request) -> None:
    # Another site's form cannot send this type, nor its script without being asked first.
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "content-type: application/json was expected")


async def _asked(request: Request, name: str) -> Message:
    _must_be_json(request)
    message: Message = getattr(controller_pb2, _METHODS[name].input_type.name)()
    try:
        json_format.Parse(await limited(request), message)
    except json_format.ParseError as error:
        raise HTTPException(400, f"{_METHODS[name].input_type.name}: {error}") from None
    except RecursionError:
        raise HTTPException(400, f"{_METHODS[name].input_type.name}: lists in lists without end") from None
    if getattr(message, "follow", False):
        raise HTTPException(400, "follow: true: only gRPC follows")
    return message


async def read_json(request: Request) -> Any:
    """None: it is none. Raises HTTPException."""
    _must_be_json(request)
    try:
        return json.loads(await limited(request))
    except (ValueError, RecursionError):
        return None


async def limited(request: Request) -> str:
    """The body. Raises HTTPException."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_BYTES:
                raise HTTPException(413, f"at most {BODY_BYTES} bytes were expected")
    except ClientDisconnect:  # nobody's mistake here, and nobody hears this
        raise HTTPException(400, "all of the request was expected") from None
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "UTF-8 text was expected") from None


async def _all(answers: AsyncGenerator[Message]) -> bytes:
    found, pieces = list[str](), Pieces()
    left = STREAM_BYTES
    async with aclosing(answers):
        async for one in answers:
            left -= one.ByteSize()
            if left < 0 or len(found) >= MOST:
                what = f"more than {MOST} messages or {STREAM_BYTES >> 20} MiB"
                raise HTTPException(
                    413, f"the answer has {what}: ask for less (tail, tail_lines), or over gRPC"
                )
            found.append(_text(one))
            await pieces.rest()
    return f"[{','.join(found)}]".encode()


async def json_of(message: Message) -> bytes:
    """As `_text`, of messages with many others in them one after another."""
    pieces, lists = Pieces(), dict[str, str]()
    rest = type(message)()
    rest.CopyFrom(message)
    for many in message.DESCRIPTOR.fields:
        if (
            many.is_repeated
            and many.message_type is not None
            and not many.message_type.GetOptions().map_entry
        ):
            texts = []
            for one in getattr(message, many.name):
                texts.append(_text(one))
                await pieces.rest()
            lists[many.name] = f"[{','.join(texts)}]"
            rest.ClearField(many.name)
    fields = [
        f"{json.dumps(name)}:{lists.get(name) or json.dumps(value)}" for name, value in _plain(rest).items()
    ]
    return f"{{{','.join(fields)}}}".encode()


def _json(text: bytes) -> Response:
    return Response(text, media_type="application/json")


def _text(message: Message) -> str:
    return json.dumps(_plain(message), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _plain(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
