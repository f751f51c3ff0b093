"""hs-agent as a process, with real jobs and a scripted controller."""

import asyncio
import errno
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from queue import Queue

import pytest
from structlog.testing import capture_logs

from hs_agent import accounts, cgroup, host_memory, launch, procs
from hs_agent.config import CgroupUse, memory_bytes
from hs_agent.devices import open_devices
from hs_agent.folder import Key, read_json
from hs_agent.loop import Agent
from hs_core.events.host import Forget
from hs_core.names import JobId
from hs_core.reports import CANNOT_START, NO_ACCOUNT, Exit, Phase
from hs_core.wanted import Lend, Turn, Wanted
from tests.agent.real_jobs import COUNT, FROZEN, UNSUSPENDED, lines, python

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_a_job_runs_its_end_is_told_and_its_log_stays(daemon, controller, job, wait_for) -> None:
    daemon.start()
    controller.want(job(1, "/bin/sh", "-c", "echo hello; exit 3", **UNSUSPENDED))
    report = controller.wait_report(1, lambda r: r.exit, "an exit")
    assert (report.exit.code, report.exit.signal) == (3, 0)
    assert report.exit.log_tail == "hello"
    hello = controller.hellos[0]
    assert (hello.host, hello.boot_id, len(hello.gpus)) == ("host-a", procs.boot_id(), 1)
    assert hello.memory_bytes == memory_bytes() > 1 << 30
    assert controller.log_of(1) == b"hello\n"
    controller.want()
    wait_for(lambda: not (daemon.place / "state/jobs/1-1").exists(), "the folder is removed")
    assert controller.log_of(1, request=2) == b"hello\n"
    assert daemon.stop() == 0


def test_what_a_controller_says_of_cut_off_hosts_is_remembered_before_there_is_a_job(
    daemon, controller, wait_for
) -> None:
    daemon.start()
    controller.want(fence_after_s=60.0, lease_s=20.0)

    def remembered() -> tuple[float, ...]:
        machine = (read_json(daemon.place / "state/host.json") or {}).get("machine") or {}
        return tuple(machine.get(name, 0.0) for name in ("term", "fence_after_s", "lease_s"))

    wait_for(lambda: remembered() == (controller.term, 60.0, 20.0), "it is remembered")
    controller.want(fence_after_s=0.0, lease_s=20.0)
    wait_for(lambda: remembered() == (controller.term, 0.0, 20.0), "what is said anew is")


def test_how_one_ended_that_is_no_longer_wanted_is_said_to_the_controller_that_ended_it(
    daemon, controller, job
) -> None:
    """It may have saved what the controller had not heard of as it decided that."""
    daemon.start()
    controller.want(job(1, *python(COUNT), **UNSUSPENDED))
    controller.wait_report(1, lambda r: r.phase is Phase.RUNNING, "running")
    controller.want()
    last = controller.wait_report(1, lambda r: r.exit, "its last words")
    assert (last.phase, last.exit.signal) == (Phase.EXITED, signal.SIGTERM)


def test_two_jobs_that_cannot_be_hooked_take_turns_in_the_freezer(daemon, controller, job, wait_for) -> None:
    daemon.start()
    both = [job(n, *python(COUNT), **FROZEN) for n in (1, 2)]
    controller.want(*both, quantum_s=0.4)
    for number in (1, 2):
        controller.wait_report(number, lambda r: r.suspends >= 2 and r.resumes >= 2, "two turns")

    def alike() -> bool:
        """Turns last longer where the machine is busy: who had a long one waits for longer."""
        ran = [controller.reports[n].run_s for n in (1, 2)]
        return min(ran) > 0.8 * max(ran)

    wait_for(alike, "they have run for about as long")
    assert {r.phase for r in controller.history if r.job == 1} >= {Phase.RUNNING, Phase.FROZEN}
    controller.want(*[replace(one, cancelled=True) for one in both], quantum_s=0.4)
    for number in (1, 2):
        report = controller.wait_report(number, lambda r: r.exit, "an exit")
        assert report.exit.signal in (signal.SIGTERM, signal.SIGKILL)


def test_folders_that_somebody_took_away_are_made_again_for_the_next_job(
    daemon, controller, job, wait_for
) -> None:
    daemon.start()
    controller.want(job(1, "/bin/true", **UNSUSPENDED))
    controller.wait_report(1, lambda r: r.exit, "an exit")
    controller.want()

    def removed() -> bool:
        left = [*(daemon.place / "state/checkpoints").iterdir(), daemon.place / "state/jobs/1-1"]
        return not any(map(os.path.lexists, [*left, daemon.place / "run/1-1.sock"]))

    wait_for(removed, "what it left is removed")
    for name in ("state/jobs", "state/checkpoints", "state/inject", "run"):
        shutil.rmtree(daemon.place / name)
    controller.want(job(2, *python("import hs_job; print(hs_job.__file__)")))
    report = controller.wait_report(
        2, lambda r: r.exit or r.note.startswith(CANNOT_START), "it has been started"
    )
    assert report.exit == Exit()
    assert controller.log_of(2).decode().startswith(f"{daemon.place}/state/inject/")
    assert "Traceback" not in daemon.said()


