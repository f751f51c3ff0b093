"""`hs-agent detect` and `hs-agent doctor`: what this host offers, and whether an agent would do well on it."""

import contextlib
import errno
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import click

from hs_agent import cgroup, credentials, folder, host_clock, host_memory, memory, procs, secure
from hs_agent.config import CgroupUse, Config, DeviceKind, memory_bytes, split_address
from hs_agent.devices import Devices, GpuProcess, open_devices
from hs_agent.program import check_launcher
from hs_agent.rendezvous import bound_everywhere
from hs_agent.strangers import describe, serves_jobs
from hs_core import fencing
from hs_core.errors import RefusedError
from hs_core.model import Gpu

OK, WARN, FAIL = "ok", "warn", "fail"
TRIALS = 5
SLOW_S = 0.25  # what suspending at a step edge takes at most (Gandiva_fair, 4)
GIVE_UP_S = 5.0
POLL_S = 0.0005
ASK_S = 5.0  # of another program
APART_S = 1.0  # clocks may be
BACKDATED_S = 300.0  # as certificates are by the controller, which issues them


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: str
    what: str
    text: str


def show_detected(config: Config) -> None:
    devices = open_devices(config)
    try:
        groups = cgroup.probe(config.cgroup, config.state_dir, config.cgroup_root)
        click.echo(f"name            {config.name}")
        click.echo(f"boot id         {procs.boot_id()}")
        click.echo(f"devices         {devices.description}")
        gpus, wrong = _described(devices, config)
        for gpu, reading in zip(gpus, devices.readings(), strict=True):
            health = "healthy" if gpu.healthy else f"UNHEALTHY: {gpu.why_unhealthy}"
            used, total = reading.memory_used_bytes / 2**30, gpu.memory_bytes / 2**30
            click.echo(
                f"  GPU {gpu.index:<2}        {gpu.model:10} {gpu.id}  {used:.1f} of {total:.1f} GiB  {health}{_slowness(gpu)}"
            )
        click.echo(f"control groups  {groups.describe()}")
        for warning in (*devices.warnings, *groups.warnings):
            click.echo(f"warning         {warning}")
        _tidy(config, groups)
        if wrong is not None:  # an agent would not start
            raise wrong
    finally:
        devices.close()


def _described(devices: Devices, config: Config) -> tuple[tuple[Gpu, ...], RefusedError | None]:
    """As the configuration has them, or as they are, with why it is wrong."""
    try:
        return config.described(devices.gpus()), None
    except RefusedError as error:
        return devices.gpus(), error


def _slowness(gpu: Gpu) -> str:
    said = [f"{slowdown.times:g} ({slowdown.job_class})" for slowdown in gpu.slowdowns]
    return f"  slowdown {', '.join(said)}" if said else ""


def examine(config: Config) -> bool:
    """True: something fails."""
    checks: tuple[Callable[[Config], Finding], ...] = (
        _python,
        _user,
        _state,
        _sockets,
        _cgroups,
        _suspending,
        _ports,
        _memory,
        _launcher,
        _mps,
        _criu,
        _clock,
        _certificate,
        _controller,
        _fencing,
    )
    findings = [check(config) for check in checks]
    findings[1:1] = _devices(config)
    for finding in findings:
        click.echo(f"{finding.verdict:5} {finding.what:15} {finding.text}")
    return any(finding.verdict == FAIL for finding in findings)


def _python(config: Config) -> Finding:
    del config
    shim_python = [sys.executable, "-I", "-S", "-c", "import ctypes, json, os; os.pidfd_open(os.getpid())"]
    done = subprocess.run(shim_python, capture_output=True, text=True, check=False, env={})
    version = ".".join(map(str, sys.version_info[:3]))
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["?"]
        return Finding(
            FAIL, "python", f"{version} cannot run a job's shim ({last[0]}): Python 3.11, Linux 5.4 or newer"
        )
    return Finding(OK, "python", f"{version} at {sys.executable}")


