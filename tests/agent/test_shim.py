"""The shim with real processes: how they begin, stand still and end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hs_agent import procs, shim
from hs_agent.bare import family, files
from hs_daemon import boot_s

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
NOBODY = {"uid": 65534, "gid": 65534, "groups": [65534, 1234]}

HIDE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for kind in ("child", "session", "double"):
    if os.fork() == 0:
        if kind != "child":
            os.setsid()
        if kind == "double" and os.fork() > 0:
            os._exit(0)
        time.sleep(600)
print("hidden", flush=True)
"""


@pytest.mark.parametrize("code", [0, 1, 7, 75, 255])
def test_an_exit_code_is_kept_as_it_is(shims, code) -> None:
    record = shims.python(f"import sys; sys.exit({code})").wait()
    assert (record["code"], record["signal"], record["why"]) == (code, 0, "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_signal_is_kept_as_it_is(shims, number) -> None:
    record = shims.python(f"import os; os.kill(os.getpid(), {int(number)})").wait()
    assert (record["code"], record["signal"]) == (0, int(number))


def test_the_job_gets_three_descriptors_and_the_environment_it_was_given(shims) -> None:
    started = shims.python(
        "import os, json; print(json.dumps([sorted(map(int, os.listdir('/proc/self/fd'))), dict(os.environ)]))"
    )
    started.wait()
    fds, env = json.loads(started.log())
    assert fds[:3] == [0, 1, 2]
    assert len(fds) == 4  # the listing itself
    assert env.items() >= {"MARK": str(started.folder.path)}.items()
    assert set(env) <= {"MARK", "PATH", "LC_CTYPE"}


def test_what_a_job_leaves_behind_dies_with_it(shims) -> None:
    started = shims.python(HIDE)
    record = started.wait()
    assert record["code"] == 0
    assert "hidden" in started.log()
    assert shims.left(started) == []


def test_a_kill_reaches_double_forks_new_sessions_and_ignored_sigterm(shims, wait_for) -> None:
    started = shims.python(HIDE + "time.sleep(600)")
    started.says("hidden")
    wait_for(lambda: len(shims.left(started)) == 4, "all four are there")
    assert started.folder.control("term 0.2")
    record = started.wait()
    assert record["signal"] == signal.SIGKILL
    assert shims.left(started) == []


@needs_root
def test_a_kill_through_the_control_group_leaves_nobody(shims) -> None:
    groups = shims.use_cgroups()
    if not groups.can_freeze:
        pytest.skip(f"no writable control groups: {groups.warnings}")
    started = shims.python(HIDE + "time.sleep(600)")
    started.says("hidden")
    there, inside = shims.left(started), set()  # in this order: one of them may be about to fork
    for path in json.loads((started.folder.path / "launch.json").read_text())["cgroup"]["procs"]:
        inside |= set(map(int, Path(path).read_text().split()))
    assert len(there) > 1
    assert {who.pid for who in there if procs.alive(who)} <= inside
    assert started.folder.control("term 0.1")
    assert started.wait()["signal"] == signal.SIGKILL
    assert shims.left(started) == []


def test_a_job_may_end_by_itself_within_its_grace(shims) -> None:
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); print('up', flush=True); time.sleep(600)"
    started = shims.python(code)
    started.says("up")
    started.folder.control("term 30")
    assert started.wait()["code"] == 3


def test_the_shim_outlives_whoever_started_it(shims, wait_for) -> None:
    folder = shims.launch("/bin/sh", "-c", "sleep 0.3; exit 5")
    starter = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-I', '-S', {shim.__file__!r}, {str(folder.path)!r}], start_new_session=True, stdin=subprocess.PIPE).communicate(b'b')\n"
        "time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", starter])
    state = wait_for(folder.shim_state, "shim.json")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert procs.alive(state.shim)
    wait_for((folder.path / "exit.json").exists, "exit.json")
    assert folder.ended().exit.code == 5


FULL = """
set -e
mount -t tmpfs -o size=256k none "$1"
printf %s "$2" > "$1/launch.json"
printf b | "$3" -I -S "$4" "$1" &
until [ -e "$1/shim.json" ]; do sleep 0.02; done
until ! dd if=/dev/zero bs=4k of="$1/more" oflag=append conv=notrunc 2> /dev/null; do :; done
printf 'freeze\nthaw\n' > "$1/control"
touch "$5"
wait $! || true
cat "$1/exit.json"
"""


