"""The embedded cluster's settings and files: what `hsctl up` was told, its folders, the daemons' configuration, cluster.json.

Everything is below one state folder, but for the sockets where that folder's path is too long for them.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import re
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hs_client import process, quantities
from hs_client.address import CLUSTER_FILE
from hs_client.errors import ConflictError, ImpossibleError, InvalidError
from hs_client.process import Identity
from hs_client.version import VERSION

RUN_DIR_BYTES = 60  # the sockets below it must stay within the system's 107
CONTROLLER, AGENT = "controller", "agent"  # of several hosts: "agent-NAME"
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,15}")  # short: its sockets' paths are limited
MAX_HOSTS = 32


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
class Slowdown:
    """How many times as long a step takes on each emulated GPU of a server as on the middling one, by job class."""

    job_class: str
    gpus: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One of several servers that this machine pretends to be."""

    name: str
    emulated: tuple[Emulated, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    devices: str = "auto"  # auto | nvml | emulated
    emulated: tuple[Emulated, ...] = ()
    hosts: tuple[Host, ...] = ()  # empty: this machine is one
    paces: tuple[Pace, ...] = ()
    slowdowns: tuple[Slowdown, ...] = ()  # of every server
    quantum_s: float = 60.0
    policy: str = "gandiva-fair"
    users: tuple[tuple[str, float | None], ...] = ()
    preload: int | None = None
    page: int | None = None  # port of the page, on loopback

    @property
    def agents(self) -> dict[str, Host | None]:
        """Each agent's daemon, and the host that it plays (None: this machine)."""
        return {f"{AGENT}-{host.name}": host for host in self.hosts} or {AGENT: None}

    @property
    def daemons(self) -> tuple[str, ...]:
        return (CONTROLLER, *self.agents)


# --- what people write -----------------------------------------------------------------------------------------------


def host(text: str) -> Host:
    """`v1=V100:4`, or `v1=V100:4:16G`."""
    name, equals, gpus = text.partition("=")
    if not equals or not _HOST.fullmatch(name):
        raise InvalidError(
            f"--host {text!r}: expected NAME=MODEL:NUMBER, e.g. v1=V100:4 (the name of at most 16 letters, digits, . _ -)"
        )
    return Host(name=name, emulated=(emulated(gpus, f"--host {text!r}"),))


def emulated(text: str, where: str = "") -> Emulated:
    """`V100:4` or `V100:4:16G`."""
    where = where or f"--emulate {text!r}"
    model, *rest = text.split(":")
    if not _MODEL.fullmatch(model) or len(rest) > 2 or (rest and not rest[0].isdecimal()):
        raise InvalidError(f"{where}: expected MODEL:NUMBER or MODEL:NUMBER:MEMORY, e.g. V100:4:16G")
    count = int(rest[0][:6]) if rest else 1
    if not 1 <= count <= 64:
        raise InvalidError(f"{where}: expected 1 to 64 GPUs")
    try:
        return Emulated(
            model=model, count=count, memory_bytes=quantities.size(rest[1]) if len(rest) == 2 else 16 << 30
        )
    except ValueError as error:
        raise InvalidError(f"{where}: {error}") from None


def pace(text: str) -> Pace:
    """`0.05`, or `CLASS=0.05`, either with speed-ups: `*digits*=0.05:V100=4,K80=1`."""
    expected = "expected SECONDS or CLASS=SECONDS (at most 3600), then maybe :MODEL=SPEEDUP,… (1e-6 to 1e6), e.g. 0.05 or *digits*=0.05:V100=4,K80=1"
    number = r"([0-9.eE+-]+)(?::(.+))?"  # first without a class: a speed-up looks like one
    match = re.fullmatch("()" + number, text) or re.fullmatch("(.+?)=" + number, text)
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


def slowdown(text: str) -> Slowdown:
    """`1,1.5` or `CLASS=1,1.5`: one number for each GPU of a server."""
    expected = "expected NUMBER,… or CLASS=NUMBER,…, one from 0.01 to 100 for each GPU of a server, e.g. 1,1.5 or *digits*=1,1.5"
    job_class, _, numbers = text.rpartition("=")
    try:
        gpus = tuple(float(word) for word in numbers.split(","))
    except ValueError:
        raise InvalidError(f"--slowdown {text!r}: {expected}") from None
    if not all(0.01 <= times <= 100 for times in gpus):
        raise InvalidError(f"--slowdown {text!r}: {expected}")
    return Slowdown(job_class=job_class or "*", gpus=gpus)


def user(text: str) -> tuple[str, float | None]:
    """`ann` or `ann:200`."""
    name, colon, tickets = text.partition(":")
    expected = f"expected NAME or NAME:TICKETS (letters, digits, . _ @ -), {quantities.TICKETS_EXPECTED}"
    if not _USER.fullmatch(name):
        raise InvalidError(f"--user {text!r}: {expected}")
    try:
        number = float(tickets) if colon else None
    except ValueError:
        raise InvalidError(f"--user {text!r}: {expected}") from None
    if number is not None and not quantities.LEAST_TICKETS <= number <= quantities.MOST_TICKETS:
        raise InvalidError(f"--user {text!r}: {expected}")
    return name, number


def users(texts: Iterable[str]) -> tuple[tuple[str, float | None], ...]:
    found = tuple(map(user, texts))
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        raise InvalidError(f"--user {','.join(names)}: expected each name once")
    return found


# --- as they are written -----------------------------------------------------------------------------------------------


def unlike(there: Options, asked: Options) -> list[str]:
    """Flags of which another value runs than is asked for, each with both."""
    running, wanted = _as_written(there), _as_written(asked)
    return [
        f"{flag} is {running[flag] or 'not said'} there, {wanted[flag] or 'not said'} here"
        for flag in running
        if running[flag] != wanted[flag]
    ]


def _as_written(options: Options) -> dict[str, str]:
    """By flag, as people would write it; empty: not at all."""
    return {
        "--devices": options.devices,
        "--emulate": ", ".join(map(_gpus_text, options.emulated)),
        "--host": ", ".join(
            f"{host.name}={','.join(map(_gpus_text, host.emulated))}" for host in options.hosts
        ),
        "--quantum": f"{options.quantum_s:.12g}",
        "--policy": options.policy,
        "--user": ", ".join(
            name if tickets is None else f"{name}:{tickets:.12g}" for name, tickets in options.users
        ),
        "--pace": ", ".join(map(_pace_text, options.paces)),
        "--slowdown": ", ".join(
            f"{said.job_class}={','.join(f'{times:.12g}' for times in said.gpus)}"
            for said in options.slowdowns
        ),
        "--preload": "" if options.preload is None else str(options.preload),
        "--page": "" if options.page is None else str(options.page),
    }


def _gpus_text(gpus: Emulated) -> str:
    return f"{gpus.model}:{gpus.count}:{gpus.memory_bytes / (1 << 30):.12g}G"


def _pace_text(pace: Pace) -> str:
    speedup = ",".join(f"{model}={times:.12g}" for model, times in pace.speedup.items())
    return f"{pace.job_class}={pace.base_s:.12g}{':' * bool(speedup)}{speedup}"


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
    if options.page is not None:
        lines += ["dev = true", f'web_listen = "127.0.0.1:{options.page}"']
    for name, tickets in options.users:
        lines += ["", f"[users.{_toml(name)}]", f"run_as = {_toml(account)}"]
        lines += [f"tickets = {tickets!r}"] if tickets is not None else []
    return "\n".join(lines) + "\n"


def agent_toml(options: Options, where: Folders, devices: str, daemon: str = AGENT) -> str:
    played = options.agents[daemon]
    lines = [
        f"controller = {_toml(f'unix:{where.socket}')}",
        f"name = {_toml(played.name if played else host_name())}",
        f"state_dir = {_toml(str(where.state / daemon))}",
        f"run_dir = {_toml(str(where.run / played.name if played else where.run))}",
        f"devices = {_toml(devices)}",
        f"report_interval_s = {_report_interval(options)!r}",
        "end_jobs_on_stop = true",
        f"min_uid = {max(1, min(1000, os.geteuid()))}",
    ]
    lines += ["dev = true", 'peer_listen = "127.0.0.1:0"'] if played else []
    lines += ["allow_root = true"] if os.geteuid() == 0 else []
    lines += [f"preload = {options.preload}"] if options.preload is not None else []
    for group in played.emulated if played else options.emulated:
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
    for said in options.slowdowns:
        lines += [
            "",
            "[[slowdown]]",
            f"job_class = {_toml(said.job_class)}",
            f"gpus = [{', '.join(map(repr, said.gpus))}]",
        ]
    return "\n".join(lines) + "\n"


def _toml(text: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for DEL, which JSON leaves as it is."""
    return json.dumps(text, ensure_ascii=True).replace("\x7f", "\\u007f")


def _report_interval(options: Options) -> float:
    """Shares are exact to a report: short slices need frequent ones."""
    return round(min(1.0, max(0.1, options.quantum_s / 2)), 3)


def _account() -> str:
    """Raises ImpossibleError where it has no name: jobs run as accounts that have one."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise ImpossibleError(
            f"uid {uid} has no account on this machine; expected an entry in /etc/passwd (getent passwd {uid})"
        ) from None


def host_name() -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).strip("._-")[:200] or "localhost"


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
        }
        return Cluster(
            socket=data["socket"], run_dir=data["run_dir"], options=data["options"], daemons=daemons
        )
    except (FileNotFoundError, NotADirectoryError):
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
    write(where.state / CLUSTER_FILE, json.dumps(data, indent=2) + "\n")


def recorded(options: Options) -> dict[str, Any]:
    """As JSON gives it back, to compare."""
    return dict(json.loads(json.dumps(asdict(options))))


def restored(saved: Mapping[str, Any]) -> Options:
    """Options as cluster.json holds them."""
    return Options(
        devices=saved["devices"],
        emulated=tuple(Emulated(**e) for e in saved["emulated"]),
        hosts=tuple(
            Host(name=h["name"], emulated=tuple(Emulated(**e) for e in h["emulated"])) for h in saved["hosts"]
        ),
        paces=tuple(Pace(**p) for p in saved["paces"]),
        slowdowns=tuple(
            Slowdown(job_class=s["job_class"], gpus=tuple(s["gpus"])) for s in saved["slowdowns"]
        ),
        quantum_s=saved["quantum_s"],
        policy=saved["policy"],
        users=tuple((name, tickets) for name, tickets in saved["users"]),
        preload=saved["preload"],
        page=saved["page"],
    )


def write(path: Path, text: str) -> None:
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