def _user(config: Config) -> Finding:
    if os.geteuid() == 0:
        extra = "; root's own jobs too" if config.allow_root else ""
        return Finding(OK, "uid", f"root: jobs run as their users, uid {config.min_uid} and above{extra}")
    return Finding(WARN, "uid", f"uid {os.geteuid()}, not root: only this account's own jobs can run here")


def _devices(config: Config) -> list[Finding]:
    try:
        devices = open_devices(config)
    except RefusedError as error:
        return [Finding(FAIL, "devices", str(error))]
    try:
        return _look_at(devices, config)
    finally:
        devices.close()


def _look_at(devices: Devices, config: Config) -> list[Finding]:
    findings = [Finding(OK, "devices", devices.description)]
    findings += [Finding(WARN, "devices", warning) for warning in devices.warnings]
    _, wrong = _described(devices, config)
    findings += [Finding(FAIL, "slowdown", str(wrong))] if wrong is not None else []
    largest_bytes = max((gpu.memory_bytes for gpu in devices.gpus()), default=0)
    if config.devices is DeviceKind.NVML and 0 < config.host_memory_budget_bytes < largest_bytes:
        why = f"GPUs of {largest_bytes / 2**30:.0f} GiB: a job that fills one cannot be parked in the host's memory (host_memory_budget)"
        findings.append(Finding(WARN, "devices", why))
    findings += [
        Finding(FAIL, f"GPU {gpu.index}", f"{gpu.model} {gpu.id}: {gpu.why_unhealthy}")
        for gpu in devices.gpus()
        if not gpu.healthy
    ]
    findings += [
        Finding(
            WARN, "ECC", f"{reading.gpu}: {reading.ecc_errors} uncorrected errors since the driver was loaded"
        )
        for reading in devices.readings()
        if reading.ecc_errors
    ]
    findings += [
        Finding(WARN, "GPU use", f"{one.gpu}: {describe(one)}: out of use until it is gone")
        for one in _strangers(devices.processes(), config)
    ]
    return findings


def _strangers(processes: Iterable[GpuProcess], config: Config) -> list[GpuProcess]:
    """Who comes neither of the agent that runs nor of the shim of a job, which may outlive it."""
    roots = set()
    try:
        os.close(memory.lock(config.state_dir))
    except memory.InUseError as error:
        if error.holder.isdecimal():
            roots.add(int(error.holder))
    except (RefusedError, OSError):
        pass  # said of the state folder
    for path in (config.state_dir / "jobs").glob("*-*"):
        key = folder.parse_key(path.name)
        state = folder.Folder(path, key).shim_state() if key is not None else None
        if state is not None and procs.alive(state.shim):
            roots.add(state.shim.pid)
    ours = {pid for tree in host_memory.trees(roots).values() for pid in tree}
    return [one for one in processes if one.pid not in ours and not serves_jobs(one.pid, config.mps_pipe_dir)]


def _state(config: Config) -> Finding:
    used = ""
    try:
        os.close(memory.lock(config.state_dir))
    except memory.InUseError as error:
        used = f", used by the agent that runs (pid {error.holder})"
    except RefusedError as error:
        return Finding(FAIL, "state folder", str(error))
    except OSError as error:
        return Finding(FAIL, "state folder", f"{config.state_dir} cannot be written: {error.strerror}")
    space = os.statvfs(config.state_dir)
    free = space.f_bavail * space.f_frsize
    text = f"{config.state_dir}{used}, {free / 2**30:.1f} GiB free"
    if free < 4 * config.log_limit_bytes:
        return Finding(WARN, "state folder", f"{text}: less than four jobs' logs (log_limit)")
    closed = [str(p) for p in (config.state_dir, *config.state_dir.parents) if not p.stat().st_mode & 0o001]
    if os.geteuid() == 0 and closed:
        return Finding(
            FAIL,
            "state folder",
            f"{text}: users' jobs cannot enter {closed[0]}: chmod o+x, or move state_dir",
        )
    return Finding(OK, "state folder", text)