def test_on_a_full_disk_a_job_is_frozen_and_thawed_and_its_exit_is_kept(shims, place: Path) -> None:
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    small = ["mount", "-t", "tmpfs", "none", str(place)]
    known = shutil.which("unshare") is not None
    if not known or subprocess.run([*alone, *small], capture_output=True, check=False).returncode != 0:
        pytest.skip("no namespace of its own to mount a small disk in")
    go = place / "go"
    folder = shims.launch("/bin/sh", "-c", f"until [ -e {go} ]; do sleep 0.02; done; echo said; exit 5")
    words = [folder.path, (folder.path / "launch.json").read_text(), sys.executable, shim.__file__, go]
    done = subprocess.run(
        [*alone, "sh", "-c", FULL, "sh", *map(str, words)], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout).items() >= {"code": 5, "why": "", "dropped": len("said\n")}.items()


def test_an_exit_record_takes_the_room_that_was_kept_for_it_and_no_more(tmp_path: Path) -> None:
    files.keep_room(str(tmp_path), "exit.json", 4096)
    files.replace_json(str(tmp_path), "exit.json", {"code": 5})
    assert [path.name for path in tmp_path.iterdir()] == ["exit.json"]
    assert (tmp_path / "exit.json").read_text() == '{"code": 5}'


EXECUTES_ONCE_IT_IS_TOLD_TO_END = """
import signal, sys, time
sys.path.append(sys.argv[1])
from hs_agent import shim
execute = shim.execute
def late(*words):
    while signal.SIGTERM not in signal.sigpending():
        time.sleep(0.01)
    execute(*words)
shim.execute = late
shim.main(sys.argv[2])
"""


def test_a_job_that_is_told_to_end_between_fork_and_exec_hears_it(shims, wait_for) -> None:
    """Else it would run, and be killed when its grace is over."""
    where = str(Path(shim.__file__).parents[1])
    started = shims.start("/bin/sleep", "600", program=("-c", EXECUTES_ONCE_IT_IS_TOLD_TO_END, where))
    wait_for(started.folder.shim_state, "it has a process")
    assert started.folder.control("term 5")
    assert started.wait()["signal"] == signal.SIGTERM


def test_frozen_processes_stand_still_and_go_on_after_the_thaw(shims, wait_for) -> None:
    code = (
        "import os, time\n"
        "os.fork()\n"
        "open(f'{os.environ[\"MARK\"]}/up{os.getpid()}', 'w').close()\n"
        "while True: time.sleep(0.01)"
    )
    started = shims.python(code)
    wait_for(lambda: len(list(started.folder.path.glob("up*"))) == 2, "both are up")
    below = {who.pid for who in shims.left(started)}
    started.folder.control("freeze")
    wait_for(lambda: (state := started.folder.shim_state()) and state.frozen, "frozen")
    assert {procs.stat(pid).state for pid in below} == {"T"}
    started.folder.control("thaw")
    wait_for(lambda: not started.folder.shim_state().frozen, "thawed")
    wait_for(lambda: {procs.stat(pid).state for pid in below} <= {"S", "R"}, "running")
    started.folder.control("freeze")
    started.folder.control("term 0.1")
    assert started.wait()["signal"] in (signal.SIGTERM, signal.SIGKILL)


WITHOUT_ITS_FIRST_THREAD = """
import ctypes, os, platform, threading, time
def goes_on():
    while True:
        time.sleep(0.01)
threading.Thread(target=goes_on).start()
print("up", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60}.get(platform.machine(), 93), 0)  # exit: of this thread alone
"""
HELD_BY_ITS_FIRST_THREAD = """
import ctypes, os, threading, time
libc, job = ctypes.CDLL(None), os.getpid()
libc.prctl(0x59616d61, -1, 0, 0, 0)  # whoever may hold it
def goes_on():
    while True:
        time.sleep(0.01)
threading.Thread(target=goes_on).start()
if os.fork() == 0:
    if libc.ptrace(0x4206, job, 0, 0) or libc.ptrace(0x4207, job, 0, 0):  # seize, interrupt
        os._exit(1)
    os.waitpid(job, 0x40000000)
    print("up", flush=True)
    time.sleep(600)
while True:
    time.sleep(0.01)
"""


