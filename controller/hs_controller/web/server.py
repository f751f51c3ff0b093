"""Listens behind a front, as the private gRPC server does: the front knows TLS and limits."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from hs_controller.doors import DoorError, Guests
from hs_controller.loop import Loop
from hs_controller.web.history import History

GRACE_S = 1


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are the daemon's


def _from(guests: Guests) -> type[asyncio.Protocol]:
    """So that `request.client` is the machine at the other end of the front, where there is one."""

    class FromGuests(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            source = guests.source_of(transport.get_extra_info("socket"))
            self.client = (source, 0) if source else None

    return FromGuests


class Web:
    def __init__(self, app: Starlette, guests: Guests, loop: Loop, history: History) -> None:
        self._address = guests.address
        self._loop, self._history = loop, history
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
                http=_from(guests),
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._serving: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises DoorError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(self._address))
            listener.listen(64)
        except OSError as error:
            listener.close()
            why = error.strerror or error
            raise DoorError(f"{self._address}: cannot be listened on: {why}") from None
        self._serving = asyncio.create_task(self._server.serve([listener]), name="web")
        self._looking = asyncio.create_task(self._look(), name="history")

    async def _look(self) -> None:
        while True:
            await self._loop.settled()
            self._history.look(self._loop.mind, self._loop.clock.now_s())
            await asyncio.sleep(self._history.every_s)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._serving is not None:
            self._server.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)
