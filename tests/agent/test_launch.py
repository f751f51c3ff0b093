"""What a job is started with: account, command, environment; and how its processes are found again."""

import contextlib
import errno
import json
import os
import pwd
import resource
import shutil
import socket
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from hs_agent import accounts, cgroup, folder, launch, memory, procs, program
from hs_agent.config import DeviceKind
from hs_agent.folder import Folder, Key
from hs_core.errors import RefusedError
from hs_core.forms import Elastic, Shape
from hs_core.host.memory import VERSION
from hs_core.model import Gpu, SuspendMode
from hs_core.names import GpuId, JobId

RUN = [
    "-m",
    "torch.distributed.run",
    "--nnodes=1",
    "--nproc-per-node=2",
    "--master-addr=127.0.0.1",
    "--master-port=29500",
]

ALONE = program.Place(1, 0, "127.0.0.1", 29500)


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        (("train.py", "--lr", "1"), ["python", *RUN, "train.py", "--lr", "1"]),
        (("python", "train.py"), ["python", *RUN, "train.py"]),
        (
            ("/v/bin/python3.11", "-u", "-X", "dev", "train.py", "-u"),
            ["/v/bin/python3.11", "-u", "-X", "dev", *RUN, "train.py", "-u"],
        ),
        (("python3", "-m", "pkg.train", "x"), ["python3", *RUN, "--module", "pkg.train", "x"]),
        (("./train", "x"), ["python", *RUN, "--no-python", "./train", "x"]),
        (("pythonic.py",), ["python", *RUN, "pythonic.py"]),
    ],
)
def test_torchrun_uses_the_jobs_own_python(command, argv) -> None:
    assert program.torchrun(command, 2, ALONE, "7-1") == argv


def test_torchrun_over_several_nodes_keeps_each_nodes_ranks() -> None:
    place = program.Place(3, 2, "10.0.0.2", 29417)
    argv = program.torchrun(("python", "train.py"), 4, place, "7-1")
    assert argv == [
        "python", "-m", "torch.distributed.run", "--nnodes=3", "--nproc-per-node=4", "--master-addr=10.0.0.2",
        "--master-port=29417", "--node-rank=2", "--rdzv-id=7-1", "train.py",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "command", [("python",), ("python", "-c", "1"), ("python", "-"), ("python", "-u"), ("python", "-m")]
)
def test_torchrun_needs_a_script_or_a_module(command) -> None:
    with pytest.raises(RefusedError, match="must name a script or a module"):
        program.torchrun(command, 2, ALONE, "7-1")


def test_a_job_on_one_server_meets_on_loopback_at_a_port_where_nobody_listens(job) -> None:
    with contextlib.ExitStack() as listeners:
        taken: set[int] = set()
        for _ in range(20):
            place = program.Place.of(job(7, "train.py"))
            assert place.address == "127.0.0.1"
            assert place.port not in taken
            listeners.enter_context(socket.create_server((place.address, place.port)))
            taken.add(place.port)


def prepared(settings, job, *command, generation=-1, **changes):
    config = settings()
    launcher = launch.Launcher(config, cgroup.Cgroups())
    from hs_agent.devices import open_devices

    gpus = open_devices(config).gpus()[:2]
    made, who = launcher.prepare(job(7, *command, **changes), gpus, generation)
    return made.launch(), who


