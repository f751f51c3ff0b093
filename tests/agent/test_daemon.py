"""hs-agent as a process, with real jobs and a scripted controller."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hs_agent import accounts, cgroup, launch, procs
from hs_agent.config import CgroupUse, memory_bytes
from hs_agent.devices import open_devices
from hs_agent.loop import Agent
from hs_core.model import SuspendMode
from hs_core.reports import CANNOT_START, NO_ACCOUNT, WITH_AGENT, Exit, Phase, Tier
from hs_core.wanted import Turn, Wanted
from hs_daemon import boot_s
from tests.agent.lending import GENERATION, STEP, write

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
UNSUSPENDED = {"suspend": SuspendMode.NONE}
FROZEN = {"suspend": SuspendMode.TRANSPARENT}
COUNT = "import time\ni = 0\nwhile True:\n    i += 1\n    print(i, flush=True)\n    time.sleep(0.02)"

TRAIN = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
while steps < int(sys.argv[1]):
    for x, y in DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        steps += 1
print(f"loss {loss.item():.9f}", flush=True)
"""


@pytest.fixture
def script(place: Path) -> str:
    path = place / "train.py"
    path.write_text(TRAIN)
    return str(path)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def lines(daemon, number: int) -> int:
    log = daemon.place / f"state/jobs/{number}-1/log"
    return log.read_bytes().count(b"\n") if log.exists() else 0


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


def test_two_jobs_that_cannot_be_hooked_take_turns_in_the_freezer(daemon, controller, job) -> None:
    daemon.start()
    both = [job(n, *python(COUNT), **FROZEN) for n in (1, 2)]
    controller.want(*both, quantum_s=0.4)
    for number in (1, 2):
        controller.wait_report(number, lambda r: r.suspends >= 2 and r.resumes >= 2, "two turns")
    ran = [controller.reports[n].run_s for n in (1, 2)]
    assert min(ran) > 0.3 * max(ran)
    assert {r.phase for r in controller.history if r.job == 1} >= {Phase.RUNNING, Phase.FROZEN}
    controller.want(*[replace(one, cancelled=True) for one in both], quantum_s=0.4)
    for number in (1, 2):
        report = controller.wait_report(number, lambda r: r.exit, "an exit")
        assert report.exit.signal in (signal.SIGTERM, signal.SIGKILL)


@pytest.mark.parametrize("daemon", [{"emulated": ["V100:3"]}], indirect=True)
def test_jobs_live_through_a_killed_agent_and_their_ends_are_right(daemon, controller, job, wait_for) -> None:
    daemon.start()
    stays = job(1, *python(COUNT), **UNSUSPENDED)
    ends = job(2, *python("import time; time.sleep(1.5); raise SystemExit(9)"), **UNSUSPENDED)
    dies = job(3, *python("import os, time; time.sleep(1.5); os.kill(os.getpid(), 11)"), **UNSUSPENDED)
    controller.want(stays, ends, dies)
    for number in (1, 2, 3):
        controller.wait_report(number, lambda r: r.phase is Phase.RUNNING, "running")
    wait_for(
        lambda: len(daemon.folders()) == 3 and all(f.shim_state() for f in daemon.folders()), "all are up"
    )
    before = {folder.key.job: folder.shim_state() for folder in daemon.folders()}
    daemon.kill()
    wait_for(
        lambda: not procs.alive(before[2].shim) and not procs.alive(before[3].shim), "both ended meanwhile"
    )
    counted = lines(daemon, 1)
    daemon.start()
    wait_for(lambda: len(controller.hellos) == 2, "the agent is back")
    assert controller.wait_report(2, lambda r: r.exit, "an exit").exit.code == 9
    assert controller.wait_report(3, lambda r: r.exit, "an exit").exit.signal == signal.SIGSEGV
    assert controller.reports[1].phase is Phase.RUNNING
    wait_for(lambda: lines(daemon, 1) > counted, "job 1 goes on")
    (folder,) = [f for f in daemon.folders() if f.key.job == 1]
    assert folder.shim_state() == before[1]
    controller.want(replace(stays, cancelled=True), ends, dies)
    assert controller.wait_report(1, lambda r: r.exit, "an exit").exit.signal == signal.SIGTERM


