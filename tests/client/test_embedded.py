"""`hsctl up` and `down`: what is written, what is started, and that no stranger is ever signalled."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
import tracemalloc
from pathlib import Path

import pytest

from hs_client import cluster_files, embedded, process
from hs_client.cluster_files import Emulated, Options, Pace

STAND_IN = Path(__file__).with_name("stand_in.py")


@pytest.fixture
def state(short, monkeypatch):
    """A state folder; whatever was started in it is ended after the test."""
    folder = short / "state"
    monkeypatch.setenv("HS_STATE", str(folder))
    yield folder
    cluster = cluster_files.read_cluster(folder) if (folder / "cluster.json").exists() else None
    for who in cluster.daemons.values() if cluster else ():
        process.send(who, signal.SIGKILL)


@pytest.fixture
def stand_ins(monkeypatch):
    """The daemons' places are taken; `roles` says by what."""
    roles = {"controller": "controller", "agent": "agent"}

    def commands(where, options):
        names = [host.name for host in options.hosts] or ["n1"]
        names += roles.get("away", ())
        made = {"controller": [sys.executable, str(STAND_IN), roles["controller"], str(where.socket), *names]}
        told = {name: where.state / f"told{name.removeprefix('agent')}" for name in options.agents}
        return made | {
            name: [sys.executable, str(STAND_IN), roles["agent"], str(told[name])] for name in told
        }

    monkeypatch.setattr(embedded, "commands", commands)
    return roles


def is_up(told: Path) -> None:
    """The stand-in of an agent: from then on it hears when it is told to stop."""
    end_s = time.monotonic() + 60.0
    while not told.exists() or not told.read_text():
        assert time.monotonic() < end_s, f"{told}: not there within a minute"
        time.sleep(0.01)


UP = ("up", "--emulate", "V100:4:16G", "--quantum", "2", "--user", "ann", "--user", "bob:50")


@pytest.mark.usefixtures("stand_ins")
def test_up_starts_both_waits_for_them_and_says_what_to_type_next(call, state):
    ran = call(*UP)
    assert ran.code == 0, ran.err
    assert str(state) in ran.out
    assert "hsctl submit" in ran.out
    data = json.loads((state / "cluster.json").read_text())
    assert set(data["daemons"]) == {"controller", "agent"}
    for daemon in data["daemons"].values():
        assert os.getsid(daemon["pid"]) == daemon["pid"], "a session of its own: it outlives the terminal"
    assert call("gpus", "--json").code == 0, "found without --controller"
    is_up(state / "told")
    assert call("down").code == 0
    assert not any(process.identity(daemon["pid"]) for daemon in data["daemons"].values())
    assert (state / "told").read_text() == "told to stop"


@pytest.mark.usefixtures("stand_ins")
def test_several_hosts_have_an_agent_each_and_all_are_told_to_stop(call, state):
    ran = call("up", "--host", "v1=V100:4", "--host", "k1=K80:2:12G", "--quantum", "2")
    assert ran.code == 0, ran.err
    data = json.loads((state / "cluster.json").read_text())
    assert set(data["daemons"]) == {"controller", "agent-v1", "agent-k1"}
    agent = tomllib.loads((state / "agent-k1.toml").read_text())
    assert (agent["name"], agent["dev"], agent["peer_listen"]) == ("k1", True, "127.0.0.1:0")
    assert agent["emulated"] == [{"model": "K80", "count": 2, "memory": 12 << 30}]
    folders = {tomllib.loads((state / f"agent-{n}.toml").read_text())["run_dir"] for n in ("v1", "k1")}
    assert len(folders) == 2, "agents share no sockets"
    assert call("up").out.startswith("already up")
    for name in ("v1", "k1"):
        is_up(state / f"told-{name}")
    assert call("down").code == 0
    assert [(state / f"told-{name}").read_text() for name in ("v1", "k1")] == ["told to stop"] * 2


