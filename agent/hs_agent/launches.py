"""Starts of jobs: those that were ordered, those under way, and the orders that came for them meanwhile."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable

import structlog

from hs_agent import procs
from hs_agent.accounts import NoAccountError
from hs_agent.faults import OF_STARTS
from hs_agent.folder import Folder, Key
from hs_agent.gangs import Gang
from hs_agent.jobs import Jobs, Order
from hs_agent.jobsock import JobSocket
from hs_agent.launch import Launcher
from hs_agent.leases import Leases
from hs_agent.rendezvous import Rendezvous
from hs_core.errors import RefusedError
from hs_core.events.host import HostEvent, Launch, LaunchFailed
from hs_core.model import Gpu
from hs_daemon import boot_s

LAUNCH_S = 30.0  # that launches which are under way may take where all jobs are to end

log = structlog.get_logger("agent")


class Launches:
    """What is ordered of a job whose start is under way waits until it stands. Everything runs on the event loop."""

    def __init__(
        self,
        launcher: Launcher,
        jobs: Jobs,
        rendezvous: Rendezvous,
        leases: Leases,
        *,
        gpus: Callable[[], Collection[Gpu]],
        post: Callable[[HostEvent], None],
        changed: Callable[[], None],
    ) -> None:
        """`changed`: is called where `unfinished` has become another."""
        self._launcher, self._jobs = launcher, jobs
        self._rendezvous, self._leases = rendezvous, leases
        self._gpus, self._post, self._changed = gpus, post, changed
        self._ordered: dict[Key, Launch] = {}
        self._under_way: set[asyncio.Task[None]] = set()
        self._deferred: dict[Key, list[Order]] = {}  # by those that are under way
        self._stopping = False

    @property
    def unfinished(self) -> Collection[Launch]:
        """For the agent after this one: it finds out what was done of them."""
        return self._ordered.values()

    def take_up(self, launches: Iterable[Launch]) -> None:
        """Those that an agent before this one left unfinished; nothing is done about them yet."""
        self._ordered = {Key(launch.wanted.job, launch.wanted.epoch): launch for launch in launches}

    def left_by_the_last(self, key: Key) -> Launch | None:
        return self._ordered.get(key)

    def drop_what_has_not_begun(self) -> None:
        """Of what was taken up: it has been found out what came of it."""
        self._ordered = {key: launch for key, launch in self._ordered.items() if key in self._deferred}

    def ordered(self, command: Launch) -> None:
        """It will be begun once that is saved."""
        key = Key(command.wanted.job, command.wanted.epoch)
        self._ordered[key] = command
        # What an earlier start left is not this one's. A file system that cannot be written is found out by the launch.
        with contextlib.suppress(OSError):
            self._launcher.folder(key).clear_for_start()

    def begin(self, command: Launch) -> None:
        if self._stopping:
            return
        key = Key(command.wanted.job, command.wanted.epoch)
        self._deferred[key] = []
        task = self._jobs.spawn(self.launch(key, command))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def order(self, command: Order) -> None:
        key = Key(command.job, command.epoch)
        if key in self._deferred:
            self._deferred[key].append(command)
        else:
            self._jobs.order(command)

    def stop(self) -> None:
        """None is begun any more."""
        self._stopping = True

    async def settle(self) -> None:
        """Until those that are under way stand or have failed, or it takes too long."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=LAUNCH_S)

    async def launch(self, key: Key, command: Launch) -> None:
        try:
            runs = await self._start(key, command)
        except (RefusedError, OSError) as error:
            why = (
                str(error)
                if isinstance(error, RefusedError)
                else f"{error.strerror}: {error.filename or ''}".rstrip(": ")
            )
            log.warning("launch failed", job=key.job, epoch=key.epoch, why=why)
            of_the_host = isinstance(error, NoAccountError) or (
                isinstance(error, OSError) and error.errno in OF_STARTS
            )
            self._failed(key, why, host_fault=of_the_host)
        except Exception as error:
            log.exception("launch broke", job=key.job, epoch=key.epoch)
            self._failed(key, f"{type(error).__name__}: {error}")
        else:
            if runs:
                self._finished(key)

    def _failed(self, key: Key, why: str, *, host_fault: bool = False) -> None:
        self._finished(key)
        failed = LaunchFailed(now_s=boot_s(), job=key.job, epoch=key.epoch, why=why, host_fault=host_fault)
        self._post(failed)

    def _finished(self, key: Key) -> None:
        self._ordered.pop(key, None)
        self._changed()
        for command in self._deferred.pop(key, []):
            self._jobs.order(command)

    async def _start(self, key: Key, command: Launch) -> bool:
        """False: this agent stops, and it is one that was being launched, to the agent after it."""
        bound = tuple(gpu for gpu in self._gpus() if gpu.id in command.gpus)
        # Accounts may come from a directory service that takes its time.
        job_folder, who = await asyncio.to_thread(
            self._launcher.prepare, command.wanted, bound, command.generation
        )
        if self._stopping:
            return False
        gang, sock = await self._open_socket(job_folder)
        self._rendezvous.release(key)
        self._leases.write(key)
        try:
            pid = await self._start_shim(job_folder, gang, sock)
        except BaseException:
            await sock.close()
            await gang.close()
            raise
        log.info("launched", job=key.job, epoch=key.epoch, run_as=who.name, gpus=list(command.gpus), shim=pid)
        return True

    async def _open_socket(self, job_folder: Folder) -> tuple[Gang, JobSocket]:
        launch = job_folder.launch()
        assert launch is not None, f"{job_folder.path}/launch.json is gone"
        return await self._jobs.open_socket(job_folder, launch)

    async def _start_shim(self, job_folder: Folder, gang: Gang, sock: JobSocket) -> int:
        new = self._launcher.start(job_folder)
        try:
            shim = procs.identity(new.pid)
            assert shim is not None, f"shim {new.pid} vanished before it was waited for"
            await self._jobs.watch(job_folder, shim, gang, sock)
        except BaseException:
            new.call_off()
            raise
        new.begin()
        return new.pid
