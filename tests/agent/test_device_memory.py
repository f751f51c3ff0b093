"""What jobs hold on GPUs as the driver counts it, on real processes."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hs_agent import device_memory, procs, watch
from hs_agent.cgroup import JobCgroup
from hs_agent.device_memory import Owners, most
from hs_agent.devices import GpuProcess, open_devices
from hs_agent.folder import Key
from hs_core.events.host import DeviceMemorySeen, HostEvent
from hs_core.names import GpuId, JobId
from hs_core.reports import JobReport, Phase
from tests.agent.conftest import NO_CGROUP

GIB = 1 << 30
FIRST, SECOND = GpuId("g0"), GpuId("g1")
SEVEN, EIGHT = Key(JobId(7), 1), Key(JobId(8), 3)
SLEEPS = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input()"
Start = Callable[[], tuple[int, int]]


@pytest.fixture
def shim() -> Iterator[Start]:
    """A process with one below it: their pids."""
    made: list[tuple[subprocess.Popen[str], int]] = []

    def begin() -> tuple[int, int]:
        process = subprocess.Popen(
            [sys.executable, "-c", SLEEPS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        made.append((process, int(process.stdout.readline())))
        return process.pid, made[-1][1]

    yield begin
    for process, below in made:
        subprocess.run(["kill", "-9", str(below)], check=False, stderr=subprocess.DEVNULL)
        process.kill()
        process.communicate()


def on(gpu: GpuId, pid: int, gib: float) -> GpuProcess:
    return GpuProcess(gpu=gpu, pid=pid, memory_bytes=int(gib * GIB))


def group(*pids: int) -> JobCgroup:
    return SimpleNamespace(procs=lambda: set(pids))  # type: ignore[return-value]


def test_a_job_holds_what_all_of_its_processes_hold_on_the_gpu_where_that_is_most(shim: Start) -> None:
    (one, below), (other, apart) = shim(), shim()
    running = [(SEVEN, one, NO_CGROUP), (EIGHT, other, group(other))]
    processes = [
        on(FIRST, one, 1),
        on(FIRST, below, 3),
        on(SECOND, below, 2),
        on(SECOND, apart, 5),
        on(FIRST, 1, 9),
    ]
    assert most(Owners().on(processes, running)) == {SEVEN: 4 * GIB, EIGHT: 5 * GIB}


def test_who_has_left_its_shim_is_known_by_the_jobs_control_group(shim: Start) -> None:
    (one, _), (elsewhere, _) = shim(), shim()
    running = [(SEVEN, one, group(elsewhere))]
    assert most(Owners().on([on(FIRST, elsewhere, 2)], running)) == {SEVEN: 2 * GIB}


def test_processes_of_nobody_and_those_of_which_the_driver_says_nothing_are_left_out(shim: Start) -> None:
    one, below = shim()
    assert most(Owners().on([on(FIRST, one, 2)], [])) == {}
    assert most(Owners().on([on(FIRST, below, 0)], [(SEVEN, one, NO_CGROUP)])) == {}


def test_all_processes_of_the_host_are_looked_at_only_where_one_is_not_known(
    shim: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, below = shim()
    owners, looks = Owners(), list[object]()
    trees = device_memory.trees
    monkeypatch.setattr(device_memory, "trees", lambda roots: looks.append(roots) or trees(roots))
    for gib in (1, 2, 3):
        assert most(owners.on([on(FIRST, one, gib)], [(SEVEN, one, NO_CGROUP)])) == {SEVEN: gib * GIB}
    assert len(looks) == 1
    owners.on([on(FIRST, one, 1), on(FIRST, below, 1)], [(SEVEN, one, NO_CGROUP)])
    assert len(looks) == 2


def test_a_number_that_another_process_has_since_is_looked_up_anew(
    shim: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = shim()
    owners = Owners()
    assert most(owners.on([on(FIRST, one, 1)], [])) == {}, "it is about to be listed"
    assert most(owners.on([on(FIRST, one, 1)], [(SEVEN, one, NO_CGROUP)])) == {SEVEN: GIB}
    real = procs.stat(one)
    assert real is not None
    monkeypatch.setattr(procs, "stat", lambda _: replace(real, start=real.start + 1))
    assert most(owners.on([on(FIRST, one, 1)], [])) == {}


class Driver:
    """Devices on which processes are as a test says."""

    def __init__(self, devices: Any, processes: list[GpuProcess]) -> None:
        self._devices, self._processes = devices, processes
        self.asked = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._devices, name)

    def processes(self) -> list[GpuProcess]:
        self.asked()
        return self._processes


@pytest.mark.parametrize(("moves", "told"), [(False, {JobId(7): 2 * GIB}), (True, {})])
def test_what_a_job_held_while_it_was_on_its_way_is_not_told(
    settings, shim: Start, monkeypatch: pytest.MonkeyPatch, moves: bool, told: dict[JobId, int]
) -> None:
    """Swapped when the machine hears of it, it would be taken to leave behind what it had."""
    config = settings()
    one, _ = shim()
    devices = Driver(open_devices(config), [on(FIRST, one, 2)])
    reports = [JobReport(job=SEVEN.job, epoch=SEVEN.epoch, phase=Phase.RUNNING, gpus=(FIRST,))]
    seen = list[HostEvent]()
    jobs: Any = SimpleNamespace(
        running={SEVEN: SimpleNamespace(shim=SimpleNamespace(pid=one), group=NO_CGROUP)}
    )
    monkeypatch.setattr(watch, "counts_as_the_driver", lambda: True)
    made = watch.Watch(config, devices, jobs, errands=tuple, reports=lambda: reports, post=seen.append)  # type: ignore[arg-type]
    if moves:
        devices.asked = lambda: reports.__setitem__(0, replace(reports[0], phase=Phase.SWAPPED))
    asyncio.run(made.look_at_devices())
    assert {
        job: size
        for event in seen
        if isinstance(event, DeviceMemorySeen)
        for job, size in event.held_bytes.items()
    } == told