@pytest.mark.usefixtures("state")
def test_up_names_servers_that_it_had_before_and_that_jobs_wait_for(call, stand_ins):
    stand_ins["away"] = ["vm:3", "old:0", "k9:1"]
    ran = call(*UP)
    assert ran.code == 0, ran.err
    told = [line for line in ran.err.splitlines() if " of before " in line]
    assert [line.split(",")[0] for line in told] == [
        "hsctl: 3 jobs of before wait for vm",
        "hsctl: 1 job of before waits for k9",
    ]
    assert "`hsctl node remove --force vm`" in told[0]


@pytest.mark.usefixtures("stand_ins")
def test_up_again_changes_nothing_and_down_again_is_safe(call, state):
    call(*UP)
    before = (state / "cluster.json").read_text()
    again = call("up")
    assert (again.code, again.out.startswith("already up")) == (0, True)
    assert call(*UP).code == 0
    assert (state / "cluster.json").read_text() == before
    assert call("down").out == "down\n"
    assert call("down").out.startswith("nothing is up")
    assert call("down", "--state", state / "never").code == 0


@pytest.mark.usefixtures("state", "stand_ins")
def test_up_with_other_options_is_refused_while_it_runs(call):
    call(*UP)
    ran = call("up", "--emulate", "K80:2")
    assert ran.code == 1
    assert "expected `hsctl down` first" in ran.err
    others = "--emulate is V100:4:16G there, K80:2:16G here; --quantum is 2 there, 60 here; --user is ann, bob:50 there, not said here"
    assert others in ran.err
    call("down")


@pytest.mark.parametrize(
    "asked",
    [
        Options(devices="nvml"),
        Options(emulated=(Emulated(model="V100", count=4, memory_bytes=(16 << 30) + 4096),)),
        Options(hosts=(cluster_files.host("v1=V100:4"), cluster_files.host("k1=K80:2:12G"))),
        Options(paces=(cluster_files.pace("*digits*=0.05:V100=4"),)),
        Options(slowdowns=(cluster_files.slowdown("1,1.5"),)),
        Options(quantum_s=30.0),
        Options(policy="fifo"),
        Options(users=(("ann", 50.0),)),
        Options(preload=2),
        Options(page=7445),
    ],
)
def test_whatever_differs_of_what_runs_is_named_with_both_values(asked):
    there = Options(emulated=(cluster_files.emulated("V100:4"),)) if asked.emulated else Options()
    (said,) = cluster_files.unlike(there, asked)
    flag = {
        "hosts": "host",
        "emulated": "emulate",
        "paces": "pace",
        "slowdowns": "slowdown",
        "users": "user",
        "quantum_s": "quantum",
    }
    (name,) = [
        name
        for name in cluster_files.recorded(asked)
        if cluster_files.recorded(asked)[name] != cluster_files.recorded(there)[name]
    ]
    assert said.startswith(f"--{flag.get(name, name)} is ")
    assert cluster_files.unlike(asked, asked) == []


@pytest.mark.usefixtures("stand_ins")
def test_after_down_up_runs_with_the_same_options(call, state):
    call(*UP)
    written = (state / "agent.toml").read_text()
    call("down")
    assert call("up").code == 0
    assert (state / "agent.toml").read_text() == written
    call("down")


@pytest.mark.usefixtures("stand_ins")
def test_a_daemon_that_was_killed_is_started_again_and_the_other_is_left_alone(call, state):
    call(*UP)
    before = cluster_files.read_cluster(state).daemons
    process.send(before["controller"], signal.SIGKILL)
    assert process.wait_gone(before["controller"], 60)
    ran = call("up")
    assert ran.code == 0, ran.err
    assert "controller was not running" in ran.err
    after = cluster_files.read_cluster(state).daemons
    assert after["agent"] == before["agent"]
    assert after["controller"] != before["controller"]
    call("down")


def test_a_daemon_that_cannot_start_is_shown_with_its_log_and_leaves_nothing_behind(call, state, stand_ins):
    stand_ins["controller"] = "fails"
    ran = call(*UP)
    assert ran.code == 6
    assert "stand-in: no such policy" in ran.err
    assert cluster_files.read_cluster(state).running() == []


def test_a_policy_that_there_is_none_of_is_bad_usage_and_leaves_nothing_behind(call, state):
    ran = call(*UP, "--policy", "lass")
    assert ran.code == 2
    assert "policy = 'lass': no policy is called 'lass'" in ran.err
    assert "did you mean las?" in ran.err
    assert cluster_files.read_cluster(state).running() == []


