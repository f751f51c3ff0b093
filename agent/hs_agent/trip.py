"""One job's way to what it is to go on from: from whoever has it to this host, as often as it takes."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import structlog

from hs_agent.accounts import Account
from hs_agent.bare import frames
from hs_agent.carried import Carrier, DamagedError, GoneError, TornError, manifest_name
from hs_agent.launch import Launcher
from hs_core.errors import Kind, RefusedError
from hs_core.wanted import NOBODY, Peer, Source, WantedJob
from hs_daemon import boot_s
from hs_proto.v1 import agent_pb2, agent_pb2_grpc

STALLED_S = 20.0
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 5.0

log = structlog.get_logger("trip")

Dial = Callable[[Peer], grpc.aio.Channel]


class Got(NamedTuple):
    """What a job is to go on from lies here now."""

    generation: int  # an average: what it will be
    step: int
    copied: int  # bytes that came, the last time
    size: int = (
        0  # of its files here; 0: not known; an average: of the largest part, as long as it is not made
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    wanted: WantedJob
    source: Source
    newest: Callable[[], Source]  # the same, where it lies by now
    who: Account
    where: Path  # files are put here
    launcher: Launcher
    dial: Dial
    give_up_s: float  # without a byte of progress: then the machine decides
    part: int = -1  # of an average

    async def make(self) -> Got:
        """Raises RefusedError, TornError and OSError."""
        got = await (self._parts() if self.source.parts else self.one())
        if got.generation >= 0 and got.step < self.source.step:
            raise DamagedError(
                f"{self.source.peer.host}: it is of step {got.step}; expected {self.source.step}"
            )
        return got

    @property
    def _manifest(self) -> str:
        return manifest_name(len(self.wanted.nodes), self.wanted.node_rank)

    async def _parts(self) -> Got:
        """All that is to be averaged; what was written here is read where it lies."""
        wanted, source, parts, copied = self.wanted, self.source, [], 0
        for number, part in enumerate(source.parts):
            if part.peer.host == self.launcher.config.name:
                kept = self.launcher.kept(wanted.job)
                folder = kept.of(part.epoch, part.copy) if kept is not None else self.where
            else:
                folder = self.where / f"gen-{source.generation}" / f"part-{number}"
                one = Source(peer=part.peer, epoch=part.epoch, generation=part.generation, step=source.step)
                copied += (await replace(self, source=one, where=folder, part=number).one()).copied
            parts.append({"folder": str(folder), "generation": part.generation, "steps": part.steps})
        average = {
            "step": source.step,
            "parts": parts,
            "copy": max(wanted.copy, 0),
            "copies": wanted.copies,
            "beside": max(0, wanted.spec.steps - wanted.last_step),  # steps that the others are to do
            "before": source.epoch,  # what copies wrote in epochs before nobody needs any more
        }
        asking = {
            "what": "ask",
            "folder": str(self.where),
            "generation": source.generation,
            "average": average,
            "alone": not wanted.spec.checkpoint_dir,
        }
        async with Carrier(asking, self.who) as carried:
            try:
                answer = await carried.hear()
            except TornError as error:
                raise DamagedError(f"{self.launcher.config.name}: {error}") from None
        return Got(source.generation, source.step, copied, int(answer["size"]))

    async def one(self) -> Got:
        """Again and again, from where it was, as long as something comes."""
        source, pause_s, last_s = self.source, FIRST_PAUSE_S, boot_s()

        def progress() -> None:
            nonlocal last_s
            last_s = boot_s()

        if source.look:
            with contextlib.suppress(GoneError):
                return await self._look()
            own = (self.launcher.config.name, self.wanted.node_rank, max(1, len(self.wanted.nodes)))
            if (source.peer.host, source.rank, source.nodes) == own:
                return Got(source.generation, source.step, 0)  # one part of it, where no other server sees it
        have: dict[str, int] | None = None
        while True:
            tried_s, peer = last_s, self._peer()
            if peer == NOBODY:
                try:
                    return await self._look()
                except GoneError:
                    if not source.may_be_none:
                        raise
                    return Got(-1, 0, 0)
            try:
                found = await self._fetch(peer, have, progress)
                if found is not None:
                    return found
                have = {}
                continue
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DATA_LOSS:
                    raise DamagedError(f"{peer.host}: {error.details()}") from None
                gone = error.code() is grpc.StatusCode.NOT_FOUND
                why = f"{peer.host}: {error.code().name}: {error.details()}"
            if last_s > tried_s:
                pause_s = FIRST_PAUSE_S
            if boot_s() - last_s > self.give_up_s:
                nothing = f"nothing came for {self.give_up_s:g} s: {why}"
                raise GoneError(nothing) if gone else RefusedError(nothing, Kind.UNAVAILABLE)
            log.info("fetch goes on later", job=self.wanted.job, epoch=self.wanted.epoch, why=why)
            await asyncio.sleep(pause_s * (0.5 + random.random() / 2))  # noqa: S311 — jitter
            pause_s = min(pause_s * 2, LAST_PAUSE_S)
            have = None

    def _peer(self) -> Peer:
        known = self.newest()
        return known.parts[self.part].peer if 0 <= self.part < len(known.parts) else known.peer

    async def _look(self) -> Got:
        """In the folder that the user named: that may be on a file system which other servers see, too."""
        source = self.source
        looking = {
            "what": "look",
            "folder": str(self.where),
            "epoch": self.wanted.epoch,
            "generation": source.generation,
            "step": source.step,
            "manifest": self._manifest,
            "theirs": manifest_name(source.nodes, source.rank),
            "manifests": [manifest_name(source.nodes, rank) for rank in range(source.nodes)],
        }
        async with Carrier(looking, self.who) as files:
            try:
                found = await files.hear()
            except TornError as error:
                raise GoneError(f"{self.where}: {error}") from None
        return Got(int(found["generation"]), int(found["step"]), 0, int(found["size"]))

    async def _fetch(
        self, peer: Peer, have: Mapping[str, int] | None, progress: Callable[[], None]
    ) -> Got | None:
        """None: what was there belonged to something else; ask for all of it."""
        source = self.source
        taking = {
            "what": "take",
            "folder": str(self.where),
            "generation": source.generation,
            "manifest": self._manifest,
            "theirs": manifest_name(source.nodes, source.rank),
            "alone": not self.wanted.spec.checkpoint_dir,
        }
        async with Carrier(taking, self.who) as sink:
            found = await sink.hear()
            got: Mapping[str, int] = found["have"] if have is None else have
            request = agent_pb2.FetchRequest(
                job_id=self.wanted.job,
                epoch=source.epoch,
                generation=source.generation,
                grant=self.wanted.grant,
                node_rank=source.rank,
                nodes=source.nodes,
                have=[agent_pb2.FileOffset(name=name, bytes=size) for name, size in got.items()],
            )
            async with self.dial(peer) as channel:
                call = agent_pb2_grpc.AgentPeerStub(channel).Fetch(request)
                answer = asyncio.create_task(sink.hear())
                pumping = asyncio.create_task(_pump(call, sink, answer, progress))
                try:
                    await _first_of(answer, pumping)
                    word = await answer
                finally:
                    call.cancel()
                    answer.cancel()
                    pumping.cancel()
                    await asyncio.gather(answer, pumping, return_exceptions=True)
        if word.get("again"):
            return None
        return Got(source.generation, int(word["step"]), int(word["copied"]), int(word["size"]))


async def _first_of(answer: asyncio.Task[Any], pumping: asyncio.Task[None]) -> None:
    """What the pump met with goes before what the carrier makes of it."""
    await asyncio.wait({answer, pumping}, return_when=asyncio.FIRST_COMPLETED)
    if not answer.done():
        pumping.result()


async def _pump(
    call: "grpc.aio.UnaryStreamCall[agent_pb2.FetchRequest, agent_pb2.FetchChunk]",
    sink: Carrier,
    answer: asyncio.Task[Any],
    progress: Callable[[], None],
) -> None:
    heard_s: float | None = boot_s()  # None: what came is being taken in, which a disk may take its time for

    def silent() -> bool:
        return heard_s is not None and boot_s() - heard_s >= STALLED_S

    async def watch() -> None:
        while not silent():  # noqa: ASYNC110 — nobody says that nothing came
            await asyncio.sleep(1.0)
        call.cancel()

    watching = asyncio.create_task(watch())
    name = ""
    try:
        async for chunk in call:
            heard_s = None
            if answer.done():
                return
            if chunk.name != name:
                name = chunk.name
                await sink.say(name=name, size=chunk.size, offset=chunk.offset)
            if chunk.data:
                if len(chunk.data) > frames.CHUNK:
                    raise RefusedError(f"a chunk of {len(chunk.data)} bytes: expected at most {frames.CHUNK}")
                await sink.write(b"D", chunk.data)
                if not name.startswith("manifest"):  # which comes each time
                    progress()
            if chunk.sha256:
                await sink.say(sha256=chunk.sha256)
            heard_s = boot_s()
        await sink.say(done=True)
    except asyncio.CancelledError:
        if not call.cancelled() or answer.done() or not silent():
            raise
        raise RefusedError(f"nothing came for {STALLED_S:g} s", Kind.UNAVAILABLE) from None
    except (BrokenPipeError, ConnectionResetError):
        return  # the carrier says why
    finally:
        watching.cancel()
