"""A cluster of one machine: folders, configuration, and the two daemons that `hsctl up` starts and `hsctl down` stops.

Everything of it is below one state folder, but for the sockets where that folder's path is too long for them.
"""

import contextlib
import fcntl
import getpass
import hashlib
import importlib.util
import json
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hs_client import process, quantities
from hs_client.address import CLUSTER_FILE
from hs_client.api import Client
from hs_client.errors import ConflictError, HeteroShareError, InvalidError, UnavailableError
from hs_client.process import Identity
from hs_client.version import VERSION

Report = Callable[[str], None]

RUN_DIR_BYTES = 60  # the sockets below it must stay within the system's 107
CONTROLLER, AGENT = "controller", "agent"
DAEMONS = (CONTROLLER, AGENT)
NEEDS = {CONTROLLER: ("hs_controller", "sqlalchemy", "structlog"), AGENT: ("hs_agent", "pynvml", "structlog")}
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_COUNT_GPUS = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulated:
    model: str
    count: int
    memory_bytes: int = 16 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds a step takes on an emulated device, by job class and model."""

    job_class: str
    base_s: float
    speedup: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    devices: str = "auto"  # auto | nvml | emulated
    emulated: tuple[Emulated, ...] = ()
    paces: tuple[Pace, ...] = ()
    quantum_s: float = 60.0
    policy: str = "gandiva-fair"
    users: tuple[tuple[str, float | None], ...] = ()
    preload: int | None = None


# --- what people write -----------------------------------------------------------------------------------------------


def emulated(text: str) -> Emulated:
    """`V100:4` or `V100:4:16G`."""
    model, *rest = text.split(":")
    if not _MODEL.fullmatch(model) or len(rest) > 2 or (rest and not rest[0].isdecimal()):
        raise InvalidError(
            f"--emulate {text!r}: expected MODEL:NUMBER or MODEL:NUMBER:MEMORY, e.g. V100:4:16G"
        )
    count = int(rest[0][:6]) if rest else 1
    if not 1 <= count <= 64:
        raise InvalidError(f"--emulate {text!r}: expected 1 to 64 GPUs")
    try:
        return Emulated(
            model=model, count=count, memory_bytes=quantities.size(rest[1]) if len(rest) == 2 else 16 << 30
        )
    except ValueError as error:
        raise InvalidError(f"--emulate {text!r}: {error}") from None


def pace(text: str) -> Pace:
    """`0.05`, or `CLASS=0.05`, either with speed-ups: `*digits*=0.05:V100=4,K80=1`."""
    expected = "expected SECONDS or CLASS=SECONDS, then maybe :MODEL=SPEEDUP,…, e.g. 0.05 or *digits*=0.05:V100=4,K80=1"
    match = re.fullmatch(r"(?:(.+?)=)?([0-9.eE+-]+)(?::(.+))?", text)
    if match is None:
        raise InvalidError(f"--pace {text!r}: {expected}")
    try:
        base_s = float(match[2])
        speedup = {
            m: float(v) for m, v in (pair.split("=", 1) for pair in (match[3] or "").split(",") if pair)
        }
    except ValueError:
        raise InvalidError(f"--pace {text!r}: {expected}") from None
    if not 0 <= base_s <= 3600 or not all(1e-6 <= v <= 1e6 for v in speedup.values()):
        raise InvalidError(f"--pace {text!r}: {expected}")
    return Pace(job_class=match[1] or "*", base_s=base_s, speedup=speedup)


def user(text: str) -> tuple[str, float | None]:
    """`ann` or `ann:200`."""
    name, colon, tickets = text.partition(":")
    expected = "expected NAME or NAME:TICKETS (letters, digits, . _ @ -; tickets above 0)"
    if not _USER.fullmatch(name):
        raise InvalidError(f"--user {text!r}: {expected}")
    try:
        number = float(tickets) if colon else None
    except ValueError:
        raise InvalidError(f"--user {text!r}: {expected}") from None
    if number is not None and not 1e-6 <= number <= 1e9:
        raise InvalidError(f"--user {text!r}: {expected}")
    return name, number


# --- folders and configuration ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    state: Path
    run: Path

    @property
    def socket(self) -> Path:
        return self.run / "controller.sock"

    def config(self, daemon: str) -> Path:
        return self.state / f"{daemon}.toml"

    def log(self, daemon: str) -> Path:
        return self.state / f"{daemon}.log"


def folders(state: Path) -> Folders:
    """Makes them, ours alone. Not XDG_RUNTIME_DIR: it goes away with the last login, and the cluster stays."""
    state = state.expanduser().absolute()
    if len(str(state)) > 2000 or "\0" in str(state):
        raise InvalidError(f"state folder {str(state)[:60]!r}…: expected a shorter path")
    _own_folder(state)
    run = state / "run"
    if len(os.fsencode(run)) > RUN_DIR_BYTES:
        digest = hashlib.sha256(os.fsencode(state)).hexdigest()[:8]
        run = Path(f"/tmp/heteroshare-{os.geteuid()}-{digest}")  # noqa: S108 — checked to be ours alone
    _own_folder(run)
    return Folders(state=state, run=run)


def _own_folder(path: Path) -> None:
    """Root's may be passed through: jobs then run as other accounts and find their sockets below."""
    mode = 0o711 if os.geteuid() == 0 else 0o700
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise InvalidError(f"{path}: expected a folder of your own")
        path.chmod(mode)
    except OSError as error:
        raise InvalidError(
            f"{path}: {error.strerror}: expected a folder that can be made and written"
        ) from None


