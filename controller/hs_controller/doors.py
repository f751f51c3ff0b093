"""Who comes in: the public unix socket, and the TCP port with TLS (or, in development, without it on loopback).

gRPC tells a server neither its peer's unix credentials nor asks for client certificates without demanding them. So a front accepts,
finds out who is there, and splices the bytes to the one private server behind all doors. Each spliced connection has a name of its
own there (an abstract socket address that the kernel picks), by which the gate knows whose call it is.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import stat
import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from hs_controller.callers import Guest
from hs_controller.config import Limits
from hs_controller.refusals import CONNECTION, Refusals, Why, network
from hs_daemon.there import exists

log = structlog.get_logger("hs_controller.doors")

HANDSHAKE_S = 10.0
STRANGER_S = 30.0  # a connection of an address, over which nobody has said by then who it is, is ended
TOLD_EVERY_S = 60.0  # that nobody can be let in
ROOM_BYTES = 1 << 16
LINGER_S = 10.0  # for a guest to take what is still on its way to it, once nobody serves it any more
_PEER = "unix-abstract:"


class DoorError(Exception):
    """A socket cannot be opened; the controller does not start."""


class Guests:
    """Who is on the other end of each connection to the private server."""

    def __init__(self, address: Path) -> None:
        self.address = address  # of the private server
        self._by_name: dict[str, tuple[Guest, str]] = {}  # who it is, and the address of the machine
        self._met: set[str] = set()  # of these, those over which somebody has said who it is

    def enter(self, name: str, guest: Guest, source: str) -> None:
        self._by_name[name] = guest, source

    def leave(self, name: str) -> None:
        self._by_name.pop(name, None)
        self._met.discard(name)

    def meet(self, peer: str) -> None:
        """Somebody is known by a call over that connection."""
        name = peer.removeprefix(_PEER)
        if name in self._by_name:
            self._met.add(name)

    def has_met(self, name: str) -> bool:
        return name in self._met

    def find(self, peer: str) -> Guest | None:
        """By what gRPC calls a call's peer."""
        guest, _ = self._by_name.get(peer.removeprefix(_PEER), (None, ""))
        return guest

    def source(self, peer: str) -> str:
        """The address of the machine that the call comes from; empty: this one, or the connection has ended."""
        _, source = self._by_name.get(peer.removeprefix(_PEER), (None, ""))
        return source

    def source_of(self, accepted: socket.socket) -> str:
        """The same, by a connection that the private server has accepted."""
        name = accepted.getpeername()
        return self.source(name[1:].decode() if isinstance(name, bytes) else "")


class _Half(asyncio.BufferedProtocol):
    """One side of a spliced connection; what comes in goes out at the other, no faster than it is taken.

    What comes is read into room that all share: asyncio's own makes room for 256 KiB for each piece anew, which takes five times as long as to read it.
    """

    _ROOM = memoryview(bytearray(ROOM_BYTES))  # written and read within one callback of the loop

    def __init__(self, gone: Callable[[], None]) -> None:
        self.gone = gone
        self.transport: asyncio.Transport | None = None
        self.other: _Half | None = None
        self.heard_bytes = 0
        self.source = ""  # the address of the machine at the other end; empty: this one
        self._early = b""  # came before there was anybody to give it to

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()  # until there is somebody to give it to

    def meet(self, other: "_Half") -> None:
        """From now on what comes goes there."""
        assert self.transport is not None
        assert other.transport is not None
        self.other = other
        if self._early:
            other.transport.write(self._early)
            self._early = b""
        self.transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._ROOM

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._ROOM[:nbytes])  # the transport keeps what it cannot send at once
        self.heard_bytes += nbytes
        if self.other is None:
            # Python 3.11.2, Debian 12's, begins to read though that was paused when the connection was made, and believes it paused.
            assert self.transport is not None
            self._early += data
            self.transport.resume_reading()
            self.transport.pause_reading()
        elif self.other.transport is not None:
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
        other = None if self.other is None else self.other.transport
        if other is not None and not other.is_closing():
            other.close()
            asyncio.get_running_loop().call_later(LINGER_S, other.abort)
        self.gone()


class _Refused(Exception):  # noqa: N818 — no error: a guest that is sent away
    def __init__(self, text: str, why: Why) -> None:
        super().__init__(text)
        self.why = why


