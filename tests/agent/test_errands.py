"""Commands beside jobs, with a real agent, real processes, and a user who is not root."""

import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hs_agent import errands, procs
from hs_agent.errands import environment
from hs_agent.folder import Key
from hs_agent.loop import Agent
from hs_core.model import SuspendMode
from hs_core.names import JobId
from hs_core.reports import JobReport, Phase
from hs_core.wanted import Turn
from hs_proto.v1 import agent_pb2
from tests.agent.conftest import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may start jobs of others")
FROZEN, UNSUSPENDED = {"suspend": SuspendMode.TRANSPARENT}, {"suspend": SuspendMode.NONE}
NOBODY = pwd.getpwnam("nobody")
PYTHON = "/usr/bin/python3"
FOREVER = ("/bin/sleep", "600")


@pytest.fixture
def home(place: Path) -> Path:
    """Where the jobs work, which is their user's."""
    path = place / "home"
    path.mkdir()
    os.chown(path, NOBODY.pw_uid, NOBODY.pw_gid)
    return path


@pytest.fixture
def running(daemon, controller, job, home: Path):
    """A job of nobody's that has its turn."""
    daemon.start()
    until_told = "while [ ! -e stop ]; do sleep 0.05; done"
    wanted = job(
        1,
        "/bin/sh",
        "-c",
        until_told,
        run_as="nobody",
        workdir=str(home),
        env={"SECRET": "of the job", "HS_X": "no"},
        **FROZEN,
    )
    controller.want(wanted)
    up_and_running(daemon, controller)
    return wanted


def up_and_running(daemon, controller) -> None:
    """What cannot be hooked is said to run as soon as it has the GPUs."""
    controller.wait_report(1, lambda r: r.phase is Phase.RUNNING, "running")
    wait_for(lambda: daemon.folders() and daemon.folders()[0].shim_state(), "its process is up")


@pytest.fixture
def mark() -> Iterator[str]:
    """In the command line of what a test starts, so that it is found again."""
    made = f"mark-{os.getpid()}-{os.urandom(4).hex()}"
    yield made
    for who in there(made):
        procs.send(who, signal.SIGKILL)


