"""The fronts: who comes in, and who is sent away."""

import asyncio
import contextlib
import errno
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from hs_controller import doors
from hs_controller.callers import ANONYMOUS, Guest, Known
from hs_controller.config import Limits
from hs_controller.doors import DoorError, Guests, TcpFront, UnixFront
from hs_controller.meters import Meters
from hs_controller.refusals import Refusals
from tests.controller.kit import until

SOMEBODY = Known(ANONYMOUS, "somebody")


class Behind:
    """The private server: what it says to everybody, and its ends of the connections."""

    def __init__(self, says: bytes = b"") -> None:
        self.says = says
        self.readers: list[asyncio.StreamReader] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.readers.append(reader)
        self.writers.append(writer)
        writer.write(self.says)


@contextlib.asynccontextmanager
async def opened(
    folder: Path, behind: Behind, who: Callable[[int], Guest | None] = lambda _uid: SOMEBODY
) -> AsyncIterator[UnixFront]:
    guests = Guests(folder / "c.sock.d" / "inner")
    front = UnixFront(folder / "c.sock", 0o600, Limits(), guests, who, refusals=Refusals(Meters()))
    front.prepare()
    async with await asyncio.start_unix_server(behind.serve, path=str(guests.address)):
        await front.open()
        try:
            yield front
        finally:
            await front.shut()
            await front.close()
            for writer in behind.writers:
                writer.transport.abort()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()


@contextlib.asynccontextmanager
async def connected(front: UnixFront) -> AsyncIterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as guest:
        guest.setblocking(False)
        await asyncio.get_running_loop().sock_connect(guest, str(front.path))
        yield guest


def test_a_guest_that_takes_nothing_is_sent_away_once_nobody_serves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "LINGER_S", 0.05)
    behind = Behind(b"x" * (240 << 10))  # more than the socket takes, less than would stop the reading behind

    async def story() -> None:
        async with opened(tmp_path, behind) as front, connected(front):
            await until(lambda: any(half.transport.get_write_buffer_size() for half in front._open))
            (outer,) = front._open
            behind.writers[0].transport.abort()
            await until(lambda: not front._open)
            await until(lambda: outer.transport._sock is None)

    asyncio.run(story())


def test_a_door_without_descriptors_says_so_once_and_opens_again_when_there_are_some(tmp_path: Path) -> None:
    behind = Behind(b"hello")

    async def story() -> bytes:
        loop = asyncio.get_running_loop()
        accept, left = loop.sock_accept, [errno.EMFILE] * 3

        async def accepted(listener: socket.socket) -> tuple[socket.socket, object]:
            if left:
                raise OSError(left.pop(), "Too many open files")
            return await accept(listener)

        loop.sock_accept = accepted  # type: ignore[method-assign]
        async with opened(tmp_path, behind) as front, connected(front) as guest, asyncio.timeout(60):
            return await loop.sock_recv(guest, 5)

    structlog.reset_defaults()
    with capture_logs() as told:
        assert asyncio.run(story()) == b"hello"
    assert [line["event"] for line in told] == ["cannot-accept"]


