"""Who comes in, and as whom: the unix socket by peer credentials, loopback TCP by a token.

gRPC does not tell a server its peer's credentials, so a front accepts on the public socket, asks the kernel who is there, and
splices the bytes to a private server of that account, whose every call is therefore that account's.
"""

import asyncio
import contextlib
import hashlib
import hmac
import os
import pwd
import secrets
import shutil
import socket
import stat
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import grpc
import structlog

from hs_controller.config import Config, Limits
from hs_controller.permissions import Caller, Role

log = structlog.get_logger("hs_controller.doors")

Metadata = Sequence[tuple[str, str | bytes]]


class DoorError(Exception):
    """A socket cannot be opened; the controller does not start."""


class Identity(Protocol):
    """How a server tells who calls."""

    def caller(self, metadata: Metadata) -> Caller | None:
        """None: not known."""


@dataclass(frozen=True, slots=True)
class Known(Identity):
    """All calls through this door are one account's."""

    who: Caller

    def caller(self, metadata: Metadata) -> Caller | None:
        del metadata
        return self.who


@dataclass(frozen=True, slots=True)
class Bearer(Identity):
    """`authorization: Bearer …`, compared by digest and in constant time; only the digest stays in memory."""

    digest: bytes
    who: Caller

    def caller(self, metadata: Metadata) -> Caller | None:
        for key, value in metadata:
            if key != "authorization" or not isinstance(value, str):
                continue
            scheme, _, token = value.partition(" ")
            offered = hashlib.sha256(token.strip().encode()).digest()
            if scheme.lower() == "bearer" and hmac.compare_digest(offered, self.digest):
                return self.who
        return None


def bearer(state_dir: Path) -> Bearer:
    """The admin's token from `<state>/admin.token`, made at the first start."""
    file = state_dir / "admin.token"
    try:
        if not file.exists():
            fresh = file.with_name(f".admin.token.{os.getpid()}")
            with contextlib.suppress(FileNotFoundError):
                fresh.unlink()
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                out.write(secrets.token_urlsafe(32) + "\n")
                out.flush()
                os.fsync(out.fileno())
            fresh.rename(file)
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DoorError(f"{file}: {error}") from None
    if len(token) < 20:
        raise DoorError(f"{file}: holds no token (at least 20 characters); remove it to have one made")
    if file.stat().st_mode & 0o077:
        raise DoorError(f"{file}: can be read by others; chmod 600 it, or remove it to have a new one made")
    return Bearer(
        hashlib.sha256(token.encode()).digest(),
        Caller(name="admin", roles=frozenset({Role.ADMIN}), account=False),
    )


def caller_of(uid: int, config: Config) -> Caller:
    """The account behind a connection. Its roles come from the kernel's word and the configuration alone."""
    try:
        name, account = pwd.getpwuid(uid).pw_name, True
    except KeyError:
        name, account = f"uid-{uid}", False
    roles = {Role.USER}
    if uid in {0, os.geteuid()}:
        roles |= {Role.ADMIN, Role.AGENT}
    elif account and name in config.admins:
        roles |= {Role.ADMIN}
    return Caller(name=name, roles=frozenset(roles), account=account)


# --- the front ------------------------------------------------------------------------------------------------------


class Servers(Protocol):
    """What a front needs to have served."""

    async def serve(self, identity: Identity, address: str) -> grpc.aio.Server: ...


@dataclass(slots=True, eq=False)
class _Room:
    """One account's private server."""

    uid: int
    address: Path
    server: grpc.aio.Server
    open: int = 0
    left_s: float = 0.0


class _Half(asyncio.Protocol):
    """One side of a spliced connection; what comes in goes out at the other, no faster than it is taken."""

    def __init__(self, gone: Callable[[], None]) -> None:
        self._gone = gone
        self.transport: asyncio.Transport | None = None
        self.other: _Half | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        return False  # half-closed connections are of no use to HTTP/2

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            with contextlib.suppress(RuntimeError):  # it is closing
                self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            with contextlib.suppress(RuntimeError):
                self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # who left, and how, both sides learn from the connection itself
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()
        self._gone()


