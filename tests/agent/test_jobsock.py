"""The job's socket: who may connect, and what a job may do to it."""

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hs_agent import jobsock
from hs_agent.jobsock import Connections, JobSocket, frame

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


class Heard:
    def __init__(self) -> None:
        self.messages: list[tuple[int, Any]] = []
        self.gone: list[int] = []
        self.news = asyncio.Event()

    def heard(self, connection: int, message: Any) -> None:
        self.messages.append((connection, message))
        self.news.set()

    def left(self, connection: int) -> None:
        self.gone.append(connection)
        self.news.set()

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self.news.clear()
                await self.news.wait()


@contextlib.asynccontextmanager
async def listening(
    path: Path, uid: int | None = None, gid: int | None = None, shared: Connections | None = None
):
    heard = Heard()
    sock = JobSocket(
        path,
        os.geteuid() if uid is None else uid,
        os.getegid() if gid is None else gid,
        heard.heard,
        heard.left,
        shared=shared or Connections(),
    )
    await sock.open()
    try:
        yield sock, heard
    finally:
        await sock.close()
    assert not await asyncio.to_thread(path.exists)


def test_messages_pass_both_ways_and_a_departure_is_told(place) -> None:
    async def go() -> None:
        async with listening(place / "s") as (sock, heard):
            assert mode_of(place / "s") == 0o600
            reader, writer = await asyncio.open_unix_connection(place / "s")
            writer.write(frame({"type": "hello", "pid": 1}) + frame({"type": "arrived"}))
            await heard.until(lambda: len(heard.messages) == 2)
            assert heard.messages == [(0, {"type": "hello", "pid": 1}), (0, {"type": "arrived"})]
            sock.tell(0, {"type": "go"})
            told = frame({"type": "go"})
            assert await reader.readexactly(len(told)) == told
            writer.close()
            await heard.until(lambda: heard.gone == [0])
            sock.tell(0, {"type": "go"})  # to nobody

    asyncio.run(go())


def test_a_users_jobs_have_so_many_connections_together_and_no_more(place) -> None:
    async def knock(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(frame({"type": "hello"}))
        return reader, writer

    async def go() -> None:
        shared = Connections(most=2)
        async with (
            listening(place / "a", shared=shared) as (_, one),
            listening(place / "b", shared=shared) as (_, other),
        ):
            _, first = await knock(place / "a")
            _, second = await knock(place / "b")
            await one.until(lambda: one.messages)
            await other.until(lambda: other.messages)
            reader, third = await knock(place / "b")
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b"", "it is hung up on"
            first.close()
            await one.until(lambda: one.gone)
            _, fourth = await knock(place / "b")
            await other.until(lambda: len(other.messages) == 2)
            for each in (second, third, fourth):
                each.close()

    asyncio.run(go())


def test_users_together_leave_the_agent_a_quarter_of_what_it_may_open() -> None:
    shared = Connections(most=4)
    assert [shared.take(1) for _ in range(5)] == [True] * 4 + [False]
    assert [shared.take(2) for _ in range(3)] == [True] * 2 + [False]
    assert not shared.take(3)
    shared.give_back(1)
    assert shared.take(3)
    assert not shared.take(1)


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack(">I", jobsock.MAX_MESSAGE + 1) + b"x",
        struct.pack(">I", 0),
        struct.pack(">I", 4) + b"null",
        struct.pack(">I", 3) + b"\xff\xfe{",
        struct.pack(">I", 9) + b'{"a": 1e}',
        struct.pack(">I", 60000) + b"[" * 60000,
    ],
)
def test_what_breaks_the_protocol_ends_that_connection_only(place, bad) -> None:
    async def go() -> None:
        async with listening(place / "s") as (_, heard):
            good_reader, good = await asyncio.open_unix_connection(place / "s")
            good.write(frame({"type": "hello"}))
            await heard.until(lambda: len(heard.messages) == 1)
            reader, writer = await asyncio.open_unix_connection(place / "s")
            writer.write(bad)
            await heard.until(lambda: heard.gone == [1])
            assert await reader.read() == b""
            good.write(frame({"type": "arrived"}))
            await heard.until(lambda: len(heard.messages) == 2)
            for each in (good, writer):
                each.close()
            del good_reader

    asyncio.run(go())


