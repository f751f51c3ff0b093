"""Starting a job as its user, and finding it again: launch.json, the shim process, the job's environment."""

import contextlib
import errno
import json
import os
import pwd
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Container
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hs_agent import cgroup, procs, shim
from hs_agent.config import Config, DeviceKind, split_address
from hs_agent.folder import Folder, Key, parse_key, read_json, write_atomically
from hs_agent.removal import remove_tree
from hs_agent.rendezvous import interface_of
from hs_core.errors import Kind, RefusedError
from hs_core.model import Gpu, OnPartition, SuspendMode
from hs_core.names import JobId
from hs_core.reports import NO_ACCOUNT
from hs_core.wanted import WantedJob

MAX_ARGV, MAX_ENV, MAX_LAUNCH_BYTES = 4096, 512, 512 << 10
FIRST_LOOK_S = 0.01  # whether they died; then after twice as long each time
_FORGOTTEN = ".forgotten-"
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?t?")
_PYTHON_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str


class NoAccountError(RefusedError):
    """The server does not know it: it was forgotten, or whoever knows accounts (LDAP, SSSD) does not answer. Not the job's fault."""

    def __init__(self, name: str, host: str) -> None:
        super().__init__(
            f"{NO_ACCOUNT} {name!r} on {host}: an administrator makes one there, "
            "or names another with `hsctl user set USER --run-as ACCOUNT`",
            Kind.NOT_FOUND,
        )


def account(name: str, config: Config) -> Account:
    """The operating system account a job runs as; refused where it must not or cannot."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise NoAccountError(name, config.name) from None
    own = os.geteuid()
    if found.pw_uid < config.min_uid and not (config.allow_root and found.pw_uid == own):
        raise RefusedError(
            f"account {name!r} has uid {found.pw_uid}; jobs run only as uid {config.min_uid} or above here",
            Kind.NOT_ALLOWED,
        )
    if own not in (0, found.pw_uid):
        mine = pwd.getpwuid(own).pw_name
        raise RefusedError(
            f"the agent here runs as {mine!r}, not root: it cannot run jobs as {name!r}", Kind.NOT_ALLOWED
        )
    groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid))
    return Account(
        found.pw_name, found.pw_uid, found.pw_gid, groups, found.pw_dir, found.pw_shell or "/bin/sh"
    )


def free_port() -> int:
    """A loopback port nobody listens on; the next launch draws another, should somebody take it meanwhile."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Place:
    """Where this host's processes stand among those of the whole job, and where all of them meet."""

    nodes: int
    rank: int
    address: str
    port: int

    @classmethod
    def of(cls, wanted: WantedJob) -> "Place":
        if len(wanted.nodes) <= 1:
            return cls(1, 0, "127.0.0.1", free_port())
        found = split_address(wanted.rendezvous)
        if found is None:
            raise RefusedError(f"rendezvous {wanted.rendezvous!r}: expected address:port")
        return cls(len(wanted.nodes), wanted.node_rank, *found)


def torchrun(command: tuple[str, ...], ranks: int, place: Place, name: str) -> list[str]:
    """`ranks` processes of the command through torch.distributed.run, with the job's own Python.

    A command that begins with a Python keeps it (and its options); one that begins with a script `*.py` gets `python`;
    anything else is a program that is started as it is by `python`'s launcher.

    Several nodes meet by static rendezvous: a node keeps its ranks for good, as it has only their part of a checkpoint (the c10d
    one numbers nodes as they come), and node 0 is told so instead of guessed from host names, which hosts may share.
    """
    head, rest = command[0], list(command[1:])
    run = ["-m", "torch.distributed.run", f"--nnodes={place.nodes}", f"--nproc-per-node={ranks}",
           f"--master-addr={place.address}", f"--master-port={place.port}"]  # fmt: skip
    if place.nodes > 1:
        run += [f"--node-rank={place.rank}", f"--rdzv-id={name}"]
    if not _PYTHON.fullmatch(Path(head).name):
        return ["python", *run, *([] if head.endswith(".py") else ["--no-python"]), *command]
    options: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        options.append(rest.pop(0))
        if options[-1] in _PYTHON_OPTIONS_WITH_VALUE and rest:
            options.append(rest.pop(0))
    if not rest or rest[0] in ("-c", "-") or rest == ["-m"]:
        raise RefusedError(
            "a torchrun job's command must name a script or a module (-m); `-c` and standard input can't be"
        )
    script = ["--module", *rest[1:]] if rest[0] == "-m" else rest
    return [head, *options, *run, *script]


