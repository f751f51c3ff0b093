"""Jobs whose processes are on GPUs that are not their own."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from hs_agent import watch
from hs_agent.devices import GpuProcess, open_devices
from hs_agent.folder import Key
from hs_agent.trespassers import Trespassers
from hs_core.events.host import HostEvent, JobTrespassed
from hs_core.names import GpuId, JobId
from hs_core.reports import JobReport, Phase
from tests.agent.conftest import NO_CGROUP

FIRST, SECOND = GpuId("g0"), GpuId("g1")
SEVEN, EIGHT = Key(JobId(7), 1), Key(JobId(8), 3)


def looked(*looks: tuple[float, list[tuple[Key, GpuId]], dict[Key, tuple[GpuId, ...]]]) -> list[list[Any]]:
    made = Trespassers()
    return [list(made.look(on, bound, now_s)) for now_s, on, bound in looks]


def test_who_stays_on_a_gpu_that_is_not_its_own_is_found_once_it_has_been_there_for_a_while() -> None:
    on, bound = [(SEVEN, FIRST), (SEVEN, SECOND), (EIGHT, SECOND)], {SEVEN: (FIRST,), EIGHT: (SECOND,)}
    assert looked((0.0, on, bound), (4.0, on, bound), (6.0, on, bound)) == [[], [], [(SEVEN, SECOND)]]


def test_who_was_there_for_a_moment_only_begins_anew() -> None:
    on, bound = [(SEVEN, SECOND)], {SEVEN: (FIRST,)}
    assert looked((0.0, on, bound), (4.0, [], bound), (6.0, on, bound), (9.0, on, bound)) == [[], [], [], []]


def test_while_it_is_not_known_which_gpus_are_its_own_nobody_trespasses() -> None:
    on = [(SEVEN, SECOND)]
    assert looked((0.0, on, {}), (10.0, on, {SEVEN: (SECOND,)}), (20.0, on, {})) == [[], [], []]


@pytest.mark.parametrize("own", [True, False])
def test_the_host_is_told_of_it(settings: Any, monkeypatch: pytest.MonkeyPatch, *, own: bool) -> None:
    config = settings()
    devices: Any = open_devices(config)
    mine, others = (gpu.id for gpu in devices.gpus()[:2])
    processes = [GpuProcess(gpu=mine if own else others, pid=40, memory_bytes=1 << 30)]
    monkeypatch.setattr(devices, "processes", lambda: processes)
    monkeypatch.setattr(watch, "counts_as_the_driver", lambda: True)
    report = JobReport(job=SEVEN.job, epoch=SEVEN.epoch, phase=Phase.RUNNING, gpus=(mine,))
    jobs: Any = SimpleNamespace(
        running={SEVEN: SimpleNamespace(shim=SimpleNamespace(pid=40), group=NO_CGROUP)}
    )
    told = list[HostEvent]()
    made = watch.Watch(config, devices, jobs, errands=tuple, reports=lambda: [report], post=told.append)
    monkeypatch.setattr(made._owners, "_of", lambda *_: {40: SEVEN})
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(watch, "boot_s", lambda: float(next(clock)))
    for _ in range(2):
        asyncio.run(made.look_at_devices())
    found = [(event.job, event.epoch, event.gpu) for event in told if isinstance(event, JobTrespassed)]
    assert set(found) == (set() if own else {(SEVEN.job, SEVEN.epoch, others)})
