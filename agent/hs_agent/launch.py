"""Starting a job as its user, and finding it again: launch.json, its folders, the shim process."""

import contextlib
import errno
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

import hs_job
from hs_agent import cgroup, procs, program, shim, steps
from hs_agent.accounts import Account, account
from hs_agent.config import Config
from hs_agent.folder import Folder, Key, jobs_own, parse_key, read_json, write_atomically
from hs_agent.memory import lock_sockets
from hs_agent.program import Place, torchrun
from hs_agent.removal import remove_tree
from hs_core.errors import RefusedError
from hs_core.model import Gpu, OnPartition
from hs_core.names import JobId
from hs_core.wanted import WantedJob
from hs_daemon.there import exists

MAX_LAUNCH_BYTES = 512 << 10
FIRST_LOOK_S = 0.01  # whether they died; then after twice as long each time
_FORGOTTEN = ".forgotten-"
_NOTES_NAME = "PET_LOG_DIR"  # by which torchrun is told of another folder than what is said for all

log = structlog.get_logger("launch")


@dataclass(frozen=True, slots=True)
class Kept:
    folder: Path
    who: Account

    def of(self, epoch: int, copy: int) -> Path:
        """Where an incarnation wrote; `copy` -1: the job was not forked."""
        return copy_dir(self.folder, epoch, copy) if copy >= 0 else self.folder


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
        # Where it is gone already it will be found so.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as word:
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
        self._making = threading.Lock()
        self._run_dirs_before: dict[Path, bool] = {}  # whether the sockets there are this agent's now
        _make_folder(config.state_dir)
        self._make_folders()

    def install_hook(self) -> None:
        """What an agent of another version left is replaced."""
        with self._making:
            hs_job.install(str(self.inject))

    def _make_folders(self) -> None:
        """Also those that somebody took away since. Never the state folder: its lock would be another one's as well."""
        for folder in (self.jobs, self.checkpoints):
            _make_folder(folder, parents=False)
        _make_folder(self.config.run_dir)

    def folder(self, key: Key) -> Folder:
        return Folder(self.jobs / str(key), key)

    def socket_path(self, key: Key) -> Path:
        return self.config.run_dir / f"{key}.sock"

    def socket_of(self, key: Key, launch: Mapping[str, Any]) -> Path:
        """Where its processes look for it: in the `run_dir` of the agent that started them, also where this one has another."""
        own, theirs = self.socket_path(key), Path(launch["env"]["HS_AGENT_SOCKET"])
        if theirs.parent != own.parent and self._is_ours_too(theirs.parent):
            return theirs
        return own

    def _is_ours_too(self, run_dir: Path) -> bool:
        if run_dir not in self._run_dirs_before:
            try:
                _make_folder(run_dir)
                lock_sockets(run_dir, self.config.state_dir)
            except (OSError, RefusedError) as error:
                log.error(
                    "jobs that were started with another run_dir can be told nothing: set it to that, or cancel them",
                    run_dir=str(run_dir), why=str(error),
                )  # fmt: skip
                self._run_dirs_before[run_dir] = False
            else:
                log.warning("jobs that were started with another run_dir go on there", run_dir=str(run_dir))
                self._run_dirs_before[run_dir] = True
        return self._run_dirs_before[run_dir]

    def prepare(self, wanted: WantedJob, gpus: tuple[Gpu, ...], generation: int) -> tuple[Folder, Account]:
        """Write all that the shim needs; refuses what must not be started, before anything exists."""
        program.check(wanted)
        program.check_launcher(self.config.launcher)
        self._make_folders()
        if not exists(self.inject):
            self.install_hook()
        who = account(wanted.run_as, self.config)
        key = Key(wanted.job, wanted.epoch)
        place = Place.of(wanted)
        spec = wanted.spec
        folder = self.folder(key)
        notes = self._notes(wanted, folder)
        argv = list(spec.command)
        if spec.torchrun:
            argv = torchrun(spec.command, wanted.gpus, place, str(key), notes)
        checkpoints = self.checkpoint_dir(wanted)
        env = program.environment(
            wanted, gpus, who, self.config, self.socket_path(key), self.inject, str(checkpoints), place
        )
        env["HS_STEPS_FILE"] = str(folder.steps_file)
        if generation >= 0:
            env["HS_RESTORE"] = str(generation)
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
        if notes:
            folder.make_notes(who.uid, who.gid)
        steps.make(folder.steps_file, who.uid, who.gid)
        folder.keep_room()
        self.make_checkpoint_dir(wanted, who)
        group = cgroup.create(self.groups, str(key), cpus=spec.cpus, memory_bytes=spec.memory_bytes)
        folder.write_launch(launch | {"cgroup": group.for_shim()})
        return folder, who

    def _notes(self, wanted: WantedJob, folder: Folder) -> str:
        """Not in a launcher's container: that need not show the job's folder, and has a /tmp of its own."""
        said = not wanted.spec.torchrun or _NOTES_NAME in wanted.spec.env
        return "" if said or self.config.launcher else str(folder.notes)

    def checkpoint_dir(self, wanted: WantedJob) -> Path:
        """Of this incarnation: what a job that is not forked wrote before is in the same."""
        whole = self._job_dir(wanted)
        return copy_dir(whole, wanted.epoch, wanted.copy) if wanted.copy >= 0 else whole

    def _job_dir(self, wanted: WantedJob) -> Path:
        return Path(wanted.spec.checkpoint_dir or self.checkpoints / str(wanted.job))

    def has_no_checkpoints(self, wanted: WantedJob) -> bool:
        """None was ever to be written here. Of a folder that its user named nobody knows without looking, as that user."""
        return not wanted.spec.checkpoint_dir and not os.path.lexists(self._job_dir(wanted))

    def make_checkpoint_dir(self, wanted: WantedJob, who: Account) -> Path:
        """And a note of whose it is: it may be lent when nothing else of the job is left here."""
        path = self._job_dir(wanted)
        if not wanted.spec.checkpoint_dir:  # else the job makes it, with its own rights
            jobs_own(path, who.uid, who.gid)
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
        with contextlib.suppress(
            OSError
        ):  # it is its user's, who may have mounted something there that is not even root's to look at
            if folder.is_dir() and not folder.is_symlink():
                for path in folder.glob(f"copy-{key.epoch}.*"):
                    remove_tree(path)

    def forget_checkpoints(self, keep: Container[JobId]) -> None:
        """Of all jobs but these; `remove_forgotten` does what takes time. Folders that users named are theirs."""
        for path in self.checkpoints.glob("*"):
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
        alike = {found.pid: found for found, path in _like_shims() if path == folder.path}
        for found in alike.values():
            # What it has forked and has not become another program yet is in its session, or below it.
            if found.session == found.pid and found.ppid not in alike:
                return procs.Identity(found.pid, found.start, procs.boot_id())
        return None

    def without_folder(self) -> set[Key]:
        """Jobs that run on where somebody has taken their folders away."""
        shims = {path.name for _, path in _like_shims() if path.parent == self.jobs}
        keys = [key for name in shims | cgroup.names(self.groups) if (key := parse_key(name)) is not None]
        gone = [key for key in keys if not exists(self.folder(key).path)]
        return {key for key in gone if str(key) in shims or self.group(key).procs()}

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

    def forget(self, key: Key, *, copies: bool = True) -> None:
        """Remove what is left but for checkpoints; the log moves aside. `copies`: what it wrote as a copy is nobody's any more, either."""
        self.group(key).remove()
        if copies:
            self.forget_copies(key)
        self.folder(key).retire(self.ended)
        self.socket_path(key).unlink(missing_ok=True)
        self.sweep_groups()

    def sweep_groups(self) -> None:
        """Groups that could not be removed when their job was forgotten, as something of it was still on its way out."""
        for name in cgroup.names(self.groups):
            key = parse_key(name)
            # A job's folder is made before its group.
            if key is not None and not exists(self.folder(key).path):
                self.group(key).remove()


def _make_folder(path: Path, *, parents: bool = True) -> None:
    try:
        path.mkdir(mode=0o711, parents=parents, exist_ok=True)
    except FileExistsError:  # as the system says it of whatever else is in the way
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
    with contextlib.suppress(PermissionError):
        path.chmod(0o711)


def _like_shims() -> Iterator[tuple[procs.Stat, Path]]:
    """Shims of whichever agent, and what they have forked and has not become another program yet; with their jobs' folders."""
    script = Path(shim.__file__).name.encode()
    for found in procs.everybody():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if procs.account(found.pid) != os.geteuid():
                continue  # anybody can call themselves a shim
            words = procs.words(found.pid, "cmdline").rsplit(b"\0", 3)
            if len(words) > 2 and os.fsencode(Path(os.fsdecode(words[-3])).name) == script:
                yield found, Path(os.fsdecode(words[-2]))


def shim_command(folder: Path) -> list[str]:
    return [sys.executable, "-I", "-S", shim.__file__, str(folder)]
