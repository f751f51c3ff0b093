"""A job is hostile code of a known account: what it finds of jobs of another account, and of the agent."""

import contextlib
import ctypes
import json
import os
import pwd
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hs_core.model import SuspendMode
from hs_core.names import JobId
from hs_core.reports import LAUNCH_FAILED, Phase
from hs_core.wanted import Turn
from tests.agent.conftest import PYTHON
from tests.agent.real_jobs import UNSUSPENDED

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="jobs of two accounts need root"),
]
VICTIM, ATTACKER = "daemon", "nobody"

HAS_KEYS = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
ADD, KEYCTL = (248, 250) if platform.machine() == "x86_64" else (217, 219)
SESSION, DESCRIBE, SEARCH, READ = -3, 6, 10, 11
def add(name):
    return libc.syscall(ADD, b"user", name.encode(), b"secret", 6, SESSION)
def secret(name):
    key = libc.syscall(KEYCTL, SEARCH, SESSION, b"user", name.encode(), 0)
    text = ctypes.create_string_buffer(6)
    if key == -1 or libc.syscall(KEYCTL, READ, key, text, 6) == -1:
        raise OSError(ctypes.get_errno(), "keyctl")
    return text.raw
def has_keys():
    return libc.syscall(KEYCTL, DESCRIBE, SESSION, None, 0) != -1
"""

HIDES = (
    HAS_KEYS
    + """
import os, sys, time
from multiprocessing import shared_memory
memory = shared_memory.SharedMemory(name=sys.argv[1], create=True, size=64)
memory.buf[:6] = b"secret"
if has_keys():
    add(sys.argv[1])
    assert secret(sys.argv[1]) == b"secret"
print("here", os.getpid(), os.getppid(), flush=True)
while True:
    time.sleep(0.1)
"""
)

TRIES = (
    HAS_KEYS
    + """
import ctypes, json, os, signal, socket, sys
state, run, agent, shim, victim, shm, home = sys.argv[1:8]
agent, shim, victim = int(agent), int(shim), int(victim)
done, refused = [], []
def tries(name, what):
    try:
        what()
    except (OSError, ValueError) as error:
        refused.append(name)
    else:
        done.append(name)
def read(path):
    with open(path, "rb") as file:
        file.read(1)
def write(path):
    with open(path, "ab") as file:
        pass
def create(folder):
    path = os.path.join(folder, "planted.py")
    with open(path, "x"):
        pass
    os.unlink(path)
def dial(path, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_UNIX, kind) as link:
        link.connect(path)
libc = ctypes.CDLL(None, use_errno=True)
def attach(pid):
    if libc.ptrace(16, pid, 0, 0) == -1:
        raise OSError(ctypes.get_errno(), "ptrace")
folders = [state, run, *(os.path.join(state, name) for name in ("jobs", "checkpoints", "inject", "ended", "jobs/1-1", "checkpoints/1", "jobs/1-1/torchrun", "jobs/3-1"))]
for folder in folders:
    tries(f"create in {folder}", lambda: create(folder))
    if not folder.endswith("inject"):
        tries(f"list {folder}", lambda: os.listdir(folder))
names = ("log", "log.times", "launch.json", "shim.json", "exit.json", "lease", "control", "status", "host.json", "agent.lock", "lock", "boot")
for folder in folders:
    for name in names:
        path = os.path.join(folder, name)
        tries(f"read {path}", lambda: read(path))
        if os.path.exists(path):
            tries(f"write {path}", lambda: write(path))