def controller_toml(options: Options, where: Folders) -> str:
    account = _account()
    report_s = _report_interval(options)
    lines = [
        f"state_dir = {_toml(str(where.state / CONTROLLER))}",
        f"socket = {_toml(str(where.socket))}",
        "embedded = true",
        f"policy = {_toml(options.policy)}",
        f"quantum_s = {options.quantum_s!r}",
        f"heartbeat_s = {report_s!r}",
        f"admins = [{_toml(account)}]",
    ]
    for name, tickets in options.users:
        lines += ["", f"[users.{_toml(name)}]", f"run_as = {_toml(account)}"]
        lines += [f"tickets = {tickets!r}"] if tickets is not None else []
    return "\n".join(lines) + "\n"


def agent_toml(options: Options, where: Folders, devices: str) -> str:
    lines = [
        f"controller = {_toml(f'unix:{where.socket}')}",
        f"name = {_toml(host_name())}",
        f"state_dir = {_toml(str(where.state / AGENT))}",
        f"run_dir = {_toml(str(where.run))}",
        f"devices = {_toml(devices)}",
        f"report_interval_s = {_report_interval(options)!r}",
        "end_jobs_on_stop = true",
        f"min_uid = {max(1, min(1000, os.geteuid()))}",
    ]
    lines += ["allow_root = true"] if os.geteuid() == 0 else []
    lines += [f"preload = {options.preload}"] if options.preload is not None else []
    for group in options.emulated:
        lines += [
            "",
            "[[emulated]]",
            f"model = {_toml(group.model)}",
            f"count = {group.count}",
            f"memory = {group.memory_bytes}",
        ]
    for one in options.paces:
        speedup = ", ".join(f"{_toml(m)} = {v!r}" for m, v in one.speedup.items())
        lines += [
            "",
            "[[pace]]",
            f"job_class = {_toml(one.job_class)}",
            f"base_s = {one.base_s!r}",
            f"speedup = {{{speedup}}}",
        ]
    return "\n".join(lines) + "\n"