def there(mark: str) -> list[procs.Identity]:
    """Processes with it in their command line."""
    found = []
    for one in procs.everybody():
        try:
            line = (procs.PROC / str(one.pid) / "cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in line and one.state not in "ZX":
            found.append(procs.Identity(one.pid, one.start, procs.boot_id()))
    return found


def sleeper(mark: str) -> tuple[str, ...]:
    """Ignores what asks it to end, and has a child that left its session."""
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    return PYTHON, "-c", code, mark


def up(controller, wait_for, number: int = 100) -> None:
    wait_for(lambda: controller.said_beside(number).count(b"up") == 2, "both of it are up")


@pytest.mark.usefixtures("running")
def test_a_command_is_the_jobs_user_in_its_folder_and_environment_and_nothing_else(
    controller, home: Path
) -> None:
    look = (
        "import os\n"
        "print(os.getresuid(), os.getresgid(), os.getgroups(), os.getcwd(), sorted(os.listdir('/proc/self/fd')))\n"
        "print(os.readlink('/proc/self/fd/0'), os.environ['SECRET'], os.environ['HS_JOB_ID'], os.environ['HS_HOOK'])\n"
        "print(sorted(k for k in os.environ if k.startswith('HS_X') or k == 'HS_RESTORE'), oct(os.umask(0)))\n"
        "print([l.split()[1] for l in open('/proc/self/status') if l.startswith(('Cap', 'NoNewPrivs'))])\n"
        "print(os.getsid(0) == os.getpid(), open('/proc/self/oom_score_adj').read().strip())\n"
    )
    ended = controller.beside(1, PYTHON, "-c", look)
    assert (ended.error, ended.end.code, ended.end.why) == ("", 0, ""), controller.said_beside(errors=True)
    uid, gid = NOBODY.pw_uid, NOBODY.pw_gid
    said = controller.said_beside().decode().splitlines()
    # The fourth descriptor is that of the folder which is listed.
    assert said[0] == f"({uid}, {uid}, {uid}) ({gid}, {gid}, {gid}) [{gid}] {home} ['0', '1', '2', '3']"
    assert said[1] == "/dev/null of the job 1 0"
    assert said[2] == "[] 0o22"
    assert said[3] == str(["0" * 16] * 5 + ["1"])
    assert said[4] == "True 0"


@pytest.mark.parametrize("daemon", [{"launcher": ["/usr/bin/env", "IN=an image"]}], indirect=True)
@pytest.mark.usefixtures("running")
def test_a_command_is_started_by_the_launcher_that_jobs_are(controller) -> None:
    ended = controller.beside(1, "/bin/sh", "-c", 'echo "$IN"')
    assert (ended.error, ended.end.code) == ("", 0)
    assert controller.said_beside().decode() == "an image\n"


@pytest.mark.usefixtures("running")
def test_a_command_is_in_the_jobs_control_groups(controller, daemon, wait_for) -> None:
    (folder,) = daemon.folders()
    groups = folder.launch()["cgroup"]["procs"]
    if not groups:
        pytest.skip("no control groups can be made here")
    state = wait_for(folder.shim_state, "its process is up")
    jobs = procs.PROC / str(state.job.pid) / "cgroup"
    wait_for(lambda: "1-1" in jobs.read_text(), "it is in its groups")
    controller.beside(1, "/bin/cat", "/proc/self/cgroup")
    assert controller.said_beside().decode() == jobs.read_text()


@pytest.mark.usefixtures("running")
def test_set_user_id_programs_give_a_command_no_rights(controller, home: Path) -> None:
    trap = home / "id"
    trap.write_bytes(Path("/usr/bin/id").read_bytes())
    trap.chmod(0o4755)
    os.chown(trap, 0, 0)
    trap.chmod(0o4755)
    assert controller.beside(1, str(trap), "-u").end.code == 0
    assert controller.said_beside().strip() == str(NOBODY.pw_uid).encode()


@pytest.mark.usefixtures("running")
def test_what_it_says_comes_apart_and_its_exit_code_or_signal_is_kept(controller) -> None:
    ended = controller.beside(1, "/bin/sh", "-c", "echo one; echo two >&2; exit 7")
    assert (controller.said_beside(), controller.said_beside(errors=True)) == (b"one\n", b"two\n")
    assert (ended.end.code, ended.end.signal, ended.end.why) == (7, 0, "")
    ended = controller.beside(1, "/bin/sh", "-c", "kill -11 $$", number=101)
    assert (ended.end.code, ended.end.signal, ended.end.why) == (0, signal.SIGSEGV, "")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("no-such-program",), "cannot run no-such-program on PATH="),
        (("/etc/passwd",), "cannot run /etc/passwd as uid 65534: Permission denied"),
        ((), "command is empty"),
        (("",), "command is empty"),
        (("/bin/echo", *["x"] * errands.MAX_ARGV), "at most 4096 words"),
        (("/bin/echo", "x" * errands.MAX_COMMAND_BYTES), "128 KiB in all"),
        (("/bin/echo", "a\0b"), "NUL byte"),
    ],
)
@pytest.mark.usefixtures("running")
def test_what_cannot_be_run_is_refused_with_the_reason(controller, command, says) -> None:
    refused = controller.beside(1, *command)
    assert says in refused.error
    assert refused.error_kind == "invalid"


@pytest.mark.usefixtures("running")
def test_the_words_are_the_programs_and_no_shells(controller) -> None:
    controller.beside(1, "/bin/echo", "$HOME", "; id", "`id`", "*")
    assert controller.said_beside() == b"$HOME ; id `id` *\n"


