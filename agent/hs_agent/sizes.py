"""How large the checkpoints are that jobs write here: each is looked at once, beside all else, as the job's user."""

import asyncio
from collections.abc import Callable

import structlog

from hs_agent.carried import Carrier, TornError, manifest_name
from hs_agent.folder import Key
from hs_agent.launch import Launcher
from hs_core.errors import RefusedError
from hs_core.events.host import CheckpointWeighed, HostEvent
from hs_daemon import boot_s

LIMIT_S = 60.0  # a file system that does not answer for as long is asked again at the next checkpoint

log = structlog.get_logger("sizes")


class Sizes:
    """One look at a time: they are no haste, and processes cost."""

    def __init__(self, launcher: Launcher, post: Callable[[HostEvent], None]) -> None:
        self._launcher, self._post = launcher, post
        self._wait: dict[Key, int] = {}  # the newest generation of each, not looked at yet
        self._task: asyncio.Task[None] | None = None

    def look(self, key: Key, generation: int) -> None:
        """It is durable."""
        self._wait[key] = generation
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look(self) -> None:
        while self._wait:
            key = next(iter(self._wait))
            generation = self._wait.pop(key)
            try:
                async with asyncio.timeout(LIMIT_S):
                    size = await self._size(key, generation)
            except (RefusedError, TornError, OSError) as error:  # TimeoutError too
                why = str(error) or type(error).__name__
                log.info("not weighed", job=key.job, epoch=key.epoch, generation=generation, why=why)
                continue
            self._post(CheckpointWeighed(now_s=boot_s(), job=key.job, epoch=key.epoch, size_bytes=size))

    async def _size(self, key: Key, generation: int) -> int:
        kept = self._launcher.kept(key.job)
        launch = self._launcher.folder(key).launch()
        if kept is None or launch is None:
            raise RefusedError("it is gone")
        wanted = launch["wanted"]
        order = {
            "what": "weigh",
            "folder": str(kept.of(key.epoch, int(wanted["copy"]))),
            "generation": generation,
            "manifest": manifest_name(len(wanted["nodes"]), int(wanted["node_rank"])),
        }
        async with Carrier(order, kept.who) as files:
            return int((await files.hear())["size"])
