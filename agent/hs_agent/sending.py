"""Checkpoints that are lent to other servers, sent to whoever was given leave to have them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

from hs_agent.bare import generation
from hs_agent.carried import Carrier, TornError, manifest_name
from hs_agent.launch import Launcher
from hs_agent.room import Room
from hs_core.errors import Kind, RefusedError
from hs_core.wanted import Lend
from hs_proto.v1 import agent_pb2

SENT_AT_ONCE = 4

Write = Callable[[agent_pb2.FetchChunk], Awaitable[None]]


class Sender:
    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._room = Room(SENT_AT_ONCE)

    async def close(self) -> None:
        """When the server has stopped."""
        await asyncio.sleep(0)  # handlers that were cancelled get to their ends
        await Carrier.all_ended()

    async def send(self, lend: Lend, request: agent_pb2.FetchRequest, write: Write) -> None:
        kept = self._launcher.kept(lend.job)
        if kept is None:
            raise RefusedError(f"job {lend.job} has no checkpoints here", Kind.NOT_FOUND)
        order = {
            "what": "send",
            "folder": str(kept.of(lend.epoch, lend.copy)),
            "generation": lend.generation,
            "manifest": manifest_name(request.nodes, request.node_rank),
            "have": {each.name: each.bytes for each in request.have[: generation.MAX_FILES]},
        }
        async with self._turn(kept.who.uid, write), Carrier(order, kept.who) as source:
            name, size, at = "", 0, 0
            while True:
                kind, data = await source.read()
                if kind == b"D":
                    await write(agent_pb2.FetchChunk(name=name, offset=at, data=data, size=size))
                    at += len(data)
                    continue
                word = json.loads(data)
                if "error" in word:
                    raise TornError(word["error"]) if word["torn"] else OSError(0, word["error"])
                if "done" in word:
                    return
                if "name" in word:
                    name, size, at = word["name"], word["size"], word["offset"]
                elif "sign" in word:
                    await write(agent_pb2.FetchChunk(name=name, offset=at, size=size))
                else:
                    await write(agent_pb2.FetchChunk(name=name, offset=at, size=size, sha256=word["sha256"]))

    @contextlib.asynccontextmanager
    async def _turn(self, account: int, write: Write) -> AsyncIterator[None]:
        """Who waits for it is given a sign now and then, for it does not wait for who is silent."""
        turn = self._room.enter(account)
        try:
            while not (await asyncio.wait({turn}, timeout=generation.SIGN_EVERY_S))[0]:
                await write(agent_pb2.FetchChunk())
            yield
        finally:
            self._room.leave(account, turn)
