"""Jobs live through the end of their agent, and the next one knows what became of them."""

import json
import os
import resource
import shutil
import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hs_agent import procs
from hs_agent.cgroup import Cgroups
from hs_agent.folder import Key
from hs_agent.launch import Launcher
from hs_core.names import JobId
from hs_core.reports import WITH_AGENT, Phase, Tier
from hs_daemon import boot_s
from hs_daemon.held import hold
from tests.agent.lending import GENERATION, STEP, write
from tests.agent.real_jobs import COUNT, FROZEN, UNSUSPENDED, lines, python


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


def counting(daemon, controller, job):
    """The folder of a job that runs."""
    daemon.start()
    controller.want(job(1, *python(COUNT), **UNSUSPENDED))
    controller.wait_report(1, lambda r: r.phase is Phase.RUNNING, "running")
    (folder,) = daemon.folders()
    return folder


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


TELL_THE_TIME = "import time\nwhile True:\n    print(time.monotonic(), flush=True)\n    time.sleep(0.01)"


def is_frozen(daemon, number: int) -> bool:
    """As it is, whatever was told of it."""
    (folder,) = [each for each in daemon.folders() if each.key.job == number]
    launch = folder.launch()
    if launch["cgroup"]["freeze"]:
        events = Path(launch["cgroup"]["freeze"]).with_name("cgroup.events")
        return "frozen 1" in events.read_text().splitlines()
    if launch["cgroup"]["freezer"]:
        return Path(launch["cgroup"]["freezer"]).read_text().strip() == "FROZEN"
    return folder.shim_state().frozen


@pytest.mark.parametrize("daemon", [{}, {"cgroup": "none"}], indirect=True, ids=["cgroup", "no-cgroup"])
def test_a_job_that_was_frozen_when_the_agent_was_killed_stays_so_until_the_next_one_gives_it_a_turn(
    daemon, controller, job, wait_for
) -> None:
    daemon.start()
    controller.want(*(job(n, *python(TELL_THE_TIME), **FROZEN) for n in (1, 2)), quantum_s=1.0)
    for number in (1, 2):
        controller.wait_report(number, lambda r: r.suspends >= 1, "a turn and its end")
    daemon.kill()
    away_s = boot_s()
    wait_for(lambda: boot_s() > away_s + 0.5, "what the agent had told a shim last is done")
    # What was told of them is older than this: who is frozen is seen.
    frozen = wait_for(lambda: [n for n in (1, 2) if is_frozen(daemon, n)], "one is frozen")[0]
    wait_for(lambda: boot_s() > away_s + 1.6, "an edge has passed that nobody saw")
    assert is_frozen(daemon, frozen)
    counted = lines(daemon, frozen)
    daemon.start()
    wait_for(lambda: len(controller.hellos) == 2, "the agent is back")

    before = {n: controller.reports[n].suspends for n in (1, 2)}  # or one more, that was not told
    for number in (1, 2):
        controller.wait_report(number, lambda r, n=number: r.suspends > before[n] + 1, "another turn")
    assert lines(daemon, frozen) > counted
    logs = {folder.key.job: (folder.path / "log").read_text() for folder in daemon.folders()}
    told = sorted((float(line), number) for number, log in logs.items() for line in log.split("\n")[:-1])
    passed_on = sum(one != other for (_, one), (_, other) in pairwise(told))
    # Who trains beside another tells the time in alternation with it, 100 times a second. Of each job's stops the
    # last may not have been told yet.
    assert 2 <= passed_on <= sum(controller.reports[n].suspends for n in (1, 2)) + 2, "both train on one GPU"


def with_a_child(daemon, controller, job, wait_for):
    """The folder of a job with a child in a session of its own, and both processes."""
    daemon.start()
    code = "import os, time\nif os.fork() == 0: os.setsid()\nos.write(1, b'%d\\n' % os.getpid())\ntime.sleep(600)"
    controller.want(job(1, *python(code), **UNSUSPENDED))
    wait_for(lambda: lines(daemon, 1) == 2, "both are up")
    (folder,) = daemon.folders()
    pids = [procs.identity(int(pid)) for pid in (folder.path / "log").read_text().split()]
    return folder, pids


def test_a_killed_shim_is_told_and_nothing_of_its_job_is_left(daemon, controller, job, wait_for) -> None:
    folder, pids = with_a_child(daemon, controller, job, wait_for)
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


