"""Checkpoints that jobs are to go on from, fetched from other servers: which are under way, and how each ends."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

import structlog

from hs_agent.accounts import NoAccountError, account
from hs_agent.carried import Carrier, DamagedError, GoneError, NoRoomError, TornError
from hs_agent.faults import NO_ROOM
from hs_agent.folder import Key
from hs_agent.launch import Launcher
from hs_agent.trip import Dial, Trip
from hs_core.errors import RefusedError
from hs_core.events.host import CheckpointFetched, Fetch, FetchFailed, HostEvent, Lack, NothingFetched
from hs_core.names import JobId
from hs_core.reports import NO_ROOM_FOR
from hs_core.wanted import NOBODY, Source, WantedJob
from hs_daemon import boot_s

GIVE_UP_S = 60.0
"""Without a byte of progress: then the machine decides."""

AT_ONCE = 32
"""Of one account, each of which is a process or two: jobs come by the thousand as another server is drained, and a folder that they named may be on a file system that hangs."""
GATHERED_S = 0.05
"""Those of whom nothing was found meanwhile are told together."""

log = structlog.get_logger("fetches")


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
        self._going: dict[str, asyncio.Semaphore] = {}  # by account
        self._nothing: dict[tuple[JobId, int], None] = {}  # nothing was found, which is told soon

    def start(self, order: Fetch) -> None:
        key, source = Key(order.wanted.job, order.wanted.epoch), order.wanted.source
        assert source is not None, f"{order} names no source"
        before, what = self._tasks.get(key), _whoever_has(source)
        if before is not None and not before.cancelling() and self._what[key] == what:
            return
        if before is None and source.may_be_none and self._launcher.has_no_checkpoints(order.wanted):
            self._found_nothing(key)
            return
        self._what[key] = what
        task = self._tasks[key] = asyncio.create_task(self._fetch(key, order, source, before))
        task.add_done_callback(lambda task: self._ended(key, task))

    def _found_nothing(self, key: Key) -> None:
        if not self._nothing:
            asyncio.get_running_loop().call_later(GATHERED_S, self._tell_nothing)
        self._nothing[key.job, key.epoch] = None

    def _tell_nothing(self) -> None:
        jobs, self._nothing = tuple(self._nothing), {}
        if jobs:
            self._post(NothingFetched(now_s=boot_s(), jobs=jobs))

    def _over(self, key: Key, task: asyncio.Task[None] | None) -> None:
        if self._tasks.get(key) is task:
            for known in (self._tasks, self._what, self._sources):
                known.pop(key, None)

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        self._over(key, task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("fetch broke", job=key.job, epoch=key.epoch, exc_info=error)
            self._failed(key, f"{type(error).__name__}: {error}")

    def _failed(self, key: Key, why: str, *, lack: Lack = Lack.UNREACHED, host_fault: bool = False) -> None:
        job, epoch = key
        self._post(
            FetchFailed(now_s=boot_s(), job=job, epoch=epoch, why=why, lack=lack, host_fault=host_fault)
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
        self._nothing.clear()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await Carrier.all_ended()

    async def _fetch(self, key: Key, order: Fetch, source: Source, before: asyncio.Task[None] | None) -> None:
        if before is not None:  # of something that is not wanted any more
            before.cancel()
            await asyncio.wait({before})
        began_s, wanted = boot_s(), order.wanted
        try:
            who = await asyncio.to_thread(account, wanted.run_as, self._launcher.config)
            trip = Trip(
                wanted=wanted,
                source=source,
                newest=lambda: self._sources.get(key, source),
                who=who,
                where=await asyncio.to_thread(self._launcher.make_checkpoint_dir, wanted, who),
                launcher=self._launcher,
                dial=self._dial,
                give_up_s=self._give_up_s,
            )
            async with self._going.setdefault(wanted.run_as, asyncio.Semaphore(AT_ONCE)):
                began_s = boot_s()
                got = await trip.make()
        except (RefusedError, TornError, OSError) as error:
            why = str(error) or type(error).__name__
            if isinstance(error, NoRoomError):
                why = f"{NO_ROOM_FOR}: {why}"
            log.warning("fetch failed", job=key.job, epoch=key.epoch, peer=source.peer.host, why=why)
            full = isinstance(error, NoRoomError) or (isinstance(error, OSError) and error.errno in NO_ROOM)
            own = not wanted.spec.checkpoint_dir  # else it is the user's to make room
            here = isinstance(error, NoAccountError) or (full and own)
            self._over(key, asyncio.current_task())
            self._failed(key, why, lack=_lack(error), host_fault=here)
            return
        took_s = boot_s() - began_s
        log.info(
            "fetched", job=key.job, epoch=key.epoch, peer=source.peer.host, generation=got.generation, bytes=got.copied,
            seconds=round(took_s, 3), mb_per_s=round(got.copied / max(took_s, 1e-6) / 1e6),
        )  # fmt: skip
        self._over(key, asyncio.current_task())  # another may be ordered as that is told
        if got.generation < 0:
            self._found_nothing(key)
            return
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


def _lack(error: Exception) -> Lack:
    if isinstance(error, DamagedError):
        return Lack.DAMAGED
    return Lack.GONE if isinstance(error, GoneError) else Lack.UNREACHED


def _whoever_has(source: Source) -> Source:
    """What is fetched: where it lies may change meanwhile."""
    parts = tuple(replace(part, peer=NOBODY) for part in source.parts)
    return replace(source, peer=NOBODY, parts=parts)
