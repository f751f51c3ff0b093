"""GPUs on which somebody else computes, or whose memory nobody gives back, on real processes."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hs_agent import procs, strangers
from hs_agent.cgroup import JobCgroup
from hs_agent.devices import GpuProcess, Reading, open_devices
from hs_agent.folder import Key
from hs_agent.strangers import HELD_S, STAYS_S, Strangers
from hs_agent.watch import Watch
from hs_core.events.host import GpusSeen, HostEvent
from hs_core.model import Gpu
from hs_core.names import GpuId, JobId
from hs_core.reports import UNDYING, JobReport, Phase
from tests.agent.conftest import NO_CGROUP, wait_for

GIB, NOBODY = 1 << 30, 65534
GPUS = tuple(Gpu(id=GpuId(f"g{n}"), index=n, model="V100", memory_bytes=16 * GIB) for n in range(2))
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """A process that does nothing until it is ended."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(*command: str, user: int | None = None, **env: str) -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen(command or ("sleep", "600"), env=os.environ | env, user=user, cwd="/"))
        return made[-1]

    yield begin
    for process in made:
        process.kill()
        process.wait()


class Host:
    def __init__(self, place: Path) -> None:
        self.strangers = Strangers(f"{place}/mps")
        (place / "mps").mkdir()
        self.running: list[tuple[Key, int, JobCgroup]] = []

    def look(
        self,
        at_s: float,
        *on_first: int,
        used: Mapping[int, float] | None = None,
        holders: tuple[int, ...] = (),
    ) -> dict[str, str]:
        return self.strangers.look(
            GPUS,
            [GpuProcess(gpu=GPUS[0].id, pid=pid, memory_bytes=GIB) for pid in on_first],
            [Reading(gpu=GPUS[n].id, memory_used_bytes=round(gib * GIB)) for n, gib in (used or {}).items()],
            running=self.running,
            holders=[GPUS[n].id for n in holders],
            now_s=at_s,
        )


@pytest.fixture
def host(place: Path) -> Host:
    return Host(place)


def test_a_gpu_on_which_somebody_else_computes_is_out_of_use_until_that_is_over(host, start) -> None:
    stranger = start()
    assert host.look(0.0, stranger.pid) == {}
    assert host.look(STAYS_S - 0.1, stranger.pid) == {}, "it may only have asked whether there is a GPU"
    (why,) = host.look(STAYS_S, stranger.pid).items()
    assert why[0] == "g0"
    assert why[1].startswith(f"process {stranger.pid} (sleep of ")
    assert why[1].endswith("), which is no job's, computes on it")
    stranger.kill()
    stranger.wait()
    assert host.look(STAYS_S + 1, stranger.pid) == {}, "the driver says it a moment later"
    assert host.look(STAYS_S + 2) == {}


def test_who_comes_again_under_another_number_has_not_been_there_for_long(host, start) -> None:
    first, second = start(), start()
    assert host.look(0.0, first.pid) == {}
    assert host.look(STAYS_S - 1, second.pid) == {}
    assert host.look(STAYS_S + 1, second.pid) == {}