@pytest.mark.usefixtures("running")
def test_what_it_leaves_behind_is_ended_with_it(controller, mark, wait_for) -> None:
    script = f"(setsid {PYTHON} -c 'import time; print(1, flush=True); time.sleep(600)' {mark} &) ; sleep 0.3"
    assert controller.beside(1, "/bin/sh", "-c", script).end.why == ""
    wait_for(lambda: not there(mark), "all of it is gone")


def test_it_is_ended_at_once_when_its_job_is_suspended(running, controller, job, mark, wait_for) -> None:
    controller.run_beside(1, *sleeper(mark))
    up(controller, wait_for)
    other = job(2, *FOREVER, run_as="nobody", workdir=running.spec.workdir, **FROZEN)
    controller.want(running, other, turn=Turn(gangs=(2,), local=False))
    ended = controller.end_beside()
    assert ended.end.signal == signal.SIGKILL
    assert ended.end.why.startswith("job 1 has not its turn on host-a just now (")
    wait_for(lambda: not there(mark), "all of it is gone")
    controller.wait_report(2, lambda r: r.phase is Phase.RUNNING, "the other has the GPU")
    refused = controller.beside(1, "/bin/true", number=101)
    assert (refused.error, refused.error_kind) == (
        "job 1 has not its turn on host-a just now (frozen)",
        "conflict",
    )


@pytest.mark.parametrize("daemon", [{"cgroup": "none"}, {}], indirect=True)
def test_it_is_ended_when_its_job_ends_also_without_control_groups(
    running, controller, mark, wait_for
) -> None:
    controller.run_beside(1, *sleeper(mark))
    up(controller, wait_for)
    controller.want(replace(running, cancelled=True))
    ended = controller.end_beside()
    assert ended.end.why in {"job 1 is being ended", "job 1 does not run on host-a (any more)"}
    wait_for(lambda: not there(mark), "all of it is gone")
    controller.wait_report(1, lambda r: r.exit, "the job's own end")


@pytest.mark.usefixtures("running")
def test_it_says_so_when_its_job_has_ended_by_itself(controller, mark, wait_for, home) -> None:
    controller.run_beside(1, *sleeper(mark))
    up(controller, wait_for)
    (home / "stop").touch()
    assert controller.end_beside().end.why == "job 1 does not run on host-a (any more)"
    wait_for(lambda: not there(mark), "all of it is gone")


