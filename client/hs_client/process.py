"""Daemons that outlive us: started in a session of their own, known by pid, start time and boot, so that no stranger is signalled."""

import contextlib
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
MAX_WORDS = 8 << 20  # the kernel starts nothing with more than 6 MiB of words


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A pid alone is reused; the three together never are."""

    pid: int
    start_time: int  # /proc/<pid>/stat, field 22: clock ticks since boot
    boot_id: str


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _stat(pid: int) -> tuple[str, int] | None:
    """State and start time; the name before them may hold blanks and parentheses."""
    try:
        fields = (
            (PROC / str(pid) / "stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()
        )
    except OSError:
        return None
    return fields[0], int(fields[19])


def identity(pid: int) -> Identity | None:
    """None where there is no such process, or only what is left of it."""
    found = _stat(pid)
    if found is None or found[0] in "ZX":
        return None
    return Identity(pid=pid, start_time=found[1], boot_id=boot_id())


def let_go(child: subprocess.Popen[bytes]) -> None:
    """It is meant to outlive us: Python would warn, at any later moment, that nobody waited for it."""
    child.returncode = 0


def alive(who: Identity) -> bool:
    return identity(who.pid) == who


def any_of(folder: Path) -> bool:
    """Some process lives whose last argument is an entry of that folder: so each job's shim is told of its own."""
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            with (entry / "cmdline").open("rb") as file:
                # Where that lies a process may say itself, and name all of its memory.
                last = file.read(MAX_WORDS).rstrip(b"\0").rpartition(b"\0")[2]
            if Path(os.fsdecode(last)).parent == folder and identity(int(entry.name)) is not None:
                return True
    return False


def start(argv: Sequence[str], log: Path, cwd: Path) -> tuple[subprocess.Popen[bytes], Identity]:
    """Detached: a session of its own, nothing of ours but the log."""
    with os.fdopen(
        os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab"
    ) as output:
        made = subprocess.Popen(
            argv,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            close_fds=True,
        )
    found = _stat(made.pid)
    # A child that we have not waited for keeps its entry, dead or alive.
    assert found is not None
    return made, Identity(pid=made.pid, start_time=found[1], boot_id=boot_id())


def send(who: Identity, number: signal.Signals) -> bool:
    """Signal that process and no other; False when it is gone."""
    try:
        handle = os.pidfd_open(who.pid)
    except (ProcessLookupError, OSError):
        return False
    try:
        # The handle was opened first: what we look at now is what we signal.
        if not alive(who):
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
            return True
        return False
    finally:
        os.close(handle)


def awaits(who: Identity, number: signal.Signals, within_s: float) -> bool:
    """True once it has a handler for that signal; False if it ends, or has none in time."""
    end_s = time.monotonic() + within_s
    while alive(who) and time.monotonic() < end_s:
        with contextlib.suppress(OSError):
            status = (PROC / str(who.pid) / "status").read_text(encoding="utf-8", errors="replace")
            caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
            if caught and int(caught[1], 16) >> (number - 1) & 1 and alive(who):
                return True
        time.sleep(0.02)
    return False


def wait_gone(who: Identity, within_s: float) -> bool:
    """True once it is gone; a zombie of ours or of a container without init counts as gone."""
    try:
        handle = os.pidfd_open(who.pid)
    except (ProcessLookupError, OSError):
        return True
    try:
        if alive(who):
            select.select([handle], [], [], within_s)
        return not alive(who)
    finally:
        os.close(handle)