@needs_root
def test_only_the_jobs_own_user_is_heard(place) -> None:
    place.chmod(0o711)
    knock = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "try:\n"
        "    s.connect(sys.argv[1]); s.sendall(bytes.fromhex(sys.argv[3])); s.settimeout(10); s.recv(1)\n"
        "except OSError as error: print(type(error).__name__)\n"
    )

    async def knocks(uid: int) -> str:
        command = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            knock,
            str(place / "s"),
            str(uid),
            frame({"uid": uid}).hex(),
        ]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=False, timeout=120
        )
        return done.stdout.strip()

    async def go() -> None:
        async with listening(place / "s", 65534, 65534) as (sock, heard):
            assert (place / "s").stat().st_uid == 65534
            assert await knocks(1234) == "PermissionError"
            (place / "s").chmod(0o666)  # were the mode to fail, the peer's credentials still stand
            assert await knocks(1234) in ("", "ConnectionResetError", "BrokenPipeError")
            owner = asyncio.create_task(knocks(65534))
            await heard.until(lambda: heard.messages)
            sock.tell(0, {"type": "go"})
            assert await owner == ""
            assert heard.messages == [(0, {"uid": 65534})]

    asyncio.run(go())


def test_a_job_that_talks_without_end_is_listened_to_slowly(place) -> None:
    async def go() -> None:
        async with listening(place / "s") as (_, heard):
            _reader, writer = await asyncio.open_unix_connection(place / "s")
            writer.write(frame({"type": "progress"}) * 5000)
            await heard.until(lambda: len(heard.messages) >= jobsock.MESSAGES_PER_WINDOW)
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(heard.messages) == jobsock.MESSAGES_PER_WINDOW
            writer.transport.abort()

    asyncio.run(go())


@pytest.mark.parametrize(
    ("message", "most"),
    [
        ({"type": "progress"}, jobsock.MESSAGES_PER_WINDOW),
        ({"type": "progress", "pad": "x" * 60_000}, jobsock.BYTES_PER_WINDOW // 60_000 + 1),
    ],
)
def test_nor_is_it_listened_to_faster_over_many_connections(place, message, most) -> None:
    async def go() -> None:
        async with listening(place / "s") as (_, heard):
            writers = [(await asyncio.open_unix_connection(place / "s"))[1] for _ in range(60)]
            for writer in writers:
                writer.write(frame(message) * 40)
            await heard.until(lambda: len(heard.messages) >= most)
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(heard.messages) == most
            for writer in writers:
                writer.transport.abort()

    asyncio.run(go())


def test_a_job_that_does_not_listen_is_cut_off(place) -> None:
    async def go() -> None:
        async with listening(place / "s") as (sock, heard):
            deaf = socket.socket(socket.AF_UNIX)
            deaf.connect(str(place / "s"))
            deaf.sendall(frame({"type": "hello"}))
            await heard.until(lambda: heard.messages)
            big = {"type": "stop", "pad": "x" * 60_000}
            for _ in range(40):
                sock.tell(0, big)
            await heard.until(lambda: heard.gone == [0])
            deaf.close()

    asyncio.run(go())


def test_connections_are_limited(place, monkeypatch) -> None:
    monkeypatch.setattr(jobsock, "MAX_CONNECTIONS", 2)

    async def go() -> None:
        async with listening(place / "s") as (_, heard):
            ends = [await asyncio.open_unix_connection(place / "s") for _ in range(3)]
            for _, writer in ends[:2]:
                writer.write(frame({"type": "hello"}))
            await heard.until(lambda: len(heard.messages) == 2)
            with contextlib.suppress(ConnectionError):
                assert await ends[2][0].read() == b""
            for _, writer in ends:
                writer.close()

    asyncio.run(go())


def test_a_message_is_its_length_and_json() -> None:
    data = frame({"type": "go"})
    assert struct.unpack(">I", data[:4])[0] == len(data) - 4
    assert json.loads(data[4:]) == {"type": "go"}
