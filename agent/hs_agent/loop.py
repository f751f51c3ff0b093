"""The agent: one loop that turns what happens on the host into events of its HostMachine and performs what that orders."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_never

import structlog

import hs_job
from hs_agent import cgroup, folder, host_memory, logs, memory, procs
from hs_agent.config import Config, DeviceKind
from hs_agent.devices import DeviceEvent, Devices, Reading, mixed_models
from hs_agent.faults import OF_STARTS
from hs_agent.folder import Ended, Folder, Key
from hs_agent.gangs import Gang
from hs_agent.jobs import LOST_WITH_HOST, Jobs, found_frozen
from hs_agent.jobsock import JobSocket
from hs_agent.launch import Launcher
from hs_agent.leases import Leases
from hs_agent.peers import Grants, PeerDialer, PeerDoor
from hs_agent.rendezvous import Rendezvous
from hs_agent.secure import Secure
from hs_agent.transfer import Fetches, Sender
from hs_core.errors import RefusedError
from hs_core.events import (
    Checkpoint,
    ControllerHeard,
    Fetch,
    Forget,
    GpusSeen,
    HostCommand,
    HostEvent,
    HostMemorySeen,
    JobFroze,
    Kill,
    Launch,
    LaunchFailed,
    RendezvousReserved,
    Reserve,
    Resume,
    Suspend,
    WakeHost,
    WantedChanged,
    Woke,
)
from hs_core.host import HostConfig, HostMachine
from hs_core.model import Gpu
from hs_core.names import GpuId, JobId
from hs_core.reports import CANNOT_START, LOST, Exit, JobReport, Phase
from hs_core.wanted import Wanted
from hs_daemon import boot_s, notify

SAVE_EVERY_S = 1.0
LAUNCH_S = 30.0  # that launches which are under way may take where all jobs are to end
MOST_TROUBLES = 4
MEMORY_LOOK_S = 1.0  # between two looks at the host's memory …
MEMORY_LOOK_PART = (
    50  # … or so many times as long as one takes: on a host of thousands of processes they cost little
)
SHIM_START_S, SHIM_LOOK_S = 1.0, 0.05
HOLDS_MEMORY = frozenset(
    {Phase.STARTING, Phase.HELD, Phase.FROZEN, Phase.RUNNING, Phase.SUSPENDING, Phase.KILLING}
)

log = structlog.get_logger("agent")


def has_process(report: JobReport) -> bool:
    """Also one that has written its checkpoint, until its exit was heard of."""
    return bool(report.gpus)


class Agent:
    """Bodies for the commands of one HostMachine. Everything but `close` runs on the event loop."""

    def __init__(
        self, config: Config, devices: Devices, groups: cgroup.Cgroups, identity: Secure | None = None
    ) -> None:
        self.config, self.devices = config, devices
        self.launcher = Launcher(config, groups)
        self.memory = memory.Memory(config.state_dir)
        self.gpus = config.described(devices.gpus())
        self.readings: tuple[Reading, ...] = devices.readings()
        self.left_bytes: int | None = None  # of the host's memory
        self.warnings = (*groups.warnings, *devices.warnings, *mixed_models(self.gpus))
        dial = PeerDialer(config, identity)
        self.jobs = Jobs(config, self.launcher, self.post, self._step_of, dial)
        self.grants = Grants()
        self.door = PeerDoor(config, self.grants, Sender(self.launcher), self.jobs.head, identity)
        self.fetches = Fetches(self.launcher, dial, self.post)
        self.rendezvous = Rendezvous(config.rendezvous_ports)
        self.leases = Leases(self.launcher)
        self.machine: HostMachine | None = None
        self.stopping = False
        self.broken = asyncio.Event()
        self._events: deque[HostEvent] = deque()
        self._handling = False
        self._launching: dict[Key, Launch] = {}
        self._under_way: set[asyncio.Task[None]] = set()  # of these, those that this agent is at
        self._deferred: dict[Key, list[Suspend | Resume | Checkpoint | Kill]] = {}
        self._wanted: frozenset[JobId] = frozenset()
        self._declared_bytes: dict[JobId, int] = {}
        self._term = -1
        self._wake: asyncio.TimerHandle | None = None
        self._unsaved = False
        self._cannot_save = ""  # why not, just now
        self._removing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._ended_thread = threading.Event()

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take up what the last agent left, then go."""
        hs_job.install(str(self.launcher.inject))
        await self.door.start()
        settings = HostConfig(
            preload=self.config.preload,
            host_memory_budget_bytes=self.config.host_memory_budget_bytes,
            host_memory_reserve_bytes=self.config.host_memory_reserve_bytes,
            kill_grace_s=self.config.kill_grace_s,
        )
        found = self.memory.load()
        self._term = int(found.machine["term"]) if found.machine else -1
        self.machine = HostMachine(
            self.gpus, settings, now_s=boot_s(), saved=found.machine, rebooted=found.rebooted
        )
        await self._adopt(found.launching)
        await asyncio.to_thread(self.launcher.sweep_groups)
        self.post(Woke(now_s=boot_s()))
        self._tasks = [
            asyncio.create_task(self._tick()),
            asyncio.create_task(self._watchdog()),
            asyncio.create_task(self._watch_memory()),
        ]
        if self.config.devices is DeviceKind.NVML:
            loop = asyncio.get_running_loop()
            threading.Thread(
                target=self._watch_devices, args=(loop,), name="device-events", daemon=True
            ).start()
        log.info(
            "agent runs",
            host=self.config.name,
            devices=self.devices.description,
            adopted=len(self.jobs.running),
        )

    async def stop(self) -> None:
        """Jobs are left as they are, for the agent after us, unless it was asked to end them."""
        self.stopping = True
        if self.config.end_jobs_on_stop:
            if self._under_way:  # what comes of these is to end, too
                await asyncio.wait(self._under_way, timeout=LAUNCH_S)
            await self.jobs.end_all(self.config.kill_grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._wake is not None:
            self._wake.cancel()
        self._ended_thread.set()
        await self.fetches.close()
        await self.door.stop()
        await self.jobs.close()
        self.rendezvous.close()
        if self.machine is not None and not self.broken.is_set():
            self._save()

    # --- the machine ------------------------------------------------------------------------------------------------

    def post(self, event: HostEvent) -> None:
        """Events are handled one after the other, also those that performing a command brings about."""
        self._events.append(event)
        if self._handling or self.machine is None:
            return
        self._handling = True
        try:
            while self._events and not self.broken.is_set():
                self._handle(self._events.popleft())
        except Exception:
            # The mind is not to be trusted any more: stop, start again from what was saved. Jobs do not notice.
            log.exception("the agent is broken and stops; jobs go on")
            self.broken.set()
        finally:
            self._handling = False

    def _handle(self, event: HostEvent) -> None:
        assert self.machine is not None
        outcome = self.machine.handle(event)
        for fact in outcome.facts:
            log.info(fact.kind, job=fact.job, text=fact.text, **fact.data)
        for command in outcome.commands:
            if isinstance(command, Launch):
                key = Key(command.wanted.job, command.wanted.epoch)
                self._launching[key] = command
                # What an earlier start left is not this one's. A file system that cannot be written is found out by the launch.
                with contextlib.suppress(OSError):
                    self.launcher.folder(key).clear_for_start()
        ordered = any(not isinstance(command, WakeHost) for command in outcome.commands)
        if ordered or outcome.changed:
            self._unsaved = True
        # Remembered before it is done: after a kill between the two, adoption finds out what was done of it. And before the controller
        # is told of a checkpoint: it counts on it, though the job may end while nobody is here to see.
        if ordered or outcome.checkpointed:
            self._save()
        for command in outcome.commands:
            self._perform(command)

    def _perform(self, command: HostCommand) -> None:
        match command:
            case WakeHost():
                self._wake_at(command.at_s)
            case Launch():
                self._launch(command)
            case Forget():
                self._forget(Key(command.job, command.epoch))
            case Suspend() | Resume() | Checkpoint() | Kill():
                key = Key(command.job, command.epoch)
                if key in self._deferred:
                    self._deferred[key].append(command)
                else:
                    self._order(command)
            case Fetch():
                self.fetches.start(command)
            case Reserve():
                self._reserve(Key(command.job, command.epoch))
            case _:
                assert_never(command)

    def _reserve(self, key: Key) -> None:
        try:
            address = self.rendezvous.reserve(key, self.peer_address)
        except RefusedError as error:
            self.post(LaunchFailed(now_s=boot_s(), job=key.job, epoch=key.epoch, why=str(error)))
            return
        self.post(RendezvousReserved(now_s=boot_s(), job=key.job, epoch=key.epoch, address=address))

    def _order(self, command: Suspend | Resume | Checkpoint | Kill) -> None:
        match command:
            case Suspend():
                self.jobs.suspend(command)
            case Resume():
                self.jobs.resume(command)
            case Checkpoint():
                self.jobs.checkpoint(command)
            case Kill():
                self.jobs.kill(command)
            case _:
                assert_never(command)

    def _wake_at(self, at_s: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = asyncio.get_running_loop().call_later(max(at_s - boot_s(), 0.0), self._woke)

    def _woke(self) -> None:
        self.post(Woke(now_s=boot_s()))

    def _save(self) -> None:
        assert self.machine is not None
        try:
            self.memory.save(self.machine.saved(), self._launching.values(), boot_s())
            self._unsaved, self._cannot_save = False, ""
        except OSError as error:
            # A full disk: jobs go on; what is lost is what a killed agent would want to know.
            self._unsaved, self._cannot_save = True, error.strerror or str(error)
            log.error("host.json cannot be written", why=error.strerror)

    def _step_of(self, key: Key) -> int:
        """As far as the machine knows; 0: it does not know the job (any more)."""
        return next((report.step for report in self.reports() if (report.job, report.epoch) == key), 0)

    def reports(self) -> tuple[JobReport, ...]:
        assert self.machine is not None
        return tuple(self.machine.reports())

    @property
    def troubles(self) -> tuple[str, ...]:
        """Of this host, for people: what an administrator has to do something about before jobs can go on as they should."""
        told = [f"job {one.job} {one.note}" for one in self.reports() if one.note.startswith(CANNOT_START)]
        if self._cannot_save:
            told.append(
                f"what the agent knows cannot be written: {self._cannot_save} (state_dir {self.config.state_dir})"
            )
        return tuple(told[:MOST_TROUBLES])

    def heard(self) -> tuple[int, int]:
        assert self.machine is not None
        return self.machine.heard

    # --- launching and forgetting -----------------------------------------------------------------------------------

    def _launch(self, command: Launch) -> None:
        key = Key(command.wanted.job, command.wanted.epoch)
        if self.stopping:
            return
        self._deferred[key] = []
        task = self.jobs.spawn(self._launch_job(key, command))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _launch_job(self, key: Key, command: Launch) -> None:
        try:
            runs = await self._start(key, command)
        except (RefusedError, OSError) as error:
            why = (
                str(error)
                if isinstance(error, RefusedError)
                else f"{error.strerror}: {error.filename or ''}".rstrip(": ")
            )
            log.warning("launch failed", job=key.job, epoch=key.epoch, why=why)
            of_the_host = isinstance(error, OSError) and error.errno in OF_STARTS
            self._launch_failed(key, why, host_fault=of_the_host)
        except Exception as error:
            log.exception("launch broke", job=key.job, epoch=key.epoch)
            self._launch_failed(key, f"{type(error).__name__}: {error}")
        else:
            if runs:
                self._launched(key)

    def _launch_failed(self, key: Key, why: str, *, host_fault: bool = False) -> None:
        self._launched(key)
        failed = LaunchFailed(now_s=boot_s(), job=key.job, epoch=key.epoch, why=why, host_fault=host_fault)
        self.post(failed)

    async def _start(self, key: Key, command: Launch) -> bool:
        """False: this agent stops, and it is one that was being launched, to the agent after it."""
        bound = tuple(gpu for gpu in self.gpus if gpu.id in command.gpus)
        # Accounts may come from a directory service that takes its time.
        job_folder, who = await asyncio.to_thread(
            self.launcher.prepare, command.wanted, bound, command.generation
        )
        if self.stopping:
            return False
        gang, sock = await self._open_socket(job_folder)
        self.rendezvous.release(key)
        self.leases.write(key)
        try:
            pid = await self._start_shim(job_folder, gang, sock)
        except BaseException:
            await sock.close()
            await gang.close()
            raise
        log.info("launched", job=key.job, epoch=key.epoch, run_as=who.name, gpus=list(command.gpus), shim=pid)
        return True

    async def _start_shim(self, job_folder: Folder, gang: Gang, sock: JobSocket) -> int:
        new = self.launcher.start(job_folder)
        try:
            shim = procs.identity(new.pid)
            assert shim is not None, f"shim {new.pid} vanished before it was waited for"
            await self.jobs.watch(job_folder, shim, gang, sock)
        except BaseException:
            new.call_off()
            raise
        new.begin()
        return new.pid

    async def _open_socket(self, job_folder: Folder) -> tuple[Gang, JobSocket]:
        launch = job_folder.launch()
        assert launch is not None, f"{job_folder.path}/launch.json is gone"
        return await self.jobs.open_socket(job_folder, launch)

    def _launched(self, key: Key) -> None:
        self._launching.pop(key, None)
        self._unsaved = True
        for command in self._deferred.pop(key, []):
            self._order(command)

    def _forget(self, key: Key) -> None:
        self.rendezvous.forget(key)

        async def forget() -> None:
            await asyncio.to_thread(self.launcher.forget, key)
            await asyncio.to_thread(folder.prune, self.launcher.ended, self.config.keep_logs)
            self._forget_checkpoints()

        self.jobs.spawn(forget())

    def _forget_checkpoints(self) -> None:
        """Of jobs that are neither wanted nor here, and that are not lent."""
        if self._term < 0:
            return  # no controller has said yet what is wanted
        here = {report.job for report in self.reports()} | {key.job for key in self.jobs.running}
        self.launcher.forget_checkpoints(self._wanted | self.grants.lends() | here)
        self.jobs.spawn(self._remove_forgotten())

    async def _remove_forgotten(self) -> None:
        """One at a time: large ones are not to take the threads that launches need."""
        async with self._removing:
            await asyncio.to_thread(self.launcher.remove_forgotten)

    def term(self) -> int:
        """Of the newest controller that was obeyed."""
        return self._term

    def wanted(self, wanted: Wanted, late_s: float) -> None:
        """`late_s`: since it was said, beyond the usual."""
        lent = self.grants.lends()
        self._term = max(self._term, wanted.term)
        if self.grants.newest > (wanted.term, wanted.seq):
            return  # said before what is known already
        self.grants.take(wanted)
        self._wanted = frozenset(job.job for job in wanted.jobs)
        self._declared_bytes = {job.job: job.spec.gpu_memory_bytes for job in wanted.jobs}
        self.fetches.wanted(wanted.jobs)
        for job in wanted.jobs:
            self.jobs.meet(Key(job.job, job.epoch), job.nodes)
        now_s = boot_s()
        self.leases.wanted(wanted, now_s - late_s, now_s)
        self.post(WantedChanged(now_s=now_s, wanted=wanted, late_s=late_s))
        if lent - self.grants.lends():
            self._forget_checkpoints()

    def heard_controller(self, late_s: float) -> None:
        """What lay unread while this agent was stopped says nothing of the controller now."""
        now_s = boot_s()
        self.leases.heard(now_s - late_s, now_s)
        self.post(ControllerHeard(now_s=now_s, late_s=late_s))

    # --- adoption ---------------------------------------------------------------------------------------------------

    async def _adopt(self, launching: tuple[Launch, ...]) -> None:
        """What the machine remembers against what there is. It hears of all of it together, at the end: what it orders before is lost."""
        self._launching = {Key(launch.wanted.job, launch.wanted.epoch): launch for launch in launching}
        self._handling = True
        try:
            await self._look_at_memory()
            known = {Key(report.job, report.epoch): report for report in self.reports()}
            for path in sorted(self.launcher.jobs.iterdir()):
                key = folder.parse_key(path.name)
                if key is not None:
                    await self._adopt_one(Folder(path, key), known.get(key))
            for key, report in known.items():
                if has_process(report) and not self.launcher.folder(key).path.exists():
                    self._without_trace(key)
            self._launching = {
                key: launch for key, launch in self._launching.items() if key in self._deferred
            }
        finally:
            self._handling = False

    async def _adopt_one(self, job: Folder, report: JobReport | None) -> None:
        shim = await self._find_shim(job)
        launch = job.launch()
        if shim is not None and (report is None or launch is None):
            await self.jobs.end_unknown(job, shim)
        elif shim is not None and launch is not None:
            await self._adopt_running(job, shim, launch)
        elif report is None:
            await asyncio.to_thread(self.launcher.forget, job.key)
        elif has_process(report):
            self._adopt_ended(job)

    async def _adopt_running(self, job: Folder, shim: procs.Identity, launch: Mapping[str, Any]) -> None:
        gang, sock = await self.jobs.open_socket(job, launch)
        if not await self.jobs.watch(job, shim, gang, sock):
            return
        running = self.jobs.running[job.key]
        running.frozen = found_frozen(running)
        if running.frozen:
            self.post(JobFroze(now_s=boot_s(), job=job.key.job, epoch=job.key.epoch))
        log.info("adopted", job=job.key.job, epoch=job.key.epoch, shim=shim.pid, frozen=running.frozen)

    def _adopt_ended(self, job: Folder) -> None:
        ended, state = job.ended(), job.shim_state()
        if ended is None and state is None:
            self._without_trace(job.key)
            return
        self.launcher.socket_path(job.key).unlink(missing_ok=True)
        if ended is None and state is not None and state.shim.boot_id == procs.boot_id():
            self.jobs.end_without_shim(job)
            return
        self.launcher.group(job.key).remove()
        ended = ended or Ended(job.give_up(LOST_WITH_HOST), launch_failed=False)
        self.jobs.post_end(job.key, ended)

    def _without_trace(self, key: Key) -> None:
        launch = self._launching.get(key)
        if launch is not None:  # the last agent was killed between deciding and doing
            self._launch(launch)
        else:
            ended = Exit(why=f"{LOST}: no trace of it was found after the agent's restart")
            self.jobs.post_end(key, Ended(ended, launch_failed=False))

    async def _find_shim(self, job: Folder) -> procs.Identity | None:
        """A shim that has just been started may take a moment to be seen."""
        if job.shim_state() is not None or job.ended() is not None:
            return self.launcher.running_shim(job)
        for _ in range(int(SHIM_START_S / SHIM_LOOK_S)):
            shim = self.launcher.running_shim(job)
            if shim is not None or job.ended() is not None:
                return shim
            await asyncio.sleep(SHIM_LOOK_S)
        return None

    # --- devices ----------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        every_s = max(self.config.report_interval_s, SAVE_EVERY_S)
        while True:
            await asyncio.sleep(every_s)
            try:
                await self._look_at_devices()
                if self._unsaved:
                    self._save()
            except Exception:
                log.exception("looking at the devices failed")

    async def _look_at_devices(self) -> None:
        used, busy = self.memory_use()
        self.devices.account(used, busy)
        if self.config.devices is DeviceKind.EMULATED:
            gpus, self.readings = self.devices.gpus(), self.devices.readings()
        else:
            gpus, self.readings = await asyncio.to_thread(
                lambda: (self.devices.gpus(), self.devices.readings())
            )
        self._saw(gpus)

    def memory_use(self) -> tuple[dict[GpuId, int], set[GpuId]]:
        """Device memory as jobs declare or report it, and which GPUs are in somebody's turn."""
        used: dict[GpuId, int] = {}
        busy: set[GpuId] = set()
        for report in self.reports():
            for gpu in report.gpus:
                if report.phase in HOLDS_MEMORY:
                    held = max(report.device_memory_bytes, self._declared_bytes.get(report.job, 0))
                    used[gpu] = used.get(gpu, 0) + held
                if report.phase is Phase.RUNNING:
                    busy.add(gpu)
        return used, busy

    def _saw(self, gpus: tuple[Gpu, ...]) -> None:
        gpus = self.config.described(gpus)
        if gpus == self.gpus:
            return
        for before, now in zip(self.gpus, gpus, strict=True):
            if now.healthy != before.healthy:
                log.warning(
                    "health of a GPU", gpu=now.id, index=now.index, healthy=now.healthy, why=now.why_unhealthy
                )
        self.gpus = gpus
        self.post(GpusSeen(now_s=boot_s(), gpus=gpus))

    def _watch_devices(self, loop: asyncio.AbstractEventLoop) -> None:
        """A thread: the driver's event wait blocks."""
        while not self._ended_thread.is_set():
            for event in self.devices.events(1.0):
                gpus = self.devices.gpus()
                with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                    loop.call_soon_threadsafe(self._device_event, event, gpus)

    def _device_event(self, event: DeviceEvent, gpus: tuple[Gpu, ...]) -> None:
        on_it = [report.job for report in self.reports() if event.gpu in report.gpus]
        blame = "the device" if event.hardware else "a program on it"
        log.warning("XID", gpu=event.gpu, xid=event.xid, jobs=on_it, blame=blame)
        self._saw(gpus)

    # --- memory -----------------------------------------------------------------------------------------------------

    async def _watch_memory(self) -> None:
        while True:
            began_s = boot_s()
            try:
                await self._look_at_memory()
            except Exception:
                log.exception("looking at the host's memory failed")
            await asyncio.sleep(max(MEMORY_LOOK_S, MEMORY_LOOK_PART * (boot_s() - began_s)))

    async def _look_at_memory(self) -> None:
        running = [(key.job, job.shim.pid, job.group) for key, job in self.jobs.running.items()]
        self.left_bytes, held = await asyncio.to_thread(host_memory.look, running)
        if self.left_bytes is not None:
            self.post(HostMemorySeen(now_s=boot_s(), available_bytes=self.left_bytes, held_bytes=held))

    # --- for systemd and the link -----------------------------------------------------------------------------------

    async def _watchdog(self) -> None:
        every_s = notify.watchdog_s()
        while every_s is not None:
            notify.notify("WATCHDOG=1")
            await asyncio.sleep(every_s / 2)

    @property
    def peer_address(self) -> str:
        return self.door.address

    def log_folder(self, job: JobId, epoch: int | None = None) -> Path | None:
        """Of that incarnation, or the newest."""
        found = logs.found(job, self.launcher.jobs, self.launcher.ended)
        return found.get(max(found, default=0) if epoch is None else epoch)

    def logs_of(self, job: JobId) -> list[int]:
        """Incarnations."""
        return sorted(logs.found(job, self.launcher.jobs, self.launcher.ended))

    def is_running(self, job: JobId, epoch: int | None = None) -> bool:
        """It (or that incarnation) has not ended on this host: more output may come, even where it has not been launched yet."""
        return any(
            report.job == job and epoch in {None, report.epoch} and report.phase is not Phase.EXITED
            for report in self.reports()
        )
