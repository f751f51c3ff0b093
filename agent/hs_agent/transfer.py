"""Checkpoints between agents: what is lent is sent, what a job needs is fetched; files are only ever touched as the job's user."""

import asyncio
import contextlib
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import grpc
import structlog

from hs_agent import carrier
from hs_agent.accounts import Account, NoAccountError, account
from hs_agent.faults import NO_ROOM
from hs_agent.folder import Key
from hs_agent.launch import Launcher
from hs_core.errors import Kind, RefusedError
from hs_core.events import CheckpointFetched, Fetch, FetchFailed, HostEvent
from hs_core.wanted import NOBODY, Lend, Peer, Source, WantedJob
from hs_daemon import boot_s
from hs_proto.v1 import agent_pb2, agent_pb2_grpc

GIVE_UP_S = 60.0
"""Without a byte of progress: then the machine decides."""
STALLED_S = 20.0
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 5.0
SENT_AT_ONCE = 4

log = structlog.get_logger("transfer")

Write = Callable[[agent_pb2.FetchChunk], Awaitable[None]]
Dial = Callable[[Peer], grpc.aio.Channel]


class TornError(Exception):
    """What lies there is no checkpoint: asking again would not mend it."""


class GoneError(TornError):
    """So it is at its source."""


class NoRoomError(RefusedError):
    """This host has none for it."""


class Got(NamedTuple):
    """What a job is to go on from lies here now."""

    generation: int  # an average: what it will be
    step: int
    copied: int  # bytes that came, the last time
    size: int = 0  # of its files here; 0: not known; an average: of the largest part


class Carrier:
    """The other end of carrier.py."""

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
        self._process.stdin.write(carrier.FRAME.pack(kind, len(data)) + data)
        await self._process.stdin.drain()

    async def say(self, **value: Any) -> None:
        await self.write(b"J", json.dumps(value).encode())

    async def read(self) -> tuple[bytes, bytes]:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            kind, size = carrier.FRAME.unpack(await self._process.stdout.readexactly(carrier.FRAME.size))
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


# --- sending --------------------------------------------------------------------------------------------------------


class Sender:
    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._room = asyncio.Semaphore(SENT_AT_ONCE)

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
            "have": {each.name: each.bytes for each in request.have[: carrier.MAX_FILES]},
        }
        async with self._turn(write), Carrier(order, kept.who) as source:
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
    async def _turn(self, write: Write) -> AsyncIterator[None]:
        """So many at once; who waits for it is given a sign now and then, for it does not wait for who is silent."""
        while True:
            try:
                async with asyncio.timeout(carrier.SIGN_EVERY_S):
                    await self._room.acquire()
                break
            except TimeoutError:
                await write(agent_pb2.FetchChunk())
        try:
            yield
        finally:
            self._room.release()


# --- fetching -------------------------------------------------------------------------------------------------------