def test_what_a_guest_says_before_anybody_is_there_for_it_is_passed_on_first(tmp_path: Path) -> None:
    class Hasty(doors._Half):
        """Is told what was read whether or not reading was paused, as by the asyncio of Python 3.11.2."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            early = b"at once, "
            self.get_buffer(-1)[: len(early)] = early
            self.buffer_updated(len(early))

    async def scenario(monkeypatch: pytest.MonkeyPatch) -> bytes:
        behind = Behind()
        monkeypatch.setattr(doors, "_Half", Hasty)
        async with opened(tmp_path, behind) as front, connected(front) as guest:
            await asyncio.get_running_loop().sock_sendall(guest, b"and later")
            await until(lambda: bool(behind.readers))
            async with asyncio.timeout(20):
                return await behind.readers[0].readexactly(len(b"at once, and later"))

    with pytest.MonkeyPatch.context() as monkeypatch:
        assert asyncio.run(scenario(monkeypatch)) == b"at once, and later"


def test_while_the_system_looks_for_one_guests_name_others_are_served(tmp_path: Path) -> None:
    """Accounts may be kept in a directory on another machine, which may not answer."""
    asked, answer = threading.Event(), threading.Event()

    def who(_uid: int) -> Guest:
        asked.set()
        assert answer.wait(5.0), "the event loop stood still meanwhile"
        return SOMEBODY

    async def story() -> None:
        behind = Behind()
        async with opened(tmp_path, behind, who) as front, connected(front):
            await until(asked.is_set)
            answer.set()
            await until(lambda: bool(behind.writers))

    asyncio.run(story())


def test_nothing_is_kept_of_the_address_of_who_was_sent_away_or_counts_as_somebody_else(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        behind, guests = Behind(b"welcome"), Guests(tmp_path / "inner")
        told: list[Guest | None] = [None, SOMEBODY]
        front = TcpFront(
            ("127.0.0.1", 0),
            Limits(),
            guests,
            None,
            lambda _certificate: told.pop(0),
            refusals=Refusals(Meters()),
        )
        async with await asyncio.start_unix_server(behind.serve, path=str(guests.address)):
            await front.open()
            for says in (b"", b"welcome"):
                reader, writer = await asyncio.open_connection(*front.address)
                with contextlib.suppress(ConnectionError):
                    assert await reader.read(7) == says
                assert dict(front._of_whom) == ({"somebody": 1} if says else {})
                writer.close()
            await until(lambda: not front._open)
            assert not front._of_whom
            await front.shut()
            await front.close()
            for writer in behind.writers:
                writer.transport.abort()

    asyncio.run(story())


class From(socket.socket):
    """As accepted from an address that this machine has not."""

    address = ""

    def getpeername(self) -> tuple[str, int]:
        return self.address, 1


@pytest.mark.parametrize(
    ("address", "of_it", "of_all"),
    [("192.0.2.{}", 2, 8), ("::ffff:192.0.2.{}", 2, 8), ("2001:db8:0:7::{}", 2, 4)],
    ids=["IPv4", "IPv4, at a door of IPv6", "IPv6"],
)
def test_a_host_has_a_part_of_the_connections_at_most_though_it_has_2_to_the_64_addresses(
    address: str, of_it: int, of_all: int, tmp_path: Path
) -> None:
    """Each address may have two, a network four; there may be eight."""

    async def story() -> None:
        behind, guests = Behind(), Guests(tmp_path / "inner")
        limits = Limits(connections=8, connections_per_uid=2)
        somebody = Known(ANONYMOUS)
        front = TcpFront(
            ("127.0.0.1", 0), limits, guests, None, lambda _: somebody, refusals=Refusals(Meters())
        )
        async with await asyncio.start_unix_server(behind.serve, path=str(guests.address)):
            with contextlib.ExitStack() as theirs, socket.create_server(("127.0.0.1", 0)) as listener:
                for number in (1, 1, 1, 2, 2, 3, 3, 4, 4):
                    theirs.enter_context(socket.create_connection(listener.getsockname()))
                    accepted = From(fileno=listener.accept()[0].detach())
                    accepted.address = address.format(number)
                    before = len(front._open)
                    await front._enter(accepted)
                    if (number, before) == (1, of_it):
                        assert len(front._open) == of_it
                assert len(front._open) == of_all
            await front.close()
            await until(lambda: not front._open)
            assert not front._of_whom
            for writer in behind.writers:
                writer.transport.abort()

    asyncio.run(story())


@pytest.mark.parametrize("host", ["gpu..head", "x" * 64])
def test_a_port_at_a_name_that_is_no_hosts_is_refused_by_that_name(host: str, tmp_path: Path) -> None:
    front = TcpFront(
        (host, 7443),
        Limits(),
        Guests(tmp_path / "inner"),
        None,
        lambda _certificate: SOMEBODY,
        refusals=Refusals(Meters()),
    )
    with pytest.raises(DoorError, match=f"{re.escape(host)}:7443: cannot be listened on: "):
        asyncio.run(front.open())
