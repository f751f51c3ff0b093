"""The agent's settings: TOML in, a frozen Config out; every error names file, key, value and what was expected."""

import fnmatch
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from hs_agent import limits
from hs_agent.table import Table, shown
from hs_core.digits import whole
from hs_core.errors import RefusedError
from hs_core.model import LEAST_SLOWDOWN, MOST_SLOWDOWN, Gpu, Slowdown
from hs_core.names import A_HOST_NAME, HOST_NAME
from hs_daemon import config_file
from hs_daemon.addresses import host_in, is_loopback

DEFAULT_FILE = Path("/etc/heteroshare/agent.toml")
MAX_SOCKET_PATH = 107  # sun_path of a unix socket, less its closing zero
LONGEST_SOCKET_NAME = len("/1234567890-12345.sock")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


class DeviceKind(StrEnum):
    NVML = "nvml"
    EMULATED = "emulated"


class CgroupUse(StrEnum):
    AUTO = "auto"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedGpus:
    model: str
    count: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds a step takes at least on an emulated device: `base_s` divided by the model's speed-up."""

    job_class: str  # glob
    base_s: float
    speedup: Mapping[str, float] = field(default_factory=dict)

    def on(self, model: str) -> float:
        return self.base_s / self.speedup.get(model, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdowns:
    """How fast this host's GPUs are among those of their model, for some jobs."""

    job_class: str  # glob
    gpus: tuple[float, ...]  # by index: how many times as long a step takes as on the middling one


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    file: str  # that says all this
    controller: str  # gRPC target: "unix:/path" or "host:port"
    token_file: Path | None
    dev: bool  # no certificates: everything stays on loopback
    name: str
    peer_listen: str  # "0.0.0.0:7444": where other agents reach this one; empty: nowhere
    peer_address: str  # as which it is told to them; empty: made from peer_listen
    rendezvous_ports: range  # of jobs over several servers
    state_dir: Path
    run_dir: Path
    devices: DeviceKind
    emulated: tuple[EmulatedGpus, ...]
    gpu_model: str  # what this host's GPUs are called; empty: as the driver calls them, in short
    paces: tuple[Pace, ...]  # the first that matches counts
    slowdowns: tuple[Slowdowns, ...]  # likewise
    min_uid: int
    allow_root: bool
    log_limit_bytes: int  # of one job's log on this host
    keep_logs: int  # ended jobs whose logs stay
    preload: int  # jobs started ahead of their turn at once
    host_memory_reserve_bytes: int  # left free by who is started
    host_memory_budget_bytes: int  # for parked device memory, 0: none is parked
    kill_grace_s: float
    cgroup: CgroupUse
    cgroup_root: str  # below the hierarchy's mount; empty: the agent's own group
    path: str  # PATH of a job that brings none
    launcher: tuple[
        str, ...
    ]  # program and first arguments that start what a job runs; empty: it is started as it is
    mps_pipe_dir: str  # of NVIDIA's MPS control daemon, through which jobs on one GPU run at once; empty: they take turns
    report_interval_s: float
    end_jobs_on_stop: bool

    @property
    def secure(self) -> bool:
        """The controller is reached over mTLS."""
        return not self.dev and not self.controller.startswith("unix:")

    def pace_s(self, job_class: str, model: str, slowdown: float = 1.0) -> float:
        """Seconds per step to hold jobs of this class to, on GPUs so many times as slow as the middling one; 0: as fast as they go."""
        if self.devices is not DeviceKind.EMULATED:
            return 0.0
        for pace in self.paces:
            if fnmatch.fnmatchcase(job_class, pace.job_class):
                return pace.on(model) * slowdown
        return 0.0

    def described(self, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """The host's GPUs with what is said here of them: what they are called, and how fast each is. Raises RefusedError where it is said of more or fewer."""
        for said in self.slowdowns:
            highest = max((gpu.index for gpu in gpus), default=-1)
            if len(said.gpus) != highest + 1:
                raise RefusedError(
                    f"[[slowdown]] of job_class {said.job_class!r}: gpus = {list(said.gpus)}: expected {highest + 1} numbers, one for each GPU of this host"
                )
        return tuple(
            replace(
                gpu,
                model=self.gpu_model or gpu.model,
                slowdowns=tuple(
                    Slowdown(job_class=said.job_class, times=said.gpus[gpu.index]) for said in self.slowdowns
                ),
            )
            for gpu in gpus
        )


def load(path: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read the file; `overrides` (flags of the command line) take its keys' places."""
    try:
        data = config_file.table(path)
    except config_file.ConfigFileError as error:
        raise RefusedError(f"{path}: {error}") from None
    # Errors name it as it was given; who reads it later may stand in another folder.
    return replace(parse(data | dict(overrides or {}), str(path)), file=str(path.absolute()))


def parse(data: Mapping[str, Any], file: str = "configuration") -> Config:
    top = Table(file, "", data)
    dev = top.flag("dev", default=False)
    controller = _controller(top, dev=dev)
    devices = top.word("devices", DeviceKind, DeviceKind.NVML)
    use, root = top.word("cgroup", CgroupUse, CgroupUse.AUTO), _cgroup_root(top)
    root = "" if use is CgroupUse.NONE else root
    there_bytes = memory_bytes(root)
    config = Config(
        file=file,
        controller=controller,
        token_file=_token_file(top, controller, dev=dev),
        dev=dev,
        name=name_in(top),
        peer_listen=_peer_listen(top, dev=dev),
        peer_address=_peer_address(top),
        rendezvous_ports=_ports(top, "rendezvous_ports", range(29400, 30400)),
        state_dir=state_dir_in(top),
        run_dir=_run_dir(top),
        devices=devices,
        emulated=_emulated(top, devices),
        gpu_model=_gpu_model(top, devices),
        paces=_paces(top),
        slowdowns=_slowdowns(top),
        min_uid=top.whole("min_uid", 1000, low=1, high=2**31),
        allow_root=top.flag("allow_root", default=False),
        log_limit_bytes=top.size("log_limit", 64 << 20, low=64 << 10),
        keep_logs=top.whole("keep_logs", 200, low=0, high=100_000),
        preload=top.whole("preload", 2, low=0, high=64),
        host_memory_budget_bytes=top.size("host_memory_budget", there_bytes // 2),
        # With all but nothing left free jobs have a process one at a time; more than there is nobody means.
        host_memory_reserve_bytes=top.size("host_memory_reserve", there_bytes // 20, high=there_bytes - 1),
        kill_grace_s=top.number("kill_grace_s", 10.0, low=0.0, high=3600.0),
        cgroup=use,
        cgroup_root=root,
        path=top.text("path", "/usr/local/bin:/usr/bin:/bin"),
        launcher=_launcher(top),
        mps_pipe_dir=_mps_pipe_dir(top),
        report_interval_s=top.number("report_interval_s", 1.0, low=0.05, high=60.0),
        end_jobs_on_stop=top.flag("end_jobs_on_stop", default=False),
    )
    top.finish()
    return config


def _launcher(top: Table) -> tuple[str, ...]:
    value = top.raw("launcher")
    words = [value] if isinstance(value, str) else value
    if words is None or words == [""]:
        return ()
    told = isinstance(words, list) and all(isinstance(word, str) and "\0" not in word for word in words)
    if not told or not words or not words[0].startswith("/"):
        expected = 'the absolute path of a program, or a list of that and its first arguments: ["/usr/bin/numactl", "--interleave=all"]'
        raise top.refuse("launcher", expected)
    return tuple(words)


def _mps_pipe_dir(top: Table) -> str:
    value = top.text("mps_pipe_dir", "", "the absolute path of a folder")
    if value and not value.startswith("/"):
        raise top.refuse("mps_pipe_dir", "the absolute path of a folder", found=value)
    return value


def memory_bytes(root: str = "") -> int:
    """Of this host, all of it that the control groups above jobs let them have. `root`: as in `limits`."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([there, *(limit for _, limit in limits.of_memory(root))])


def split_address(value: str) -> tuple[str, int] | None:
    """Host (an IPv6 one without its brackets) and port; None: it is not "host:port"."""
    host, colon, port = value.rpartition(":")
    number = whole(port, 2**16 - 1)
    if not colon or number is None:
        return None
    found = host_in(host)
    return None if found is None else (found, number)


def _controller(top: Table, *, dev: bool) -> str:
    expected = '"unix:/path/to/socket" or "host:port"'
    value = top.text("controller", "", expected)
    if not value:
        raise top.missing("controller", expected)
    if value.startswith("unix:"):
        path = value.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise top.refuse("controller", f"{expected}; the path must be absolute")
        if len(path.encode()) > MAX_SOCKET_PATH:
            raise top.refuse("controller", f"a socket path of at most {MAX_SOCKET_PATH} bytes")
        return f"unix:{path}"
    place = split_address(value)
    if place is None or place[1] == 0:
        raise top.refuse("controller", expected)
    if dev and not is_loopback(place[0]):
        raise top.refuse(
            "controller", f"{expected}: only loopback with dev = true, which has no certificates"
        )
    return value


def _token_file(top: Table, controller: str, *, dev: bool) -> Path | None:
    value = top.text("token_file", "", "a file that holds the agent's token")
    if value and not value.startswith("/"):
        raise top.refuse("token_file", "the absolute path of a file that holds the agent's token")
    if value:
        return Path(value)
    if dev and not controller.startswith("unix:"):
        expected = "a file that holds the agent's token: the controller wants one on a loopback port"
        raise top.missing("token_file", expected)
    return None


def _peer_listen(top: Table, *, dev: bool) -> str:
    expected = '"address:port" to listen at, such as "0.0.0.0:7444"'
    value = top.text("peer_listen", "", expected)
    place = split_address(value) if value else None
    if value and place is None:
        raise top.refuse("peer_listen", expected)
    if place is not None and dev and not is_loopback(place[0]):
        raise top.refuse(
            "peer_listen", f"{expected}: only loopback with dev = true, which has no certificates"
        )
    return value


def _peer_address(top: Table) -> str:
    expected = '"host:port" where other agents reach this one, such as "gpu1.example:7444"'
    value = top.text("peer_address", "", expected)
    place = split_address(value) if value else None
    if value and (place is None or place[1] == 0):
        raise top.refuse("peer_address", expected)
    if value and not top.data.get("peer_listen"):
        raise top.refuse("peer_address", "peer_listen to be set as well")
    return value


def _ports(top: Table, key: str, default: range) -> range:
    expected = f'ports such as "{default.start}-{default.stop - 1}", from 1024 to 65535'
    value = top.text(key, "", expected)
    if not value:
        return default
    first, last = (whole(bound, 2**16 - 1) for bound in value.partition("-")[::2])
    if first is None or last is None:
        raise top.refuse(key, expected)
    ports = range(first, last + 1)
    if not ports or ports.start < 1024:
        raise top.refuse(key, expected)
    return ports


def name_in(top: Table) -> str:
    value = top.text("name", socket.gethostname(), A_HOST_NAME)
    if not HOST_NAME.fullmatch(value):
        raise top.refuse("name", A_HOST_NAME, found=value)
    return value


def state_dir_in(top: Table) -> Path:
    return _folder(top, "state_dir", "/var/lib/heteroshare/agent")


def _folder(top: Table, key: str, default: str) -> Path:
    value = top.text(key, default, "an absolute path")
    if not value.startswith("/"):
        raise top.refuse(key, "an absolute path")
    return Path(os.path.normpath(value))


def _run_dir(top: Table) -> Path:
    folder = _folder(top, "run_dir", "/run/heteroshare/agent")
    longest = MAX_SOCKET_PATH - LONGEST_SOCKET_NAME
    if len(str(folder).encode()) > longest:
        raise top.refuse(
            "run_dir", f"at most {longest} bytes: the jobs' sockets live there and their paths are limited"
        )
    return folder


def _cgroup_root(top: Table) -> str:
    value = top.text("cgroup_root", "/", "a control group such as /heteroshare")
    if not value.startswith("/") or ".." in value.split("/"):
        raise top.refuse("cgroup_root", "a control group such as /heteroshare")
    return value.strip("/")


def _emulated(top: Table, devices: DeviceKind) -> tuple[EmulatedGpus, ...]:
    made = tuple(_emulated_one(top.file, where, item) for where, item in top.tables("emulated"))
    if devices is DeviceKind.EMULATED and not made:
        raise RefusedError(
            f'{top.file}: devices = "emulated" needs [[emulated]] tables, e.g. model = "V100", count = 4'
        )
    if devices is not DeviceKind.EMULATED and made:
        raise RefusedError(
            f'{top.file}: [[emulated]] is given but devices = "{devices}"; set devices = "emulated"'
        )
    if sum(group.count for group in made) > 64:
        raise RefusedError(f"{top.file}: emulated: expected at most 64 devices in all")
    if len(models := dict.fromkeys(group.model for group in made)) > 1:
        raise RefusedError(
            f"{top.file}: emulated: {', '.join(models)}; expected devices of one model, as a server has: run an agent for each"
        )
    return made


def _gpu_model(top: Table, devices: DeviceKind) -> str:
    expected = 'what the GPUs of this host are called, such as "A100-80G" (32 letters, digits, ".", "_", "-" at most)'
    model = top.text("gpu_model", "", expected)
    if model and not _MODEL.fullmatch(model):
        raise top.refuse("gpu_model", expected)
    if model and devices is DeviceKind.EMULATED:
        raise RefusedError(
            f'{top.file}: gpu_model = "{model}" is given but devices = "{devices}", whose models are in `emulated`'
        )
    return model


def _emulated_one(file: str, where: str, item: object) -> EmulatedGpus:
    expected = '{model = "V100", count = 4, memory = "16G"} or "V100:4"'
    if isinstance(item, str):
        model, _, count = item.partition(":")
        number = whole(count, 10**6)
        item = {"model": model, "count": (count or 1) if number is None else number}
    if not isinstance(item, dict):
        raise RefusedError(f"{file}: {where} = {item!r}: expected {expected}")
    table = Table(file, f"{where}.", item)
    model = table.text("model", "", "a GPU model such as V100")
    if not _MODEL.fullmatch(model):
        raise table.refuse("model", "a GPU model such as V100")
    made = EmulatedGpus(
        model=model,
        count=table.whole("count", 1, low=1, high=64),
        memory_bytes=table.size("memory", 16 << 30, low=1 << 20),
    )
    table.finish()
    return made


def _paces(top: Table) -> tuple[Pace, ...]:
    paces = tuple(_pace(top.file, where, item) for where, item in top.tables("pace"))
    # One that matches every class is the default wherever it stands in the file.
    return tuple(sorted(paces, key=lambda pace: pace.job_class == "*"))


def _pace(file: str, where: str, item: object) -> Pace:
    if not isinstance(item, dict):
        raise RefusedError(
            f'{file}: {where} = {item!r}: expected a table such as {{job_class = "*", base_s = 0.05}}'
        )
    table = Table(file, f"{where}.", item)
    job_class = table.text("job_class", "*", 'a pattern such as "*digits*"')
    if "base_s" not in item:
        raise table.missing("base_s", "seconds per step, e.g. 0.05")
    base_s = table.number("base_s", 0.0, low=0.0, high=3600.0)
    speedup = table.raw("speedup") or {}
    expected = "a table of numbers from 1e-6 to 1e6 by GPU model, e.g. {V100 = 1.0, K80 = 0.2}"
    if not isinstance(speedup, dict):
        raise table.refuse("speedup", expected)
    for model, times in speedup.items():
        right = isinstance(times, int | float) and not isinstance(times, bool)
        if not right or not 1e-6 <= times <= 1e6:
            raise RefusedError(f"{file}: {where}.speedup.{model} = {shown(times)}: expected {expected}")
    table.finish()
    return Pace(job_class=job_class, base_s=base_s, speedup={m: float(v) for m, v in speedup.items()})


def _slowdowns(top: Table) -> tuple[Slowdowns, ...]:
    found = tuple(_slowdown(top.file, where, item) for where, item in top.tables("slowdown"))
    return tuple(sorted(found, key=lambda said: said.job_class == "*"))  # as with paces


def _slowdown(file: str, where: str, item: object) -> Slowdowns:
    if not isinstance(item, dict):
        raise RefusedError(
            f'{file}: {where} = {item!r}: expected a table such as {{job_class = "*", gpus = [1.0, 1.3]}}'
        )
    table = Table(file, f"{where}.", item)
    job_class = table.text("job_class", "*", 'a pattern such as "*digits*"')
    times = table.raw("gpus")
    expected = (
        f"a list of numbers from {LEAST_SLOWDOWN:g} to {MOST_SLOWDOWN:g}, one for each GPU of this host"
    )
    if not isinstance(times, list) or not times:
        raise table.refuse("gpus", expected)
    for at, value in enumerate(times):
        right = isinstance(value, int | float) and not isinstance(value, bool)
        if not right or not LEAST_SLOWDOWN <= value <= MOST_SLOWDOWN:
            raise RefusedError(f"{file}: {where}.gpus[{at}] = {shown(value)}: expected {expected}")
    table.finish()
    return Slowdowns(job_class=job_class, gpus=tuple(float(value) for value in times))