def test_processes_of_jobs_are_no_strangers(host, start, place: Path) -> None:
    """By whom they come from, by their control group; not by what anybody can have in their environment."""
    carries = start(HS_AGENT_SOCKET=f"{place}/run/7-1.sock")
    shim = start("sh", "-c", f"env -i sleep 600 & echo $! > {place}/child; wait")
    child = int(wait_for(lambda: (place / "child").exists() and (place / "child").read_text(), "a child"))
    in_group = start()
    group = place / "group"
    group.mkdir()
    (group / "cgroup.procs").write_text(f"{in_group.pid}\n")
    host.running = [
        (Key(JobId(7), 1), shim.pid, NO_CGROUP),
        (Key(JobId(8), 1), shim.pid, JobCgroup(group, {})),
    ]
    ours = (child, in_group.pid)
    try:
        for at_s in (0.0, STAYS_S):
            assert host.look(at_s, *ours) == {}
        host.look(2 * STAYS_S, *ours, carries.pid)
        (why,) = host.look(3 * STAYS_S, *ours, carries.pid).values()
        assert why.startswith(f"process {carries.pid} ")
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_command_beside_a_job_is_no_stranger(settings, start, place: Path, monkeypatch) -> None:
    """What keeps it is no job's shim."""
    config, seen = settings(), list[HostEvent]()
    devices: Any = open_devices(config)
    keeper = start("sh", "-c", f"sleep 600 & echo $! > {place}/child; wait")
    child = int(wait_for(lambda: (place / "child").exists() and (place / "child").read_text(), "a child"))
    on = [GpuProcess(gpu=devices.gpus()[0].id, pid=child, memory_bytes=GIB)]
    monkeypatch.setattr(devices, "processes", lambda: on)
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr("hs_agent.watch.boot_s", lambda: float(next(clock)))
    keepers = [(Key(JobId(7), 1), keeper.pid)]
    watch = Watch(
        config,
        devices,
        SimpleNamespace(running={}),
        errands=lambda: keepers,
        reports=lambda: (),
        post=seen.append,  # type: ignore[arg-type]
    )
    try:
        for _ in range(3):
            asyncio.run(watch.look_at_devices())
        assert [event for event in seen if isinstance(event, GpusSeen)] == []
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_stranger_whose_name_is_no_text_is_one_all_the_same(host, start, tmp_path: Path) -> None:
    program = tmp_path / os.fsdecode(b"caf\xe9")
    program.write_bytes(Path("/bin/sleep").resolve().read_bytes())
    program.chmod(0o755)
    process = start(str(program), "600")
    host.look(0.0, process.pid)
    assert f"process {process.pid} (caf\N{REPLACEMENT CHARACTER} of " in host.look(STAYS_S, process.pid)["g0"]


@pytest.fixture
def server(place: Path) -> Path:
    """A program that is called as MPS' is."""
    path = place / "nvidia-cuda-mps-server"
    path.write_bytes(Path("/bin/sleep").resolve().read_bytes())
    path.chmod(0o755)
    return path


def test_what_serves_jobs_that_compute_at_once_is_no_stranger(host, start, server: Path) -> None:
    process = start(str(server), "600")
    for at_s in (0.0, STAYS_S, 3 * STAYS_S):
        assert host.look(at_s, process.pid) == {}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("owns_pipes", [True, False])
def test_who_is_only_called_as_mps_is_a_stranger(host, start, server: Path, owns_pipes: bool) -> None:
    """Its user may run the daemon where the configuration says that its pipes are that user's."""
    os.chown(server.parent / "mps", NOBODY if owns_pipes else 0, -1)
    process = start(str(server), "600", user=NOBODY)
    host.look(0.0, process.pid)
    assert bool(host.look(STAYS_S, process.pid)) is not owns_pipes


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_server_that_runs_as_its_clients_is_known_by_the_daemon_that_it_comes_from(
    host, start, server: Path
) -> None:
    daemon = server.with_name("nvidia-cuda-mps-control")
    daemon.write_bytes(Path("/bin/sh").resolve().read_bytes())
    daemon.chmod(0o755)
    code = f"setpriv --reuid {NOBODY} --clear-groups {server} 600 & echo $! > {server.parent}/pid; wait"
    control = start(str(daemon), "-c", code)
    pid = int(wait_for(lambda: (p := server.parent / "pid").exists() and p.read_text(), "a server"))
    wait_for(lambda: procs.account(pid) == NOBODY and strangers._name(pid).startswith("nvidia"), "it is up")
    host.look(0.0, pid)
    try:
        assert host.look(STAYS_S, pid) == {}
    finally:
        os.kill(pid, signal.SIGKILL)
        control.wait()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_stranger_is_said_to_be_of_who_has_started_it(host, start, place: Path) -> None:
    program = place / "sleep"
    program.write_bytes(Path("/bin/sleep").resolve().read_bytes())
    program.chmod(0o4755)
    process = start(str(program), "600", user=NOBODY)
    host.look(0.0, process.pid)
    assert " of nobody)" in host.look(STAYS_S, process.pid)["g0"]