def _toml(text: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for DEL, which JSON leaves as it is."""
    return json.dumps(text, ensure_ascii=True).replace("\x7f", "\\u007f")


def _report_interval(options: Options) -> float:
    """Shares are exact to a report: short slices need frequent ones."""
    return round(min(1.0, max(0.1, options.quantum_s / 2)), 3)


def _account() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return getpass.getuser()


def host_name() -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).strip("._-")[:200] or "localhost"


def devices_of(options: Options) -> str:
    """nvml or emulated; auto asks NVML in another process, because its library may hang or crash."""
    if options.devices == "emulated" or (options.devices == "auto" and options.emulated):
        if not options.emulated:
            raise InvalidError("--devices emulated: expected --emulate too, e.g. --emulate V100:4")
        return "emulated"
    if options.emulated:
        raise InvalidError("--emulate: expected --devices emulated with it")
    if options.devices == "nvml" or _gpus_here() > 0:
        return "nvml"
    raise InvalidError(
        "no NVIDIA GPU was found on this machine: expected --emulate, e.g. --emulate V100:4:16G"
    )


def _gpus_here() -> int:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _COUNT_GPUS], capture_output=True, text=True, timeout=20, check=False
        )
        return int(done.stdout) if done.returncode == 0 else 0
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return 0


def check_installed() -> None:
    missing = [name for names in NEEDS.values() for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ConflictError(
            f"{', '.join(dict.fromkeys(missing))} missing: a cluster needs more than hsctl: pip install 'heteroshare[controller,agent]'"
        )


# --- the cluster file ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What `cluster.json` holds."""

    socket: str
    run_dir: str
    options: Mapping[str, Any]
    daemons: Mapping[str, Identity]

    def running(self) -> list[str]:
        return [name for name, who in self.daemons.items() if process.alive(who)]


def read_cluster(state: Path) -> Cluster | None:
    try:
        data = json.loads((state / CLUSTER_FILE).read_text(encoding="utf-8"))
        daemons = {
            name: Identity(pid=int(d["pid"]), start_time=int(d["start_time"]), boot_id=str(d["boot_id"]))
            for name, d in data["daemons"].items()
            if name in DAEMONS
        }
        return Cluster(
            socket=data["socket"], run_dir=data["run_dir"], options=data["options"], daemons=daemons
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConflictError(
            f"{state / CLUSTER_FILE}: unreadable: {error!r}; if no daemon of it runs, remove it"
        ) from None


def write_cluster(where: Folders, options: Options, daemons: Mapping[str, Identity]) -> None:
    data = {
        "version": VERSION,
        "socket": str(where.socket),
        "run_dir": str(where.run),
        "host": host_name(),
        "options": recorded(options),
        "daemons": {name: asdict(who) | {"log": str(where.log(name))} for name, who in daemons.items()},
    }
    _write(where.state / CLUSTER_FILE, json.dumps(data, indent=2) + "\n")


def recorded(options: Options) -> dict[str, Any]:
    """As JSON gives it back, to compare."""
    return dict(json.loads(json.dumps(asdict(options))))


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(
            os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600),
            "w",
            encoding="utf-8",
        ) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise ConflictError(f"{path}: cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def locked(state: Path) -> Iterator[None]:
    """One `up` or `down` at a time."""
    handle = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(f"another `hsctl up` or `hsctl down` is at work on {state}") from None
        yield
    finally:
        os.close(handle)


# --- up --------------------------------------------------------------------------------------------------------------


def commands(where: Folders) -> dict[str, list[str]]:
    return {
        CONTROLLER: [sys.executable, "-m", "hs_controller", "run", "--config", str(where.config(CONTROLLER))],
        AGENT: [sys.executable, "-m", "hs_agent", "run", "--config", str(where.config(AGENT))],
    }


def up(
    state: Path, options: Options, *, explicit: bool, deadline_s: float, report: Report
) -> tuple[Folders, bool]:
    """Started and answering. False: it was up already. `explicit`: options were given, so they must be those it runs with."""
    check_installed()
    devices = devices_of(options) if explicit or read_cluster(state) is None else ""
    where = folders(state)
    with locked(where.state):
        before = read_cluster(where.state)
        running = before.running() if before else []
        if before and running:
            if explicit and before.options != recorded(options):
                raise ConflictError(
                    f"a cluster with other options is up in {where.state}: expected `hsctl down` first"
                )
            if set(running) == set(DAEMONS):
                _await_ready(where, dict(before.daemons), {}, deadline_s, report)
                return where, False
            report(f"{', '.join(sorted(set(DAEMONS) - set(running)))} was not running: starting it again")
        if not running and (explicit or before is None):
            _write(where.config(CONTROLLER), controller_toml(options, where))
            _write(where.config(AGENT), agent_toml(options, where, devices or devices_of(options)))
        else:
            assert before is not None
        kept = {name: before.daemons[name] for name in running} if before else {}
        _start(where, options, before, kept, running, deadline_s, report, explicit=explicit)
    return where, True


def _start(
    where: Folders, options: Options, before: Cluster | None, kept: dict[str, Identity], running: Sequence[str],
    deadline_s: float, report: Report, *, explicit: bool,
) -> None:  # fmt: skip
    daemons = dict(kept)
    children: dict[str, subprocess.Popen[bytes]] = {}
    ready = False
    try:
        for name, argv in commands(where).items():
            if name not in running:
                children[name], daemons[name] = process.start(argv, where.log(name), where.state)
        write_cluster(where, options if explicit or before is None else _restored(before), daemons)
        _await_ready(where, daemons, children, deadline_s, report)
        ready = True
    finally:
        if not ready:  # nothing half-started stays behind
            for name in children:
                process.send(daemons[name], signal.SIGTERM)
            for name, child in children.items():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(15)
                if child.poll() is None:
                    process.send(daemons[name], signal.SIGKILL)
                    child.wait(5)
            if not kept:
                (where.state / CLUSTER_FILE).unlink(missing_ok=True)


def _restored(before: Cluster) -> Options:
    saved = dict(before.options)
    return Options(
        devices=saved["devices"],
        emulated=tuple(Emulated(**e) for e in saved["emulated"]),
        paces=tuple(Pace(**p) for p in saved["paces"]),
        quantum_s=saved["quantum_s"],
        policy=saved["policy"],
        users=tuple((name, tickets) for name, tickets in saved["users"]),
        preload=saved["preload"],
    )


def _await_ready(
    where: Folders,
    daemons: Mapping[str, Identity],
    children: Mapping[str, subprocess.Popen[bytes]],
    deadline_s: float,
    report: Report,
) -> None:
    """Until the controller answers and this machine has joined it."""
    deadline = time.monotonic() + deadline_s
    told = ""
    while True:
        for name, child in children.items():
            if child.poll() is not None:
                raise UnavailableError(
                    f"{name} ended at once (exit status {child.returncode}); its log, {where.log(name)}, ends:\n{tail(where.log(name))}"
                )
        for name, who in daemons.items():
            if name not in children and not process.alive(who):
                raise UnavailableError(
                    f"{name} is gone; its log, {where.log(name)}, ends:\n{tail(where.log(name))}"
                )
        state = _readiness(where)
        if state == "ready":
            return
        if state != told:
            report(state)
            told = state
        if time.monotonic() > deadline:
            logs = ", ".join(str(where.log(name)) for name in DAEMONS)
            raise UnavailableError(f"not ready within {deadline_s:g} s ({state}); see {logs}")
        time.sleep(0.1)


def _readiness(where: Folders) -> str:
    if not where.socket.exists():
        return "waiting for the controller"
    try:
        with Client(f"unix:{where.socket}", timeout_s=2.0) as client:
            nodes = client.nodes()
    except HeteroShareError:
        return "waiting for the controller"
    return (
        "ready" if any(node.state == "up" for node in nodes) else "waiting for this machine's agent to join"
    )


def tail(log: Path, lines: int = 15) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16_384))
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        return f"(no log: {error.strerror})"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])