class Front(ABC):
    """A public door: accepts, asks who it is, splices."""

    def __init__(self, limits: Limits, guests: Guests, silent_s: float = 0.0, *, refusals: Refusals) -> None:
        """`silent_s`: a connection to which nothing is answered for so long, or at most twice as long, is ended; 0: never."""
        self._limits = limits
        self._silent_s = silent_s
        self._guests = guests
        self._refusals = refusals
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._entering: set[asyncio.Task[None]] = set()
        self._open: set[_Half] = set()
        self._of_whom: Counter[str] = Counter()

    @property
    @abstractmethod
    def name(self) -> str:
        """Where it is, for people."""

    @abstractmethod
    def _bind(self) -> socket.socket: ...

    @abstractmethod
    async def _greet(self, connection: socket.socket, outer: _Half) -> tuple[Guest, str]:
        """Takes `connection` over with `outer`: who it is, and whom it counts for. Raises _Refused, OSError."""

    async def open(self) -> None:
        try:
            self._listener = self._bind()
        except (OSError, UnicodeError) as error:  # the latter of a name that can be no host's
            why = getattr(error, "strerror", None) or error
            raise DoorError(f"{self.name}: cannot be listened on: {why}") from None
        self._accepting = asyncio.create_task(self._accept(), name=f"front {self.name}")

    async def shut(self) -> None:
        """Let nobody in any more."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        for task in list(self._entering):
            task.cancel()
        await asyncio.gather(*self._entering, return_exceptions=True)

    async def close(self) -> None:
        """End what is open."""
        for half in list(self._open):
            if half.transport is not None:
                half.transport.abort()

    async def _accept(self) -> None:
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        told_s = float("-inf")
        while True:
            try:
                connection, peer = await loop.sock_accept(self._listener)
            except OSError as error:  # out of file descriptors, say: those inside must get on
                if loop.time() - told_s >= TOLD_EVERY_S:  # it may last for days
                    told_s = loop.time()
                    log.warning("cannot-accept", door=self.name, why=str(error))
                await asyncio.sleep(0.2)
                continue
            if len(self._open) + len(self._entering) >= self._limits.connections:
                text = f"{self.name}: too many connections (limit {self._limits.connections})"
                address = str(peer[0]) if isinstance(peer, tuple) else ""
                self._refusals.tell(CONNECTION, Why.CROWDED, text, address=address)
                connection.close()
                continue
            task = asyncio.create_task(self._enter(connection))
            self._entering.add(task)
            task.add_done_callback(self._entering.discard)

    async def _enter(self, connection: socket.socket) -> None:
        outer = _Half(lambda: None)
        try:
            guest, whose = await self._greet(connection, outer)
            await self._splice(outer, guest, whose)
        except (OSError, ssl.SSLError, _Refused) as error:
            why = error.why if isinstance(error, _Refused) else Why.HANDSHAKE
            text = f"{self.name}: {str(error) or type(error).__name__}"
            self._refusals.tell(CONNECTION, why, text, address=outer.source)
            _abort(outer, connection)
        except BaseException:
            _abort(outer, connection)
            raise

    async def _splice(self, outer: _Half, guest: Guest, whose: str) -> None:
        if self._of_whom[whose] >= self._limits.connections_per_uid:
            raise _Refused(f"too many connections of {whose}", Why.CROWDED)
        # One host has as many addresses of IPv6 as it likes: with all of them it must not keep the others out.
        counted = {whose, network(whose)} if whose == outer.source else {whose}
        if any(self._of_whom[each] >= self._limits.connections // 2 for each in counted - {whose}):
            raise _Refused(f"too many connections of the network of {whose}", Why.CROWDED)
        loop = asyncio.get_running_loop()
        behind = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            behind.setblocking(False)
            behind.bind("")  # the kernel picks a name
            name = behind.getsockname()[1:].decode()
            await loop.sock_connect(behind, str(self._guests.address))
        except BaseException:
            behind.close()
            raise
        self._guests.enter(name, guest, outer.source)
        self._open.add(outer)
        self._of_whom.update(counted)

        def gone() -> None:
            if outer in self._open:
                self._open.discard(outer)
                self._guests.leave(name)
                for each in counted:
                    self._left(each)

        inner = _Half(gone)
        outer.gone = gone
        try:
            await loop.create_unix_connection(lambda: inner, sock=behind)
        except BaseException:
            gone()
            behind.close()
            raise
        assert inner.transport is not None
        if outer.transport is None or outer.transport.is_closing():
            inner.transport.abort()
            raise _Refused("it went away at once", Why.HANDSHAKE)
        inner.meet(outer)
        outer.meet(inner)
        if self._silent_s:
            loop.call_later(self._silent_s, self._listen, outer, inner, 0)
        elif not guest.whose:
            loop.call_later(STRANGER_S, self._part, outer, name)

    def _part(self, outer: _Half, name: str) -> None:
        """Who only holds connections, and answers pings, must not keep others out for ever."""
        if outer in self._open and outer.transport is not None and not self._guests.has_met(name):
            text = f"{self.name}: nobody has said who it is for {STRANGER_S:g} s"
            self._refusals.tell(CONNECTION, Why.NOBODY, text, address=outer.source)
            outer.transport.abort()

    def _left(self, whose: str) -> None:
        """Nothing is kept of who has no connection any more: addresses may be without end."""
        self._of_whom[whose] -= 1
        if not self._of_whom[whose]:
            del self._of_whom[whose]

    def _listen(self, outer: _Half, inner: _Half, before: int) -> None:
        """Who has gone without a word, says nothing, or a little now and then, or takes nothing, must not keep others out for ever: only answers count."""
        heard = inner.heard_bytes
        if outer not in self._open or outer.transport is None:
            return
        if heard == before:
            outer.transport.abort()
            return
        asyncio.get_running_loop().call_later(self._silent_s, self._listen, outer, inner, heard)


def _abort(outer: _Half, connection: socket.socket) -> None:
    if outer.transport is not None:
        outer.transport.abort()
    connection.close()


class UnixFront(Front):
    """A unix socket: the kernel says whose account is at the other end."""

    def __init__(
        self,
        path: Path,
        mode: int,
        limits: Limits,
        guests: Guests,
        who: Callable[[int], Guest | None],
        *,
        refusals: Refusals,
    ) -> None:
        super().__init__(limits, guests, refusals=refusals)
        self.path = path
        self._mode = mode
        self._who = who
        self._inode = 0

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def folder(self) -> Path:
        return self.path.with_name(self.path.name + ".d")

    def prepare(self) -> None:
        """The folder beside it, which only we can enter."""
        try:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._clear_the_way()
            self.folder.mkdir(mode=0o700)
        except OSError as error:
            raise DoorError(f"socket: {self.path}: {error.strerror or error}") from None

    def _bind(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        unready = self.folder / "front"
        listener.bind(str(unready))
        unready.chmod(self._mode)
        listener.listen(1024)
        # Renamed into place with its mode set and its queue open: nobody finds it half-made.
        self._inode = unready.stat().st_ino
        unready.rename(self.path)
        return listener

    def _clear_the_way(self) -> None:
        """Remove what a controller that was killed left behind, but never take a living one's place."""
        if self.path.is_symlink() or (exists(self.path) and not stat.S_ISSOCK(self.path.stat().st_mode)):
            raise DoorError(f"{self.path}: exists and is not a socket; remove it or choose another `socket`")
        if exists(self.path):
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
        if self.folder.is_symlink() or exists(self.folder):
            there = self.folder.lstat()
            if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.geteuid():
                raise DoorError(f"{self.folder}: exists and is not ours; remove it")
            shutil.rmtree(self.folder)

    async def shut(self) -> None:
        await super().shut()
        with contextlib.suppress(FileNotFoundError):
            if self._inode and self.path.stat().st_ino == self._inode:
                self.path.unlink()

    async def close(self) -> None:
        await super().close()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _greet(self, connection: socket.socket, outer: _Half) -> tuple[Guest, str]:
        uid = peer_uid(connection)
        # Accounts may be kept on another machine, which may be slow to answer.
        guest = await asyncio.to_thread(self._who, uid)
        if guest is None:
            raise _Refused(f"uid {uid}: this socket is for agents", Why.RIGHTS)
        connection.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: outer, connection)
        return guest, f"uid {uid}"


