"""Control groups of jobs: version 2 where it can be written, the version 1 freezer and limits where those are; else nothing.

What a host lacks is said once, as a warning; the shim covers for it by walking the job's processes.
"""

import contextlib
import hashlib
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from hs_agent.config import CgroupUse
from hs_core.reports import NONE_LEFT, OUT_OF_MEMORY

MOUNTS = Path("/proc/self/mounts")
LIMITS = ("cpu", "memory", "pids")
NO_LIMIT_BYTES = 1 << 60  # what control groups of version 1 say where there is none is about 2⁶³
CPU_PERIOD_US = 100_000
OWN_SUBGROUP = "agent"  # as in systemd/hs-agent.service
PIDS_MAX = 32_768  # a fork bomb stops here and leaves the host its own processes


@dataclass(frozen=True, slots=True)
class Cgroups:
    """What was found usable. `v1` maps a controller to the folder that holds the jobs' groups."""

    v2: Path | None = None
    v2_limits: tuple[str, ...] = ()
    v1: dict[str, Path] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def can_freeze(self) -> bool:
        return self.v2 is not None or "freezer" in self.v1

    def describe(self) -> str:
        parts = [f"v2 at {self.v2}"] if self.v2 else []
        parts += [f"v2 {name}" for name in self.v2_limits]
        parts += [f"v1 {name}" for name in sorted(self.v1)]
        return ", ".join(parts) or "none"


@dataclass(frozen=True, slots=True)
class JobCgroup:
    v2: Path | None
    v1: dict[str, Path]

    def for_shim(self) -> dict[str, object]:
        """The part of launch.json that the shim acts on."""
        groups = [self.v2] if self.v2 else []
        groups += list(self.v1.values())
        return {
            "procs": [str(group / "cgroup.procs") for group in groups],
            "kill": str(self.v2 / "cgroup.kill") if self.v2 and (self.v2 / "cgroup.kill").exists() else "",
            "freeze": str(self.v2 / "cgroup.freeze") if self.v2 else "",
            "freezer": str(self.v1["freezer"] / "freezer.state") if "freezer" in self.v1 else "",
        }

    @property
    def can_freeze(self) -> bool:
        return self.v2 is not None or "freezer" in self.v1

    def freeze(self, frozen: bool) -> None:
        """Ask for it; `frozen()` says when it took hold."""
        if self.v2 is not None:
            (self.v2 / "cgroup.freeze").write_text("1" if frozen else "0")
        elif "freezer" in self.v1:
            (self.v1["freezer"] / "freezer.state").write_text("FROZEN" if frozen else "THAWED")

    def frozen(self) -> bool:
        if self.v2 is not None:
            return "frozen 1" in (self.v2 / "cgroup.events").read_text().splitlines()
        return (self.v1["freezer"] / "freezer.state").read_text().strip() == "FROZEN"

    def procs(self) -> set[int]:
        found: set[int] = set()
        for group in ([self.v2] if self.v2 else []) + list(self.v1.values()):
            with contextlib.suppress(OSError):
                found |= {int(line) for line in (group / "cgroup.procs").read_text().split()}
        return found

    def memory_bytes(self) -> int | None:
        """What its processes hold, without files that the kernel could drop; None: nobody counts it."""
        for group, names in (
            (self.v2, ("anon", "shmem")),
            (self.v1.get("memory"), ("total_rss", "total_shmem")),
        ):
            if group is None:
                continue
            with contextlib.suppress(OSError, ValueError):
                lines = (group / "memory.stat").read_text().splitlines()
                counted = dict(line.split(" ", 1) for line in lines)
                if names[0] in counted:
                    return sum(int(counted.get(name, "0")) for name in names)
        return None

    def ran_out(self) -> str:
        """That the kernel has killed a process in it to get memory, and under which limit; empty: it has not."""
        for group, events, limit in (
            (self.v2, "memory.events", "memory.max"),
            (self.v1.get("memory"), "memory.oom_control", "memory.limit_in_bytes"),
        ):
            if group is None:
                continue
            with contextlib.suppress(OSError, ValueError):
                counted = dict(line.split(" ", 1) for line in (group / events).read_text().splitlines())
                if int(counted.get("oom_kill", "0")):
                    return OUT_OF_MEMORY + _within(group / limit)
        return ""

    def kill(self) -> None:
        """SIGKILL to all that is inside, frozen or not. Repeat until `procs()` is empty."""
        with contextlib.suppress(OSError):
            if self.v2 is not None and (self.v2 / "cgroup.kill").exists():
                (self.v2 / "cgroup.kill").write_text("1")
                return
        for pid in self.procs():
            with contextlib.suppress(OSError):
                pidfd = os.pidfd_open(pid)
                try:
                    if pid in self.procs():  # still: else the number may be another's by now
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)
        with contextlib.suppress(OSError):
            self.freeze(frozen=False)

    def remove(self) -> None:
        for group in ([self.v2] if self.v2 else []) + list(self.v1.values()):
            _remove(group)


def _within(limit: Path) -> str:
    text = limit.read_text().strip()
    if not text.isdecimal() or int(text) >= NO_LIMIT_BYTES:
        return NONE_LEFT
    return f"; its limit is {int(text) >> 20} MiB"


def _remove(group: Path) -> None:
    with contextlib.suppress(OSError):  # the job may have made groups of its own below
        for below in sorted(group.rglob("*/"), reverse=True):
            below.rmdir()
    with contextlib.suppress(OSError):
        group.rmdir()


