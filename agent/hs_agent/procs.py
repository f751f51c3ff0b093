"""Processes by (pid, start time, boot id): a pid alone names whoever has it now."""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROC = Path("/proc")
_MACHINE = (
    Path("/sys/class/dmi/id/product_uuid"),
    Path("/sys/firmware/devicetree/base/serial-number"),
    Path("/etc/machine-id"),
)  # what firmware, or a virtual machine's host, says goes before what lies on the disk, and is copied with it
MAX_WORDS = 8 << 20  # the kernel starts nothing with more than 6 MiB of words and environment


@dataclass(frozen=True, slots=True)
class Identity:
    pid: int
    start: int  # /proc/<pid>/stat, field 22: clock ticks after boot
    boot_id: str


@dataclass(frozen=True, slots=True)
class Stat:
    pid: int
    ppid: int
    session: int
    state: str  # R S D T Z … of its first thread
    start: int
    threads: int  # that have not ended; of one that has, 1


@cache
def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


@cache
def machine_id() -> str:
    """Of the machine that this is, over reboots; "": nothing says."""
    for path in _MACHINE:
        with contextlib.suppress(OSError):
            if said := path.read_text(encoding="utf-8", errors="replace").strip(" \t\r\n\0"):
                return said
    return ""


def stat(pid: int) -> Stat | None:
    """None: there is no such process, or none that is ours to see. Raises OSError where nobody can be looked at, for want of descriptors."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name may hold spaces and parentheses, and be no text; the fields begin after the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return Stat(
        pid=pid, state=fields[0], ppid=int(fields[1]), session=int(fields[3]), start=int(fields[19]), threads=int(fields[17]),
    )  # fmt: skip


def account(pid: int) -> int | None:
    """Uid of who has started it; None: it is gone. Its folder in /proc is another's where that was a set-user-id program, with whatever words its user liked."""
    try:
        text = (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Uid:")), None)


def identity(pid: int) -> Identity | None:
    found = stat(pid)
    return Identity(pid, found.start, boot_id()) if found else None


def alive(who: Identity) -> bool:
    """Runs, and is the one that was meant (a zombie is gone, but for one whose first thread alone has ended)."""
    if who.boot_id != boot_id():
        return False
    found = stat(who.pid)
    return found is not None and found.start == who.start and (found.state not in "ZX" or found.threads > 1)


def open_pidfd(who: Identity) -> int | None:
    """A handle that stays this process's for good; None: it is gone (a zombie still has one)."""
    if who.boot_id != boot_id():
        return None
    try:
        pidfd = os.pidfd_open(who.pid)
    except ProcessLookupError:
        return None
    found = stat(who.pid)
    # Looked at after opening: had the pid changed hands before, the start time tells.
    if found is None or found.start != who.start:
        os.close(pidfd)
        return None
    return pidfd


def send(who: Identity, number: signal.Signals) -> bool:
    pidfd = open_pidfd(who)
    if pidfd is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(pidfd)
    return True


def everybody() -> Iterator[Stat]:
    for entry in os.scandir(PROC):
        if entry.name.isdigit():
            found = stat(int(entry.name))
            if found is not None:
                yield found


def descendants(pid: int) -> list[Stat]:
    children: dict[int, list[Stat]] = {}
    for found in everybody():
        children.setdefault(found.ppid, []).append(found)
    found_below: list[Stat] = []
    todo = [pid]
    while todo:
        below = children.pop(todo.pop(), [])
        found_below += below
        todo += [child.pid for child in below]
    return found_below


def words(pid: int, file: str) -> bytes:
    """What it was started with (`cmdline`, `environ`), a zero byte after each. Where that lies it may say itself, and name all of its memory."""
    with (PROC / str(pid) / file).open("rb") as there:
        return there.read(MAX_WORDS)


def environment(found: Stat) -> bytes:
    """That it was started with. Where its first thread has ended, any of the others knows."""
    if found.state in "ZX" and found.threads > 1:
        for thread in (PROC / str(found.pid) / "task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if said := words(found.pid, f"task/{thread.name}/environ"):
                    return said
    return words(found.pid, "environ")


def with_environment(line: bytes) -> list[Identity]:
    """Processes whose initial environment holds exactly this NAME=value."""
    holders = []
    for found in everybody():
        try:
            environ = environment(found)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if b"\0%b\0" % line in b"\0%b\0" % environ:
            holders.append(Identity(found.pid, found.start, boot_id()))
    return holders