def environment(  # noqa: PLR0917 — one name per source
    wanted: WantedJob,
    gpus: tuple[Gpu, ...],
    who: Account,
    config: Config,
    sock: Path,
    inject: Path,
    checkpoints: str,
    place: Place,
) -> dict[str, str]:
    """What the job sees; clean of everything that is the agent's."""
    spec = wanted.spec
    env = {
        "PATH": config.path,
        "HOME": who.home,
        "USER": who.name,
        "LOGNAME": who.name,
        "SHELL": who.shell,
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
    }
    if spec.cpus:
        # Numeric libraries start a thread for each CPU of the host: of a limit by time they know nothing, and would stand still most of it.
        env["OMP_NUM_THREADS"] = str(max(1, spec.cpus // (wanted.gpus if spec.torchrun else 1)))
    # HS_ names are ours to give, but for the one that switches the runtime off.
    env |= {k: v for k, v in spec.env.items() if not k.startswith("HS_") or k == "HS_HOOK"}
    env |= {
        "HS_JOB_ID": str(wanted.job),
        "HS_JOB_NAME": spec.name,
        "HS_USER": wanted.user,
        "HS_ARRAY_TASK_ID": "" if spec.array_index is None else str(spec.array_index),
        "HS_NNODES": str(place.nodes),
        "HS_NODE_RANK": str(place.rank),
        "HS_GPUS_PER_NODE": str(wanted.gpus),
        "HS_GPU_TYPE": gpus[0].model if gpus else "",
        "HS_MASTER_ADDR": place.address,
        "HS_MASTER_PORT": str(place.port),
        "HS_EPOCH": str(wanted.epoch),
        "HS_RESTART_COUNT": str(wanted.epoch),
        "HS_CHECKPOINT_DIR": checkpoints,
        "HS_ACCUMULATION_STEPS": str(wanted.accumulation),
        "HS_COPY": str(max(wanted.copy, 0)),
        "HS_COPIES": str(wanted.copies),
        "HS_AGENT_SOCKET": str(sock),
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(place.port),
    }
    if wanted.last_step:
        env["HS_LAST_STEP"] = str(wanted.last_step)
    if (shape := wanted.trains_as) is not None:
        env["HS_BATCH_PER_GPU"] = str(shape.per_gpu * shape.parts)
        env["HS_ACCUMULATION_STEPS"] = str(shape.parts)
    if wanted.strategy is not None:
        env["HS_STRATEGY"] = wanted.strategy.text
    if place.nodes > 1:
        # Else gloo takes the address that the host's name resolves to, which may be one that no other host reaches.
        interface = interface_of(wanted.nodes[place.rank].address)
        if interface:
            env = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} | env
    if spec.suspend in (SuspendMode.TRANSPARENT, SuspendMode.NONE):
        env["HS_HOOK"] = "0"
    else:
        theirs = spec.env.get("PYTHONPATH", "")
        env["PYTHONPATH"] = f"{inject}:{theirs}" if theirs else str(inject)
    if config.devices is DeviceKind.NVML:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.id for gpu in gpus)
        if config.mps_pipe_dir:
            env["CUDA_MPS_PIPE_DIRECTORY"] = config.mps_pipe_dir
    return env


def check(wanted: WantedJob) -> None:
    """Limits that hold whatever a controller lets through."""
    spec = wanted.spec
    if not spec.command or not spec.command[0]:
        raise RefusedError("command is empty: expected a program and its arguments")
    if len(spec.command) > MAX_ARGV:
        raise RefusedError(f"command has {len(spec.command)} words: expected at most {MAX_ARGV}")
    if len(spec.env) > MAX_ENV:
        raise RefusedError(f"env has {len(spec.env)} names: expected at most {MAX_ENV}")
    for name, value in spec.env.items():
        if not _ENV_NAME.fullmatch(name):
            raise RefusedError(f"env name {name!r}: expected letters, digits and '_'")
        if "\0" in value:
            raise RefusedError(f"env {name} holds a NUL byte")
    for what, text in (
        ("workdir", spec.workdir),
        ("output", spec.output),
        *(("command", word) for word in spec.command),
    ):
        if "\0" in text:
            raise RefusedError(f"{what} holds a NUL byte")
    if not spec.workdir.startswith("/"):
        raise RefusedError(f"workdir {spec.workdir!r}: expected an absolute path")


@dataclass(frozen=True, slots=True)
class Kept:
    folder: Path
    who: Account

    def of(self, epoch: int, copy: int) -> Path:
        """Where an incarnation wrote; `copy` -1: the job was not forked."""
        return copy_dir(self.folder, epoch, copy) if copy >= 0 else self.folder


def check_program(launcher: tuple[str, ...]) -> None:
    """Raises OSError where there is no such program, which is the host's fault and no job's."""
    if not launcher:
        return
    program = Path(launcher[0])
    program.stat()
    if not (program.is_file() and os.access(program, os.X_OK)):
        raise PermissionError(errno.EACCES, "the launcher is no program that can be run", launcher[0])