@pytest.mark.usefixtures("running")
def test_who_goes_away_ends_it_after_it_was_told(controller, mark, wait_for, home: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "def told(*_):\n"
        "    open('told', 'w').close()\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, told)\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    controller.run_beside(1, PYTHON, "-c", code, mark)
    wait_for(controller.said_beside, "it is up")
    controller.send(cancel=agent_pb2.Cancel(request_id=100))
    wait_for(lambda: not there(mark), "it is gone")
    assert (home / "told").exists()
    controller.run_beside(1, *sleeper(mark), number=101)
    up(controller, wait_for, 101)
    controller.stop()
    wait_for(lambda: not there(mark), "what does not listen is gone when the controller is")


@pytest.mark.usefixtures("running")
def test_an_agent_that_is_killed_takes_it_along_and_not_the_job(controller, daemon, mark, wait_for) -> None:
    (folder,) = daemon.folders()
    state = wait_for(folder.shim_state, "its process is up")
    controller.run_beside(1, *sleeper(mark))
    up(controller, wait_for)
    daemon.kill()
    wait_for(lambda: not there(mark), "all of it is gone")
    assert procs.alive(state.job)


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("daemon", [{"cgroup": "none"}, {}], indirect=True)
def test_where_the_process_that_keeps_it_is_killed_all_of_it_is_ended_and_that_is_said(
    controller, mark, wait_for
) -> None:
    controller.run_beside(1, *sleeper(mark))
    up(controller, wait_for)
    (keeper,) = {found.ppid for who in there(mark) if (found := procs.stat(who.pid))}
    os.kill(keeper, signal.SIGKILL)
    ended = controller.end_beside()
    assert (ended.end.signal, ended.end.why) == (signal.SIGKILL, "the process that kept it was killed")
    wait_for(lambda: not there(mark), "all of it is gone")


@pytest.mark.usefixtures("running")
def test_its_time_is_bounded(controller, mark, wait_for) -> None:
    ended = controller.beside(1, *sleeper(mark), limit_s=0.5)
    assert (ended.end.is_late, ended.end.why) == (True, "it took longer than it was given")
    wait_for(lambda: not there(mark), "all of it is gone")
    for limit_s in (0.0, -1.0, 3601.0):
        refused = controller.beside(1, "/bin/true", limit_s=limit_s, number=int(5000 + limit_s))
        assert "above 0 and at most 3600 seconds were expected" in refused.error


@pytest.mark.usefixtures("running")
def test_it_is_ended_also_where_its_first_thread_has_ended_before(controller, home: Path) -> None:
    code = (
        "import ctypes, os, platform, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "open('pid', 'w').write(f'{os.getpid()}\\n')\n"
        "ctypes.CDLL(None).syscall({'x86_64': 60}.get(platform.machine(), 93), 0)\n"
    )
    ended = controller.beside(1, PYTHON, "-c", code, limit_s=2.0)
    assert (ended.end.is_late, ended.end.signal) == (True, signal.SIGTERM)
    assert procs.stat(int((home / "pid").read_text())) is None


@pytest.mark.usefixtures("running")
def test_it_is_over_also_where_somebody_holds_it_with_a_debugger_beyond_its_end(
    controller, mark, wait_for
) -> None:
    controller.run_beside(1, *sleeper(mark), limit_s=2.0)
    up(controller, wait_for)
    command = there(mark)[0].pid
    holds = f"import ctypes, time; print(ctypes.CDLL(None).ptrace(0x4206, {command}, 0, 0), flush=True); time.sleep(600)"
    with subprocess.Popen([PYTHON, "-c", holds], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"0\n"
            ended = controller.end_beside()
            assert (ended.end.is_late, ended.end.signal) == (True, signal.SIGKILL)
        finally:
            holder.kill()
    wait_for(lambda: not there(mark), "all of it is gone")


@pytest.mark.usefixtures("running")
def test_it_says_no_more_than_its_reader_has_room_for_and_goes_on_when_there_is(controller, wait_for) -> None:
    total, window = 3 << 20, 128 << 10
    controller.run_beside(1, "/usr/bin/head", "-c", str(total), "/dev/zero", window_bytes=window)
    wait_for(lambda: len(controller.said_beside()) > window - errands.CHUNK, "the window is full")
    assert len(controller.said_beside()) <= window
    controller.send(taken=agent_pb2.Taken(request_id=100, bytes=total))
    assert controller.end_beside().end.code == 0
    assert len(controller.said_beside()) == total


@pytest.mark.usefixtures("running")
def test_what_floods_is_ended(controller) -> None:
    ended = controller.beside(1, "/bin/cat", "/dev/zero")
    assert ended.end.why == "it said more than 64 MiB"
    assert len(controller.said_beside()) <= errands.MOST_SAID


@pytest.mark.usefixtures("running")
def test_beside_one_job_there_are_a_few_at_most(controller, mark, wait_for) -> None:
    for number in range(errands.MOST_OF_A_JOB):
        controller.run_beside(1, *sleeper(mark), number=number)
        up(controller, wait_for, number)
    refused = controller.beside(1, "/bin/true")
    assert (refused.error, refused.error_kind) == (
        "4 commands run beside job 1 already: end some first",
        "unavailable",
    )
    controller.send(cancel=agent_pb2.Cancel(request_id=0))
    wait_for(lambda: len(there(mark)) == 2 * (errands.MOST_OF_A_JOB - 1), "one is gone")
    assert controller.beside(1, "/bin/true", number=101).end.code == 0


def test_no_command_is_run_as_root(daemon, controller, job) -> None:
    daemon.start()
    controller.want(job(1, *FOREVER, **FROZEN))
    up_and_running(daemon, controller)
    refused = controller.beside(1, "/bin/true")
    assert (refused.error, refused.error_kind) == (
        "job 1 is root's: no command is run as root",
        "not-allowed",
    )


def test_a_job_that_is_not_here_or_waits_has_none(running, controller, job, home: Path) -> None:
    assert "job 7 does not run on host-a" in controller.beside(7, "/bin/true").error
    waits = job(2, *FOREVER, run_as="nobody", workdir=str(home), **UNSUSPENDED)
    controller.want(running, replace(waits, paused=True))
    controller.wait_report(2, lambda r: r.phase is Phase.WAITING, "known")
    assert "job 2 has not its turn" in controller.beside(2, "/bin/true", number=101).error


@pytest.mark.usefixtures("running")
def test_a_controller_of_an_earlier_term_is_not_obeyed(controller, wait_for) -> None:
    controller.stop()
    controller.term = 0
    controller.wanted = None
    controller.again()
    wait_for(lambda: len(controller.hellos) > 1, "it is back")
    refused = controller.beside(1, "/bin/true")
    assert refused.error == "host-a has obeyed a controller of a later term"


@pytest.mark.usefixtures("running")
def test_the_process_that_keeps_it_is_out_of_its_users_reach(controller) -> None:
    attack = (
        "import os\n"
        "keeper = os.getppid()\n"
        "print(os.stat(f'/proc/{keeper}').st_uid)\n"
        "def tried(what):\n"
        "    try: what()\n"
        "    except PermissionError: print('refused')\n"
        "tried(lambda: os.kill(keeper, 9))\n"
        "tried(lambda: open(f'/proc/{keeper}/environ', 'rb').read())\n"
        "tried(lambda: open(f'/proc/{keeper}/mem', 'r+b'))\n"
        "tried(lambda: os.listdir(f'/proc/{keeper}/fd'))\n"
    )
    assert controller.beside(1, PYTHON, "-c", attack).end.code == 0
    assert controller.said_beside().split() == [b"0", *[b"refused"] * 4]


def test_of_the_jobs_environment_it_has_all_but_what_makes_it_a_rank() -> None:
    jobs = {"A": "1", "HS_RESTORE": "7", "HS_AGENT_SOCKET": "/run/x.sock", "CUDA_VISIBLE_DEVICES": "GPU-1"}
    assert environment(jobs, "ab12") == {
        "A": "1",
        "HS_AGENT_SOCKET": "/run/x.sock",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "HS_HOOK": "0",
        "HS_COMMAND": "ab12",
    }


@pytest.mark.parametrize(
    ("phase", "in_turn", "has_started", "why"),
    [
        (Phase.RUNNING, True, True, ""),
        (Phase.STARTING, True, True, ""),
        (Phase.RUNNING, True, False, "job 1 is only just being started: try again"),
        (Phase.STARTING, False, True, "job 1 has not its turn on a just now (starting)"),
        (Phase.SUSPENDING, False, True, "job 1 has not its turn on a just now (suspending)"),
        (Phase.HELD, False, True, "job 1 has not its turn on a just now (held)"),
        (Phase.KILLING, True, True, "job 1 is being ended"),
        (Phase.EXITED, False, False, "job 1 does not run on a (any more)"),
        (None, False, False, "job 1 does not run on a (any more)"),
    ],
)
def test_a_command_has_the_turn_of_its_job_and_no_more(phase, in_turn, has_started, why) -> None:
    key = Key(JobId(1), 0)
    agent = SimpleNamespace(
        reports=lambda: [JobReport(job=key.job, epoch=0, phase=phase, in_turn=in_turn)] if phase else [],
        jobs=SimpleNamespace(running={key} if has_started else {}),
        config=SimpleNamespace(name="a"),
    )
    assert Agent._why_no_turn(agent, key) == why
