"""An agent takes up what the one before it left: jobs that run on, jobs that ended while nobody looked, launches that were cut off."""

import asyncio
from collections.abc import Callable, Container, Mapping
from typing import Any

import structlog

from hs_agent import folder, procs, steps
from hs_agent.folder import Ended, Folder, Key
from hs_agent.jobs import LOST_WITH_HOST, Jobs, found_frozen
from hs_agent.launch import Launcher
from hs_agent.launches import Launches
from hs_core.events.host import ExitFound, HostEvent, JobFroze
from hs_core.host.plain import revive
from hs_core.host.said import CHECKPOINTED_STATUS
from hs_core.reports import LOST, Exit, JobReport
from hs_core.wanted import WantedJob
from hs_daemon import boot_s
from hs_daemon.there import exists

SHIM_START_S, SHIM_LOOK_S = 1.0, 0.05

log = structlog.get_logger("agent")


def has_process(report: JobReport) -> bool:
    """Also one that has written its checkpoint, until its exit was heard of."""
    return bool(report.gpus)


def _found(job: Folder, launch: Mapping[str, Any] | None) -> ExitFound | None:
    """How one ended of which the agent before this one left no memory: none may have heard of it. None: its folder does not say.

    Who left through a checkpoint has not ended; whatever has a reason beside it was not the job's own end.
    """
    ended = job.ended()
    if launch is None or ended is None or ended.exit.why or ended.exit.code == CHECKPOINTED_STATUS:
        return None
    try:
        wanted = revive(WantedJob, launch["wanted"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    if (wanted.job, wanted.epoch) != job.key:
        return None
    job_id, epoch = job.key
    step = steps.noted(job.steps_file).step
    return ExitFound(now_s=boot_s(), job=job_id, epoch=epoch, wanted=wanted, exit=ended.exit, step=step)


class Adoption:
    """What the machine remembers against what there is."""

    def __init__(
        self, launcher: Launcher, jobs: Jobs, launches: Launches, post: Callable[[HostEvent], None]
    ) -> None:
        """`launches`: has taken up those that the last agent left."""
        self._launcher, self._jobs, self._launches, self._post = launcher, jobs, launches, post

    async def adopt(self, known: Mapping[Key, JobReport], kept: Container[Key], *, remembers: bool) -> None:
        """`kept`: have left, and are lent; `remembers`: what is neither had been forgotten, or put into last words, by the agent before."""
        for path in sorted(self._launcher.jobs.iterdir()):
            key = folder.parse_key(path.name)
            if key is not None and key not in kept:  # else it is forgotten when it is lent no longer
                await self._one(Folder(path, key), known.get(key), remembers=remembers)
        for key in sorted(await asyncio.to_thread(self._launcher.without_folder)):
            await self._jobs.end_without_folder(key)
        for key, report in known.items():
            if has_process(report) and not exists(self._launcher.folder(key).path):
                self._without_trace(key)
        self._launches.drop_what_has_not_begun()

    async def _one(self, job: Folder, report: JobReport | None, *, remembers: bool) -> None:
        shim = await self._find_shim(job)
        launch = job.launch()
        if shim is not None and (report is None or launch is None):
            await self._jobs.end_unknown(job, shim)
        elif shim is not None and launch is not None:
            await self._running(job, shim, launch)
        elif report is None and not remembers and (found := _found(job, launch)) is not None:
            log.info("a job that nobody remembers had ended", job=job.key.job, epoch=job.key.epoch)
            self._post(found)  # it is forgotten once that is remembered
        elif report is None:
            await asyncio.to_thread(self._launcher.forget, job.key, copies=remembers)
        elif has_process(report):
            self._ended(job)

    async def _running(self, job: Folder, shim: procs.Identity, launch: Mapping[str, Any]) -> None:
        gang, sock = await self._jobs.open_socket(job, launch)
        if not await self._jobs.watch(job, shim, gang, sock):
            return
        running = self._jobs.running[job.key]
        running.frozen = running.listens = found_frozen(running)
        if running.frozen:
            self._post(JobFroze(now_s=boot_s(), job=job.key.job, epoch=job.key.epoch))
        log.info("adopted", job=job.key.job, epoch=job.key.epoch, shim=shim.pid, frozen=running.frozen)

    def _ended(self, job: Folder) -> None:
        ended, state = job.ended(), job.shim_state()
        if ended is None and state is None:
            self._without_trace(job.key)
            return
        self._launcher.socket_path(job.key).unlink(missing_ok=True)
        if ended is None and state is not None and state.shim.boot_id == procs.boot_id():
            self._jobs.end_without_shim(job)
            return
        self._launcher.group(job.key).remove()
        ended = ended or Ended(job.give_up(LOST_WITH_HOST), launch_failed=False)
        self._jobs.post_end(job.key, ended)

    def _without_trace(self, key: Key) -> None:
        launch = self._launches.left_by_the_last(key)
        if launch is not None:  # the last agent was killed between deciding and doing
            self._launches.begin(launch)
        else:
            ended = Exit(why=f"{LOST}: no trace of it was found after the agent's restart")
            self._jobs.post_end(key, Ended(ended, launch_failed=False))

    async def _find_shim(self, job: Folder) -> procs.Identity | None:
        """A shim that has just been started may take a moment to be seen."""
        if job.shim_state() is not None or job.ended() is not None:
            return self._launcher.running_shim(job)
        for _ in range(int(SHIM_START_S / SHIM_LOOK_S)):
            shim = self._launcher.running_shim(job)
            if shim is not None or job.ended() is not None:
                return shim
            await asyncio.sleep(SHIM_LOOK_S)
        return None