def test_the_exit_of_a_job_that_had_written_its_checkpoint_is_heard_of_by_the_next_agent(
    daemon, controller, job, wait_for
) -> None:
    """The agent was killed between the word of the checkpoint and the end of the process."""
    daemon.start()
    wanted = job(1, *python("import time; time.sleep(1.0); raise SystemExit(75)"), **UNSUSPENDED)
    controller.want(wanted)
    controller.wait_report(1, lambda r: r.phase is Phase.RUNNING, "running")
    wait_for(lambda: daemon.folders() and daemon.folders()[0].shim_state(), "it is up")
    before = daemon.folders()[0].shim_state()
    daemon.kill()
    memory = daemon.place / "state/host.json"
    kept = json.loads(memory.read_text())
    kept["machine"]["jobs"][0] |= {"phase": "checkpointed", "charged_from_s": None, "in_turn": False}
    memory.write_text(json.dumps(kept))
    wait_for(lambda: not procs.alive(before.shim), "it ended meanwhile")
    daemon.start()
    wait_for(lambda: len(controller.hellos) == 2, "the agent is back")
    wait_for(lambda: daemon.folders()[0].shim_state() not in (None, before), "it is started again")


def test_a_checkpoint_that_an_agent_was_killed_before_weighing_is_weighed_by_the_next(
    daemon, controller, job, wait_for
) -> None:
    daemon.start()
    controller.want(job(1, *python("import time; time.sleep(600)"), **UNSUSPENDED))
    wait_for(lambda: daemon.folders() and daemon.folders()[0].shim_state(), "it is up")
    daemon.kill()
    write(daemon.place / "state/checkpoints/1", {"rank0.pt": 300, "rank1.pt": 5})
    memory = daemon.place / "state/host.json"
    kept = json.loads(memory.read_text())
    kept["machine"]["jobs"][0] |= {
        "checkpoint_generation": GENERATION,
        "checkpoint_step": STEP,
        "checkpoint_bytes": 7,
    }
    memory.write_text(json.dumps(kept))
    daemon.start()
    controller.wait_report(1, lambda r: r.checkpoint_bytes == 305, "it has been weighed")


@pytest.mark.parametrize("daemon", [{}, {"cgroup": "none"}], indirect=True, ids=["cgroup", "no-cgroup"])
def test_a_frozen_job_is_still_frozen_after_the_agent_was_killed(daemon, controller, job, wait_for) -> None:
    daemon.start()
    both = [job(n, *python(COUNT), **FROZEN) for n in (1, 2)]
    controller.want(*both, quantum_s=1.0)
    for number in (1, 2):
        controller.wait_report(number, lambda r: r.suspends >= 1, "a turn and its end")
    frozen = wait_for(
        lambda: [n for n in (1, 2) if controller.reports[n].phase is Phase.FROZEN], "one is frozen"
    )[0]
    daemon.kill()
    away_s = boot_s()
    wait_for(lambda: boot_s() > away_s + 1.0, "an edge has passed that nobody saw")
    counted = lines(daemon, frozen)
    suspends = {n: controller.reports[n].suspends for n in (1, 2)}
    daemon.start()
    wait_for(lambda: len(controller.hellos) == 2, "the agent is back")
    assert lines(daemon, frozen) - counted <= 1 or controller.reports[frozen].phase is Phase.RUNNING
    for number in (1, 2):
        controller.wait_report(number, lambda r, n=number: r.suspends > suspends[n], "slicing goes on")


def test_a_killed_shim_is_told_and_nothing_of_its_job_is_left(daemon, controller, job, wait_for) -> None:
    daemon.start()
    code = "import os, time\nif os.fork() == 0: os.setsid()\nos.write(1, b'%d\\n' % os.getpid())\ntime.sleep(600)"
    controller.want(job(1, *python(code), **UNSUSPENDED))
    wait_for(lambda: lines(daemon, 1) == 2, "both are up")
    (folder,) = daemon.folders()
    pids = [procs.identity(int(pid)) for pid in (folder.path / "log").read_text().split()]
    procs.send(folder.shim_state().shim, signal.SIGKILL)
    report = controller.wait_report(1, lambda r: r.exit, "an exit")
    assert "shim was killed" in report.exit.why
    assert not any(procs.alive(who) for who in pids)


