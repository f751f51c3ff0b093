"""What there is on the host, looked at again and again: its GPUs, and its memory."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import structlog

from hs_agent import host_memory
from hs_agent.cgroup import JobCgroup
from hs_agent.config import Config, DeviceKind
from hs_agent.device_memory import Owners, Running, most
from hs_agent.devices import DeviceEvent, Devices, Reading
from hs_agent.folder import Key
from hs_agent.jobs import Jobs
from hs_agent.now_and_then import NowAndThen, reason
from hs_agent.strangers import Strangers, counts_as_the_driver
from hs_agent.trespassers import Trespassers
from hs_core.events.host import DeviceMemorySeen, GpusSeen, HostEvent, HostMemorySeen, JobTrespassed
from hs_core.model import Gpu
from hs_core.names import GpuId, JobId
from hs_core.reports import UNDYING, JobReport, Phase
from hs_core.wanted import WantedJob
from hs_daemon import boot_s

MEMORY_LOOK_S = 1.0  # between two looks at the host's memory …
MEMORY_LOOK_PART = (
    50  # … or so many times as long as one takes: on a host of thousands of processes they cost little
)
NO_GROUP = JobCgroup(v2=None, v1={})  # of its own: where its job has one, it is in that
HOLDS_MEMORY = frozenset(
    {Phase.STARTING, Phase.HELD, Phase.FROZEN, Phase.RUNNING, Phase.SUSPENDING, Phase.KILLING}
)

log = structlog.get_logger("agent")


@dataclass(frozen=True, slots=True)
class _Look:
    """What the driver says at one time."""

    gpus: tuple[Gpu, ...]
    readings: tuple[Reading, ...]
    taken: Mapping[GpuId, str]  # GPUs that strangers have
    on: Mapping[tuple[Key, GpuId], int]  # bytes that jobs which run hold


class Watch:
    """Tells the machine, through `post`, what is another than before."""

    def __init__(
        self,
        config: Config,
        devices: Devices,
        jobs: Jobs,
        *,
        errands: Callable[[], Iterable[tuple[Key, int]]],
        reports: Callable[[], Iterable[JobReport]],
        post: Callable[[HostEvent], None],
    ) -> None:
        """`errands`: commands beside jobs, each with the process that keeps it."""
        self._config, self._devices, self._jobs = config, devices, jobs
        self._errands, self._reports, self._post = errands, reports, post
        self.gpus: tuple[Gpu, ...] = config.described(devices.gpus())
        self.readings: tuple[Reading, ...] = devices.readings()
        self.left_bytes: int | None = None  # of the host's memory
        self._strangers = Strangers(config.mps_pipe_dir)
        self._owners = Owners()
        self._trespassers = Trespassers()
        self._taken: dict[GpuId, str] = {}  # GPUs that nobody can have just now, and why
        self._declared_bytes: dict[JobId, int] = {}
        self._ended = threading.Event()

    def listen(self) -> None:
        """To what the driver says by itself, until `close`."""
        if self._config.devices is DeviceKind.NVML:
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._listen, args=(loop,), name="device-events", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def wanted(self, jobs: Iterable[WantedJob]) -> None:
        """Those that the controller wants here, with the memory that they declare."""
        self._declared_bytes = {job.job: job.spec.gpu_memory_bytes for job in jobs}

    # --- devices ----------------------------------------------------------------------------------------------------

    async def look_at_devices(self) -> None:
        used, busy = self._memory_use()
        self._devices.account(used, busy)
        undying = {
            gpu: f"job {report.job} on it {UNDYING}"
            for report in self._reports()
            if report.phase is Phase.KILLING and report.note.startswith(UNDYING)
            for gpu in report.gpus
        }
        stood, bound = self._phases(), self._bound()
        running = [(key, job.shim.pid, job.group) for key, job in self._jobs.running.items()]
        running += [(key, keeper, NO_GROUP) for key, keeper in self._errands()]
        if self._config.devices is DeviceKind.EMULATED:
            look = self._look(running, used.keys())
        else:
            look = await asyncio.to_thread(self._look, running, used.keys())
        self.readings, self._taken = look.readings, {**look.taken, **undying}
        self._saw(look.gpus)
        still = stood.items() & self._phases().items()
        told = {key.job: size for key, size in most(look.on).items() if (key, stood.get(key)) in still}
        if told:
            self._post(DeviceMemorySeen(now_s=boot_s(), held_bytes=told))
        same = dict(bound.items() & self._bound().items())
        for key, gpu in self._trespassers.look(look.on, same, boot_s()):
            log.warning("a job computes on a GPU that is not its own", job=key.job, epoch=key.epoch, gpu=gpu)
            self._post(JobTrespassed(now_s=boot_s(), job=key.job, epoch=key.epoch, gpu=gpu))

    def _look(self, running: Running, holders: Collection[GpuId]) -> _Look:
        processes = self._devices.processes()
        gpus, readings = self._devices.gpus(), self._devices.readings()
        return _Look(
            gpus=gpus,
            readings=readings,
            taken=self._strangers.look(
                gpus, processes, readings, running=running, holders=holders, now_s=boot_s()
            ),
            on=self._owners.on(processes, running) if counts_as_the_driver() else {},
        )

    def _phases(self) -> dict[Key, Phase]:
        return {Key(report.job, report.epoch): report.phase for report in self._reports()}

    def _bound(self) -> dict[Key, tuple[GpuId, ...]]:
        return {Key(report.job, report.epoch): report.gpus for report in self._reports() if report.gpus}

    def _memory_use(self) -> tuple[dict[GpuId, int], set[GpuId]]:
        """Device memory as jobs declare or report it, and which GPUs are in somebody's turn."""
        used: dict[GpuId, int] = {}
        busy: set[GpuId] = set()
        for report in self._reports():
            for gpu in report.gpus:
                if report.phase in HOLDS_MEMORY:
                    held = max(report.device_memory_bytes, self._declared_bytes.get(report.job, 0))
                    used[gpu] = used.get(gpu, 0) + held
                if report.phase is Phase.RUNNING:
                    busy.add(gpu)
        return used, busy

    def _saw(self, gpus: tuple[Gpu, ...]) -> None:
        gpus = self._config.described(
            tuple(
                replace(gpu, healthy=False, why_unhealthy=self._taken[gpu.id])
                if gpu.healthy and gpu.id in self._taken
                else gpu
                for gpu in gpus
            )
        )
        if gpus == self.gpus:
            return
        for before, now in zip(self.gpus, gpus, strict=True):
            if now.healthy != before.healthy:
                log.warning(
                    "health of a GPU", gpu=now.id, index=now.index, healthy=now.healthy, why=now.why_unhealthy
                )
        self.gpus = gpus
        self._post(GpusSeen(now_s=boot_s(), gpus=gpus))

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """A thread: the driver's event wait blocks."""
        while not self._ended.is_set():
            for event in self._devices.events(1.0):
                gpus = self._devices.gpus()
                with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                    loop.call_soon_threadsafe(self._happened, event, gpus)

    def _happened(self, event: DeviceEvent, gpus: tuple[Gpu, ...]) -> None:
        on_it = [report.job for report in self._reports() if event.gpu in report.gpus]
        blame = "the device" if event.hardware else "a program on it"
        log.warning("XID", gpu=event.gpu, xid=event.xid, jobs=on_it, blame=blame)
        self._saw(gpus)

    # --- memory -----------------------------------------------------------------------------------------------------

    async def watch_memory(self) -> None:
        """Until cancelled."""
        looks = NowAndThen()
        while True:
            began_s = boot_s()
            try:
                await self.look_at_memory()
                looks.worked()
            except Exception as error:
                if looks.is_due(reason(error), boot_s()):
                    log.exception("looking at the host's memory failed")
            await asyncio.sleep(max(MEMORY_LOOK_S, MEMORY_LOOK_PART * (boot_s() - began_s)))

    async def look_at_memory(self) -> None:
        running = [(key.job, job.shim.pid, job.group) for key, job in self._jobs.running.items()]
        self.left_bytes, held = await asyncio.to_thread(host_memory.look, running, self._config.cgroup_root)
        if self.left_bytes is not None:
            self._post(HostMemorySeen(now_s=boot_s(), available_bytes=self.left_bytes, held_bytes=held))