def test_the_environment_is_what_the_protocol_says_and_nothing_of_the_agents(
    settings, job, place, monkeypatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "1")
    env = {"PYTHONPATH": "/mine", "HS_USER": "eve", "A": "b", "PATH": "/p"}
    made, who = prepared(
        settings, job, "train.py", gpus=2, env=env, array_index=3, generation=4, epoch=3, restarts=2
    )
    env = made["env"]
    assert "SECRET_OF_THE_AGENT" not in env
    assert env["PYTHONPATH"] == f"{place}/state/inject:/mine"
    assert (env["A"], env["PATH"], env["PYTHONUNBUFFERED"]) == ("b", "/p", "1")
    assert {name: env[name] for name in env if name.startswith("HS_")} == {
        "HS_JOB_ID": "7",
        "HS_JOB_NAME": "job7",
        "HS_USER": "ada",
        "HS_ARRAY_TASK_ID": "3",
        "HS_NNODES": "1",
        "HS_NODE_RANK": "0",
        "HS_GPUS_PER_NODE": "2",
        "HS_GPU_TYPE": "V100",
        "HS_MASTER_ADDR": "127.0.0.1",
        "HS_MASTER_PORT": env["MASTER_PORT"],
        "HS_EPOCH": "3",
        "HS_RESTART_COUNT": "2",
        "HS_ACCUMULATION_STEPS": "1",
        "HS_COPY": "0",
        "HS_COPIES": "1",
        "HS_CHECKPOINT_DIR": f"{place}/state/checkpoints/7",
        "HS_AGENT_SOCKET": f"{place}/run/7-3.sock",
        "HS_STEPS_FILE": f"{place}/state/jobs/7-3/steps",
        "HS_RESTORE": "4",
    }
    assert "CUDA_VISIBLE_DEVICES" not in env  # emulated
    assert who.uid == os.geteuid()
    assert Path(env["HS_CHECKPOINT_DIR"]).stat().st_mode & 0o777 == 0o700


def test_a_job_of_no_array_has_no_task_number(settings, job) -> None:
    """Scripts ask `os.environ.get("HS_ARRAY_TASK_ID", "0")`."""
    made, _ = prepared(settings, job, "train.py")
    assert "HS_ARRAY_TASK_ID" not in made["env"]


def test_sets_of_text_have_one_order_in_all_processes_of_a_job_unless_its_user_wants_another(
    settings, job
) -> None:
    """A vocabulary made of one is the same where the job goes on."""
    said = []
    for epoch in (1, 2):
        made, _ = prepared(settings, job, "train.py", epoch=epoch)
        code = "print(list({str(each) for each in range(50)}))"
        said.append(subprocess.check_output([sys.executable, "-c", code], env=made["env"]))
    assert said[0] == said[1]
    made, _ = prepared(settings, job, "train.py", env={"PYTHONHASHSEED": "random"}, epoch=3)
    assert made["env"]["PYTHONHASHSEED"] == "random"


def test_torchrun_notes_how_its_processes_failed_in_the_jobs_folder_and_that_goes_with_it(
    settings, job, place: Path
) -> None:
    made, _ = prepared(settings, job, "train.py", gpus=2, torchrun=True, epoch=3)
    notes = place / "state" / "jobs" / "7-3" / "torchrun"
    assert f"--log-dir={notes}" in made["argv"]
    assert notes.stat().st_mode & 0o777 == 0o700
    (notes / "7-3_x" / "attempt_0" / "0").mkdir(parents=True)
    prepared(settings, job, "train.py", gpus=2, torchrun=True, epoch=3)
    assert list(notes.iterdir()) == [], "of the start before"
    (notes / "7-3_x").mkdir()
    (notes.parent / "log").write_text("it failed")
    Folder(notes.parent, Key(JobId(7), 3)).retire(place / "ended")
    assert not notes.parent.exists()
    assert [path.name for path in (place / "ended" / "7-3").iterdir()] == ["log"]


@pytest.mark.parametrize(
    "changes",
    [{"torchrun": True, "env": {"PET_LOG_DIR": "/mine"}}, {"torchrun": False}],
    ids=["its user named another", "no torchrun"],
)
def test_else_there_is_no_such_folder(settings, job, place: Path, changes) -> None:
    made, _ = prepared(settings, job, "train.py", **changes)
    assert not any(word.startswith("--log-dir") for word in made["argv"])
    assert not list((place / "state" / "jobs").glob("*/torchrun"))