def test_an_agent_that_never_joins_is_a_deadline_not_a_hang(call, state, stand_ins):
    stand_ins["controller"] = "agent"
    ran = call(*UP, "--timeout", "1")
    assert ran.code == 6
    assert "not ready within 1 s" in ran.err
    assert cluster_files.read_cluster(state).running() == []


@pytest.mark.usefixtures("stand_ins")
def test_keep_jobs_does_not_tell_the_agent_to_end_them(call, state):
    call(*UP)
    is_up(state / "told")
    ran = call("down", "--keep-jobs")
    assert ran.code == 0
    assert (state / "told").read_text() == "is up"
    assert cluster_files.read_cluster(state).running() == []


@pytest.fixture
def left_job(state):
    """A job of the agent that goes on, as far as can be seen: a process that was told of its folder."""
    folder = state / "agent/jobs/7-0"
    folder.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(folder)]) as job:
        yield job
        job.kill()


def killed(state: Path) -> None:
    agent = cluster_files.read_cluster(state).daemons["agent"]
    process.send(agent, signal.SIGKILL)
    assert process.wait_gone(agent, 60)


@pytest.mark.usefixtures("stand_ins", "left_job")
def test_down_starts_an_agent_again_that_died_and_left_jobs(call, state):
    call(*UP)
    is_up(state / "told")
    killed(state)
    ran = call("down")
    assert (ran.code, ran.out) == (0, "down\n")
    assert "agent was not running: starting it again to end the jobs that it left" in ran.err
    assert (state / "told").read_text() == "told to stop"
    assert cluster_files.read_cluster(state).running() == []


@pytest.mark.usefixtures("left_job")
def test_jobs_of_an_earlier_up_outlive_one_that_fails(call, state, stand_ins):
    call(*UP)
    is_up(state / "told")
    assert call("down", "--keep-jobs").code == 0
    stand_ins["controller"] = "agent"
    ran = call("up", "--timeout", "3")
    assert (ran.code, (state / "told").read_text()) == (6, "is up")
    assert "the jobs of agent go on" in ran.err
    assert cluster_files.read_cluster(state).running() == []


@pytest.mark.usefixtures("stand_ins", "left_job")
def test_jobs_that_were_kept_are_ended_by_a_down_that_does_not_keep_them(call, state):
    call(*UP)
    is_up(state / "told")
    assert call("down", "--keep-jobs").code == 0
    assert (state / "told").read_text() == "is up"
    assert call("down").out == "down\n"
    assert (state / "told").read_text() == "told to stop"


@pytest.mark.usefixtures("stand_ins")
def test_folders_of_jobs_that_have_ended_start_no_agent_again(call, left_job):
    call(*UP)
    assert call("down").out == "down\n"
    left_job.kill()
    left_job.wait()
    ran = call("down")
    assert ran.out.startswith("nothing is up")
    assert ran.err == ""


@pytest.mark.usefixtures("left_job")
def test_an_agent_that_cannot_be_started_again_to_end_jobs_is_shown_with_its_log(call, state, stand_ins):
    call(*UP)
    killed(state)
    stand_ins["agent"] = "fails"
    ran = call("down")
    assert ran.code == 6
    assert "agent did not start, so its jobs go on" in ran.err
    assert "stand-in: no such policy" in ran.err
    assert cluster_files.read_cluster(state).running() == ["controller"]
    assert call("down", "--keep-jobs").out == "down\n"


@pytest.mark.usefixtures("left_job")
def test_down_says_that_jobs_go_on_where_an_agent_ended_before_them(call, state, stand_ins, monkeypatch):
    monkeypatch.setattr(embedded, "SHIMS_END_S", 0.5)
    call(*UP)
    killed(state)
    stand_ins["agent"] = "deserts"
    ran = call("down")
    assert (ran.code, ran.out) == (6, "")
    assert "agent ended before its jobs did, and they go on" in ran.err
    stand_ins["agent"] = "agent"
    assert call("down").out == "down\n"