def _sockets(config: Config) -> Finding:
    path = config.run_dir / f".doctor-{os.getpid()}"
    try:
        config.run_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as trial:
            trial.bind(str(path))
    except OSError as error:
        return Finding(
            FAIL, "run folder", f"no socket can be made in {config.run_dir}: {error.strerror or error}"
        )
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    return Finding(OK, "run folder", str(config.run_dir))


def _cgroups(config: Config) -> Finding:
    if config.cgroup is CgroupUse.NONE:
        return Finding(WARN, "control groups", "switched off in the configuration")
    found = cgroup.probe(config.cgroup, config.state_dir, config.cgroup_root)
    _tidy(config, found)
    if found.warnings:
        return Finding(WARN, "control groups", f"{found.describe()}; {'; '.join(found.warnings)}")
    return Finding(OK, "control groups", found.describe())


def _suspending(config: Config) -> Finding:
    """Of what has no step hook, measured: a process that computes is frozen and let go, a few times."""
    if config.cgroup is CgroupUse.NONE:
        return Finding(OK, "suspending", "by SIGSTOP, which was not measured")
    groups = cgroup.probe(config.cgroup, config.state_dir, config.cgroup_root)
    if not groups.can_freeze:
        _tidy(config, groups)
        return Finding(WARN, "suspending", "there is no freezer: by SIGSTOP to each process")
    name = f"doctor-{os.getpid()}"
    try:
        group = cgroup.create(groups, name, cpus=0, memory_bytes=0)
        with subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"]) as process:
            try:
                for folder in (group.v2, *group.v1.values()):
                    if folder is not None:
                        (folder / "cgroup.procs").write_text(str(process.pid))
                frozen_s, gone_on_s = zip(*(_frozen_once(group) for _ in range(TRIALS)), strict=True)
            finally:
                with contextlib.suppress(OSError):
                    group.freeze(frozen=False)
                process.kill()
    except OSError as error:
        return Finding(FAIL, "suspending", f"no process can be frozen here: {error.strerror or error}")
    finally:
        cgroup.reopen(groups, name).remove()
        _tidy(config, groups)
    text = f"a process is frozen in {1e3 * max(frozen_s):.1f} ms and goes on in {1e3 * max(gone_on_s):.1f} ms (the most of {TRIALS})"
    return Finding(OK if max(frozen_s) < SLOW_S else WARN, "suspending", text)


def _tidy(config: Config, groups: cgroup.Cgroups) -> None:
    """Not where an agent runs: its groups are set up for jobs to come, also while there is none."""
    if not _agent_runs(config):
        cgroup.tidy(groups)


def _frozen_once(group: cgroup.JobCgroup) -> tuple[float, float]:
    return _takes(group, frozen=True), _takes(group, frozen=False)


def _takes(group: cgroup.JobCgroup, *, frozen: bool) -> float:
    began_s = time.monotonic()
    group.freeze(frozen=frozen)
    while group.frozen() != frozen:
        if time.monotonic() - began_s > GIVE_UP_S:
            raise TimeoutError(errno.ETIMEDOUT, f"it takes more than {GIVE_UP_S:g} s")
        time.sleep(POLL_S)
    return time.monotonic() - began_s


def _ports(config: Config) -> Finding:
    """Whether they are free. Whether others reach them, only others can tell."""
    if not config.peer_listen:
        return Finding(
            WARN,
            "ports",
            "peer_listen is not set: no checkpoint can leave this host, and no job over several servers can be here",
        )
    host, port = split_address(config.peer_listen) or ("", 0)
    free = sum(map(_is_free, config.rendezvous_ports))
    text = f"{free} of {len(config.rendezvous_ports)} of rendezvous_ports are free"
    if port and not _agent_runs(config) and not _can_bind(host, port):
        return Finding(
            FAIL, "ports", f"peer_listen {config.peer_listen} is taken, or no address of this host; {text}"
        )
    text = f"peer_listen {config.peer_listen}; {text}: other servers must reach both"
    return Finding(OK if free > len(config.rendezvous_ports) / 2 else WARN, "ports", text)