def test_a_launcher_has_to_be_a_program(place: Path) -> None:
    program.check_launcher(())
    program.check_launcher((sys.executable, "anything"))
    (place / "notes").write_text("no program")
    for no_program in (place / "notes", place):
        with pytest.raises(PermissionError, match="the launcher is no program that can be run") as raised:
            program.check_launcher((str(no_program),))
        assert raised.value.filename == str(no_program)
    with pytest.raises(FileNotFoundError):
        program.check_launcher((str(place / "missing"),))


def test_an_elastic_job_is_told_its_batch_also_where_nobody_chose_one(settings, job) -> None:
    config = settings()
    elastic = Elastic(gpus_min=1, gpus_max=8, batch=96, batch_max=512, batch_per_gpu_max=16)
    declared = job(7, "train.py", gpus=2, torchrun=True, elastic=elastic)
    chosen = replace(declared, shape=Shape(gpus=4, per_gpu=16, parts=2))
    told = {}
    for wanted in (declared, chosen):
        place = program.Place.of(wanted)
        who = accounts.account(wanted.run_as, config)
        env = program.environment(wanted, (), who, config, Path("/s"), Path("/i"), "/c", place)
        words = ("HS_GPUS_PER_NODE", "HS_BATCH_PER_GPU", "HS_ACCUMULATION_STEPS")
        told[wanted.gpus] = tuple(int(env[word]) for word in words)
    assert told == {2: (2, 48, 3), 4: (4, 32, 2)}


@pytest.mark.parametrize(
    ("wishes", "threads"),
    [
        ({}, None),
        ({"cpus": 6}, "6"),
        ({"cpus": 6, "gpus": 2}, "6"),
        ({"cpus": 6, "gpus": 2, "torchrun": True}, "3"),
        ({"cpus": 1, "gpus": 2, "torchrun": True}, "1"),
        ({"cpus": 6, "env": {"OMP_NUM_THREADS": "2"}}, "2"),
        ({"env": {"OMP_NUM_THREADS": "2"}}, "2"),
    ],
)
def test_each_process_has_as_many_threads_as_cpus_were_asked_for_unless_its_user_says_otherwise(
    settings, job, wishes, threads
) -> None:
    made, _ = prepared(settings, job, "train.py", **wishes)
    assert made["env"].get("OMP_NUM_THREADS") == threads


def test_jobs_reach_the_mps_daemon_where_the_host_has_one(settings, job) -> None:
    gpus = (Gpu(id=GpuId("GPU-1"), index=0, model="V100", memory_bytes=1 << 34),)
    place = program.Place(1, 0, "127.0.0.1", 29500)
    for pipes in ("", "/run/mps"):
        config = replace(settings(), devices=DeviceKind.NVML, mps_pipe_dir=pipes)
        who = accounts.account(pwd.getpwuid(os.geteuid()).pw_name, config)
        env = program.environment(job(7, "train.py"), gpus, who, config, Path("/s"), Path("/i"), "/c", place)
        assert env["CUDA_VISIBLE_DEVICES"] == "GPU-1"
        assert env.get("CUDA_MPS_PIPE_DIRECTORY", "") == pipes


@pytest.mark.parametrize("mode", [SuspendMode.TRANSPARENT, SuspendMode.NONE])
def test_a_job_that_is_not_to_be_hooked_is_left_alone(settings, job, mode) -> None:
    made, _ = prepared(settings, job, "train.py", suspend=mode)
    assert made["env"]["HS_HOOK"] == "0"
    assert "PYTHONPATH" not in made["env"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"env": {"A=B": "1"}}, "env name 'A=B'"),
        ({"env": {"A": "\0"}}, "env A holds a NUL"),
        ({"env": {f"A{i}": "" for i in range(600)}}, "env has 600 names: expected at most 512"),
        ({"env": {"A": "x" * (600 << 10)}}, "more than 512 KiB"),
        ({"workdir": "here"}, "workdir 'here': expected an absolute path"),
        ({"output": "a\0b"}, "output holds a NUL"),
    ],
)
def test_absurd_jobs_are_refused_before_anything_exists(settings, job, place, changes, says) -> None:
    with pytest.raises(RefusedError, match=says):
        prepared(settings, job, "train.py", **changes)
    assert list((place / "state/jobs").iterdir()) == []