for who, pid in (("agent", agent), ("shim", shim), ("victim", victim)):
    for name in ("environ", "mem", "maps", "fd", "cwd", "exe", "io", "stack", "root", "syscall", "wchan_", "auxv", "personality"):
        path = f"/proc/{pid}/{name}"
        tries(f"{who}: {name}", lambda: os.listdir(path) if name == "fd" else os.readlink(path) if name in ("cwd", "exe", "root") else read(path))
    tries(f"{who}: write oom_score_adj", lambda: open(f"/proc/{pid}/oom_score_adj", "w").write("1000"))
    for number in (0, signal.SIGCONT, signal.SIGSTOP, signal.SIGTERM):
        tries(f"{who}: signal {number}", lambda: os.kill(pid, number))
    tries(f"{who}: killpg", lambda: os.killpg(os.getpgid(pid), 0))
    tries(f"{who}: ptrace", lambda: attach(pid))
    tries(f"{who}: nice", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    tries(f"{who}: affinity", lambda: os.sched_setaffinity(pid, {0}))
    tries(f"{who}: rlimit", lambda: __import__("resource").prlimit(pid, 7, (10, 10)))
    tries(f"{who}: pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(pid), 0))
tries("shm read", lambda: read("/dev/shm/" + shm))
tries("shm write", lambda: write("/dev/shm/" + shm))
tries("shm unlink", lambda: os.unlink("/dev/shm/" + shm))
if has_keys():
    tries("its key", lambda: secret(shm))
    tries("the agent's key", lambda: secret("agent-" + shm))
for line in open("/proc/net/unix").read().splitlines()[1:]:
    words = line.split()
    if len(words) < 8:
        continue
    path, kind = words[7], {"0001": socket.SOCK_STREAM, "0002": socket.SOCK_DGRAM, "0005": socket.SOCK_SEQPACKET}[words[4]]
    if path.startswith(home):
        if path != os.environ["HS_AGENT_SOCKET"]:
            tries(f"dial {path}", lambda: dial(path, kind))
for line in open(f"/proc/{victim}/cgroup").read().splitlines():
    _, kinds, path = line.split(":", 2)
    kinds = kinds.split(",")[0].removeprefix("name=")
    for name in ("cgroup.procs", "tasks", "freezer.state", "cgroup.freeze", "cgroup.kill", "memory.max"):
        file = f"/sys/fs/cgroup/{kinds}{path}/{name}"
        if os.path.exists(file):
            tries(f"cgroup {file}", lambda: write(file))
print(json.dumps({"done": done, "refused": refused}), flush=True)
"""
)


@pytest.fixture
def agents_key() -> Iterator[str]:
    """Of the session that an agent is started in by hand, say; the name of the job's own, after `agent-`."""
    name, session = f"hs-test-{os.getpid()}", {}
    exec(HAS_KEYS, session)
    key = session["add"](f"agent-{name}")
    yield name
    if key != -1:
        unlink = 9
        session["libc"].syscall(session["KEYCTL"], unlink, key, session["SESSION"])


@pytest.mark.parametrize("daemon", [{"min_uid": 1, "emulated": ["V100:2"]}], indirect=True)
def test_a_job_reads_signals_and_changes_nothing_of_another_accounts_job_nor_of_the_agent(  # noqa: PLR0917 — one name per fixture
    agents_key: str, daemon, controller, job, place: Path, wait_for
) -> None:
    daemon.start()
    for name, text in (("hides.py", HIDES), ("tries.py", TRIES)):
        (place / name).write_text(text)
    shared = agents_key
    try:
        ended = job(3, "true", run_as=VICTIM, workdir="/", **UNSUSPENDED)
        controller.want(ended)
        assert controller.wait_report(3, lambda r: r.exit, "an exit").exit.ok
        victim = job(1, PYTHON, str(place / "hides.py"), shared, run_as=VICTIM, workdir="/", **UNSUSPENDED)
        controller.want(ended, victim)
        log = place / "state/jobs/1-1/log"
        wait_for(lambda: log.exists() and log.read_text().endswith("\n"), "it has said where all is")
        said = log.read_text().split()
        tried = (place / "state", place / "run", daemon.process.pid, said[2], said[1], shared, place)
        command = (PYTHON, place / "tries.py", *tried)
        controller.want(
            ended, victim, job(2, *map(str, command), run_as=ATTACKER, workdir="/", **UNSUSPENDED)
        )
        assert controller.wait_report(2, lambda r: r.exit, "an exit").exit.ok
    finally:
        Path("/dev/shm", shared).unlink(missing_ok=True)
    came = json.loads((place / "state/jobs/2-1/log").read_text())
    assert len(came["refused"]) > 100
    assert came["done"] == []


@contextlib.contextmanager
def mounted_by(uid: int, folder: Path) -> Iterator[None]:
    """As its user's file system in user space, which not even root gets at."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        serves = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        pytest.skip("there is no FUSE here")
    try:
        options = f"fd={serves},rootmode=40000,user_id={uid},group_id={uid}"
        if libc.mount(b"theirs", bytes(folder), b"fuse", 0, options.encode()):
            pytest.skip(f"this sandbox does not let root mount: {os.strerror(ctypes.get_errno())}")
        try:
            with pytest.raises(PermissionError):
                folder.stat()
            yield
        finally:
            libc.umount2(bytes(folder), 2)
    finally:
        os.close(serves)


@pytest.mark.parametrize("daemon", [{"min_uid": 1}], indirect=True)
def test_what_a_user_mounts_over_its_checkpoints_keeps_neither_the_agent_from_starting_nor_others_jobs(
    daemon, controller, job, place: Path, wait_for
) -> None:
    daemon.start()
    mine = job(1, "true", run_as=ATTACKER, workdir="/", **UNSUSPENDED)
    controller.want(mine)
    assert controller.wait_report(1, lambda r: r.exit, "an exit").exit.ok
    with mounted_by(pwd.getpwnam(ATTACKER).pw_uid, place / "state/checkpoints/1"):
        controller.want()
        wait_for((place / "state/ended/1-1").exists, "it is forgotten")
        daemon.kill()
        daemon.start()
        again = replace(mine, epoch=2)
        controller.want(again)
        exit_ = controller.wait_report(1, lambda r: r.epoch == 2 and r.exit, "its launch failed").exit
        assert exit_.why.startswith(
            f"{LAUNCH_FAILED}: {place}/state/checkpoints/1, which is the job's, cannot be used"
        )
        controller.want(again, job(2, "true", run_as=VICTIM, workdir="/", **UNSUSPENDED))
        assert controller.wait_report(2, lambda r: r.exit, "an exit").exit.ok


LIES = """
import json, os, socket, struct
agent = socket.socket(socket.AF_UNIX)
agent.connect(os.environ["HS_AGENT_SOCKET"])
def say(**word):
    body = json.dumps(word).encode()
    agent.sendall(struct.pack(">I", len(body)) + body)
def hear():
    (size,) = struct.unpack(">I", agent.recv(4, socket.MSG_WAITALL))
    return json.loads(agent.recv(size, socket.MSG_WAITALL))
can, moved = ["hold", "swap"], [1 << 49, 0]
say(type="hello", protocol=1, pid=os.getpid(), rank=0, world=1, step=0, state="new", tier="hold", can=can, id=0, generation=-1)
say(type="arrived", step=0, can=can, rank=0, world=1)
while True:
    word = hear()
    if word["type"] == "go":
        say(type="going", step=0, seconds=0.0)
    elif word["type"] == "commit" and moved:
        say(type="held", id=word["id"], step=0, tier="swap", bytes=moved.pop(0), seconds=0.0)
        if moved:
            say(type="going", step=0, seconds=0.0)
        else:
            print("said", flush=True)
"""


@pytest.mark.parametrize("daemon", [{"min_uid": 1}], indirect=True)
def test_what_a_job_says_of_its_memory_and_takes_back_does_not_end_the_agent(
    daemon, controller, job, place: Path, wait_for
) -> None:
    daemon.start()
    (place / "lies.py").write_text(LIES)
    liar = job(1, PYTHON, str(place / "lies.py"), run_as=ATTACKER, workdir="/")
    controller.want(liar)
    controller.wait_report(1, lambda r: r.phase is Phase.RUNNING, "it trains")
    other = job(2, "/bin/sleep", "600", run_as=VICTIM, workdir="/", suspend=SuspendMode.TRANSPARENT)
    controller.want(liar, other, turn=Turn(gangs=(JobId(2),), local=False))
    wait_for(lambda: "said" in (place / "state/jobs/1-1/log").read_text(), "all was said")
    controller.wait_report(2, lambda r: r.phase is Phase.RUNNING, "the other has its turn")
    controller.want(liar, replace(other, cancelled=True))
    controller.wait_report(2, lambda r: r.exit, "what is wanted is done")
    assert daemon.process.poll() is None