def _is_free(port: int) -> bool:
    try:
        bound_everywhere(port).close()
    except OSError:
        return False
    return True


def _can_bind(host: str, port: int) -> bool:
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)  # noqa: S104 — to see whether it is free
        family, kind, _, _, address = found[0]
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError:
        return False
    return True


def _agent_runs(config: Config) -> bool:
    try:
        os.close(memory.lock(config.state_dir))
    except memory.InUseError:
        return True
    except (RefusedError, OSError):
        return False
    return False


def _memory(config: Config) -> Finding:
    root = config.cgroup_root
    total, left = memory_bytes(root), host_memory.available_bytes(root)
    text = f"{total / 2**30:.0f} GiB, of which {config.host_memory_budget_bytes / 2**30:.0f} GiB for parked device memory"
    text += f"; {config.host_memory_reserve_bytes / 2**30:.1f} GiB are kept free"
    if left is None:
        return Finding(
            WARN, "host memory", f"{text}; how much is left cannot be read ({host_memory.MEMINFO})"
        )
    if left < config.host_memory_reserve_bytes:
        why = f"only {left / 2**30:.1f} GiB are left now: jobs wait (host_memory_reserve)"
        return Finding(WARN, "host memory", f"{text}; {why}")
    if config.host_memory_budget_bytes > total * 0.9:
        return Finding(WARN, "host memory", f"{text}: leave the host some (host_memory_budget)")
    if config.devices is DeviceKind.NVML and config.host_memory_budget_bytes == 0:
        return Finding(
            WARN, "host memory", f"{text}: jobs are only held in place, so they must fit a GPU together"
        )
    return Finding(OK, "host memory", text)


def _launcher(config: Config) -> Finding:
    if not config.launcher:
        return Finding(OK, "launcher", "none: jobs are started as they are")
    try:
        check_launcher(config.launcher)
    except OSError as error:
        return Finding(FAIL, "launcher", f"{config.launcher[0]}: {error.strerror}: no job can be started")
    return Finding(OK, "launcher", f"jobs are started by {' '.join(config.launcher)}")


def _mps(config: Config) -> Finding:
    if not config.mps_pipe_dir:
        return Finding(OK, "MPS", "not used: two jobs on one GPU take turns on it")
    if not (Path(config.mps_pipe_dir) / "control").exists():
        text = f"mps_pipe_dir {config.mps_pipe_dir} holds no pipe `control`: start nvidia-cuda-mps-control with CUDA_MPS_PIPE_DIRECTORY there"
        return Finding(FAIL, "MPS", text)
    return Finding(OK, "MPS", f"jobs on one GPU run at once, through {config.mps_pipe_dir}")


def _criu(config: Config | None) -> Finding:
    """Nothing here uses it: who has it learns whether it would work, and nobody is told to install it."""
    del config
    program = shutil.which(
        "criu", path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
    )
    frozen = "jobs without the hook are frozen where they are, keep their memory, and cannot leave this host"
    if program is None:
        return Finding(OK, "CRIU", f"not installed, and not used: {frozen}")
    version = _said_by([program, "--version"])
    name = f"{program}, {version.lines[0].lower()}" if version.ok and version.lines else program
    checked = _said_by([program, "check"])
    if checked.ok:
        return Finding(OK, "CRIU", f"{name}: `criu check` is content, but nothing here uses it yet: {frozen}")
    why = checked.lines[-1] if checked.lines else "it says nothing"
    return Finding(
        WARN, "CRIU", f"{name}: `criu check` is not content: {why}; nothing here uses it: {frozen}"
    )


class _Said(NamedTuple):
    ok: bool
    lines: list[str]


def _said_by(command: list[str]) -> _Said:
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
            errors="replace", timeout=ASK_S, check=False, cwd="/",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _Said(ok=False, lines=[f"it did not come to an end within {ASK_S:g} s"])
    except OSError as error:
        return _Said(ok=False, lines=[error.strerror or str(error)])
    return _Said(done.returncode == 0, [line for line in done.stdout.splitlines() if line.strip()])