def test_empty_and_endless_commands_are_refused(settings, job) -> None:
    with pytest.raises(RefusedError, match="command is empty"):
        prepared(settings, job)
    with pytest.raises(RefusedError, match="command has 5000 words: expected at most 4096"):
        prepared(settings, job, *["x"] * 5000)


def test_accounts_below_the_lowest_uid_are_refused(settings) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    with pytest.raises(RefusedError, match="jobs run only as uid 1000 or above here"):
        accounts.account("daemon", settings())
    with pytest.raises(
        RefusedError, match=r"there is no account 'no-such-user' on .*: an administrator makes one there"
    ):
        accounts.account("no-such-user", settings())
    assert accounts.account(me, settings()).uid == os.geteuid()
    if os.geteuid() == 0:
        with pytest.raises(RefusedError, match="account 'root' has uid 0"):
            accounts.account("root", settings(allow_root=False))


def test_another_start_of_one_incarnation_keeps_the_log_and_nothing_else(settings, job) -> None:
    first, _ = prepared(settings, job, "true")
    config = settings()
    made = launch.Launcher(config, cgroup.Cgroups()).folder(folder.Key(JobId(7), 1))
    made.give_up("x")
    (made.path / "log").write_text("before\n")
    second, _ = prepared(settings, job, "true")
    assert (first["start"], second["start"]) == (1, 2)
    assert made.ended() is None
    assert (made.path / "log").read_text() == "before\n"


@pytest.mark.parametrize("name", ["1-2", "12-0"])
def test_a_folders_name_says_whose_it_is(name) -> None:
    assert str(folder.parse_key(name)) == name


@pytest.mark.parametrize("name", ["1", "a-1", "1-", "-1", "1-2-3", "¹-1", ".1-1.tmp"])
def test_other_names_are_nobodys(name) -> None:
    assert folder.parse_key(name) is None


def test_what_was_kept_before_a_reboot_is_known_to_be_however_long_the_host_is_up_again(
    place, monkeypatch
) -> None:
    memory.Memory(place).save({"version": VERSION}, (), 100.0)
    assert not memory.Memory(place).load().rebooted
    monkeypatch.setattr(procs, "boot_id", lambda: "another")
    assert memory.Memory(place).load().rebooted


def test_a_save_says_of_each_job_what_it_is_now_and_makes_text_only_of_those_that_are_others(
    place, monkeypatch
) -> None:
    kept = memory.Memory(place)
    jobs = [{"wanted": {"job": number}, "step": 0} for number in (1, 2, 3)]
    kept.save({"version": VERSION, "jobs": jobs, "seq": 1}, (), 100.0)
    made: list[object] = []
    dumps = json.dumps
    monkeypatch.setattr(memory.json, "dumps", lambda value, **how: made.append(value) or dumps(value, **how))
    jobs = [jobs[0], {"wanted": {"job": 2}, "step": 7}]
    kept.save({"version": VERSION, "jobs": jobs, "seq": 2}, (), 100.0)
    assert [value for value in made if "wanted" in value] == [jobs[1]]
    assert json.loads(kept.path.read_bytes())["machine"] == {"version": VERSION, "jobs": jobs, "seq": 2}


def test_what_another_machine_kept_is_known_to_be_however_it_came_here(place, monkeypatch) -> None:
    memory.Memory(place).save({"version": VERSION}, (), 100.0)
    monkeypatch.setattr(procs, "boot_id", lambda: "another")
    assert not memory.Memory(place).load().elsewhere, "rebooted"
    monkeypatch.setattr(procs, "machine_id", lambda: "another")
    assert memory.Memory(place).load().elsewhere