def probe(use: CgroupUse, state_dir: Path, root: str = "", *, mounts: str | None = None) -> Cgroups:
    """Find what this host lets us use, by using it."""
    if use is CgroupUse.NONE:
        return Cgroups(
            warnings=("control groups are switched off: jobs are held with SIGSTOP and not limited",)
        )
    # Several agents may share a host (tests do): each has groups of its own.
    mine = f"heteroshare-{hashlib.sha256(str(state_dir).encode()).hexdigest()[:8]}"
    own = _own_groups()
    v2: Path | None = None
    v2_limits: tuple[str, ...] = ()
    v1: dict[str, Path] = {}
    for kind, mount, options in _mounts(os.fsdecode(MOUNTS.read_bytes()) if mounts is None else mounts):
        if kind == "cgroup2" and v2 is None:
            v2, v2_limits = _probe_v2(mount, root or own.get("", "/").strip("/"), mine)
        elif kind == "cgroup":
            for controller in {"freezer", *LIMITS} & set(options):
                below = root or own.get(controller, "/").strip("/")
                folder = mount / below / mine
                if controller not in v1 and _usable(folder, "cgroup.procs"):
                    v1[controller] = folder
    # One freezer is enough (two would both have to be thawed), and one limit of a kind.
    for name in (*(("freezer",) if v2 is not None else ()), *v2_limits):
        if name in v1:
            _remove(v1.pop(name))
    return Cgroups(v2=v2, v2_limits=v2_limits, v1=v1, warnings=_warnings(v2, v2_limits, v1))


def _warnings(v2: Path | None, v2_limits: tuple[str, ...], v1: dict[str, Path]) -> tuple[str, ...]:
    warnings = []
    if v2 is None and "freezer" not in v1:
        warnings.append(
            "no writable control groups: jobs that can't be hooked are held with SIGSTOP to each process"
        )
    missing = [name for name in LIMITS if name not in v2_limits and name not in v1]
    if missing:
        warnings.append(f"no control group controller for {', '.join(missing)}: jobs are not limited in it")
    return tuple(warnings)


def _own_groups() -> dict[str, str]:
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def _mounts(text: str) -> list[tuple[str, Path, list[str]]]:
    found = []
    # Users mount things too (FUSE), under any name: of what Python takes for an end of a line the kernel escapes only this one.
    for line in filter(None, text.split("\n")):
        _, where, kind, options, *_ = line.split(" ")
        if kind in {"cgroup", "cgroup2"}:
            found.append((kind, Path(where), options.split(",")))
    return found


def _usable(folder: Path, *files: str) -> bool:
    """A group below it can be made and has these files."""
    trial = folder / f"probe-{os.getpid()}"
    try:
        trial.mkdir(parents=True, exist_ok=True)
        return all(os.access(trial / name, os.W_OK) for name in files)
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            trial.rmdir()


def _probe_v2(mount: Path, below: str, mine: str) -> tuple[Path | None, tuple[str, ...]]:
    parent = mount / below
    if parent.name == OWN_SUBGROUP:  # systemd put us below the group it delegated (DelegateSubgroup=)
        parent = parent.parent
    folder = parent / mine
    if not _usable(folder, "cgroup.procs", "cgroup.freeze"):
        return None, ()
    # Only a group without processes may hand controllers down. Were we to move out and do it all the same, systemd could
    # not start the next agent in the unit's group; so without a subgroup of our own there are no limits, only freezer and kill.
    if parent == mount or not (parent / "cgroup.procs").read_text().split():
        for group in (parent, folder):
            for name in LIMITS:
                with contextlib.suppress(OSError):
                    (group / "cgroup.subtree_control").write_text(f"+{name}")
    handed = (folder / "cgroup.subtree_control").read_text().split()
    return folder, tuple(name for name in LIMITS if name in handed)


def create(found: Cgroups, name: str, *, cpus: int, memory_bytes: int) -> JobCgroup:
    """The job's groups with their limits; made anew or taken as they are after a restart. Raises OSError: without one of them it would not be limited."""
    v2 = _made(found.v2 / name) if found.v2 else None
    v1 = {controller: _made(folder / name) for controller, folder in found.v1.items()}
    limits = {
        "cpu.max": f"{cpus * CPU_PERIOD_US} {CPU_PERIOD_US}" if cpus else "",
        "memory.max": str(memory_bytes) if memory_bytes else "",
        "pids.max": str(PIDS_MAX),
        "cpu.cfs_quota_us": str(cpus * CPU_PERIOD_US) if cpus else "",
        "memory.limit_in_bytes": str(memory_bytes) if memory_bytes else "",
    }
    for group in ([v2] if v2 else []) + list(v1.values()):
        for file, value in limits.items():
            if value and (group / file).exists():
                with contextlib.suppress(OSError):
                    (group / file).write_text(value)
    return JobCgroup(v2=v2, v1=v1)


def tidy(found: Cgroups) -> None:
    """Leave nothing on the host where no job of ours is left; groups in use cannot be removed."""
    for folder in (found.v2, *found.v1.values()):
        if folder is not None:
            with contextlib.suppress(OSError):
                folder.rmdir()


def names(found: Cgroups) -> set[str]:
    """Of the groups that are there, whosever they were."""
    there: set[str] = set()
    for folder in (found.v2, *found.v1.values()):
        if folder is not None:
            with contextlib.suppress(OSError):
                there |= {entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)}
    return there


def reopen(found: Cgroups, name: str) -> JobCgroup:
    """The groups of a job that runs already (or of one that is gone: then they are empty)."""
    v2 = found.v2 / name if found.v2 and (found.v2 / name).exists() else None
    v1 = {controller: folder / name for controller, folder in found.v1.items() if (folder / name).exists()}
    return JobCgroup(v2=v2, v1=v1)


def _made(group: Path) -> Path:
    group.mkdir(parents=True, exist_ok=True)
    return group