def test_a_job_whose_folder_somebody_has_taken_away_is_ended_all_the_same(
    daemon, controller, job, wait_for
) -> None:
    daemon.start()
    controller.want(
        job(
            1, *python("import os, time\nos.write(1, b'%d\\n' % os.getpid())\ntime.sleep(600)"), **UNSUSPENDED
        )
    )
    wait_for(lambda: lines(daemon, 1) == 1, "it is up")
    (folder,) = daemon.folders()
    process = procs.identity(int((folder.path / "log").read_text()))
    folder.path.rename(daemon.place / "elsewhere")
    controller.want(job(1, "/bin/true", cancelled=True, **UNSUSPENDED))
    report = controller.wait_report(1, lambda r: r.exit, "an exit")
    assert not procs.alive(process)
    assert "how it ended is not known" in report.exit.why


def test_folders_that_somebody_took_away_are_made_again_for_the_next_job(
    daemon, controller, job, wait_for
) -> None:
    daemon.start()
    controller.want(job(1, "/bin/true", **UNSUSPENDED))
    controller.wait_report(1, lambda r: r.exit, "an exit")
    controller.want()
    wait_for(lambda: not (daemon.place / "state/jobs/1-1").exists(), "the folder is removed")
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


def test_a_job_that_is_ended_with_its_agent_says_so_to_the_next_one(daemon, controller, job) -> None:
    daemon.start("--end-jobs-on-stop")
    controller.want(job(1, "/bin/sleep", "600", **UNSUSPENDED))
    controller.wait_report(1, lambda r: r.phase is Phase.RUNNING, "it runs")
    assert daemon.stop() == 0
    daemon.start()
    report = controller.wait_report(1, lambda r: r.exit, "an exit")
    assert (report.exit.signal, report.exit.why) == (15, WITH_AGENT)


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
        agent._forget_checkpoints()
        assert not (agent.launcher.checkpoints / "7").exists(), "a job of that number may come back meanwhile"
        assert list(agent.launcher.checkpoints.iterdir()) != []
        removed.set()
        await asyncio.gather(*agent.jobs._tasks)
        assert list(agent.launcher.checkpoints.iterdir()) == []

    asyncio.run(forgets())


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