def test_a_state_folder_has_a_name_of_its_own_that_every_agent_finds_there(
    place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = memory.Memory(place).setup
    assert (drawn, memory.Memory(place).setup) == (
        json.loads((place / "setup.json").read_text())["setup"],
        drawn,
    )
    assert memory.Memory(tmp_path).setup != drawn
    (place / "setup.json").write_text("{}")
    assert memory.Memory(place).setup not in ("", drawn)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(memory, "write_atomically", full)
    (place / "setup.json").unlink()
    assert memory.Memory(place).setup == "", "nothing is said that another agent could not say again"


def test_the_second_holder_of_a_state_folder_is_told_who_has_it(place) -> None:
    first = memory.lock(place)
    with pytest.raises(RefusedError, match=f"running \\(pid {os.getpid()}\\)"):
        memory.lock(place)
    os.close(first)
    os.close(memory.lock(place))


def test_a_lock_that_somebody_removes_lets_no_second_agent_in(place) -> None:
    first = memory.lock(place)
    (place / "lock").unlink()
    with pytest.raises(RefusedError, match="belongs to another agent"):
        memory.lock(place)
    os.close(first)


def test_a_copy_of_a_state_folder_is_refused_until_it_has_no_jobs_of_the_other(place) -> None:
    state, copy = place / "state", place / "copy"
    os.close(memory.lock(state))
    memory.Memory(state).save({}, (), 100.0)
    shutil.copytree(state, copy)
    with pytest.raises(
        RefusedError, match=f"state_dir {copy} is a copy of {state}, .*remove {copy}/host.json"
    ):
        memory.lock(copy)
    os.close(memory.lock(state))
    (copy / "host.json").unlink()
    os.close(memory.lock(copy))


@pytest.mark.parametrize("change", ["renamed", "on another disk", "in its copy's place", "rebooted"])
def test_a_state_folder_of_which_this_is_no_copy_is_taken(place, monkeypatch, change: str) -> None:
    state, copy = place / "state", place / "copy"
    os.close(memory.lock(state))
    memory.Memory(state).save({}, (), 100.0)
    if change == "renamed":
        state = state.rename(place / "elsewhere")
    elif change == "on another disk":  # at the same path
        shutil.copytree(state, copy)
        state.rename(place / "old")
        copy.rename(state)
    else:
        state = shutil.copytree(state, copy)
        if change == "rebooted":
            monkeypatch.setattr(procs, "boot_id", lambda: "another")
        else:
            (place / "state").rename(place / "old")
    os.close(memory.lock(state))


def test_a_state_folder_in_which_others_can_put_things_is_refused(place) -> None:
    place.chmod(0o777)
    with pytest.raises(RefusedError, match=r"state_dir: .*others can change what is in it \(mode 0777\)"):
        memory.lock(place)
    place.chmod(0o711)
    os.close(memory.lock(place))


def test_the_units_hold(place) -> None:
    import shutil
    import subprocess

    unit = Path(launch.__file__).parents[2] / "systemd/hs-agent.service"
    text = unit.read_text()
    for line in ("Type=notify", "KillMode=process", "Delegate=yes", "WatchdogSec=60"):
        assert line in text.splitlines()
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    known = place / unit.name
    # This systemd may be older than the key: it is ignored there, which is meant.
    known.write_text(text.replace("DelegateSubgroup=agent\n", ""))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(known)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "hs-agent.service" not in done.stderr


def test_without_a_descriptor_nobody_is_taken_for_dead_and_no_file_for_missing(place) -> None:
    made = folder.Folder(place, folder.Key(JobId(1), 1))
    made.give_up("told")
    me = procs.identity(os.getpid())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        for look in (lambda: procs.alive(me), made.ended):
            with pytest.raises(OSError, match="Too many open files"):
                look()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert procs.alive(me)
    assert made.ended().exit.why == "told"


def test_a_process_whose_name_is_no_text_keeps_nobody_from_being_found(settings, place, wait_for) -> None:
    import subprocess

    launcher = launch.Launcher(settings(), cgroup.Cgroups())
    key = folder.Key(JobId(3), 1)
    sleeper = place / os.fsdecode(b"caf\xe9 )")
    sleeper.write_bytes(Path("/bin/sleep").resolve().read_bytes())
    sleeper.chmod(0o755)
    other = subprocess.Popen([sleeper, "600"])
    left = subprocess.Popen(["/bin/sleep", "600"], env={"HS_AGENT_SOCKET": str(launcher.socket_path(key))})
    try:
        # The kernel gives it its name after it has closed what Popen waits for.
        comm = Path(f"/proc/{other.pid}/comm")
        wait_for(lambda: comm.read_bytes() == b"caf\xe9 )\n", "it has its name")
        assert procs.stat(other.pid).ppid == os.getpid()
        assert {left.pid, other.pid} <= {found.pid for found in procs.descendants(os.getpid())}
        assert launcher.running_shim(launcher.folder(key)) is None
        wait_for(
            lambda: launcher.kill_leftovers(key) and left.poll() == -9, "what is left of the job is ended"
        )
    finally:
        for process in (left, other):
            process.kill()
            process.wait()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_nobody_else_is_taken_for_a_shim_whatever_they_call_themselves(settings, place) -> None:
    import subprocess

    launcher = launch.Launcher(settings(), cgroup.Cgroups())
    made = launcher.folder(folder.Key(JobId(3), 1))
    # A set-user-id program takes these words from anybody as well.
    tee = place / "tee"
    tee.write_bytes(Path("/usr/bin/tee").resolve().read_bytes())
    tee.chmod(0o4755)
    for user, found in ((65534, False), (0, True)):
        with subprocess.Popen(
            [str(tee), "shim.py", str(made.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True, user=user, cwd=place,
        ) as process:  # fmt: skip
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"\n", "it is up"
            is_found = launcher.running_shim(made) == procs.identity(process.pid)
            process.stdin.close()
        assert is_found is found


def test_what_a_process_says_that_it_was_started_with_is_read_no_further_than_that_can_be(
    settings, place, monkeypatch
) -> None:
    launcher = launch.Launcher(settings(), cgroup.Cgroups())
    said = place / "proc/77"
    said.mkdir(parents=True)
    (said / "stat").write_text(f"77 (train) S 1 77 77 {'0 ' * 40}")
    for name in ("cmdline", "environ"):
        (said / name).write_bytes(b"A=b\0C=d\0")
        os.truncate(said / name, 8 * procs.MAX_WORDS)
    assert procs.boot_id()
    monkeypatch.setattr(procs, "PROC", said.parent)
    tracemalloc.start()
    try:
        for line, holders in ((b"A=b", [77]), (b"C=d", [77]), (b"C=", []), (b"=d", [])):
            assert [who.pid for who in procs.with_environment(line)] == holders
        assert launcher.running_shim(launcher.folder(folder.Key(JobId(3), 1))) is None
        assert tracemalloc.get_traced_memory()[1] < 4 * procs.MAX_WORDS
    finally:
        tracemalloc.stop()


def test_leftovers_without_control_groups_are_found_by_their_socket(settings, wait_for) -> None:
    import subprocess

    launcher = launch.Launcher(settings(), cgroup.Cgroups())
    key = folder.Key(JobId(3), 1)
    left = subprocess.Popen(["/bin/sleep", "600"], env={"HS_AGENT_SOCKET": str(launcher.socket_path(key))})
    other = subprocess.Popen(
        ["/bin/sleep", "600"], env={"HS_AGENT_SOCKET": str(launcher.socket_path(folder.Key(JobId(3), 2)))}
    )
    try:
        wait_for(
            lambda: procs.with_environment(f"HS_AGENT_SOCKET={launcher.socket_path(key)}".encode()),
            "it is up",
        )
        assert launcher.kill_leftovers(key)
        assert left.wait(10) == -9
        assert other.poll() is None
    finally:
        for process in (left, other):
            process.kill()
            process.wait()
