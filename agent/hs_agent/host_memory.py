"""What is left of the host's memory, and what the processes of each job hold of it."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from hs_agent import limits, procs
from hs_agent.cgroup import JobCgroup
from hs_agent.limits import lines
from hs_core.names import JobId

MEMINFO = procs.PROC / "meminfo"


def look(
    running: Iterable[tuple[JobId, int, JobCgroup]], root: str = ""
) -> tuple[int | None, dict[JobId, int]]:
    """What is left, and what each job holds: `running` has its shim's pid and its control group. `root`: as in `limits`."""
    held, uncounted = {}, {}
    for job, shim, group in running:
        counted = group.memory_bytes()
        if counted is None:
            uncounted[shim] = job
        else:
            held[job] = counted
    for shim, tree in (trees(uncounted) if uncounted else {}).items():
        held[uncounted[shim]] = sum(map(resident_bytes, tree))
    return available_bytes(root), held


def available_bytes(root: str = "") -> int | None:
    """What could still be taken without anything being pushed out, by the kernel's estimate, within the limits of groups above jobs. None: nobody says."""
    left = _fields(MEMINFO).get("MemAvailable")
    if left is None:
        return None
    return min(left, *_left_of_groups(root))


def resident_bytes(pid: int) -> int:
    """What is shared between processes counts for each of them: tensors on their way from workers, mostly."""
    fields = _fields(procs.PROC / str(pid) / "status")
    if "RssAnon" in fields:
        return fields["RssAnon"] + fields.get("RssShmem", 0)
    return fields.get("VmRSS", 0)


def trees(roots: Iterable[int]) -> dict[int, list[int]]:
    """All that came from each of these processes, themselves included: one look at all processes of the host."""
    children: dict[int, list[int]] = {}
    for found in procs.everybody():
        children.setdefault(found.ppid, []).append(found.pid)
    return {root: list(_below(children, root)) for root in roots}


def _below(children: Mapping[int, list[int]], root: int) -> Iterator[int]:
    todo = [root]
    while todo:
        pid = todo.pop()
        yield pid
        todo += children.get(pid, ())


def _left_of_groups(root: str) -> Iterator[int]:
    yield 1 << 62
    for folder, limit in limits.of_memory(root):
        used = next(iter(lines(folder / "memory.current")), "")
        if used.isdigit():
            droppable = _stat(folder / "memory.stat").get("inactive_file", 0)
            yield max(0, limit - int(used) + droppable)


def _fields(path: Path) -> dict[str, int]:
    """`Name:   123 kB` as bytes by name."""
    found = {}
    for line in lines(path):
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def _stat(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in lines(path))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