def copy_dir(folder: Path, epoch: int, copy: int) -> Path:
    """Copies may share a file system: each has a folder of its own."""
    return folder / f"copy-{epoch}.{copy}"


class NewShim:
    """Starts its job at a word, so that no process begins that the agent could not watch."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def begin(self) -> None:
        assert self._process.stdin is not None
        with (
            contextlib.suppress(BrokenPipeError),
            self._process.stdin as word,
        ):  # it is gone: so it will be found
            word.write(b"b")
        # It is waited for by pidfd, as an adopted one is: keep Popen from warning that nobody waits.
        self._process.returncode = 0

    def call_off(self) -> None:
        """Waits for its end, which comes at once."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Launcher:
    """The folders of this host's jobs and how their shims are started."""

    def __init__(self, config: Config, groups: cgroup.Cgroups) -> None:
        self.config, self.groups = config, groups
        self.jobs = config.state_dir / "jobs"
        self.ended = config.state_dir / "ended"
        self.inject = config.state_dir / "inject"
        self.checkpoints = config.state_dir / "checkpoints"
        for folder in (config.state_dir, self.jobs, self.checkpoints, config.run_dir):
            folder.mkdir(mode=0o711, parents=True, exist_ok=True)
            with contextlib.suppress(PermissionError):
                folder.chmod(0o711)

    def folder(self, key: Key) -> Folder:
        return Folder(self.jobs / str(key), key)

    def socket_path(self, key: Key) -> Path:
        return self.config.run_dir / f"{key}.sock"

    def prepare(self, wanted: WantedJob, gpus: tuple[Gpu, ...], generation: int) -> tuple[Folder, Account]:
        """Write all that the shim needs; refuses what must not be started, before anything exists."""
        check(wanted)
        check_program(self.config.launcher)
        who = account(wanted.run_as, self.config)
        key = Key(wanted.job, wanted.epoch)
        place = Place.of(wanted)
        spec = wanted.spec
        argv = torchrun(spec.command, wanted.gpus, place, str(key)) if spec.torchrun else list(spec.command)
        checkpoints = self.checkpoint_dir(wanted)
        env = environment(
            wanted, gpus, who, self.config, self.socket_path(key), self.inject, str(checkpoints), place
        )
        if generation >= 0:
            env["HS_RESTORE"] = str(generation)
        folder = self.folder(key)
        before = folder.launch()
        launch: dict[str, Any] = {
            "job": wanted.job,
            "epoch": wanted.epoch,
            "start": (int(before.get("start", 0)) if before else 0) + 1,
            "argv": [*self.config.launcher, *argv],
            "env": env,
            "identity": None if os.geteuid() != 0 else {"uid": who.uid, "gid": who.gid, "groups": who.groups},
            "workdir": spec.workdir,
            "output": spec.output,
            "make_dirs": [spec.checkpoint_dir] if spec.checkpoint_dir else [],
            "log_limit": self.config.log_limit_bytes,
            "lease": spec.on_partition is OnPartition.FENCE,
            "grace_s": self.config.kill_grace_s,
            "gpus": [gpu.id for gpu in gpus],
            "uid": who.uid,
            "gid": who.gid,
            "model": gpus[0].model if gpus else "",
            "slowdown": max((gpu.slowdown(wanted.job_class) for gpu in gpus), default=1.0),
            "wanted": asdict(wanted),  # for people who look in here
        }
        if len(json.dumps(launch)) > MAX_LAUNCH_BYTES:
            raise RefusedError(f"command and environment come to more than {MAX_LAUNCH_BYTES >> 10} KiB")
        folder.make()
        folder.clear_for_start()
        folder.keep_room()
        self.make_checkpoint_dir(wanted, who)
        group = cgroup.create(self.groups, str(key), cpus=spec.cpus, memory_bytes=spec.memory_bytes)
        folder.write_launch(launch | {"cgroup": group.for_shim()})
        return folder, who

    def checkpoint_dir(self, wanted: WantedJob) -> Path:
        """Of this incarnation: what a job that is not forked wrote before is in the same."""
        whole = self._job_dir(wanted)
        return copy_dir(whole, wanted.epoch, wanted.copy) if wanted.copy >= 0 else whole

    def _job_dir(self, wanted: WantedJob) -> Path:
        return Path(wanted.spec.checkpoint_dir or self.checkpoints / str(wanted.job))

    def make_checkpoint_dir(self, wanted: WantedJob, who: Account) -> Path:
        """And a note of whose it is: it may be lent when nothing else of the job is left here."""
        path = self._job_dir(wanted)
        if not wanted.spec.checkpoint_dir:  # else the job makes it, with its own rights
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            if os.geteuid() == 0:
                os.chown(path, who.uid, who.gid, follow_symlinks=False)
        note = {"folder": str(path), "who": asdict(who)}
        write_atomically(self.checkpoints / f"{wanted.job}.json", json.dumps(note).encode())
        return self.checkpoint_dir(wanted)

    def kept(self, job: JobId) -> "Kept | None":
        """Where the checkpoints of a job lie that is, or was, here."""
        note = read_json(self.checkpoints / f"{job}.json")
        if note is None:
            return None
        try:
            who = note["who"]
            return Kept(Path(note["folder"]), Account(**who | {"groups": tuple(who["groups"])}))
        except (KeyError, TypeError):  # it is damaged: whose they are nobody knows
            return None

    def forget_copies(self, key: Key) -> None:
        """What copies of that incarnation wrote here. In a folder that its user named it is the user's to remove."""
        folder = self.checkpoints / str(key.job)
        if folder.is_dir() and not folder.is_symlink():
            for path in folder.glob(f"copy-{key.epoch}.*"):
                remove_tree(path)

    def forget_checkpoints(self, keep: Container[JobId]) -> None:
        """Of all jobs but these; `remove_forgotten` does what takes time. Folders that users named are theirs."""
        for path in self.checkpoints.iterdir():
            name = path.name.removesuffix(".json")
            if name.isascii() and name.isdigit() and JobId(int(name)) not in keep:
                with contextlib.suppress(OSError):
                    if path.is_dir() and not path.is_symlink():
                        path.rename(path.with_name(f"{_FORGOTTEN}{secrets.token_hex(8)}"))
                    else:
                        path.unlink(missing_ok=True)

    def remove_forgotten(self) -> None:
        """Also what an agent before this one had no time for."""
        for path in self.checkpoints.glob(f"{_FORGOTTEN}*"):
            remove_tree(path)

    def start(self, folder: Folder) -> "NewShim":
        """It is a child for as long as this agent lives and nobody's after that."""
        with (folder.path / "shim.err").open("wb") as errors:
            return NewShim(subprocess.Popen(
                shim_command(folder.path),
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
                start_new_session=True, close_fds=True, cwd="/", env={},
            ))  # fmt: skip

    def running_shim(self, folder: Folder) -> procs.Identity | None:
        """The job's living shim, also in its first moments when it has not said who it is."""
        state = folder.shim_state()
        if state is not None:
            return state.shim if procs.alive(state.shim) else None
        script, argument = Path(shim.__file__).name.encode(), str(folder.path).encode()
        alike: dict[int, procs.Stat] = {}
        for found in procs.everybody():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if (procs.PROC / str(found.pid)).stat().st_uid != os.geteuid():
                    continue  # anybody can call themselves a shim
                words = procs.words(found.pid, "cmdline").rsplit(b"\0", 3)
                if (
                    len(words) > 2
                    and words[-2] == argument
                    and Path(os.fsdecode(words[-3])).name.encode() == script
                ):
                    alike[found.pid] = found
        for found in alike.values():
            # What it has forked and has not become another program yet is in its session, or below it.
            if found.session == found.pid and found.ppid not in alike:
                return procs.Identity(found.pid, found.start, procs.boot_id())
        return None

    def group(self, key: Key) -> cgroup.JobCgroup:
        return cgroup.reopen(self.groups, str(key))

    def kill_leftovers(self, key: Key, timeout_s: float = 5.0) -> bool:
        """For a job without a shim: its control groups, and whoever holds its socket's path in the environment. False: some live still."""
        group = self.group(key)
        line = f"HS_AGENT_SOCKET={self.socket_path(key)}".encode()
        end_s, pause_s = time.monotonic() + timeout_s, FIRST_LOOK_S
        while True:
            group.kill()
            holders = [who for who in procs.with_environment(line) if procs.alive(who)]
            for who in holders:
                procs.send(who, signal.SIGKILL)
            if not holders and not group.procs():
                group.remove()
                return True
            if time.monotonic() + pause_s > end_s:
                return False
            time.sleep(pause_s)
            pause_s *= 2

    def forget(self, key: Key) -> None:
        """Remove what is left but for checkpoints; the log moves aside."""
        self.group(key).remove()
        self.forget_copies(key)
        self.folder(key).retire(self.ended)
        self.socket_path(key).unlink(missing_ok=True)
        self.sweep_groups()

    def sweep_groups(self) -> None:
        """Groups that could not be removed when their job was forgotten, as something of it was still on its way out."""
        for name in cgroup.names(self.groups):
            key = parse_key(name)
            if (
                key is not None and not self.folder(key).path.exists()
            ):  # whose folder is made before its group
                self.group(key).remove()


def shim_command(folder: Path) -> list[str]:
    return [sys.executable, "-I", "-S", shim.__file__, str(folder)]