def test_a_job_whose_shim_somebody_has_stopped_is_ended_all_the_same(
    daemon, controller, job, wait_for
) -> None:
    daemon.start()
    controller.want(job(1, "/bin/sleep", "600", **UNSUSPENDED))
    controller.wait_report(1, lambda r: r.phase is Phase.RUNNING, "it runs")
    (folder,) = daemon.folders()
    state = wait_for(lambda: (found := folder.shim_state()) and found.job and found, "the job is up")
    procs.send(state.shim, signal.SIGSTOP)
    controller.want(job(1, "/bin/sleep", "600", cancelled=True, **UNSUSPENDED))
    report = controller.wait_report(1, lambda r: r.exit, "an exit")
    assert report.exit.signal == signal.SIGTERM
    assert not procs.alive(state.job)


def test_an_agent_without_a_descriptor_ends_a_job_when_it_has_one(daemon, controller, job, wait_for) -> None:
    daemon.start()
    controller.want(job(1, "/bin/sleep", "600", **UNSUSPENDED))
    controller.wait_report(1, lambda r: r.phase is Phase.RUNNING, "it runs")
    (folder,) = daemon.folders()
    wait_for(lambda: (found := folder.shim_state()) and found.job and found, "the job is up")
    pid = daemon.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    controller.want(job(1, "/bin/sleep", "600", cancelled=True, **UNSUSPENDED))
    wait_for(lambda: '"event": "ending"' in daemon.said(), "it is to end")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    report = controller.wait_report(1, lambda r: r.exit, "an exit")
    assert report.exit.signal == signal.SIGTERM
    assert daemon.process.poll() is None


def test_a_job_that_is_ended_with_its_agent_says_so_to_the_next_one(
    daemon, controller, job, wait_for
) -> None:
    daemon.start("--end-jobs-on-stop")
    controller.want(job(1, "/bin/sleep", "600", **UNSUSPENDED))
    controller.wait_report(1, lambda r: r.phase is Phase.RUNNING, "it runs")
    (folder,) = wait_for(daemon.folders, "it is being launched")
    wait_for(
        lambda: (found := folder.shim_state()) and found.job, "it is up: else the next agent launches it"
    )
    assert daemon.stop() == 0
    daemon.start()
    report = controller.wait_report(1, lambda r: r.exit, "an exit")
    assert (report.exit.signal, report.exit.why) == (15, WITH_AGENT)


def test_what_is_kept_is_one_json_file_that_a_torn_write_cannot_break(
    daemon, controller, job, wait_for
) -> None:
    folder = counting(daemon, controller, job)
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


def test_an_agent_leaves_alone_what_one_of_another_version_knows_and_its_jobs(
    daemon, controller, job, wait_for
) -> None:
    folder = counting(daemon, controller, job)
    state = wait_for(lambda: (found := folder.shim_state()) and found.job and found, "the job is up")
    daemon.kill()
    kept = daemon.place / "state/host.json"
    known = json.loads(kept.read_text())
    known["machine"] = {"version": known["machine"]["version"] + 1, "minds": 2}
    kept.write_text(json.dumps(known))
    daemon.start()
    assert daemon.process.wait(60) == 2, "not started again by systemd"
    said = daemon.said()
    assert f"state_dir: {kept} is of version {known['machine']['version']}, this agent's is" in said
    assert "Traceback" not in said
    assert json.loads(kept.read_text()) == known
    assert procs.alive(state.job)


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


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("written", [True, False])
def test_a_job_that_ran_before_goes_on_from_a_checkpoint_here_that_nobody_remembers(
    daemon, controller, job, wait_for, *, written: bool, restarts: int
) -> None:
    """What the agent had kept is lost, and the controller names what is on another host, or on several."""
    if written:
        write(daemon.place / "state/checkpoints/1", {"rank0.pt": 300})
    says = "import os, time; print(os.environ.get('HS_RESTORE'), flush=True); time.sleep(600)"
    daemon.start()
    controller.want(job(1, *python(says), epoch=2, restarts=restarts, **UNSUSPENDED))
    from_it = written and restarts
    told = f"{GENERATION}" if from_it else "None"
    (folder,) = wait_for(daemon.folders, "it is launched")
    log = folder.path / "log"
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"), "it says where it begins")
    assert log.read_text().strip() == told
    report = controller.wait_report(1, lambda r: r.phase is Phase.RUNNING, "running")
    assert report.checkpoint_generation == (GENERATION if from_it else -1)


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


