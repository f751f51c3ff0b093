"""What the processes of each job hold on its GPUs, as the driver counts it."""

from collections.abc import Collection, Iterable, Mapping

from hs_agent import procs
from hs_agent.cgroup import JobCgroup
from hs_agent.devices import GpuProcess
from hs_agent.folder import Key
from hs_agent.host_memory import trees
from hs_core.names import GpuId

Running = Collection[tuple[Key, int, JobCgroup]]
"""Of each job that runs: pid of its shim, and its control group; and of each command beside one."""


class Owners:
    """Whose the processes are that the driver names. All processes of the host are looked at only where one of these is not known."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Key]] = {}  # pid → when it was started, and whose it is

    def on(self, processes: Iterable[GpuProcess], running: Running) -> dict[tuple[Key, GpuId], int]:
        """Bytes that its processes hold, also where that is nothing yet."""
        processes = list(processes)
        owners = self._of({one.pid for one in processes}, running)
        found: dict[tuple[Key, GpuId], int] = {}
        for one in processes:
            if (key := owners.get(one.pid)) is not None:
                found[key, one.gpu] = found.get((key, one.gpu), 0) + one.memory_bytes
        return found

    def _of(self, pids: Collection[int], running: Running) -> Mapping[int, Key]:
        now = {pid: at.start for pid in pids if (at := procs.stat(pid)) is not None}
        self._known = {pid: known for pid, known in self._known.items() if now.get(pid) == known[0]}
        if new := now.keys() - self._known.keys():
            owners = members(running)
            self._known |= {pid: (now[pid], owners[pid]) for pid in new if pid in owners}
        return {pid: key for pid, (_, key) in self._known.items()}


def most(on: Mapping[tuple[Key, GpuId], int]) -> dict[Key, int]:
    """Bytes, of the GPU on which it holds most."""
    found: dict[Key, int] = {}
    for (key, _), held_bytes in on.items():
        found[key] = max(found.get(key, 0), held_bytes)
    return {key: held_bytes for key, held_bytes in found.items() if held_bytes}


def members(running: Running) -> dict[int, Key]:
    """Of each process of a job, whose it is: those that came from its shim, and those in its control group."""
    shims = {shim: key for key, shim, _ in running}
    found = {pid: shims[shim] for shim, tree in trees(shims).items() for pid in tree}
    found |= {pid: key for key, _, group in running for pid in group.procs()}
    return found