def test_emulated_memory_is_what_jobs_declare(daemon, controller, job, wait_for) -> None:
    daemon.start()
    controller.want(job(1, "/bin/sleep", "600", gpu_memory_bytes=3 << 30, **UNSUSPENDED))
    wait_for(lambda: [gpu.memory_used_bytes for gpu in controller.gpus] == [3 << 30], "the memory is told")
    assert controller.gpus[0].utilization_percent == 100
    controller.want()
    wait_for(lambda: [gpu.memory_used_bytes for gpu in controller.gpus] == [0], "it is free again")


def test_a_job_that_ran_out_of_memory_is_told_so(daemon, controller, job) -> None:
    groups = cgroup.probe(CgroupUse.AUTO, daemon.place)
    if "memory" not in groups.v1 and "memory" not in groups.v2_limits:
        pytest.skip("no control group for memory can be made here")
    daemon.start()
    takes = "import subprocess, sys; sys.exit(subprocess.call(['/bin/sh', '-c', 'x=x; while :; do x=$x$x; done']) != 0)"
    controller.want(job(1, *python(takes), memory_bytes=64 << 20, **UNSUSPENDED))
    report = controller.wait_report(1, lambda r: r.exit, "an exit")
    assert report.exit.code == 1
    assert "out of memory" in report.exit.why
    assert "its limit is 64 MiB" in report.exit.why


def test_a_job_of_an_account_that_is_not_here_waits_and_says_what_is_to_be_done(
    daemon, controller, job
) -> None:
    daemon.start()
    controller.want(job(1, "true", run_as="no-such-user", **UNSUSPENDED))
    report = controller.wait_report(1, lambda r: r.start_fails, "a start that failed")
    assert report.phase is Phase.WAITING
    assert report.note.startswith(f"{CANNOT_START}: {NO_ACCOUNT} 'no-such-user' on ")
    assert "an administrator makes one there" in report.note
    assert "hsctl user set USER --run-as ACCOUNT" in report.note


def test_a_launch_that_fails_says_why(daemon, controller, job) -> None:
    daemon.start()
    controller.want(
        job(1, "no-such-program", **UNSUSPENDED),
        job(3, "true", **UNSUSPENDED, workdir="/no/such/folder"),
        job(4, sys.executable, "-c", "pass", torchrun=True),
    )
    reasons = {n: controller.wait_report(n, lambda r: r.exit, "an exit").exit.why for n in (1, 3, 4)}
    assert "no-such-program on PATH=" in reasons[1]
    assert "cannot enter the working folder /no/such/folder" in reasons[3]
    assert "must name a script or a module" in reasons[4]


@pytest.mark.parametrize("daemon", [{"launcher": ["/usr/bin/env", "IN=an image"]}], indirect=True)
def test_a_launcher_starts_what_a_job_runs_and_a_gang_once_on_each_server(
    daemon, controller, job, place: Path
) -> None:
    daemon.start()
    script = place / "train.py"
    script.write_text("import os\nprint(os.environ['RANK'], os.environ['IN'], flush=True)\n")
    controller.want(
        job(1, "/bin/sh", "-c", 'test "$IN" = "an image" && exit 3', **UNSUSPENDED),
        job(2, sys.executable, str(script), torchrun=True, gpus=1, **UNSUSPENDED),
    )
    assert controller.wait_report(1, lambda r: r.exit, "an exit").exit.code == 3
    ended = controller.wait_report(2, lambda r: r.exit, "an exit").exit
    assert (ended.code, ended.why) == (0, "")
    made = {folder.key.job: folder.launch()["argv"] for folder in daemon.folders()}
    assert made[2][:5] == ["/usr/bin/env", "IN=an image", sys.executable, "-m", "torch.distributed.run"]


def test_a_launcher_that_is_missing_is_the_hosts_fault_and_jobs_start_once_it_is_there(
    daemon, controller, job, place: Path
) -> None:
    program = place / "in-image"
    with daemon.config.open("a") as more:
        more.write(f'launcher = "{program}"\n')
    daemon.start()
    controller.want(job(1, "true", **UNSUSPENDED))
    report = controller.wait_report(1, lambda r: r.start_fails, "a start that failed")
    assert report.phase is Phase.WAITING
    assert report.note.startswith(f"{CANNOT_START}: No such file or directory: {program}")
    program.write_text('#!/bin/sh\nexec "$@"\n')
    program.chmod(0o755)
    assert controller.wait_report(1, lambda r: r.exit, "an exit").exit.ok