def _states(pid: int) -> set[str]:
    """Of all of its threads."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return {(thread / "stat").read_text().rpartition(") ")[2][0] for thread in threads}


@pytest.mark.parametrize(
    ("code", "first"), [(WITHOUT_ITS_FIRST_THREAD, "Z"), (HELD_BY_ITS_FIRST_THREAD, "t")]
)
def test_all_threads_of_a_job_stand_still_and_end_whatever_has_become_of_its_first_one(
    shims, wait_for, code: str, first: str
) -> None:
    started = shims.python(code)
    started.says("up")
    job = started.job().pid
    wait_for(lambda: procs.stat(job).state == first, "its first thread runs no more")
    assert started.job() in shims.left(started)
    started.folder.control("freeze")
    wait_for(lambda: (state := started.folder.shim_state()) and state.frozen, "frozen")
    assert _states(job) <= {"T", first}
    started.folder.control("thaw")
    wait_for(lambda: _states(job) & {"S", "R"}, "its other thread goes on")
    started.folder.control("term 0.2")
    assert started.wait()["signal"] in {signal.SIGTERM, signal.SIGKILL}
    assert shims.left(started) == []


HOLDS = """
import ctypes, sys, time
print(ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("by_itself", [False, True])
def test_a_job_that_somebody_else_holds_with_a_debugger_beyond_its_end_has_ended(
    shims, wait_for, by_itself: bool
) -> None:
    """Its user, from outside: nothing of it is left, and its GPUs are others'."""
    started = shims.python(
        "import os, time\n"
        "print('up', flush=True)\n"
        "while not os.path.exists(f'{os.environ[\"MARK\"]}/go'): time.sleep(0.01)\n"
        "os._exit(3)"
    )
    started.says("up")
    job = started.job()
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(job.pid)], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"0\n"
            if by_itself:
                (started.folder.path / "go").touch()
                wait_for(lambda: procs.stat(job.pid).state == "Z", "it has ended")
            started.folder.control("term 0.2")
            record = started.wait()
            assert (record["signal"], record["code"]) == ((0, 3) if by_itself else (signal.SIGKILL, 0))
            assert procs.stat(job.pid).state == "Z"
        finally:
            holder.kill()


@needs_root
def test_the_control_group_freezer_holds_a_job(shims, wait_for) -> None:
    from hs_agent import cgroup

    groups = shims.use_cgroups()
    if not groups.can_freeze:
        pytest.skip(f"no writable control groups: {groups.warnings}")
    started = shims.python("import time, os\nprint('up', flush=True)\nwhile True: time.sleep(0.001)")
    started.says("up")
    group = cgroup.reopen(groups, started.folder.path.name)
    group.freeze(frozen=True)
    wait_for(group.frozen, "frozen")
    started.folder.control("term 5")  # ends a frozen job too
    assert started.wait()["signal"] == signal.SIGTERM
    assert group.procs() == set()


@needs_root
def test_a_job_is_its_user_and_has_no_way_back(shims, place) -> None:
    work = place / "work"
    work.mkdir()
    os.chown(work, 65534, 65534)
    code = """
import os, json
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(json.dumps([os.getresuid(), os.getresgid(), sorted(os.getgroups()), os.getcwd(), os.getsid(0) == os.getpid(),
  {k: status[k].strip() for k in ("NoNewPrivs", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}]))
"""
    started = shims.python(code, identity=NOBODY, workdir=str(work), output="out.txt")
    assert started.wait()["code"] == 0, started.log()
    uids, gids, groups, cwd, leads, status = json.loads(started.log())
    assert (uids, gids, groups) == ([65534] * 3, [65534] * 3, [1234, 65534])
    assert cwd == str(work)
    assert leads
    assert status.pop("NoNewPrivs") == "1"
    assert set(status.values()) == {"0000000000000000"}
    assert (work / "out.txt").stat().st_uid == 65534
    assert json.loads((work / "out.txt").read_text())[0] == [65534] * 3


def test_who_does_not_die_at_once_is_looked_for_ever_more_rarely(shims, monkeypatch) -> None:
    one = shim.Shim(str(shims.launch("/bin/true").path))
    there = {(1, 1)}
    monkeypatch.setattr(shim, "signal_all", lambda *_args, **_more: set(there))
    one.deadline_s = time.monotonic()

    def pause_ms() -> int | None:
        one.purge()
        return one.wait_ms()

    assert pause_ms() <= 21
    for _ in range(10):
        last_ms = pause_ms()
    assert 900 < last_ms <= 1001
    there.add((2, 2))
    assert pause_ms() <= 21


@needs_root
def test_a_working_folder_is_entered_as_the_user(shims, place) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    record = shims.python("print(1)", identity=NOBODY, workdir=str(closed)).wait()
    assert record["launch_failed"]
    assert record["why"] == f"cannot enter the working folder {closed} as uid 65534: Permission denied"


def test_a_program_that_is_not_there_is_a_failed_launch(shims) -> None:
    record = shims.start("no-such-program").wait()
    assert record["launch_failed"]
    assert "no-such-program on PATH=/usr/bin:/bin" in record["why"]
    assert "No such file" in record["why"]


