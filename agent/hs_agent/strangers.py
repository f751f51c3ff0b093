"""GPUs that are not ours to give out just now: somebody who is no job of ours computes on one, or its memory is held though nobody is there.

A job that is started there fails for want of memory, or trains at half its speed and has its class measured so. Such a GPU is out of
use until it is free again; the others work on. Nobody is signalled: whether a process may be there is for people to say.
"""

import contextlib
import os
import pwd
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path

from hs_agent import procs
from hs_agent.device_memory import Running, members
from hs_agent.devices import GpuProcess, Reading
from hs_core.model import Gpu
from hs_core.names import GpuId

STAYS_S = 5.0  # who only asks whether there is a GPU is gone by then
HELD_S = 30.0  # and the driver has given back by then what a process had that was killed
HELD_PART = 0.1  # of a GPU's memory, beyond what was taken before jobs were there: less is the driver's own
MPS = "nvidia-cuda-mps"  # how names of its daemon and server begin; the latter computes for the jobs that are its clients
FIRST_PIDS = "pid:[4026531836]"  # the kernel's number of the name space that drivers count processes in


class Strangers:
    """Looks from time to time; `now_s` of any clock that never jumps."""

    def __init__(self, mps_pipe_dir: str) -> None:
        self._mps_pipe_dir = mps_pipe_dir
        self._ours: dict[int, int] = {}  # pid → when it was started
        self._here_since: dict[tuple[GpuId, int, int], float] = {}
        self._used: dict[GpuId, int] = {}  # bytes, as the driver said last
        self._before: dict[GpuId, int] = {}  # of these where no job is
        self._held_since: dict[GpuId, float] = {}

    def look(
        self,
        gpus: Sequence[Gpu],
        processes: Collection[GpuProcess],
        readings: Iterable[Reading],
        *,
        running: Running,
        holders: Collection[GpuId],  # GPUs on which jobs hold memory
        now_s: float,
    ) -> dict[GpuId, str]:
        """Why they are not to be used."""
        on = self._strangers(processes, running)
        self._here_since = {key: self._here_since.get(key, now_s) for key in on}
        said = {key[0]: text for key, text in on.items() if now_s - self._here_since[key] >= STAYS_S}
        # One that the driver fails to say is taken as it was: as none at all, all of it would be held by nobody later.
        self._used |= {
            reading.gpu: reading.memory_used_bytes for reading in readings if reading.memory_used_bytes
        }
        computes = {one.gpu for one in processes}  # whosever
        for gpu in gpus:
            taken = gpu.id in holders or gpu.id in computes
            held = self._left_behind(gpu, taken, now_s)
            if held:
                said.setdefault(gpu.id, held)
        return said

    def _strangers(
        self, processes: Iterable[GpuProcess], running: Running
    ) -> dict[tuple[GpuId, int, int], str]:
        """(GPU, pid, its start) → who it is. Of several on a GPU that with the most memory comes last."""
        if not counts_as_the_driver():
            return {}
        found: dict[tuple[GpuId, int, int], str] = {}
        known: dict[int, int] = {}
        below: Collection[int] | None = None
        for one in sorted(processes, key=lambda one: one.memory_bytes):
            start = _start(one.pid)
            if start is None:
                continue  # it is gone, and the driver says so a moment later
            if self._ours.get(one.pid) == start or serves_jobs(one.pid, self._mps_pipe_dir):
                known[one.pid] = start
                continue
            if below is None:
                below = members(running)
            if one.pid in below:
                known[one.pid] = start
            else:
                found[one.gpu, one.pid, start] = describe(one)
        self._ours = known
        return found

    def _left_behind(self, gpu: Gpu, taken: bool, now_s: float) -> str:
        used_bytes = self._used.get(gpu.id)
        if taken or used_bytes is None:
            self._held_since.pop(gpu.id, None)
            return ""
        before = self._before.get(gpu.id)
        if before is None or used_bytes <= before + gpu.memory_bytes * HELD_PART:
            self._before[gpu.id] = used_bytes
            self._held_since.pop(gpu.id, None)
            return ""
        if now_s - self._held_since.setdefault(gpu.id, now_s) < HELD_S:
            return ""
        return f"{(used_bytes - before) / 2**30:.1f} GiB of its memory are held and no process is there: reset it, or reboot"


def serves_jobs(pid: int, mps_pipe_dir: str) -> bool:
    """MPS' server. Anybody can call themselves so: it, or the daemon that it comes from, is an account's that may."""
    accounts = {0, os.geteuid()}
    with contextlib.suppress(OSError):
        if mps_pipe_dir:
            accounts.add(Path(mps_pipe_dir).stat().st_uid)
    found = procs.stat(pid)
    return found is not None and any(
        _name(each).startswith(MPS) and procs.account(each) in accounts for each in (pid, found.ppid)
    )


def describe(one: GpuProcess) -> str:
    return (
        f"process {one.pid} ({_name(one.pid) or '?'} of {_owner(one.pid)}), which is no job's, computes on it"
    )


@cache
def counts_as_the_driver() -> bool:
    """In a container with processes of its own, numbers that the driver says name others here: then nobody can be told apart."""
    try:
        return str((procs.PROC / "self/ns/pid").readlink()) == FIRST_PIDS
    except OSError:
        return False


def _start(pid: int) -> int | None:
    found = procs.stat(pid)
    return found.start if found is not None else None


def _name(pid: int) -> str:
    try:
        return (procs.PROC / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _owner(pid: int) -> str:
    uid = procs.account(pid)
    if uid is None:
        return "?"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
