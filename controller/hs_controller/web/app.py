"""The routes, and what every answer carries. Default deny: but for the form to sign in and its looks, everything asks who is there."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import structlog
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hs_controller import metrics
from hs_controller.callers import StrangerError
from hs_controller.links import Hub
from hs_controller.loop import Loop
from hs_controller.permissions import Caller
from hs_controller.pki import Authority
from hs_controller.refusals import Refusals
from hs_controller.service import Service
from hs_controller.web.bridge import Bridge, read_json
from hs_controller.web.history import MOST, History
from hs_controller.web.preview import previewed
from hs_controller.web.session import COOKIE, Session
from hs_core.names import UserName

log = structlog.get_logger("hs_controller.web")

METRICS = "/metrics"
PAGES = Path(__file__).parent / "pages"
FILES = {  # that anybody may have: there is nothing in them
    "/login": ("login.html", "text/html; charset=utf-8"),
    "/login.js": ("login.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
}
PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
UNREAD_BYTES, UNREAD_S = 1 << 20, 2.0  # of a request that was answered already are still taken in
SCRAPES = 2  # at once: each looks at every job
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'none';"
    " base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def application(
    loop: Loop,
    hub: Hub,
    service: Service,
    history: History,
    find: Callable[[str], Caller | None],
    *,
    refusals: Refusals,
    authority: Authority | None,
) -> Starlette:
    """`authority`: whose certificate its port shows; None: plaintext, on loopback."""
    session = Session(find, refusals, secure=authority is not None)
    pages = _Pages(loop, hub, session, history, authority)
    app = Starlette(
        routes=[
            Route(METRICS, pages.show_metrics),
            Route("/history", pages.show_history),
            Route("/preview", pages.preview, methods=["POST"]),
            Route("/api/{call}", Bridge(service, session).answer, methods=["POST"]),
            Route("/login", pages.sign_in, methods=["POST"]),
            Route("/logout", pages.sign_out, methods=["POST"]),
            *(Route(path, pages.show_page) for path in PAGE),
            *(Route(path, _show_public) for path in FILES),
        ],
        middleware=[Middleware(_Headers), Middleware(_Heard)],
        exception_handlers={HTTPException: _refused, Exception: _broken},
    )
    app.router.redirect_slashes = False
    return app


class _Pages:
    """What is answered beside the calls of the API (bridge.py)."""

    def __init__(
        self, loop: Loop, hub: Hub, session: Session, history: History, authority: Authority | None
    ) -> None:
        self._loop = loop
        self._hub = hub
        self._session = session
        self._history = history
        self._authority = authority
        self._scraping = asyncio.Semaphore(SCRAPES)

    async def show_metrics(self, request: Request) -> Response:
        self._session.check(request, METRICS)
        async with self._scraping:
            accept = request.headers.get("accept", "")
            page, content_type = await metrics.exposition(self._loop, self._hub, accept, self._authority)
        return Response(page, headers={"content-type": content_type})

    async def show_history(self, request: Request) -> Response:
        self._session.check(request, "/hs.v1.HeteroShare/Shares")
        users = request.query_params.getlist("user")
        if len(users) > MOST:
            raise HTTPException(400, f"user: {len(users)} of them; at most {MOST} were expected")
        return JSONResponse(await self._history.told(map(UserName, users)))

    async def preview(self, request: Request) -> Response:
        self._session.check(request, "/hs.v1.HeteroShare/SetUser")
        return JSONResponse(await previewed(self._loop, await read_json(request)))

    async def show_page(self, request: Request) -> Response:
        try:
            known = self._session.caller(request) is not None
        except StrangerError:
            known = False
        return _file(*PAGE[request.url.path]) if known else RedirectResponse("/login", 303)

    async def sign_in(self, request: Request) -> Response:
        said = await read_json(request)
        token = said.get("token") if isinstance(said, dict) else None
        if not isinstance(token, str):
            raise HTTPException(400, 'token: {"token": "hs_…"} was expected')
        response = JSONResponse({})
        caller = self._session.sign_in(request, token, response)
        log.info("signed-in", who=caller.name)
        return response

    async def sign_out(self, request: Request) -> Response:
        response = JSONResponse({})
        if request.cookies.get(COOKIE):  # which comes with no request of another site's page
            self._session.sign_out(response)
        return response


async def _show_public(request: Request) -> Response:
    return _file(*FILES[request.url.path])


def _file(name: str, content_type: str) -> Response:
    return FileResponse(PAGES / name, headers={"content-type": content_type})


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = "there is no such page" if error.detail == "Not Found" else error.detail
    if request.url.path.startswith("/api/") or request.url.path in {"/login", "/preview", "/history"}:
        return JSONResponse({"error": text}, error.status_code, headers=error.headers)
    return PlainTextResponse(f"{text}\n", error.status_code, headers=error.headers)


async def _broken(request: Request, error: Exception) -> Response:
    log.error("page-failed", page=request.url.path, exc_info=error)
    return JSONResponse({"error": "a mistake of the controller; its log says more"}, 500)


class _Headers:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, with_headers)


class _Heard:
    """An answer that is given before the request has been read, a refusal, waits until it has: who is still sending when the connection is closed may lose it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        heard = scope["type"] != "http" or any(name == b"expect" for name, _ in scope["headers"])

        async def hear() -> Message:
            nonlocal heard
            message = await receive()
            heard = heard or not message.get("more_body", False)
            return message

        async def hear_all() -> None:
            left = UNREAD_BYTES
            while not heard and left > 0:
                left -= len((await hear()).get("body", b""))

        async def answer(message: Message) -> None:
            nonlocal heard
            if not heard:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(hear_all(), UNREAD_S)
                heard = True
            await send(message)

        await self._app(scope, hear, answer)