# --- down ------------------------------------------------------------------------------------------------------------


def down(state: Path, *, keep_jobs: bool, deadline_s: float, report: Report) -> bool:
    """Stopped, the agent first. False: nothing was up. Only processes that `up` started are signalled."""
    state = state.expanduser().absolute()
    if not state.is_dir():
        return False
    with locked(state):
        cluster = read_cluster(state)
        if cluster is None:
            return False
        running = cluster.running()
        if AGENT in running:
            _stop_agent(cluster, keep_jobs=keep_jobs, deadline_s=deadline_s, report=report)
        if CONTROLLER in running:
            report("stopping the controller")
            _stop(cluster.daemons[CONTROLLER], CONTROLLER, deadline_s)
        if not keep_jobs:
            _remove_run_dir(state, Path(cluster.run_dir))
        # Kept, so that the next `up` runs with the same options; its daemons are known to be gone.
        return bool(running)


def _stop_agent(cluster: Cluster, *, keep_jobs: bool, deadline_s: float, report: Report) -> None:
    agent = cluster.daemons[AGENT]
    if keep_jobs:
        # Told to stop it would end the jobs; killed it leaves them to the next agent, which takes them up.
        process.send(agent, signal.SIGKILL)
        process.wait_gone(agent, 10.0)
        report("the jobs go on; the next `hsctl up` takes them up again")
        return
    report("ending the jobs")
    process.send(agent, signal.SIGTERM)
    deadline, told = time.monotonic() + deadline_s, -1
    while not process.wait_gone(agent, 1.0):
        left = _live_jobs(cluster)
        if left not in {told, -1}:
            report(f"{left} jobs have not ended yet")
            told = left
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"the agent (pid {agent.pid}) has not ended within {deadline_s:g} s; it goes on trying: run `hsctl down` again"
            )


def _live_jobs(cluster: Cluster) -> int:
    try:
        with Client(f"unix:{cluster.socket}", timeout_s=1.0) as client:
            return len(client.jobs(states=("starting", "running", "suspended", "cancelling")))
    except HeteroShareError:
        return -1


def _stop(who: Identity, name: str, deadline_s: float) -> None:
    process.send(who, signal.SIGTERM)
    if not process.wait_gone(who, deadline_s):
        raise UnavailableError(
            f"the {name} (pid {who.pid}) has not ended within {deadline_s:g} s; run `hsctl down` again"
        )


def _remove_run_dir(state: Path, run: Path) -> None:
    """Sockets only; a folder outside the state folder is ours by its name."""
    if run == state / "run" or run.name.startswith(f"heteroshare-{os.geteuid()}-"):
        shutil.rmtree(run, ignore_errors=True)
