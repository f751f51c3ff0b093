"""A job's files, read and written by a process of its user's: the other end of carrier.py."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from hs_agent import carrier
from hs_agent.accounts import Account
from hs_agent.bare import frames
from hs_agent.faults import NO_ROOM
from hs_core.errors import RefusedError


class TornError(Exception):
    """What lies there is no checkpoint: asking again would not mend it."""


class GoneError(TornError):
    """It is not at its source."""


class DamagedError(GoneError):
    """It is, and is not what was written."""


class NoRoomError(RefusedError):
    """This host has none for it."""


class Carrier:
    """One such process, for one order."""

    _endings: ClassVar[set[asyncio.Task[None]]] = set()

    def __init__(self, order: Mapping[str, Any], who: Account) -> None:
        identity = {"uid": who.uid, "gid": who.gid, "groups": list(who.groups)}
        self._order = dict(order, identity=identity if os.geteuid() == 0 else None)
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", carrier.__file__,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            cwd="/", env={}, start_new_session=True, limit=1 << 20,
        )  # fmt: skip
        try:
            await self.say(**self._order)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _end(self) -> None:
        """To its end, also where whoever waits is cancelled meanwhile."""
        task = asyncio.create_task(self._reap())
        Carrier._endings.add(task)
        task.add_done_callback(Carrier._endings.discard)
        await asyncio.shield(task)

    async def _reap(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # It is closed once the process ended, and asyncio's abort() fails on a closed one.
        if not self._process.stdin.is_closing():
            self._process.stdin.transport.abort()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        while await self._process.stdout.read(1 << 20):
            pass  # else asyncio keeps the pipe
        await self._process.wait()

    @classmethod
    async def all_ended(cls) -> None:
        await asyncio.gather(*cls._endings, return_exceptions=True)

    async def write(self, kind: bytes, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(frames.FRAME.pack(kind, len(data)) + data)
        await self._process.stdin.drain()

    async def say(self, **value: Any) -> None:
        await self.write(b"J", json.dumps(value).encode())

    async def read(self) -> tuple[bytes, bytes]:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            kind, size = frames.FRAME.unpack(await self._process.stdout.readexactly(frames.FRAME.size))
            return kind, await self._process.stdout.readexactly(size)
        except asyncio.IncompleteReadError:
            raise OSError(0, "the process that handles the files ended") from None

    async def hear(self) -> dict[str, Any]:
        """The next word; refused where it is an error."""
        _, data = await self.read()
        value: dict[str, Any] = json.loads(data)
        if "error" in value:
            if value["torn"]:
                raise TornError(value["error"])
            raise (NoRoomError if value.get("errno") in NO_ROOM else RefusedError)(value["error"])
        return value


def manifest_name(nodes: int, node_rank: int) -> str:
    """As hs_job.checkpoint names it: nodes may share a folder."""
    return "manifest.json" if nodes <= 1 else f"manifest-{node_rank}.json"