def test_a_script_whose_interpreter_is_missing_is_not_called_missing_itself(shims, place) -> None:
    script = place / "train"
    for first, named in (("#!/no/such/python -u\n", "'/no/such/python'"), ("#!/bin/sh\r\n", r"'/bin/sh\r'")):
        script.write_text(f"{first}echo up\n")
        script.chmod(0o755)
        for argv, env in (((str(script),), {}), (("train",), {"PATH": f"/usr/bin:{place}"})):
            record = shims.start(*argv, env=env).wait()
            assert record["launch_failed"]
            assert record["why"].endswith(
                f": {script} is there, but the interpreter that its first line names is not: {named}"
            )
    script.write_text("echo up\n")
    assert "nor a script that begins with #!" in shims.start(str(script)).wait()["why"]


def test_a_shim_whose_agent_cannot_go_on_starts_nothing(shims) -> None:
    folder = shims.launch("/bin/touch", str(shims.place / "ran"))
    done = subprocess.run(
        [sys.executable, "-I", "-S", shim.__file__, str(folder.path)],
        check=False, timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0
    assert not (folder.path / "exit.json").exists()
    assert not (shims.place / "ran").exists()


def test_a_shim_that_was_given_up_starts_nothing(shims) -> None:
    folder = shims.launch("/bin/touch", str(shims.place / "ran"))
    folder.give_up("its shim did not come up")
    done = subprocess.run(
        [sys.executable, "-I", "-S", shim.__file__, str(folder.path)], check=False, timeout=120, input=b"b"
    )
    assert done.returncode == 0
    assert not (shims.place / "ran").exists()


@pytest.mark.parametrize("identity", [None, pytest.param(NOBODY, marks=needs_root)])
def test_a_killed_shim_takes_its_job_along(shims, wait_for, identity) -> None:
    started = shims.python("import time; print('up', flush=True); time.sleep(600)", identity=identity)
    started.says("up")
    job = started.job()
    procs.send(started.folder.shim_state().shim, signal.SIGKILL)
    started.process.wait()
    wait_for(lambda: not procs.alive(job), "the job is gone", 10.0)
    assert not (started.folder.path / "exit.json").exists()


def test_a_pid_that_changed_hands_is_never_signalled() -> None:
    sleeper = subprocess.Popen(["/bin/sleep", "600"])
    try:
        right = procs.identity(sleeper.pid)
        for wrong in (
            procs.Identity(right.pid, right.start + 1, right.boot_id),
            procs.Identity(right.pid, right.start, "another boot"),
        ):
            assert not procs.send(wrong, signal.SIGKILL)
            assert not procs.alive(wrong)
        family.send(right.pid, right.start + 1, signal.SIGKILL)
        assert sleeper.poll() is None
        assert procs.send(right, signal.SIGKILL)
        assert sleeper.wait(10) == -signal.SIGKILL
        assert not procs.send(right, signal.SIGKILL)
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_shim_needs_little_memory(shims) -> None:
    started = shims.python("import time; print('up', flush=True); time.sleep(600)")
    started.says("up")
    status = Path(f"/proc/{started.folder.shim_state().shim.pid}/status").read_text()
    rss_kib = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    assert rss_kib < 20_000


def test_a_job_whose_host_is_shut_down_is_lost_with_it_and_has_not_failed(shims) -> None:
    started = shims.python("import time; print('up', flush=True); time.sleep(600)")
    started.says("up")
    for who in (started.folder.shim_state().shim, started.job()):  # all processes are told
        procs.send(who, signal.SIGTERM)
    assert started.wait()["why"] == "lost with its host: it was shut down"


def test_a_lease_that_has_run_out_ends_the_job_without_any_agent(shims) -> None:
    started = shims.python("import time\nwhile True: time.sleep(0.05)", lease=True)
    started.job()
    started.folder.write_lease(boot_s() + 1000.0, 0.2)
    assert started.folder.ended() is None
    started.folder.write_lease(boot_s() - 1.0, 0.2)
    ended = started.wait()
    assert ended["why"].startswith("lost with its host: fenced: no word from the controller")
    assert shims.left(started) == []


@pytest.mark.parametrize("grace_s", [0.5, 7.0])
def test_a_job_whose_lease_has_run_out_has_as_long_to_end_as_that_says(shims, grace_s: float) -> None:
    deaf = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: print('told', flush=True))\nprint('up', flush=True)\nwhile True: time.sleep(0.05)"
    started = shims.python(deaf, lease=True)
    started.says("up")
    started.folder.write_lease(boot_s() - 1.0, grace_s)
    started.says("told")
    told_s = boot_s()
    started.wait()
    assert grace_s - 1.0 < boot_s() - told_s < grace_s + 5.0