class TcpFront(Front):
    """A port; `secure` None: plaintext, for development on loopback."""

    def __init__(
        self,
        address: tuple[str, int],
        limits: Limits,
        guests: Guests,
        secure: ssl.SSLContext | None,
        who: Callable[[dict[str, Any]], Guest | None],
        *,
        silent_s: float = 0.0,
        refusals: Refusals,
    ) -> None:
        super().__init__(limits, guests, silent_s, refusals=refusals)
        self.address = address
        self._secure = secure
        self._who = who

    @property
    def name(self) -> str:
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _bind(self) -> socket.socket:
        found = socket.getaddrinfo(*self.address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, number, _, address = found[0]
        listener = socket.socket(family, kind, number)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind(address)
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
        self.address = self.address[0], int(listener.getsockname()[1])
        return listener

    async def _greet(self, connection: socket.socket, outer: _Half) -> tuple[Guest, str]:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        outer.source = str(connection.getpeername()[0])
        # One that only connects must not keep the others out.
        source = network(outer.source)
        self._of_whom[source] += 1
        try:
            if self._of_whom[source] > self._limits.connections // 2:
                raise _Refused(f"too many connections from {source}", Why.CROWDED)
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: outer,
                connection,
                ssl=self._secure,
                ssl_handshake_timeout=None if self._secure is None else HANDSHAKE_S,
            )
        finally:
            self._left(source)
        guest = self._who(transport.get_extra_info("peercert") or {})
        if guest is None:
            raise _Refused("its certificate is none of an agent's", Why.CERTIFICATE)
        return guest, guest.whose or outer.source


def peer_uid(connection: socket.socket) -> int:
    """Whom the kernel names as the other end, as of its connect()."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _pid, uid, _gid = struct.unpack("iII", raw)
    return int(uid)
