"""A machine of its own under systemd, over this one's files, of which it changes nothing: what an administrator would do on it is done there.

`sudo .venv/bin/python -m tests.packaging.machines` installs what is here on one, as README.md says, and opens a shell there.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BOOT = Path(__file__).with_name("boot.sh")
SYSTEMD = Path("/lib/systemd/systemd")
NAME = "trial"
PREFIX = Path("/opt/heteroshare")
ENVIRONMENT = {
    "PATH": f"{PREFIX}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
PROJECT = Path("/srv/project")  # it may lie below a /tmp here, of which each unit has its own
PACKAGES = [path for path in sys.path if path.endswith("-packages")]
SHOWN = {str(ROOT): str(PROJECT), **{path: f"/srv/packages/{at}" for at, path in enumerate(PACKAGES)}}
PYTHON = Path(sys.executable).resolve()
BOOTS_WITHIN_S = 60


class NoMachineError(Exception):
    """None can be had here, and why."""


@dataclass(frozen=True)
class Machine:
    starter: int  # the process here that starts it, and starts it again

    def reboot(self, *, power_fails: bool = False) -> None:
        """Until it is up again: with its disk and nothing else."""
        before = self.init
        if power_fails:
            os.kill(self._child(self.starter), signal.SIGKILL)
        else:
            self.run("systemctl", "reboot")
        deadline_s = time.monotonic() + BOOTS_WITHIN_S
        while self.init in {before, 0} or not self.is_up():
            assert time.monotonic() < deadline_s, "the machine does not come up again"
            time.sleep(0.05)

    @property
    def init(self) -> int:
        """The process here that is number 1 there; 0: there is none just now."""
        with contextlib.suppress(OSError, IndexError):
            pid = self._child(self._child(self.starter))
            if Path(f"/proc/{pid}/exe").resolve().name == SYSTEMD.name:
                return pid
        return 0

    @staticmethod
    def _child(pid: int) -> int:
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split(maxsplit=1)[0])

    def file(self, path: str | Path) -> Path:
        """What is `path` there."""
        return Path(f"/proc/{self.init}/root") / str(path).lstrip("/")

    def run(self, *command: str, user: str = "") -> "subprocess.CompletedProcess[str]":
        """As root, or as `user`, in the home folder; what it says on both streams is `stdout`."""
        if user:
            command = ("runuser", "-u", user, "--", "env", "--chdir", f"/home/{user}", f"HOME=/home/{user}", *command)  # fmt: skip
        return subprocess.run(
            [*self.entry(), *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=120
        )  # fmt: skip

    def entry(self) -> list[str]:
        said = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        return ["nsenter", "-t", str(self.init), "-m", "-p", "-u", "-n", "-i", "-C", "-T", "-r", "-w", "env", "-i", *said]  # fmt: skip

    def must(self, *command: str, user: str = "") -> str:
        """What it said; it ended well."""
        done = self.run(*command, user=user)
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}"
        return done.stdout.strip()

    def is_up(self) -> bool:
        """All that starts with it is there."""
        return bool(self.init) and self.run("systemctl", "is-system-running").stdout.strip() in {
            "running",
            "degraded",
        }

    def said(self, unit: str, word: str) -> str:
        """What systemd knows of a unit."""
        return self.must("systemctl", "show", unit, "-p", word, "--value")


@contextlib.contextmanager
def booted() -> Iterator[Machine]:
    """Raises NoMachineError."""
    lacking = [tool for tool in ("setpriv", "unshare", "nsenter", "pivot_root", "systemctl", "ip", "runuser") if not shutil.which(tool)]  # fmt: skip
    if os.geteuid() or lacking or not SYSTEMD.exists():
        raise NoMachineError(f"it takes root, {SYSTEMD} and {', '.join(lacking) or 'its tools'}")
    if PYTHON.parts[1] not in {"usr", "opt"}:
        raise NoMachineError(f"{PYTHON} is not where units may look: in /usr or /opt")
    group = _group()
    with tempfile.TemporaryDirectory(prefix="hs-machine-") as folder:
        starter = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", str(BOOT), folder, str(group), NAME, *chain(*SHOWN.items())], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            machine = Machine(starter.pid)
            _wait_for_it(starter, machine)
            yield machine
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(starter.pid, signal.SIGKILL)  # the machine goes with it
            starter.communicate()
            _remove(group)


def _group() -> Path:
    """A control group that nobody else has, below that of this process."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    mount = next((Path(where) for _, where, kind, *_ in mounts if kind == "cgroup2"), None)
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    if mount is None or own is None:
        raise NoMachineError("there are no control groups of version 2")
    group = mount / own.lstrip("/") / f"hs-machine-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise NoMachineError(f"{group}: cannot be made: {error.strerror}") from None
    return group


def _remove(group: Path) -> None:
    deadline_s = time.monotonic() + BOOTS_WITHIN_S
    while group.exists():
        for folder in (*sorted(group.rglob("*/"), reverse=True), group):
            with contextlib.suppress(OSError):  # who was killed is not gone at once
                folder.rmdir()
        assert time.monotonic() < deadline_s, f"{group} is still in use"
        time.sleep(0.02)


def _wait_for_it(starter: "subprocess.Popen[str]", machine: Machine) -> None:
    """Until all that starts with it is there."""
    deadline_s = time.monotonic() + BOOTS_WITHIN_S
    while time.monotonic() < deadline_s:
        if starter.poll() is not None:
            said = starter.stdout.read() if starter.stdout else ""
            raise NoMachineError(f"none can be started here: {said.strip()}")
        if machine.is_up():
            return
        time.sleep(0.05)
    raise AssertionError("the machine is not up")


def install(machine: Machine) -> None:
    """As README.md says, but for where the packages come from that ours need: there may be no network."""
    with tempfile.TemporaryDirectory(prefix="hs-wheel-") as folder:
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
            cwd=ROOT, check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        (wheel,) = Path(folder).glob("*.whl")
        shutil.copy(wheel, machine.file("/root"))
    machine.must(str(PYTHON), "-m", "venv", "--without-pip", "--clear", str(PREFIX))
    packages = machine.file(f"{PREFIX}/lib/python3.{sys.version_info.minor}/site-packages")
    (packages / "others.pth").write_text("\n".join(SHOWN[path] for path in PACKAGES) + "\n")
    pip = (f"{PREFIX}/bin/python", "-m", "pip")
    machine.must(*pip, "install", "--quiet", "--ignore-installed", "--no-deps", "--no-index", f"/root/{wheel.name}")  # fmt: skip
    units = [f"{PREFIX}/lib/systemd/heteroshare/{name}.service" for name in ("hs-controller", "hs-agent")]
    machine.must("install", "-m", "644", *units, "/etc/systemd/system/")
    machine.must("rm", "-rf", "/etc/heteroshare", "/var/lib/heteroshare")
    machine.must("mkdir", "/etc/heteroshare")
    machine.file("/etc/hosts").write_text(f"127.0.0.1 localhost {NAME}\n")
    machine.must("systemctl", "daemon-reload")


def main() -> int:
    with booted() as machine:
        install(machine)
        return subprocess.run([*machine.entry(), "bash"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