@dataclass(slots=True, eq=False)
class Front:
    """A public unix socket."""

    path: Path
    mode: int
    limits: Limits
    servers: Servers
    who: Callable[[int], Caller]
    allowed: Callable[[Caller], bool] = lambda _caller: True
    _listener: socket.socket | None = None
    _inode: int = 0
    _accepting: asyncio.Task[None] | None = None
    _rooms: dict[int, _Room] = field(default_factory=dict)
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)
    _entering: set[asyncio.Task[None]] = field(default_factory=set)
    _connections: int = 0

    @property
    def _folder(self) -> Path:
        return self.path.with_name(self.path.name + ".d")

    async def open(self) -> None:
        try:
            self._bind()
        except OSError as error:
            raise DoorError(f"{self.path}: {error.strerror or error}") from None
        self._accepting = asyncio.create_task(self._accept(), name=f"front {self.path}")

    def _bind(self) -> None:
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._clear_the_way()
        self._folder.mkdir(mode=0o700)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        unready = self._folder / "front"
        listener.bind(str(unready))
        unready.chmod(self.mode)
        listener.listen(1024)
        # Renamed into place with its mode set and its queue open: nobody finds it half-made.
        self._inode = unready.stat().st_ino
        unready.rename(self.path)
        self._listener = listener

    def _clear_the_way(self) -> None:
        """Remove what a controller that was killed left behind, but never take a living one's place."""
        if self.path.is_symlink() or (self.path.exists() and not stat.S_ISSOCK(self.path.stat().st_mode)):
            raise DoorError(f"{self.path}: exists and is not a socket; remove it or choose another `socket`")
        if self.path.exists():
            probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            probe.settimeout(2.0)
            try:
                probe.connect(str(self.path))
            except (ConnectionRefusedError, FileNotFoundError):
                self.path.unlink(missing_ok=True)
            except OSError as error:
                raise DoorError(f"{self.path}: in use or not ours ({error.strerror or error})") from None
            else:
                raise DoorError(f"{self.path}: another process listens there")
            finally:
                probe.close()
        if self._folder.is_symlink() or self._folder.exists():
            there = self._folder.lstat()
            if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.geteuid():
                raise DoorError(f"{self._folder}: exists and is not ours; remove it")
            shutil.rmtree(self._folder)

    async def close(self) -> None:
        """Let nobody in any more, then end what is open (each server gives its calls a moment)."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
            with contextlib.suppress(FileNotFoundError):
                if self.path.stat().st_ino == self._inode:
                    self.path.unlink()
        for task in list(self._entering):
            task.cancel()
        await asyncio.gather(*self._entering, return_exceptions=True)
        await asyncio.gather(*(room.server.stop(0.5) for room in self._rooms.values()))
        self._rooms.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _accept(self) -> None:
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:  # out of file descriptors, say: those inside must get on
                log.warning("cannot-accept", why=str(error))
                await asyncio.sleep(0.2)
                continue
            if self._connections + len(self._entering) >= self.limits.connections:
                log.warning("connection-refused", why="too many connections", limit=self.limits.connections)
                connection.close()
                continue
            task = asyncio.create_task(self._enter(connection))
            self._entering.add(task)
            task.add_done_callback(self._entering.discard)

    async def _enter(self, connection: socket.socket) -> None:
        try:
            uid = peer_uid(connection)
            room = await self._room(uid)
            if room is None:
                connection.close()
                return
            await self._splice(connection, room)
        except OSError as error:
            log.warning("connection-failed", why=str(error))
            connection.close()
        except BaseException:
            connection.close()
            raise

    async def _splice(self, connection: socket.socket, room: _Room) -> None:
        loop = asyncio.get_running_loop()
        room.open += 1
        self._connections += 1
        counted = True

        def gone() -> None:
            nonlocal counted
            if counted:
                counted = False
                room.open -= 1
                self._connections -= 1
                room.left_s = loop.time()

        inner = outer = None
        try:
            _, inner = await loop.create_unix_connection(lambda: _Half(gone), str(room.address))
            assert inner.transport is not None
            inner.transport.pause_reading()  # until there is somebody to give it to
            _, outer = await loop.connect_accepted_socket(lambda: _joined(inner, gone), connection)
            inner.transport.resume_reading()
        except BaseException:
            gone()
            for half in (inner, outer):
                if half is not None and half.transport is not None:
                    half.transport.abort()
            raise

    async def _room(self, uid: int) -> _Room | None:
        async with self._making:
            room = self._rooms.get(uid)
            if room is not None:
                if room.open >= self.limits.connections_per_uid:
                    log.warning("connection-refused", uid=uid, why="too many connections of one account")
                    return None
                return room
            caller = self.who(uid)
            if not self.allowed(caller):
                log.warning("connection-refused", uid=uid, why="this socket is for agents")
                return None
            if len(self._rooms) >= self.limits.uids and not await self._make_space():
                log.warning(
                    "connection-refused", uid=uid, why="too many accounts at once", limit=self.limits.uids
                )
                return None
            address = self._folder / f"{uid}.sock"
            server = await self.servers.serve(Known(caller), f"unix:{address}")
            room = self._rooms[uid] = _Room(uid=uid, address=address, server=server)
            return room

    async def _make_space(self) -> bool:
        """End the server that has been empty for longest."""
        empty = [room for room in self._rooms.values() if room.open == 0]
        if not empty:
            return False
        oldest = min(empty, key=lambda room: room.left_s)
        del self._rooms[oldest.uid]
        await oldest.server.stop(None)
        oldest.address.unlink(missing_ok=True)
        return True


def _joined(inner: _Half, gone: Callable[[], None]) -> _Half:
    outer = _Half(gone)
    outer.other, inner.other = inner, outer
    return outer


def peer_uid(connection: socket.socket) -> int:
    """Whom the kernel names as the other end, as of its connect()."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _pid, uid, _gid = struct.unpack("iII", raw)
    return int(uid)
