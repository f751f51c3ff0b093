"""`host.json`: what the agent's mind knows, for the agent after it; and the lock that keeps a second agent out."""

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from hs_agent import procs
from hs_agent.folder import read_json, write_atomically
from hs_core.errors import Kind, RefusedError
from hs_core.events.host import Launch
from hs_core.host.memory import VERSION
from hs_core.host.plain import plain, revive
from hs_core.names import JobId
from hs_daemon.held import HeldError, hold
from hs_daemon.owned import why_not_ours
from hs_daemon.there import exists

SYNC_EVERY_S = 1.0
log = structlog.get_logger("memory")


@dataclass(frozen=True, slots=True)
class Found:
    """What the last agent left: HostMachine's memory, and launches it may not have got to."""

    machine: Mapping[str, Any] | None = None
    launching: tuple[Launch, ...] = ()
    rebooted: bool = False  # since then
    elsewhere: bool = False  # it was another machine's, which may run these jobs: this has a copy of its disk, or the disk itself


class Memory:
    def __init__(self, state_dir: Path) -> None:
        self.path = _host_json(state_dir)
        self._place = _place(state_dir)
        self.setup = _setup(state_dir)
        self._synced_s = 0.0
        self._last = b""
        self._texts: dict[JobId, tuple[Any, str]] = {}  # of each job, and what that is the text of

    def load(self) -> Found:
        """Raises RefusedError: it was written by an agent of another version, which alone knows what it says of the jobs that are there."""
        if not exists(self.path):
            return Found()
        value = read_json(self.path) or {}
        try:
            if (version := value["machine"]["version"]) != VERSION:
                raise RefusedError(
                    f"state_dir: {self.path} is of version {version}, this agent's is {VERSION}: start an agent of the version that wrote it, and drain this"
                    " server with that before another takes its place; or remove that file: then the jobs here are ended, and go on from their newest"
                    " checkpoints",
                    Kind.INVALID,
                )
            launching = tuple(revive(Launch, launch) for launch in value["launching"])
            rebooted = value["boot_id"] != procs.boot_id()
            elsewhere = rebooted and value["machine_id"] != procs.machine_id()
            if elsewhere:
                log.warning(
                    "what is remembered is another machine's: nothing of it is started before the controller says so"
                )
            return Found(
                value["machine"], () if elsewhere else launching, rebooted=rebooted, elsewhere=elsewhere
            )
        except (KeyError, TypeError, ValueError) as error:
            damaged = self.path.with_suffix(".damaged")
            self.path.rename(damaged)
            log.error(
                "host.json is damaged and was set aside; starting without it",
                file=str(damaged),
                why=str(error),
            )
            return Found()

    def save(self, machine: Mapping[str, Any], launching: Iterable[Launch], now_s: float) -> None:
        """Whole or not at all. A kill needs no fsync, a power cut ends the jobs as well: once a second is enough."""
        others = {
            "launching": [plain(launch) for launch in launching],
            "boot_id": procs.boot_id(),
            "machine_id": procs.machine_id(),
            "place": self._place,
        }
        jobs = ",".join(self._of_jobs(machine.get("jobs", ())))
        rest = {name: value for name, value in machine.items() if name != "jobs"}
        parts = [f'"jobs":[{jobs}]', *([_text(rest)[1:-1]] if rest else [])]
        data = f'{{"machine":{{{",".join(parts)}}},{_text(others)[1:]}'.encode()
        if data == self._last:
            return
        sync = now_s - self._synced_s >= SYNC_EVERY_S
        write_atomically(self.path, data, sync=sync)
        self._last = data
        if sync:
            self._synced_s = now_s

    def _of_jobs(self, jobs: Iterable[Mapping[str, Any]]) -> Iterable[str]:
        """Of what is the same object as before the text is as well."""
        last, now = self._texts, {}
        for job in jobs:
            number = job["wanted"]["job"]
            before = last.get(number)
            now[number] = before if before is not None and before[0] is job else (job, _text(job))
        self._texts = now
        return (text for _, text in now.values())


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _setup(state_dir: Path) -> str:
    """Drawn with this folder. A controller that knew this server by another one learns that what lay here is gone. Empty: it could not be kept, and nothing is to be made of it."""
    path = state_dir / "setup.json"
    known = (read_json(path) or {}).get("setup")
    if isinstance(known, str) and known:
        return known
    drawn = secrets.token_hex(8)
    try:
        write_atomically(path, json.dumps({"setup": drawn}).encode())
    except OSError as error:
        log.warning("setup.json cannot be written", file=str(path), why=str(error))
        return ""
    return drawn


def _host_json(state_dir: Path) -> Path:
    return state_dir / "host.json"


def _place(state_dir: Path) -> dict[str, Any]:
    """Where it was written, by which it is told from a copy."""
    return {"path": str(state_dir.resolve()), "inode": state_dir.stat().st_ino}


def _copied_from(state_dir: Path) -> Path | None:
    """The folder that this is a copy of, where that is still there, and its jobs may run: after a reboot none does. One that was moved, to another disk as well, is no copy."""
    kept = read_json(_host_json(state_dir)) or {}
    place = kept.get("place")
    if kept.get("boot_id") != procs.boot_id() or not isinstance(place, dict):
        return None
    try:
        there = Path(place["path"])
        same = there.stat().st_ino == place["inode"] and not there.samefile(state_dir)
    except (KeyError, TypeError, ValueError, OSError):
        return None
    return there if same else None


class InUseError(RefusedError):
    """An agent runs with that folder."""

    def __init__(self, key: str, folder: Path, holder: str) -> None:
        super().__init__(
            f"{key} {folder} belongs to another agent that is running (pid {holder}): stop it, or give this one its own",
            Kind.CONFLICT,
        )
        self.holder = holder


def _held(key: str, folder: Path) -> int:
    """Raises RefusedError: others can change what is in it, or it is another agent's."""
    why = why_not_ours(folder)
    if why:
        raise RefusedError(f"{key}: {folder}: {why}", Kind.CONFLICT)
    try:
        return hold(folder)
    except HeldError as held:
        raise InUseError(key, folder, held.holder) from None


def lock(state_dir: Path) -> int:
    """Held as long as this process lives; the job's shims do not inherit it. Raises RefusedError: it is another's, or a copy of another's."""
    state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    fd = _held("state_dir", state_dir)
    original = _copied_from(state_dir)
    if original is not None:
        os.close(fd)
        raise RefusedError(
            f"state_dir {state_dir} is a copy of {original}, whose jobs are not this agent's: use that, or remove it where this is to take its place,"
            f" or remove {_host_json(state_dir)} and {state_dir}/jobs and join under a name of its own",
            Kind.CONFLICT,
        )
    return fd


def lock_sockets(run_dir: Path, state_dir: Path) -> int | None:
    """As `lock`: of a job over several servers two agents would name its socket alike, and all of its ranks would talk to one of them. None: both are one folder."""
    return None if run_dir.samefile(state_dir) else _held("run_dir", run_dir)