def test_many_jobs_with_large_environments_do_not_cut_their_host_off(daemon, controller, job) -> None:
    """As large as a job may be for the controller, which says all that it wants of a host in one message."""
    daemon.start()
    large = dict.fromkeys(("FIRST", "SECOND"), "x" * 120_000)
    controller.want(*(job(number, "true", env=large, paused=True) for number in range(1, 33)))
    for number in range(1, 33):
        controller.wait_report(number, lambda r: r.phase is Phase.WAITING, "it waits")
    assert len(controller.hellos) == 1


def test_checkpoints_that_take_their_time_to_be_removed_hold_nobody_up(
    settings, job, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = threading.Event()

    async def forgets() -> None:
        config = settings()
        agent = Agent(config, open_devices(config), cgroup.Cgroups())
        monkeypatch.setattr(launch, "remove_tree", lambda path: removed.wait(60) and path.rmdir())
        monkeypatch.setattr(agent, "post", lambda _: None)
        monkeypatch.setattr(agent, "reports", tuple)
        agent.launcher.make_checkpoint_dir(job(7, "true"), accounts.account(job(7, "true").run_as, config))
        agent.wanted(Wanted(term=1, seq=1, quantum_s=1.0, turn=Turn(), jobs=()), 0.0)
        agent.forgetting.checkpoints()
        assert not (agent.launcher.checkpoints / "7").exists(), "a job of that number may come back meanwhile"
        assert list(agent.launcher.checkpoints.iterdir()) != []
        removed.set()
        await asyncio.gather(*agent.jobs._tasks)
        assert list(agent.launcher.checkpoints.iterdir()) == []

    asyncio.run(forgets())


def test_an_agent_that_was_started_again_removes_no_checkpoint_before_it_hears_whose_others_are_to_fetch(
    settings, job, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forgets() -> None:
        config = settings()
        agent = Agent(config, open_devices(config), cgroup.Cgroups())
        monkeypatch.setattr(agent, "post", lambda _: None)
        monkeypatch.setattr(agent, "reports", tuple)
        agent._term = 5  # of the controller that the agent before this one obeyed
        agent.launcher.make_checkpoint_dir(job(7, "true"), accounts.account(job(7, "true").run_as, config))
        nothing = Wanted(term=5, seq=3, quantum_s=1.0, turn=Turn(), jobs=())
        lend = Lend(job=JobId(7), epoch=1, generation=1, grant="g")

        def is_there() -> bool:
            agent.forgetting.checkpoints()  # as where a job that was ended before has gone
            return (agent.launcher.checkpoints / "7").exists()

        assert is_there(), "nobody has been heard"
        agent.wanted(replace(nothing, term=4, seq=9), 0.0)
        assert is_there(), "one of an earlier term was heard"
        agent.wanted(replace(nothing, seq=2, lends=(lend,)), 0.0)
        assert is_there(), "it is lent"
        agent.wanted(nothing, 0.0)
        assert not is_there()
        await asyncio.gather(*agent.jobs._tasks)

    asyncio.run(forgets())


def test_thousands_of_jobs_that_are_forgotten_at_once_are_so_in_one_go_and_one_that_fails_keeps_no_others(
    settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are cancelled by one word."""
    forgotten: list[Key] = []
    looks: list[Container[JobId]] = []
    many = [Key(JobId(number), 1) for number in range(1, 3001)]

    def forget(key: Key) -> None:
        if key == many[1]:
            raise OSError(errno.EIO, "Input/output error")
        forgotten.append(key)

    async def forgets() -> None:
        config = settings()
        agent = Agent(config, open_devices(config), cgroup.Cgroups())
        monkeypatch.setattr(agent.launcher, "forget", forget)
        monkeypatch.setattr(agent.launcher, "forget_checkpoints", looks.append)
        monkeypatch.setattr(agent, "reports", tuple)
        agent.grants.take(Wanted(term=1, seq=1, quantum_s=1.0, turn=Turn(), jobs=()))
        for key in many:
            agent._perform(Forget(job=key.job, epoch=key.epoch))
        while agent.jobs._tasks:
            await asyncio.wait(agent.jobs._tasks)
        agent._perform(Forget(job=JobId(4000), epoch=1))
        while agent.jobs._tasks:
            await asyncio.wait(agent.jobs._tasks)

    asyncio.run(forgets())
    assert sorted(forgotten) == [many[0], *many[2:], Key(JobId(4000), 1)]
    assert len(looks) == 2, "what lies there is looked through once for all"


def test_what_goes_wrong_again_and_again_on_a_host_is_said_once_until_it_went_well(
    settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = True

    def runs_short(*_: object, **__: object) -> None:
        if fails:
            raise OSError(errno.EMFILE, "Too many open files", f"/proc/{time.monotonic_ns()}/stat")

    looks: Queue[None] = Queue()

    def look(*_: object) -> tuple[None, dict[JobId, int]]:
        looks.put(None)
        runs_short()
        return None, {}

    async def runs(agent: Agent) -> None:
        nonlocal fails
        for goes_wrong in (True, False, True):
            fails = goes_wrong
            while not looks.empty():
                looks.get_nowait()
            for _ in range(3):
                agent.saving.save()
                await asyncio.to_thread(looks.get, timeout=60)

    async def starts() -> None:
        config = settings()
        agent = Agent(config, open_devices(config), cgroup.Cgroups())
        await agent.start()
        try:
            monkeypatch.setattr("hs_agent.watch.MEMORY_LOOK_S", 0.0)
            monkeypatch.setattr("hs_agent.watch.MEMORY_LOOK_PART", 0.0)
            monkeypatch.setattr(host_memory, "look", look)
            monkeypatch.setattr(agent.memory, "save", runs_short)
            with capture_logs() as said:
                await runs(agent)
        finally:
            monkeypatch.undo()
            await agent.stop()
        events = [line["event"] for line in said]
        assert events.count("host.json cannot be written") == 2
        assert events.count("looking at the host's memory failed") == 2

    asyncio.run(starts())


def test_a_log_on_a_full_disk_stops_nothing(daemon, controller, job) -> None:
    errors = daemon.place / "agent.err"
    errors.symlink_to("/dev/full")
    daemon.start()
    errors.unlink()
    controller.want(job(1, "/bin/sh", "-c", "exit 3", **UNSUSPENDED))
    assert controller.wait_report(1, lambda r: r.exit, "an exit").exit.code == 3
    assert daemon.stop() == 0


@needs_root
@pytest.mark.parametrize("daemon", [{"min_uid": 60000}], indirect=True)
def test_jobs_run_as_their_user_and_system_accounts_are_refused(daemon, controller, job) -> None:
    daemon.start()
    show = (
        "import os; print(os.getuid(), os.access(os.environ['HS_AGENT_SOCKET'], os.R_OK), sorted(os.environ))"
    )
    controller.want(
        job(
            1,
            "/usr/bin/python3",
            "-c",
            show,
            run_as="nobody",
            workdir="/",
            env={"LD_X": "1", "HS_USER": "eve"},
            **UNSUSPENDED,
        ),
        job(2, "id", run_as="daemon", **UNSUSPENDED),
    )
    tail = controller.wait_report(1, lambda r: r.exit, "an exit")
    assert tail.exit.ok
    said = controller.log_of(1).decode()
    assert said.startswith("65534 True")
    assert "'LD_X'" in said
    assert "HS_HOOK" in said
    refused = controller.wait_report(2, lambda r: r.exit, "an exit").exit.why
    assert "account 'daemon' has uid 1; jobs run only as uid 60000 or above here" in refused


def test_the_host_goes_on_slicing_while_the_controller_is_away(daemon, controller, job, wait_for) -> None:
    daemon.start()
    controller.want(*[job(n, *python(COUNT), **FROZEN) for n in (1, 2)], quantum_s=0.3)
    controller.wait_report(2, lambda r: r.suspends >= 1, "a turn and its end")
    controller.stop()
    suspends = {n: controller.reports[n].suspends for n in (1, 2)}
    counted = {n: lines(daemon, n) for n in (1, 2)}
    wait_for(lambda: all(lines(daemon, n) > counted[n] + 20 for n in (1, 2)), "both go on")
    controller.again()
    wait_for(lambda: len(controller.hellos) == 2, "the agent is back", 60)
    assert all(controller.reports[n].suspends > suspends[n] for n in (1, 2))


def test_a_log_is_followed_to_the_jobs_end(daemon, controller, job, wait_for) -> None:
    daemon.start()
    code = "import time\nfor i in range(30): print(i, flush=True); time.sleep(0.03)"
    controller.want(job(1, *python(code), **UNSUSPENDED))
    wait_for(lambda: lines(daemon, 1) > 3, "some lines")
    text = controller.log_of(1, request=5, tail_lines=2, follow=True).decode().split()
    assert text[-1] == "29"
    assert [int(word) for word in text] == list(range(int(text[0]), 30))
    assert int(text[0]) > 0
    controller.send(log={"request_id": 6, "job_id": 99, "tail_lines": -1})
    wait_for(lambda: 6 in controller.logs, "an answer")
    assert controller.logs[6][0].error.endswith(" has no log of job 99")
