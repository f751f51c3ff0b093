"""Two hosts, of which one fetches checkpoints from the other."""

import asyncio
import contextlib
import hashlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hs_agent import accounts, cgroup, launch, peers
from hs_agent.config import Config
from hs_agent.fetches import Fetches
from hs_agent.sending import Sender
from hs_core.events.host import Fetch
from hs_core.names import HostName, JobId
from hs_core.wanted import NOBODY, Lend, Peer, Source, SourcePart, Turn, Wanted, WantedJob

GENERATION, STEP = 4, 120
MIB = 1 << 20


def run(work: Awaitable[Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(bounded())


def write(
    folder: Path,
    sizes: dict[str, int],
    seed: int = 1,
    manifest: str = "manifest.json",
    at: tuple[int, int] = (GENERATION, STEP),
) -> None:
    generation, step = at
    here = folder / f"gen-{generation}"
    here.mkdir(parents=True, exist_ok=True)
    dice, files = random.Random(seed), []
    for name, size in sizes.items():
        data = dice.randbytes(size)
        (here / name).write_bytes(data)
        files.append({"name": name, "size": size, "sha256": hashlib.sha256(data).hexdigest()})
    value = {"generation": generation, "step": step, "world": len(files), "files": files}
    (here / manifest).write_text(json.dumps(value))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / f"gen-{GENERATION}").iterdir()}


class Two:
    """The host that lends, and the one that fetches; between them a proxy that can be told to cut."""

    def __init__(self, settings: Callable[..., Config], job: Callable[..., WantedJob], place: Path) -> None:
        self.configs = [
            settings(name=f"host-{name}", state_dir=f"{place}/{name}", dev=True, peer_listen="127.0.0.1:0")
            for name in "ab"
        ]
        self.launchers = [launch.Launcher(config, cgroup.Cgroups()) for config in self.configs]
        self.folders = [launcher.checkpoints / "7" for launcher in self.launchers]
        self.job = job(7, "train.py", epoch=1)
        self.grants = peers.Grants()
        self.events: list[Any] = []
        self.cut_after: int | None = None
        self.carried: list[int] = []  # bytes, by connection
        self.had: list[int] = []  # that the host that fetches had as it connected
        self.give_up_s = 20.0
        self.sender: Sender | None = None
        self.parts: Callable[[Peer], tuple[SourcePart, ...]] | None = None  # of an average
        self.written_by = (0, 1)  # node, of so many
        self.lost = False  # the host that has it: nobody can be asked
        self.known = (GENERATION, STEP)
        self.look = False  # in the folder that its user named, before anybody is asked
        self.onto = 1  # the host that fetches; 0: the one that has it
        who = accounts.account(self.job.run_as, self.configs[0])
        self.launchers[0].make_checkpoint_dir(self.job, who)

    def lend(self, grant: str = "sesame", copy: int = -1) -> None:
        lend = Lend(job=JobId(7), epoch=1, generation=GENERATION, grant=grant, copy=copy)
        self.grants.take(Wanted(term=1, seq=1, quantum_s=1.0, turn=Turn(), jobs=(), lends=(lend,)))

    @contextlib.asynccontextmanager
    async def proxy(self, port: int) -> AsyncIterator[int]:
        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, down: bool) -> None:
            try:
                while data := await reader.read(MIB):
                    if down:
                        self.carried[-1] += len(data)
                        if self.cut_after is not None and self.carried[-1] > self.cut_after:
                            self.cut_after = None
                            break
                    writer.write(data)
                    await writer.drain()
            except OSError:
                pass
            finally:
                writer.transport.abort()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            self.carried.append(0)
            there = self.folders[self.onto].rglob("*")
            self.had.append(sum(path.stat().st_size for path in there if path.is_file()))
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(pump(reader, up_writer, False), pump(up_reader, writer, True))

        tasks: set[asyncio.Task[Any]] = set()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks)
            await asyncio.sleep(0)  # closed transports say so

    def wanted(self, address: str, grant: str = "sesame", **changes: Any) -> WantedJob:
        source = Source(
            peer=NOBODY if self.lost else Peer(host=HostName("host-a"), address=address),
            epoch=1,
            generation=self.known[0],
            step=self.known[1],
            rank=self.written_by[0],
            nodes=self.written_by[1],
            look=self.look,
        )
        if self.parts:
            source = replace(source, generation=9, parts=self.parts(source.peer))
        return replace(self.job, epoch=2, source=source, grant=grant, **changes)

    async def fetch(self, grant: str = "sesame", **changes: Any) -> Any:
        sender = self.sender or Sender(self.launchers[0])
        door = peers.PeerDoor(self.configs[0], self.grants, sender, lambda _: None, None)
        await door.start()
        heard = asyncio.Event()

        def post(event: Any) -> None:
            self.events.append(event)
            heard.set()

        dial = peers.PeerDialer(self.configs[self.onto], None)
        fetches = Fetches(self.launchers[self.onto], dial, post, give_up_s=self.give_up_s)
        try:
            async with self.proxy(int(door.address.rpartition(":")[2])) as port:
                fetches.start(Fetch(wanted=self.wanted(f"127.0.0.1:{port}", grant, **changes)))
                await heard.wait()
        finally:
            await fetches.close()
            await door.stop()
        return self.events[-1]
