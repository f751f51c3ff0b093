"""The unix socket between the agent and one job's processes: framing, limits, and who may connect (docs/job-protocol.md)."""

import asyncio
import contextlib
import json
import os
import resource
import socket
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

MAX_MESSAGE = 64 << 10
MAX_CONNECTIONS = 256
MAX_UNSENT = 256 << 10
# A rank says about one thing a second; a job that talks without end, over however many connections, is listened to no faster than this.
MESSAGES_PER_WINDOW, BYTES_PER_WINDOW, WINDOW_S = 500, 512 << 10, 1.0

_LENGTH = struct.Struct(">I")
_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid

log = structlog.get_logger("jobsock")

Heard = Callable[[int, Mapping[str, Any]], None]
Gone = Callable[[int], None]


def frame(message: Mapping[str, Any]) -> bytes:
    body = json.dumps(dict(message), separators=(",", ":")).encode()
    assert len(body) <= MAX_MESSAGE, f"a message of {len(body)} bytes"
    return _LENGTH.pack(len(body)) + body


async def _read_body(reader: asyncio.StreamReader) -> bytes:
    """Empty: the peer is gone, or does not keep to the protocol."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return await reader.readexactly(length) if length <= MAX_MESSAGE else b""
    except (OSError, asyncio.IncompleteReadError):
        return b""


def _message(body: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class _Patience:
    """With one job."""

    def __init__(self) -> None:
        self._began_s = float("-inf")
        self._messages = self._bytes = 0

    async def hear(self, size: int) -> None:
        """Until a message of that size may be looked at."""
        loop = asyncio.get_running_loop()
        while (left_s := self._began_s + WINDOW_S - loop.time()) > 0 and self._is_over:  # noqa: ASYNC110 — time rings no bell
            await asyncio.sleep(left_s)
        if left_s <= 0:
            self._began_s, self._messages, self._bytes = loop.time(), 0, 0
        self._messages += 1
        self._bytes += size

    @property
    def _is_over(self) -> bool:
        return self._messages >= MESSAGES_PER_WINDOW or self._bytes >= BYTES_PER_WINDOW


class Connections:
    """How many the jobs of each user have, over all their sockets: together at most half of the files that this process may open, so that nobody keeps others out; and of all users three quarters, as the agent opens some itself."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most or max(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._taken: Counter[int] = Counter()

    def take(self, uid: int) -> bool:
        """False: it has as many as it may, or all have."""
        if self._taken[uid] >= self._most or self._taken.total() >= self._most * 3 // 2:
            return False
        self._taken[uid] += 1
        return True

    def give_back(self, uid: int) -> None:
        self._taken[uid] -= 1
        if not self._taken[uid]:
            del self._taken[uid]


class JobSocket:
    """Listens for one job. `heard` and `gone` are called on the loop with a number for each connection, never reused."""

    def __init__(
        self, path: Path, uid: int, gid: int, heard: Heard, gone: Gone, *, shared: Connections
    ) -> None:
        self.path, self.uid, self.gid = path, uid, gid
        self._shared = shared
        self._heard, self._gone = heard, gone
        self._server: asyncio.Server | None = None
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._next = 0
        self._patience = _Patience()

    async def open(self) -> None:
        self.path.unlink(missing_ok=True)
        # Bound under a name nobody waits at and moved when its owner and mode are right: no moment for a stranger.
        hidden = self.path.with_name(f".{self.path.name}"[:100])
        hidden.unlink(missing_ok=True)
        listener = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            listener.bind(str(hidden))
            hidden.chmod(0o600)
            if os.geteuid() == 0:
                os.chown(hidden, self.uid, self.gid, follow_symlinks=False)
            hidden.rename(self.path)
            self._server = await asyncio.start_unix_server(self._accept, sock=listener, limit=MAX_MESSAGE)
        except BaseException:
            listener.close()
            raise

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        full = len(self._writers) >= MAX_CONNECTIONS
        if not self._welcome(writer) or full or not self._shared.take(self.uid):
            writer.transport.abort()
            return
        connection, self._next = self._next, self._next + 1
        self._writers[connection] = writer
        task = asyncio.create_task(self._serve(connection, reader))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _welcome(self, writer: asyncio.StreamWriter) -> bool:
        peer = writer.get_extra_info("socket")
        pid, uid, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if uid == self.uid:
            return True
        log.warning(
            "a stranger at a job's socket", socket=str(self.path), pid=pid, uid=uid, expected_uid=self.uid
        )
        return False

    async def _serve(self, connection: int, reader: asyncio.StreamReader) -> None:
        try:
            while body := await _read_body(reader):
                await self._patience.hear(len(body))
                message = _message(body)
                if message is None or connection not in self._writers:
                    return
                self._heard(connection, message)
                if connection not in self._writers:
                    return
        except Exception:
            log.exception("a job's message broke its handler", socket=str(self.path))
        finally:
            self._drop(connection)

    def _drop(self, connection: int) -> None:
        writer = self._writers.pop(connection, None)
        if writer is not None:
            self._shared.give_back(self.uid)
            writer.close()
            self._gone(connection)

    def _abort(self, connection: int) -> None:
        writer = self._writers.pop(connection)
        self._shared.give_back(self.uid)
        # Before it is let go: Python 3.13 warns of one that was open.
        writer.transport.abort()

    def tell(self, connection: int, message: Mapping[str, Any]) -> None:
        writer = self._writers.get(connection)
        if writer is None or writer.is_closing():
            return
        writer.write(frame(message))
        if writer.transport.get_write_buffer_size() > MAX_UNSENT:  # it does not read
            writer.transport.abort()

    def hang_up(self) -> None:
        """On all that are connected: they keep their state, dial again and say how they stand."""
        for connection in list(self._writers):
            self._abort(connection)
            self._gone(connection)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._writers):
            self._abort(connection)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