@pytest.mark.usefixtures("stand_ins")
def test_a_pid_that_now_belongs_to_somebody_else_is_never_signalled(call, state):
    call(*UP)
    call("down")
    with subprocess.Popen(["sleep", "60"]) as stranger:
        data = json.loads((state / "cluster.json").read_text())
        for daemon in data["daemons"].values():
            daemon["pid"] = stranger.pid
        (state / "cluster.json").write_text(json.dumps(data))
        assert call("down").out.startswith("nothing is up")
        mine = process.identity(stranger.pid)
        other_boot = process.Identity(pid=mine.pid, start_time=mine.start_time, boot_id="another")
        assert not process.send(other_boot, signal.SIGKILL)
        assert stranger.poll() is None
        assert process.send(mine, signal.SIGKILL)


def test_what_is_dead_but_not_waited_for_counts_as_gone():
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.identity(child.pid) is None
    child.wait()


def test_of_a_process_with_words_without_end_only_so_many_are_read(tmp_path, monkeypatch):
    words = tmp_path / str(os.getpid()) / "cmdline"
    words.parent.mkdir()
    with words.open("wb") as file:
        file.truncate(256 << 20)
    monkeypatch.setattr(process, "PROC", tmp_path)
    tracemalloc.start()
    try:
        assert not process.any_of(tmp_path / "jobs")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 64 << 20


@pytest.mark.usefixtures("stand_ins")
def test_up_says_where_the_page_is_and_says_it_again(call, state):
    first = call("up", "--emulate", "V100:1", "--page", "7445")
    assert "page: http://127.0.0.1:7445/" in first.out
    assert str(state / "controller" / "admin.token") in first.out
    assert "page: http://127.0.0.1:7445/" in call("up").out
    assert call("down").code == 0


def test_the_configuration_says_all_that_was_asked_for(tmp_path):
    options = Options(
        devices="emulated", emulated=(Emulated(model="V100", count=4), Emulated(model="K80", count=2, memory_bytes=12 << 30)),
        paces=(Pace(job_class='a"b*', base_s=0.05, speedup={"V100": 4.0, "K80": 1.0}),), quantum_s=2.0,
        users=(("ann", None), ("b.ob@x", 50.0)), preload=3, page=7445,
    )  # fmt: skip
    where = cluster_files.Folders(state=tmp_path, run=tmp_path / "run")
    controller = tomllib.loads(cluster_files.controller_toml(options, where))
    assert controller["socket"] == str(tmp_path / "run/controller.sock")
    assert (controller["embedded"], controller["policy"], controller["quantum_s"]) == (
        True,
        "gandiva-fair",
        2.0,
    )
    assert (controller["dev"], controller["web_listen"]) == (True, "127.0.0.1:7445")
    me = cluster_files._account()
    assert controller["users"] == {"ann": {"run_as": me}, "b.ob@x": {"run_as": me, "tickets": 50.0}}
    agent = tomllib.loads(cluster_files.agent_toml(options, where, "emulated"))
    assert agent["controller"] == f"unix:{where.socket}"
    assert agent["emulated"][1] == {"model": "K80", "count": 2, "memory": 12 << 30}
    assert agent["pace"] == [{"job_class": 'a"b*', "base_s": 0.05, "speedup": {"V100": 4.0, "K80": 1.0}}]
    assert (agent["end_jobs_on_stop"], agent["preload"]) == (True, 3)
    assert agent.get("allow_root", False) == (os.geteuid() == 0)
    assert cluster_files.restored(cluster_files.recorded(options)) == options


def test_a_long_state_path_has_its_sockets_in_a_short_folder_of_ones_own(short):
    deep = short / ("x" * 80)
    where = cluster_files.folders(deep)
    try:
        assert len(str(where.socket)) < 80
        assert not where.run.is_relative_to(deep)
        found = where.run.lstat()
        assert found.st_uid == os.geteuid()
        assert not found.st_mode & 0o066
        assert cluster_files.folders(deep) == where
    finally:
        where.run.rmdir()