def test_a_second_agent_on_the_same_state_is_refused(daemon, controller, wait_for) -> None:
    daemon.start()
    wait_for(lambda: controller.hellos, "a hello")
    second = subprocess.run(
        [sys.executable, "-m", "hs_agent", "--config", str(daemon.config)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert second.returncode == 1
    assert f"belongs to another agent that is running (pid {daemon.process.pid})" in second.stderr
    assert "Traceback" not in second.stderr


def test_the_doctor_of_a_host_whose_agent_runs_has_nothing_against_that(daemon, controller, wait_for) -> None:
    daemon.start()
    wait_for(lambda: controller.hellos, "a hello")
    doctor = subprocess.run(
        [sys.executable, "-m", "hs_agent", "doctor", "--config", str(daemon.config)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    (line,) = (one for one in doctor.stdout.splitlines() if " state folder " in one)
    assert line.startswith("ok "), line
    assert f"used by the agent that runs (pid {daemon.process.pid})" in line


def test_stopping_leaves_jobs_alone_unless_told_otherwise(daemon, controller, job, wait_for) -> None:
    daemon.start()
    controller.want(job(1, *python(COUNT), **UNSUSPENDED))
    controller.wait_report(1, lambda r: r.phase is Phase.RUNNING, "running")
    (folder,) = daemon.folders()
    state = wait_for(lambda: (found := folder.shim_state()) and found.job and found, "the job is up")
    assert daemon.stop() == 0
    counted = lines(daemon, 1)
    wait_for(lambda: lines(daemon, 1) > counted, "it goes on without an agent")
    daemon.start("--end-jobs-on-stop")
    wait_for(lambda: len(controller.hellos) == 2, "the agent is back")
    assert daemon.stop() == 0
    assert not procs.alive(state.shim)
    assert not procs.alive(state.job)


@pytest.mark.parametrize("daemon", [{"emulated": ["V100:8"]}], indirect=True)
def test_whoever_is_being_launched_as_all_jobs_are_to_end_ends_too_or_never_begins(
    daemon, controller, job, wait_for
) -> None:
    daemon.start("--end-jobs-on-stop")
    controller.want(*(job(number, "sleep", "600") for number in range(1, 9)))
    # Of eight launches the first shims are there: they do not listen yet, and others are on their way.
    wait_for(lambda: any(folder.shim_state() for folder in daemon.folders()), "the first shim is there")
    assert daemon.stop() == 0
    left = [
        state for folder in daemon.folders() if (state := folder.shim_state()) and procs.alive(state.shim)
    ]
    assert left == []


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


@pytest.mark.slow
@pytest.mark.parametrize("daemon", [{"pace": [{"job_class": "ada/*", "base_s": 0.02}]}], indirect=True)
def test_hooked_training_is_sliced_paced_and_survives_a_killed_agent(
    daemon, controller, job, script, wait_for
) -> None:
    daemon.start()
    count = 720  # so many that both are far from their end when the agent is killed
    command = (sys.executable, script, str(count))
    both = [job(n, *command, env={"OMP_NUM_THREADS": "1"}) for n in (1, 2)]
    controller.want(*both, quantum_s=1.0)
    for number in (1, 2):
        controller.wait_report(number, lambda r: r.suspends >= 2 and r.step > 0, "hooked and sliced", 60)
        assert controller.reports[number].tier is Tier.HOLD
    daemon.kill()
    before = {folder.key.job: folder.shim_state() for folder in daemon.folders()}
    steps = {n: controller.reports[n].step for n in (1, 2)}
    suspends = {n: controller.reports[n].suspends for n in (1, 2)}
    daemon.start()
    wait_for(lambda: len(controller.hellos) == 2, "the agent is back")
    for number in (1, 2):
        controller.wait_report(
            number, lambda r, n=number: r.suspends > suspends[n] and r.step > steps[n], "goes on", 60
        )
    assert {folder.key.job: folder.shim_state() for folder in daemon.folders()} == before
    for number in (1, 2):
        report = controller.wait_report(number, lambda r: r.exit, "an exit", 60)
        assert report.exit.ok, report
        assert report.run_s >= 0.9 * count * 0.02
    alone = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert [controller.log_of(n, request=n).decode() for n in (1, 2)] == [alone.stdout] * 2


@pytest.mark.slow
@pytest.mark.parametrize("daemon", [{"emulated": ["V100:2"]}], indirect=True)
def test_a_torchrun_gang_and_a_single_job_take_turns(daemon, controller, job, script) -> None:
    daemon.start()
    (temporary := daemon.place / "tmp").mkdir()
    env = {"OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    gang = job(1, sys.executable, script, "100000", gpus=2, torchrun=True, env=env)
    single = job(2, sys.executable, script, "100000", env=env)
    controller.want(gang, single, quantum_s=1.0)
    for number in (1, 2):
        controller.wait_report(
            number, lambda r: r.suspends >= 2 and r.resumes >= 2 and r.step > 0, "takes turns", 90
        )
        assert controller.reports[number].tier is Tier.HOLD
    assert len(controller.reports[1].gpus) == 2
    controller.want(replace(gang, cancelled=True), replace(single, cancelled=True))
    for number in (1, 2):
        controller.wait_report(number, lambda r: r.exit, "an exit")
    line = f"HS_AGENT_SOCKET={daemon.place}/run/1-1.sock".encode()
    assert [who for who in procs.with_environment(line) if procs.alive(who)] == []
    assert not list(temporary.glob("torchelastic_*"))


@pytest.mark.slow
@pytest.mark.parametrize("daemon", [{"host_memory_budget": 0, "pace": [{"base_s": 0.02}]}], indirect=True)
def test_jobs_that_do_not_fit_together_leave_by_checkpoint_and_come_back_exactly(
    daemon, controller, job, handed
) -> None:
    daemon.start()
    both = [job(n, *handed.command(14), gpu_memory_bytes=10 << 30, env=handed.env) for n in (1, 2)]
    controller.want(*both, quantum_s=1.5)
    for number in (1, 2):
        report = controller.wait_report(number, lambda r: r.exit, "an exit", 90)
        assert report.exit.ok, report
    assert Tier.CHECKPOINT in {report.tier for report in controller.history}
    for number in (1, 2):
        said = controller.log_of(number, request=number).decode().splitlines()
        assert said[-1] == handed.weights_alone(14)


def test_systemd_is_told_when_the_agent_is_ready_and_whether_it_has_a_controller(
    daemon, controller, place, monkeypatch
) -> None:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(place / "notify"))
        manager.settimeout(120)
        monkeypatch.setenv("NOTIFY_SOCKET", str(place / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        daemon.start()
        heard: list[str] = []
        while heard.count("WATCHDOG=1") < 2 or not any("; connected to " in word for word in heard):
            heard.append(manager.recv(4096).decode())
        assert any(word.startswith("READY=1\nSTATUS=") for word in heard)
        controller.stop()
        while "; no controller: " not in manager.recv(4096).decode():
            pass
        daemon.process.send_signal(signal.SIGHUP)  # asked to go like by SIGTERM: systemd starts it again
        while "STOPPING=1" not in manager.recv(4096).decode():
            pass
        assert daemon.process.wait(20) == 0


def test_no_controller_elsewhere_is_dialled_without_a_certificate_and_no_gpu_is_a_clear_error(daemon) -> None:
    def run() -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
        return subprocess.run(
            [sys.executable, "-m", "hs_agent", "--config", str(daemon.config)],
            capture_output=True,
            text=True,
            timeout=120,
            env=env,
            check=False,
        )

    good = daemon.config.read_text()
    daemon.config.write_text(good.replace(f"unix:{daemon.place}/c.sock", "10.0.0.1:7443"))
    refused = run()
    assert refused.returncode == 5
    assert "has no certificate" in refused.stderr
    lines = [line for line in good.splitlines() if not line.startswith(("devices", "emulated"))]
    daemon.config.write_text("\n".join(lines))
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this host has an NVIDIA driver")
    none = run()
    assert none.returncode == 3
    assert 'set devices = "emulated"' in none.stderr
    assert "Traceback" not in none.stderr + refused.stderr


def test_what_is_kept_is_one_json_file_that_a_torn_write_cannot_break(
    daemon, controller, job, wait_for
) -> None:
    daemon.start()
    controller.want(job(1, *python(COUNT), **UNSUSPENDED))
    controller.wait_report(1, lambda r: r.phase is Phase.RUNNING, "running")
    (folder,) = daemon.folders()
    state = wait_for(folder.shim_state, "the shim is up")
    daemon.kill()
    kept = daemon.place / "state/host.json"
    assert json.loads(kept.read_text())["machine"]["jobs"][0]["wanted"]["job"] == 1
    kept.write_text(kept.read_text()[:-20])
    daemon.start()
    wait_for(lambda: "host.json is damaged" in daemon.said(), "it says so")
    wait_for(lambda: not procs.alive(state.shim), "a job that nobody remembers is ended")
    # The controller still wants it and hears that it is new here: nothing runs twice.
    controller.wait_report(1, lambda r: r.phase is Phase.RUNNING, "running again")


@pytest.mark.parametrize("code", [0, 3])
def test_an_exit_that_nobody_had_heard_is_told_though_what_the_agent_knew_is_lost(
    daemon, controller, job, wait_for, code: int
) -> None:
    ends = f"import time; time.sleep(1.0); print('done', flush=True); raise SystemExit({code})"
    daemon.start()
    controller.want(job(1, *python(ends), **UNSUSPENDED), job(2, *python(COUNT), **UNSUSPENDED))
    controller.wait_report(1, lambda r: r.phase is Phase.RUNNING, "running")
    (folder,) = [each for each in daemon.folders() if each.key.job == 1]
    wait_for(folder.shim_state, "the shim is up")
    daemon.kill()
    wait_for(folder.ended, "it ended meanwhile")
    (daemon.place / "state/host.json").write_text("{")
    controller.want()
    daemon.start()
    wait_for(lambda: len(controller.hellos) == 2, "the agent is back")
    (told,) = controller.hellos[1].last_words
    assert (told.job_id, told.epoch, told.exit.code, told.exit.signal, told.exit.why) == (1, 1, code, 0, "")
    wait_for(lambda: not folder.path.exists(), "the folder is removed")
    assert b"done" in controller.log_of(1)
    daemon.kill()
    daemon.start()
    wait_for(lambda: len(controller.hellos) == 3, "another agent is there")
    assert list(controller.hellos[2].last_words) == [told]
