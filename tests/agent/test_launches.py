"""An agent in this process: what it starts, and what it does where something breaks on the way."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hs_agent import accounts, cgroup, procs
from hs_agent.config import Config
from hs_agent.devices import open_devices
from hs_agent.folder import Folder, Key
from hs_agent.launch import NewShim
from hs_agent.loop import Agent
from hs_core.events.host import Launch, LaunchFailed, Suspend
from hs_core.host import comings
from hs_core.names import HostName
from hs_core.reports import Exit, JobReport, Tier
from hs_core.wanted import Lend, Peer, Source, Turn, Wanted, WantedJob


def why_not_launched(
    config: Config,
    wanted: WantedJob,
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[Agent], None],
    groups: cgroup.Cgroups | None = None,
) -> LaunchFailed:
    """What an agent tells of a launch amid which something breaks."""

    async def launched() -> list[object]:
        agent = Agent(config, open_devices(config), groups or cgroup.Cgroups())
        told: list[object] = []
        monkeypatch.setattr(agent.launches, "_post", told.append)
        breaks(agent)
        await agent.launches.launch(Key(wanted.job, wanted.epoch), Launch(wanted=wanted, gpus=()))
        return told

    (event,) = asyncio.run(launched())
    assert isinstance(event, LaunchFailed)
    return event


def test_a_launch_that_breaks_for_no_reason_anybody_thought_of_is_told_as_failed(
    settings, job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(agent: Agent) -> None:
        monkeypatch.setattr(agent.launcher, "prepare", lambda *_: 1 / 0)

    event = why_not_launched(settings(), job(1, "true"), monkeypatch, breaks)
    assert event.why == "ZeroDivisionError: division by zero"


def test_a_launch_that_is_told_as_failed_has_left_no_process(
    settings, job, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptors_left(_: procs.Identity) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def launched() -> tuple[list[object], object]:
        config = settings()
        agent = Agent(config, open_devices(config), cgroup.Cgroups())
        told: list[object] = []
        monkeypatch.setattr(agent.launches, "_post", told.append)
        monkeypatch.setattr(procs, "open_pidfd", no_descriptors_left)
        wanted = job(1, "touch", str(place / "ran"))
        key = Key(wanted.job, wanted.epoch)
        await agent.launches.launch(key, Launch(wanted=wanted, gpus=()))
        return told, agent.launcher.running_shim(agent.launcher.folder(key))

    (event,), shim = asyncio.run(launched())
    assert isinstance(event, LaunchFailed)
    assert event.why == "Too many open files"
    assert shim is None
    assert not (place / "ran").exists()


def test_an_order_that_breaks_right_after_a_launch_does_not_make_it_a_failed_one(
    settings, job, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def told() -> list[object]:
        config = settings()
        agent = Agent(config, open_devices(config), cgroup.Cgroups())
        said: list[object] = []
        wanted = job(1, "sleep", "600")
        key = Key(wanted.job, wanted.epoch)
        monkeypatch.setattr(agent.launches, "_post", said.append)
        monkeypatch.setattr(agent.jobs, "suspend", lambda _: 1 / 0)
        agent.launches._deferred[key] = [Suspend(job=key.job, epoch=key.epoch, tier=Tier.HOLD)]
        with pytest.raises(ZeroDivisionError):
            await agent.launches.launch(key, Launch(wanted=wanted, gpus=()))
        assert key in agent.jobs.running
        await agent.jobs.end_all(0.0)
        await agent.jobs.close()
        return said

    assert not [event for event in asyncio.run(told()) if isinstance(event, LaunchFailed)]


def test_a_job_that_nobody_remembers_has_ended_when_the_agent_begins(settings, shims, place: Path) -> None:
    (place / "state/jobs").mkdir(parents=True)
    shims.place = place / "state/jobs"
    started = shims.start("/bin/sleep", "600")
    who = started.job()

    async def start() -> tuple[bool, bool]:
        config = settings()
        agent = Agent(config, open_devices(config), cgroup.Cgroups())
        await agent.start()
        found = procs.alive(who), started.folder.path.exists()
        await agent.stop()
        return found

    assert asyncio.run(start()) == (False, False)


def test_a_file_system_that_cannot_be_written_fails_neither_the_job_nor_the_agent(
    settings, job, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses, clear = [True], Folder.clear_for_start

    def read_only(folder: Folder) -> None:
        if refuses:
            raise OSError(errno.EROFS, "Read-only file system")
        clear(folder)

    async def ended() -> JobReport:
        config = settings()
        agent = Agent(config, open_devices(config), cgroup.Cgroups())
        await agent.start()
        try:
            monkeypatch.setattr(Folder, "clear_for_start", read_only)
            monkeypatch.setattr(comings, "START_AGAIN_S", 0.2)
            agent.wanted(Wanted(term=1, seq=1, quantum_s=1.0, turn=Turn(), jobs=(job(1, "true"),)), 0.0)
            async with asyncio.timeout(30):
                while not (agent.reports() and agent.reports()[0].note):  # noqa: ASYNC110 — nobody tells
                    await asyncio.sleep(0.01)
                assert agent.reports()[0].note == "cannot be started on its server: Read-only file system"
                assert agent.troubles == ("job 1 cannot be started on its server: Read-only file system",)
                refuses.clear()
                while not (agent.broken.is_set() or agent.reports()[0].exit):  # noqa: ASYNC110 — likewise
                    await asyncio.sleep(0.01)
            assert not agent.broken.is_set()
            assert agent.troubles == ()
            return agent.reports()[0]
        finally:
            await agent.stop()

    assert asyncio.run(ended()).exit.ok


def test_a_server_that_cannot_reach_the_one_with_a_checkpoint_says_so_to_administrators(
    settings, job
) -> None:
    async def told() -> tuple[str, ...]:
        config = settings()
        agent = Agent(config, open_devices(config), cgroup.Cgroups())
        await agent.start()
        try:
            agent.fetches._give_up_s = 0.1
            with socket.socket() as nobody:  # bound, and nobody listens
                nobody.bind(("127.0.0.1", 0))
                peer = Peer(host=HostName("far"), address=f"127.0.0.1:{nobody.getsockname()[1]}")
                source = Source(peer=peer, epoch=0, generation=2, step=7)
                moved = replace(job(1, "true"), epoch=1, source=source)
                agent.wanted(Wanted(term=1, seq=1, quantum_s=1.0, turn=Turn(), jobs=(moved,)), 0.0)
                async with asyncio.timeout(30):
                    while not agent.troubles:  # noqa: ASYNC110 — nobody tells
                        await asyncio.sleep(0.01)
            agent.saving.why_not = "No space left on device"
            return agent.troubles
        finally:
            agent.saving.why_not = ""
            await agent.stop()

    state, held_up = asyncio.run(told())
    assert state.startswith("what the agent knows cannot be written: No space left on device")
    assert held_up.startswith("job 1 cannot fetch checkpoint 2 from far: nothing came for 0.1 s: ")


@pytest.mark.parametrize("version", [1, 2])
def test_a_job_is_not_started_without_a_control_group_that_holds_it_to_its_limits(
    settings, job, place: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    full = place / "full"
    groups = cgroup.Cgroups(v2=full) if version == 2 else cgroup.Cgroups(v1={"memory": full})
    mkdir = os.mkdir

    def no_more(path: Path, mode: int = 0o777) -> None:
        if Path(path).parent == full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        mkdir(path, mode)

    event = why_not_launched(
        settings(), job(1, "true"), monkeypatch, lambda _: monkeypatch.setattr(os, "mkdir", no_more), groups
    )
    assert (event.why, event.host_fault) == (f"No space left on device: {full}/1-1", True)


def test_an_agent_that_stops_while_an_end_is_still_found_out_closes_nothing_of_others(
    settings, job, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stopped() -> bytes:
        config = settings()
        agent = Agent(config, open_devices(config), cgroup.Cgroups())
        await agent.start()
        looked, loop = asyncio.Event(), asyncio.get_running_loop()

        def lives_still(_key: Key) -> bool:
            loop.call_soon_threadsafe(looked.set)
            return False

        monkeypatch.setattr(agent.launcher, "kill_leftovers", lives_still)
        agent.wanted(Wanted(term=1, seq=1, quantum_s=1.0, turn=Turn(), jobs=(job(1, "sleep", "600"),)), 0.0)
        async with asyncio.timeout(30):
            while not agent.jobs.running:  # noqa: ASYNC110 — nobody tells
                await asyncio.sleep(0.01)
            (running,) = agent.jobs.running.values()
            watched = running.pidfd
            assert procs.send(running.shim, signal.SIGKILL)
            await looked.wait()
        end, other = socket.socketpair()
        taken = end.detach()
        if taken != watched:  # the number that has become free, most likely
            os.dup2(taken, watched)
            os.close(taken)
        with other:
            reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=watched))
            await agent.stop()
            other.send(b"still open")
            said = await reader.read(64)
            writer.close()
            await writer.wait_closed()
            return said

    assert asyncio.run(stopped()) == b"still open"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_disk_that_is_full_just_as_a_job_begins_does_not_fail_it(
    settings, job, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = place / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this sandbox does not let root mount a tmpfs")

    async def ended() -> JobReport:
        config = settings(state_dir=str(small / "state"))
        agent = Agent(config, open_devices(config), cgroup.Cgroups())
        await agent.start()
        start = agent.launcher.start

        def full(folder: Folder) -> NewShim:
            with (small / "more").open("wb", buffering=0) as more, contextlib.suppress(OSError):
                while True:
                    more.write(bytes(4096))
            return start(folder)

        monkeypatch.setattr(agent.launcher, "start", full)
        try:
            agent.wanted(Wanted(term=1, seq=1, quantum_s=1.0, turn=Turn(), jobs=(job(1, "true"),)), 0.0)
            async with asyncio.timeout(30):
                while not (agent.reports() and agent.reports()[0].exit):  # noqa: ASYNC110 — nobody tells
                    await asyncio.sleep(0.01)
            return agent.reports()[0]
        finally:
            await agent.stop()

    try:
        assert asyncio.run(ended()).exit == Exit()
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_a_disk_without_room_for_the_end_of_a_job_is_the_hosts_fault(
    settings, job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    event = why_not_launched(
        settings(), job(1, "true"), monkeypatch, lambda _: monkeypatch.setattr(os, "posix_fallocate", full)
    )
    assert (event.why, event.host_fault) == ("No space left on device", True)


@pytest.mark.parametrize("remembers", [True, False])
def test_what_copies_have_written_is_there_after_a_restart_for_as_long_as_it_is_lent(
    settings, job, remembers: bool
) -> None:
    config = settings()
    one = replace(job(1, "true"), epoch=3, copy=0, copies=2, hold=True)
    before, now = Key(one.job, 3), replace(one, epoch=4)
    lent = Lend(job=one.job, epoch=3, generation=0, grant="g", copy=0)

    def wants(agent: Agent, seq: int, wanted: WantedJob, *lends: Lend) -> None:
        agent.wanted(Wanted(term=1, seq=seq, quantum_s=1.0, turn=Turn(), jobs=(wanted,), lends=lends), 0.0)

    async def restarts() -> None:
        agent = Agent(config, open_devices(config), cgroup.Cgroups())
        await agent.start()
        wants(agent, 1, one)
        agent.launcher.folder(before).make()
        written = agent.launcher.make_checkpoint_dir(one, accounts.account(one.run_as, config))
        written.mkdir()
        wants(agent, 2, now, lent)
        assert agent.machine is not None
        assert agent.machine.kept == {(one.job, 3)}
        await agent.stop()
        if not remembers:
            agent.memory.path.unlink()
        agent = Agent(config, open_devices(config), cgroup.Cgroups())
        await agent.start()
        try:
            assert written.exists(), "its own processes are to make an average of it yet"
            wants(agent, 3, now, lent)
            assert written.exists()
            wants(agent, 4, now)
            await asyncio.gather(*agent.jobs._tasks)
            assert written.exists() == (not remembers)
        finally:
            await agent.stop()

    asyncio.run(restarts())