def test_a_run_folder_that_is_a_link_is_refused(short):
    deep = short / ("y" * 80)
    where = cluster_files.folders(deep)
    where.run.rmdir()
    where.run.symlink_to(short)
    try:
        with pytest.raises(cluster_files.InvalidError, match="folder of your own"):
            cluster_files.folders(deep)
    finally:
        where.run.unlink()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--emulate", "V100:0"], "expected 1 to 64 GPUs"), (["--emulate", "V100:x"], "expected MODEL:NUMBER"),
        (["--emulate", "V100:2:big"], "expected a size"), (["--emulate", ":2"], "expected MODEL:NUMBER"),
        (["--devices", "nvml", "--emulate", "V100:2"], "--devices emulated"), (["--devices", "emulated"], "--emulate V100:4"),
        (["--emulate", "V100:1", "--user", "a b"], "expected NAME"), (["--emulate", "V100:1", "--user", "ann:0"], "tickets from 0.001 to 1e9"),
        (["--emulate", "V100:1", "--pace", "fast"], "expected SECONDS"), (["--emulate", "V100:1", "--pace", "a=1:V100"], "expected SECONDS"),
        (["--emulate", "V100:1", "--user", "ann:9e99"], "tickets from 0.001 to 1e9"), (["--emulate", "V100:1", "--user", "ann:0.0001"], "tickets from 0.001 to 1e9"),
        (["--emulate", "V100:1", "--pace", "9e99"], "(at most 3600)"), (["--emulate", "V100:1", "--pace", "1:V100=1e9"], "(1e-6 to 1e6)"),
        (["--emulate", "V100:1:" + "9" * 400 + "G"], "at most 1024T"),
        (["--emulate", "V100:1", "--emulate", "K80:1"], "expected one model"), (["--emulate", "V100:1", "--quantum", "0"], "quantum"), (["--emulate", "V100:1", "--page", "0"], "page"),
        (["--host", "V100:4"], "expected NAME=MODEL:NUMBER"), (["--host", "v1=V100:x"], "expected MODEL:NUMBER"),
        (["--host", "v1=V100:4", "--host", "v1=K80:4"], "each name once"), (["--host", "v1=V100:4", "--emulate", "K80:1"], "neither --emulate"),
        (["--emulate", "V100:1", "--user", "ann", "--user", "ann:20"], "--user ann,ann: expected each name once"),
    ],
)  # fmt: skip
def test_bad_options_of_up_start_nothing(call, state, words, text):
    ran = call("up", *words)
    assert ran.code == 2
    assert text in ran.err
    assert not state.exists()


def test_a_file_is_no_state_folder(call, tmp_path):
    (tmp_path / "file").touch()
    ran = call("up", "--emulate", "V100:1", "--state", str(tmp_path / "file"))
    assert ran.code == 2
    assert "file: File exists: expected a folder that can be made and written" in ran.err


@pytest.mark.usefixtures("state")
def test_a_machine_without_gpus_is_told_how_to_emulate(call, monkeypatch):
    monkeypatch.setattr(embedded, "_gpus_here", lambda: 0)
    ran = call("up")
    assert ran.code == 2
    assert "--emulate V100:4:16G" in ran.err


@pytest.mark.usefixtures("state")
def test_missing_extras_are_named_with_what_to_install(call, monkeypatch):
    monkeypatch.setattr(embedded, "NEEDS", {"controller": ("no_such_package_here",)})
    ran = call(*UP)
    assert ran.code == 1
    assert "pip install 'heteroshare[controller,agent]'" in ran.err


@pytest.mark.usefixtures("stand_ins")
def test_two_at_once_do_not_mix(call, state):
    state.mkdir()
    with cluster_files.locked(state):
        ran = call(*UP)
    assert ran.code == 1
    assert "another `hsctl up`" in ran.err


def test_a_pace_is_for_every_class_unless_one_is_named():
    assert cluster_files.pace("0.04") == Pace(job_class="*", base_s=0.04, speedup={})
    assert cluster_files.pace("0.1:V100=3,K80=1").speedup == {"V100": 3.0, "K80": 1.0}
    assert cluster_files.pace("A/x=1*=0.5:V100=4,K80=1") == Pace(
        job_class="A/x=1*", base_s=0.5, speedup={"V100": 4.0, "K80": 1.0}
    )
