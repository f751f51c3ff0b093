"""A job's folder on its host (docs/job-folder.md): what the agent reads and writes there."""

import contextlib
import errno
import json
import os
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from hs_agent.bare import files
from hs_agent.faults import NO_ROOM
from hs_agent.procs import Identity, boot_id
from hs_agent.removal import remove_tree
from hs_core.errors import RefusedError
from hs_core.names import JobId
from hs_core.reports import Exit
from hs_daemon import boot_s
from hs_daemon.there import exists

LOG_FILES = ("log", "log.1", "log.times", "log.1.times")
ROOM_BYTES = 4096
LOG_TAIL_LINES = 40
LOG_TAIL_BYTES = 8 << 10


class Key(NamedTuple):
    """One incarnation of a job."""

    job: JobId
    epoch: int

    def __str__(self) -> str:
        return f"{self.job}-{self.epoch}"


def parse_key(name: str) -> Key | None:
    job, dash, epoch = name.partition("-")
    if not dash or not (job.isascii() and job.isdigit() and epoch.isascii() and epoch.isdigit()):
        return None
    return Key(JobId(int(job)), int(epoch))


def write_atomically(path: Path, data: bytes, *, sync: bool = True) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    temporary.rename(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """None: there is none, or it is not what was written there. Raises OSError where nothing can be read, for want of descriptors or memory."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
            raise
        return None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def jobs_own(path: Path, uid: int, gid: int) -> None:
    """A folder of the job's user in one of the agent's, made or taken as it is. What that user has mounted there since is no fault of the host's: RefusedError."""
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(path, uid, gid, follow_symlinks=False)
    except OSError as error:
        if error.errno in NO_ROOM or not path.parent.is_dir():
            raise
        raise RefusedError(f"{path}, which is the job's, cannot be used: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class ShimState:
    shim: Identity
    job: Identity | None
    frozen: bool


@dataclass(frozen=True, slots=True)
class Ended:
    exit: Exit
    launch_failed: bool
    at_s: float = inf  # on the boot clock; inf: that is not known, or was before a reboot


@dataclass(frozen=True, slots=True)
class Folder:
    path: Path
    key: Key

    def make(self) -> None:
        self.path.mkdir(mode=0o711, exist_ok=True)
        self.path.chmod(0o711)

    def clear_for_start(self) -> None:
        """Before another start of the same incarnation (back from a checkpoint): its log goes on."""
        for name in ("exit.json", "shim.json", "control", self.steps_file.name):
            (self.path / name).unlink(missing_ok=True)
        remove_tree(self.notes)

    @property
    def notes(self) -> Path:
        """The job's own: where torchrun notes how its processes failed."""
        return self.path / "torchrun"

    def make_notes(self, uid: int, gid: int) -> None:
        jobs_own(self.notes, uid, gid)

    @property
    def steps_file(self) -> Path:
        """The job's own to write: where its ranks note how far they got."""
        return self.path / "steps"

    def keep_room(self) -> None:
        """For what the shim has to write: where a full disk has none, that is known before anything has begun."""
        for name in ("shim.json", "exit.json"):
            files.keep_room(str(self.path), name, ROOM_BYTES)

    def write_launch(self, launch: dict[str, Any]) -> None:
        write_atomically(self.path / "launch.json", json.dumps(launch).encode())

    def launch(self) -> dict[str, Any] | None:
        return read_json(self.path / "launch.json")

    def write_lease(self, until_s: float, grace_s: float) -> None:
        """On the host's boot clock. Its shim ends the job when that has passed, within `grace_s`."""
        path, data = self.path / "lease", f"{until_s:20.3f} {grace_s:10.3f}".encode()
        with contextlib.suppress(OSError):  # it ends early rather than late
            try:
                write_atomically(path, data, sync=False)
            except OSError:  # a full disk has no room for another, but always for one as long in its place
                with path.open("r+b") as file:
                    file.write(data)

    def shim_state(self) -> ShimState | None:
        value = read_json(self.path / "shim.json")
        if value is None:
            return None
        try:
            boot = str(value["boot_id"])
            shim = Identity(int(value["shim"]["pid"]), int(value["shim"]["start"]), boot)
            job = value["job"]
            who = Identity(int(job["pid"]), int(job["start"]), boot) if job else None
            return ShimState(shim, who, bool(value.get("frozen")))
        except (KeyError, TypeError, ValueError):
            return None

    def ended(self) -> Ended | None:
        value = read_json(self.path / "exit.json")
        if value is None:
            return None
        try:
            code, signal, why = int(value["code"]), int(value["signal"]), str(value["why"])
            launch_failed = bool(value["launch_failed"])
            at_s = float(value["ended_s"]) if value["boot_id"] == boot_id() else inf
        except (KeyError, TypeError, ValueError):
            code, signal, why, launch_failed, at_s = 0, 0, "its exit record is damaged", False, inf
        tail = "" if (code, signal, why) == (0, 0, "") else self.log_tail()
        return Ended(Exit(code=code, signal=signal, why=why, log_tail=tail), launch_failed, at_s)

    def give_up(self, why: str) -> Exit:
        """Write the exit of a job whose shim can't any more; a shim that should still come up sees it and leaves.

        On a full disk an agent after this one finds it out anew.
        """
        record = {
            "code": 0, "signal": 0, "why": why, "launch_failed": False, "boot_id": boot_id(), "ended_s": boot_s(),
        }  # fmt: skip
        with contextlib.suppress(OSError):
            write_atomically(self.path / "exit.json", json.dumps(record).encode())
        return Exit(why=why, log_tail=self.log_tail())

    @property
    def has_control(self) -> bool:
        """A shim makes it before all else, and nobody makes it again."""
        return exists(self.path / "control")

    def control(self, line: str) -> bool:
        """False: there is no shim to hear it."""
        try:
            fd = os.open(self.path / "control", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            os.write(fd, f"{line}\n".encode())
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def log_tail(self, lines: int = LOG_TAIL_LINES, most: int = LOG_TAIL_BYTES) -> str:
        data = b""
        for name in ("log", "log.1"):
            if len(data) < most and data.count(b"\n") <= lines:
                data = _end_of(self.path / name, most - len(data)) + data
        text = data.decode("utf-8", errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
        return "\n".join(text.splitlines()[-lines:])

    def retire(self, ended: Path) -> None:
        """Keep the log only, for `hsctl logs` after the job's end. What was retired before stays as it is."""
        if not exists(self.path):
            return
        remove_tree(self.notes)
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(self.path)):
                if entry.name not in LOG_FILES and entry.name != self.notes.name:
                    Path(entry).unlink()
            ended.mkdir(mode=0o700, exist_ok=True)
            target = ended / self.path.name
            remove_tree(target)
            # In one step, which takes no room: whoever is killed, or finds a full disk, leaves the log here or there.
            self.path.rename(target)
            _comes_last(target)


def _comes_last(path: Path) -> None:
    """Of what lies beside it, in the order of `prune`: the clock may have been set back since those before."""
    newest_s = max((e.stat().st_mtime for e in os.scandir(path.parent) if e.name != path.name), default=0.0)
    if path.stat().st_mtime <= newest_s:
        os.utime(path, (newest_s + 1.0, newest_s + 1.0))


def _end_of(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - most, 0))
            return file.read(most)
    except OSError:
        return b""


def prune(ended: Path, keep: int) -> None:
    """Oldest logs of ended jobs go first."""
    with contextlib.suppress(OSError):
        found = sorted((entry.stat().st_mtime, entry.path) for entry in os.scandir(ended))
        for _, path in found[: max(len(found) - keep, 0)]:
            remove_tree(Path(path))  # with what torchrun's user may have put there since