def test_in_a_container_with_processes_of_its_own_nobody_is_taken_for_somebody_else(
    host, start, monkeypatch
) -> None:
    monkeypatch.setattr(strangers, "counts_as_the_driver", lambda: False)
    stranger = start()
    host.look(0.0)
    for at_s in (1.0, 1.0 + STAYS_S, 1.0 + HELD_S, 1.0 + 2 * HELD_S):
        assert host.look(at_s, stranger.pid, used={0: 9.0}) == {}


def test_memory_that_a_job_had_and_nobody_gives_back_takes_its_gpu_out_of_use_until_it_is_free(host) -> None:
    host.look(0.0, used={0: 0.5, 1: 3.0})
    host.look(1.0, used={0: 9.5, 1: 3.0}, holders=(0,))
    assert host.look(2.0, used={0: 9.5, 1: 3.0}) == {}
    assert host.look(2.0 + HELD_S - 0.1, used={0: 9.5, 1: 3.0}) == {}, "the driver takes a while"
    said = host.look(2.0 + HELD_S, used={0: 9.5, 1: 3.0})
    assert said == {"g0": "9.0 GiB of its memory are held and no process is there: reset it, or reboot"}
    assert host.look(100.0, used={0: 0.6, 1: 3.0}) == {}
    assert host.look(200.0, used={0: 0.6, 1: 3.0}) == {}


def test_what_was_taken_before_jobs_were_there_is_the_drivers_or_a_screens(host) -> None:
    for at_s in (0.0, HELD_S, 3 * HELD_S):
        assert host.look(at_s, used={0: 4.0 + at_s / 60}) == {}


def test_a_driver_that_fails_to_say_how_much_is_taken_changes_nothing(host) -> None:
    host.look(0.0, used={0: 4.0, 1: 0.5})
    for at_s in (1.0, 2.0):
        assert host.look(at_s, used={0: 0.0}) == {}
    for at_s in (3.0, 3.0 + HELD_S, 3.0 + 2 * HELD_S):
        assert host.look(at_s, used={0: 4.0, 1: 9.5}, holders=(1,)) == {}
    host.look(100.0, used={0: 4.0, 1: 9.5})
    for at_s in (100.0 + HELD_S, 200.0):
        assert "g1" in host.look(at_s, used={0: 0.0, 1: 0.0}), "it stays held until the driver says otherwise"


def test_the_gpus_of_a_job_that_does_not_die_are_out_of_use_until_it_has(settings) -> None:
    config = settings()
    devices = open_devices(config)
    second = devices.gpus()[1].id
    report = JobReport(job=JobId(7), epoch=0, phase=Phase.KILLING, gpus=(second,))
    reports, seen = [report], list[HostEvent]()
    watch = Watch(
        config,
        devices,
        SimpleNamespace(running={}),
        errands=tuple,
        reports=lambda: reports,
        post=seen.append,  # type: ignore[arg-type]
    )
    asyncio.run(watch.look_at_devices())
    assert seen == []
    reports[0] = replace(report, note=f"{UNDYING}: GPU 1 out of use until it does")
    asyncio.run(watch.look_at_devices())
    assert [(gpu.healthy, gpu.why_unhealthy) for gpu in watch.gpus[:2]] == [
        (True, ""),
        (False, "job 7 on it does not die"),
    ]
    reports.clear()
    asyncio.run(watch.look_at_devices())
    assert [all(gpu.healthy for gpu in event.gpus) for event in seen if isinstance(event, GpusSeen)] == [
        False,
        True,
    ]