def without_state(daemon, controller, wait_for) -> None:
    """Somebody has taken the agent's state folder away while it was not there; the next one is."""
    controller.want()
    (daemon.place / "state").rename(daemon.place / "elsewhere")  # jobs write into it meanwhile
    daemon.start()
    wait_for(lambda: len(controller.hellos) == 2, "the agent is back")


@pytest.mark.parametrize("daemon", [{}, {"cgroup": "none"}], indirect=True, ids=["cgroup", "no-cgroup"])
def test_jobs_whose_state_folder_was_taken_away_are_ended_and_the_controller_is_told_that_it_is_another(
    daemon, controller, job, wait_for
) -> None:
    folder = counting(daemon, controller, job)
    state = wait_for(lambda: (found := folder.shim_state()) and found.job and found, "the job is up")
    daemon.kill()
    without_state(daemon, controller, wait_for)
    wait_for(lambda: not procs.alive(state.shim) and not procs.alive(state.job), "it is ended")
    before, after = (hello.setup for hello in controller.hellos)
    assert len({before, after, ""}) == 3
    daemon.kill()
    daemon.start()
    wait_for(lambda: len(controller.hellos) == 3, "another agent is there")
    assert controller.hellos[2].setup == after, "it is still the same folder"


def test_what_a_job_without_a_shim_had_left_is_ended_by_its_group_where_its_folder_was_taken_away(
    daemon, controller, job, wait_for
) -> None:
    folder, pids = with_a_child(daemon, controller, job, wait_for)
    if folder.launch()["cgroup"]["procs"] == []:
        pytest.skip("no control groups that can be used here")
    daemon.kill()
    procs.send(folder.shim_state().shim, signal.SIGKILL)
    wait_for(lambda: sum(map(procs.alive, pids)) == 1, "its child alone is left")
    without_state(daemon, controller, wait_for)
    assert not any(map(procs.alive, pids))


STEPS = "import time, hs_job\nwhile True:\n    time.sleep(0.02)\n    hs_job.step()"


@pytest.mark.parametrize("emptied", [False, True])
def test_jobs_are_told_to_stop_and_to_go_on_by_the_next_agent_though_its_run_dir_is_another(
    daemon, controller, job, wait_for, emptied: bool
) -> None:
    """They look for their sockets where the agent that started them had these."""
    daemon.start()
    controller.want(*(job(number, *python(STEPS)) for number in (1, 2)), quantum_s=1.0)
    for number in (1, 2):
        controller.wait_report(
            number, lambda r: r.suspends >= 1 and r.tier is Tier.HOLD, "a turn and its end"
        )
    daemon.kill()
    before = {number: controller.reports[number] for number in (1, 2)}
    run_dir = daemon.place / "run"
    if emptied:
        shutil.rmtree(run_dir)
    daemon.config.write_text(daemon.config.read_text().replace(str(run_dir), f"{run_dir}-2"))
    daemon.start()
    wait_for(lambda: len(controller.hellos) == 2, "the agent is back")
    for number in (1, 2):
        controller.wait_report(
            number,
            lambda r, was=before[number]: r.step > was.step + 20 and r.suspends >= was.suspends + 2 and r.tier is Tier.HOLD,
            "turns that begin and end at step edges",
        )  # fmt: skip
    log = daemon.said()
    assert log.count("jobs that were started with another run_dir go on there") == 1


def test_a_run_dir_that_is_another_agents_by_now_stays_that_ones(settings, place: Path) -> None:
    launcher = Launcher(settings(), Cgroups())
    key, theirs = Key(JobId(1), 1), place / "theirs"
    theirs.mkdir()
    held = hold(theirs)
    launch = {"env": {"HS_AGENT_SOCKET": f"{theirs}/1-1.sock"}}
    with capture_logs() as said:
        assert launcher.socket_of(key, launch) == launcher.socket_path(key)
    os.close(held)
    (line,) = said
    assert line["run_dir"] == str(theirs)
    assert f"belongs to another agent that is running (pid {os.getpid()})" in line["why"]
