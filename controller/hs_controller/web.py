"""What is served over HTTP: `/metrics`. Default deny, by the same table and the same tokens as calls."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from hs_controller import metrics, permissions
from hs_controller.callers import SAY_WHO, StrangerError, TokenHolder
from hs_controller.links import Hub
from hs_controller.loop import Loop
from hs_controller.permissions import Caller, Role
from hs_core.errors import RefusedError

log = structlog.get_logger("hs_controller.web")

SCRAPES = 2  # at once: each looks at every job
GRACE_S = 1
METRICS = "/metrics"
NO_PAGE = f"there is no such page; {METRICS} is one\n"


def application(loop: Loop, hub: Hub, find: Callable[[str], Caller | None]) -> Starlette:
    """`find`: whose token it is."""
    scraping = asyncio.Semaphore(SCRAPES)

    async def show_metrics(request: Request) -> Response:
        _check(METRICS, request, find)
        async with scraping:
            page, content_type = await metrics.exposition(loop, hub, request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    async def refused(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = NO_PAGE if error.status_code == 404 else error.detail
        return PlainTextResponse(text, error.status_code, headers=error.headers)

    async def broken(request: Request, error: Exception) -> Response:
        log.error("page-failed", page=request.url.path, exc_info=error)
        return PlainTextResponse("a mistake of the controller; its log says more\n", 500)

    app = Starlette(
        routes=[Route(METRICS, show_metrics)],
        exception_handlers={HTTPException: refused, Exception: broken},
    )
    app.router.redirect_slashes = False
    return app


def _check(page: str, request: Request, find: Callable[[str], Caller | None]) -> None:
    """Raises HTTPException unless who asks may see this page."""
    holder = TokenHolder(find)
    shown = [("authorization", value) for value in request.headers.getlist("authorization")]
    asks = {"www-authenticate": "Bearer"}
    try:
        caller = holder.caller(shown)
    except StrangerError as error:
        raise HTTPException(401, f"{error}\n", asks) from None
    if Role.ANONYMOUS in caller.roles:
        raise HTTPException(401, f"{SAY_WHO}\n", asks)
    try:
        permissions.check(caller, page)
    except RefusedError as error:
        raise HTTPException(403, f"{error}\n") from None


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are the daemon's


class Web:
    """Listens behind a front, as the private gRPC server does: the front knows TLS and limits."""

    def __init__(self, app: Starlette, address: Path) -> None:
        self._address = address
        self._server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                ws="none",
                http="h11",
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(self._address))
            listener.listen(64)
        except OSError:
            listener.close()
            raise
        self._serving = asyncio.create_task(self._server.serve([listener]), name="web")

    async def close(self) -> None:
        if self._serving is not None:
            self._server.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)