def _clock(config: Config) -> Finding:
    kept = host_clock.is_kept()
    verdict, text = {
        True: (OK, "kept right (NTP)"),
        False: (
            WARN,
            "nobody keeps it right: turn on chrony or systemd-timesyncd (timedatectl set-ntp true)",
        ),
        None: (OK, "whether somebody keeps it right cannot be told here"),
    }[kept]
    found = host_clock.against_the_controllers(config)
    if isinstance(found, str):
        return Finding(verdict, "clock", f"{text}; it could not be compared with the controller's: {found}")
    apart_s, way = abs(found.ahead_s), "ahead of" if found.ahead_s > 0 else "behind"
    sure_s = max(apart_s - found.within_s, 0.0)
    text += f"; {apart_s:.3f} s {way} the controller's (within {found.within_s:.3f} s)"
    if found.ahead_s < 0 and sure_s > BACKDATED_S:
        return Finding(
            FAIL, "clock", f"{text}: set it, certificates that this host is given begin in its future"
        )
    if sure_s > APART_S:
        return Finding(WARN, "clock", f"{text}: set one of them, times in logs and events are so far apart")
    return Finding(verdict, "clock", text)


def _certificate(config: Config) -> Finding:
    try:
        own = secure.load(config)
    except RefusedError as error:
        return Finding(FAIL, "certificate", str(error))
    if own is None:
        return Finding(OK, "certificate", "none is needed: everything stays on this machine")
    why = own.keeper.why_not_good()
    if why:
        return Finding(FAIL, "certificate", why)
    return Finding(OK, "certificate", f"good until {time.ctime(own.keeper.identity.not_after_s)}")


def _fencing(config: Config) -> Finding:
    """By what the controller said last."""
    saved = folder.read_json(config.state_dir / "host.json") or {}
    said = saved.get("machine") or {}
    own_s, after_s, lease_s = config.kill_grace_s, said.get("fence_after_s", 0.0), said.get("lease_s", 0.0)
    if not lease_s:
        return Finding(OK, "cut off", "no controller has said yet after how long jobs with `fence` are ended")
    if not after_s:
        return Finding(OK, "cut off", "jobs go on, also those with `fence` (the controller's fence_after_s)")
    grace_s = fencing.grace_s(own_s, lease_s)
    text = f"jobs with `fence` are ended after {after_s:g} s, and have {grace_s:g} s for it"
    if grace_s < own_s:
        why = f"not the {own_s:g} s of kill_grace_s: {lease_s:g} s (the controller's lease_s) after that they begin elsewhere"
        return Finding(WARN, "cut off", f"{text}, {why}")
    return Finding(OK, "cut off", text)


_BY_THE_CLOCK = ("certificate is not yet valid", "certificate has expired")  # as TLS says it


def _controller(config: Config) -> Finding:
    target = config.controller
    try:
        if target.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as trial:
                trial.settimeout(3)
                trial.connect(target.removeprefix("unix:"))
        else:
            host, _, port = target.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=3).close()
    except OSError as error:
        return Finding(WARN, "controller", f"nobody answers at {target}: {error.strerror or error}")
    if config.token_file is not None and not os.access(Path(config.token_file), os.R_OK):
        return Finding(FAIL, "controller", f"{config.token_file} cannot be read (token_file)")
    found = host_clock.why_not_told(config)
    if found is not None and found.refused:
        return Finding(FAIL, "controller", f"{target} refuses this host: {found.why}")
    if found is not None and any(said in found.why for said in _BY_THE_CLOCK):
        text = f"{target} shows a certificate that is not good by this host's clock: set that right, here or there ({found.why})"
        return Finding(FAIL, "controller", text)
    if found is not None and (other := credentials.of_another_ca(str(target), config.name, found.why)):
        return Finding(FAIL, "controller", other)
    if found is not None:
        text = (
            f"{target} does not answer as this cluster's controller: is it that one's `listen`? ({found.why})"
        )
        return Finding(WARN, "controller", text)
    return Finding(OK, "controller", target)
