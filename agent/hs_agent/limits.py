"""What the control groups above jobs allow (systemd's MemoryMax, a container's): above us, or above where we were told to put them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

OWN_GROUP = Path("/proc/self/cgroup")
V2 = Path("/sys/fs/cgroup")


def of_memory(root: str = "") -> Iterator[tuple[Path, int]]:
    """The folder of each group that has a limit, and its bytes. `root`: where the jobs' groups are (`cgroup_root`); "": below our own."""
    own = next((line[3:] for line in lines(OWN_GROUP) if line.startswith("0::")), "/")
    group = V2 / (root or own).strip("/")
    for folder in (group, *group.parents):
        if folder == V2.parent:
            return
        limit = next(iter(lines(folder / "memory.max")), "max")
        if limit.isdigit():
            yield folder, int(limit)


def lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    return []