class Fetches:
    """Those under way, by (job, epoch)."""

    def __init__(
        self,
        launcher: Launcher,
        dial: Dial,
        post: Callable[[HostEvent], None],
        *,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._launcher, self._dial, self._post = launcher, dial, post
        self._give_up_s = give_up_s
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._what: dict[Key, Source] = {}  # whoever has it
        self._sources: dict[Key, Source] = {}  # as they were told last

    def start(self, order: Fetch) -> None:
        key, source = Key(order.wanted.job, order.wanted.epoch), order.wanted.source
        assert source is not None, f"{order} names no source"
        before, what = self._tasks.get(key), _whoever_has(source)
        if before is not None and not before.cancelling() and self._what[key] == what:
            return
        self._what[key] = what
        task = self._tasks[key] = asyncio.create_task(self._fetch(key, order, source, before))
        task.add_done_callback(lambda task: self._ended(key, task))

    def _over(self, key: Key, task: asyncio.Task[None] | None) -> None:
        if self._tasks.get(key) is task:
            for known in (self._tasks, self._what, self._sources):
                known.pop(key, None)

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        self._over(key, task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("fetch broke", job=key.job, epoch=key.epoch, exc_info=error)
            self._failed(key, f"{type(error).__name__}: {error}")

    def _failed(self, key: Key, why: str, *, hopeless: bool = False, host_fault: bool = False) -> None:
        job, epoch = key
        self._post(
            FetchFailed(
                now_s=boot_s(), job=job, epoch=epoch, why=why, hopeless=hopeless, host_fault=host_fault
            )
        )

    def wanted(self, jobs: Iterable[WantedJob]) -> None:
        """What nobody wants any more ends; the rest goes on, from where its source is now."""
        now = {Key(job.job, job.epoch): job.source for job in jobs}
        for key, task in list(self._tasks.items()):
            if key not in now:
                task.cancel()
            elif (source := now[key]) is not None:
                self._sources[key] = source

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await Carrier.all_ended()

    async def _fetch(self, key: Key, order: Fetch, source: Source, before: asyncio.Task[None] | None) -> None:
        if before is not None:  # of something that is not wanted any more
            before.cancel()
            await asyncio.wait({before})
        began_s = boot_s()
        try:
            who = await asyncio.to_thread(account, order.wanted.run_as, self._launcher.config)
            where = await asyncio.to_thread(self._launcher.make_checkpoint_dir, order.wanted, who)
            takes = self._parts if source.parts else self._try
            got = await takes(order, source, who, where)
            if got.generation >= 0 and got.step < source.step:
                raise GoneError(f"{source.peer.host}: it is of step {got.step}; expected {source.step}")
        except (RefusedError, TornError, OSError) as error:
            why = str(error) or type(error).__name__
            log.warning("fetch failed", job=key.job, epoch=key.epoch, peer=source.peer.host, why=why)
            full = isinstance(error, NoRoomError) or (isinstance(error, OSError) and error.errno in NO_ROOM)
            own = not order.wanted.spec.checkpoint_dir  # else it is the user's to make room
            here = isinstance(error, NoAccountError) or (full and own)
            self._over(key, asyncio.current_task())
            self._failed(key, why, hopeless=isinstance(error, GoneError), host_fault=here)
            return
        took_s = boot_s() - began_s
        log.info(
            "fetched", job=key.job, epoch=key.epoch, peer=source.peer.host, generation=got.generation, bytes=got.copied,
            seconds=round(took_s, 3), mb_per_s=round(got.copied / max(took_s, 1e-6) / 1e6),
        )  # fmt: skip
        self._over(key, asyncio.current_task())  # another may be ordered as that is told
        self._post(
            CheckpointFetched(
                now_s=boot_s(),
                job=key.job,
                epoch=key.epoch,
                generation=got.generation,
                step=got.step,
                size_bytes=got.size,
            )
        )

    async def _parts(self, order: Fetch, source: Source, who: Account, where: Path) -> Got:
        """All that is to be averaged; what was written here is read where it lies."""
        wanted, parts, copied = order.wanted, [], 0
        for number, part in enumerate(source.parts):
            if part.peer.host == self._launcher.config.name:
                kept = self._launcher.kept(wanted.job)
                folder = kept.of(part.epoch, part.copy) if kept is not None else where
            else:
                folder = where / f"gen-{source.generation}" / f"part-{number}"
                one = Source(peer=part.peer, epoch=part.epoch, generation=part.generation, step=source.step)
                copied += (await self._try(order, one, who, folder, part=number)).copied
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
            "folder": str(where),
            "generation": source.generation,
            "average": average,
            "alone": not wanted.spec.checkpoint_dir,
        }
        async with Carrier(asking, who) as carried:
            answer = await carried.hear()
        return Got(source.generation, source.step, copied, int(answer["size"]))

    async def _try(self, order: Fetch, source: Source, who: Account, where: Path, part: int = -1) -> Got:
        """Again and again, from where it was, as long as something comes."""
        pause_s, last_s = FIRST_PAUSE_S, boot_s()

        def progress() -> None:
            nonlocal last_s
            last_s = boot_s()

        if source.look:
            with contextlib.suppress(GoneError):
                return await self._look(order, source, who, where)
            own = (self._launcher.config.name, order.wanted.node_rank, max(1, len(order.wanted.nodes)))
            if (source.peer.host, source.rank, source.nodes) == own:
                return Got(source.generation, source.step, 0)  # one part of it, where no other server sees it
        have: dict[str, int] | None = None
        key, first = Key(order.wanted.job, order.wanted.epoch), source
        while True:
            tried_s = last_s
            known = self._sources.get(key, first)
            peer = known.parts[part].peer if 0 <= part < len(known.parts) else known.peer
            source = replace(first, peer=peer)
            if peer == NOBODY:
                try:
                    return await self._look(order, source, who, where)
                except GoneError:
                    if not source.may_be_none:
                        raise
                    return Got(-1, 0, 0)
            try:
                found = await self._once(order, source, who, where, have, progress)
                if found is not None:
                    return found
                have = {}
                continue
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DATA_LOSS:
                    raise GoneError(f"{source.peer.host}: {error.details()}") from None
                gone = error.code() is grpc.StatusCode.NOT_FOUND
                why = f"{source.peer.host}: {error.code().name}: {error.details()}"
            if last_s > tried_s:
                pause_s = FIRST_PAUSE_S
            if boot_s() - last_s > self._give_up_s:
                nothing = f"nothing came for {self._give_up_s:g} s: {why}"
                raise GoneError(nothing) if gone else RefusedError(nothing, Kind.UNAVAILABLE)
            log.info("fetch goes on later", job=order.wanted.job, epoch=order.wanted.epoch, why=why)
            await asyncio.sleep(pause_s * (0.5 + random.random() / 2))  # noqa: S311 — jitter
            pause_s = min(pause_s * 2, LAST_PAUSE_S)
            have = None

    async def _look(self, order: Fetch, source: Source, who: Account, where: Path) -> Got:
        """In the folder that the user named: that may be on a file system which other servers see, too."""
        looking = {
            "what": "look",
            "folder": str(where),
            "epoch": order.wanted.epoch,
            "generation": source.generation,
            "step": source.step,
            "manifest": manifest_name(len(order.wanted.nodes), order.wanted.node_rank),
            "theirs": manifest_name(source.nodes, source.rank),
            "manifests": [manifest_name(source.nodes, rank) for rank in range(source.nodes)],
        }
        async with Carrier(looking, who) as files:
            try:
                found = await files.hear()
            except TornError as error:
                raise GoneError(f"{where}: {error}") from None
        return Got(int(found["generation"]), int(found["step"]), 0, int(found["size"]))

    async def _once(  # noqa: PLR0917
        self,
        order: Fetch,
        source: Source,
        who: Account,
        where: Path,
        have: dict[str, int] | None,
        progress: Callable[[], None],
    ) -> Got | None:
        """None: what was there belonged to something else; ask for all of it."""
        wanted = order.wanted
        taking = {
            "what": "take",
            "folder": str(where),
            "generation": source.generation,
            "manifest": manifest_name(len(wanted.nodes), wanted.node_rank),
            "theirs": manifest_name(source.nodes, source.rank),
            "alone": not wanted.spec.checkpoint_dir,
        }
        async with Carrier(taking, who) as sink:
            found = await sink.hear()
            got: Mapping[str, int] = found["have"] if have is None else have
            request = agent_pb2.FetchRequest(
                job_id=wanted.job,
                epoch=source.epoch,
                generation=source.generation,
                grant=wanted.grant,
                node_rank=source.rank,
                nodes=source.nodes,
                have=[agent_pb2.FileOffset(name=name, bytes=size) for name, size in got.items()],
            )
            async with self._dial(source.peer) as channel:
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


def _whoever_has(source: Source) -> Source:
    """What is fetched: where it lies may change meanwhile."""
    parts = tuple(replace(part, peer=NOBODY) for part in source.parts)
    return replace(source, peer=NOBODY, parts=parts)


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
                if len(chunk.data) > carrier.CHUNK:
                    raise RefusedError(
                        f"a chunk of {len(chunk.data)} bytes: expected at most {carrier.CHUNK}"
                    )
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
