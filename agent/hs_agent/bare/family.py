"""All that came from this process. As the subreaper nobody can leave its tree."""
# pathlib would add to the memory of every job:
# ruff: noqa: PTH123, PTH208

import os
import signal

# By `comm`, of which the kernel keeps 15 letters. They serve others of their tree, clear up after these and then end by themselves; SIGTERM
# would have them end at once, and memory that was shared through torch's would stay on the host until its next boot.
KEEPERS = frozenset({"torch_shm_manag"})


HELD_S = 1.0
STILL = "ZXTt"  # states of a thread that is gone, or stands


def read_stat(pid: int) -> tuple[int, str, int] | None:
    """(parent, state, start time). The state is that of its first thread, unless that has ended, or is held by a debugger, and others run on."""
    fields = _fields(f"/proc/{pid}/stat")
    if fields is None:
        return None
    state = fields[0]
    if state in STILL and int(fields[17]) > 1:
        state = _state_of_threads(pid) or state
    return int(fields[1]), state, int(fields[19])


def _fields(path: str) -> list[str] | None:
    """Those after the name, the third and on."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def _state_of_threads(pid: int) -> str:
    """Of one that moves; else of one that can again; empty: it is gone."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return ""
    states = [fields[0] for thread in threads if (fields := _fields(f"/proc/{pid}/task/{thread}/stat"))]
    return min(states, key=STILL[::-1].find, default="")


def descendants() -> list[tuple[int, str, int]]:
    """(pid, state, start time) of all that came from here; as the subreaper nobody can leave this tree."""
    children: dict[int, list[tuple[int, str, int]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = read_stat(int(name))
            if found is not None:
                children.setdefault(found[0], []).append((int(name), found[1], found[2]))
    tree: list[tuple[int, str, int]] = []
    todo = [os.getpid()]
    while todo:
        below = children.pop(todo.pop(), [])
        tree += below
        todo += [child[0] for child in below]
    return tree


def reap_children(ours: int) -> tuple[int | None, bool]:
    """Takes leave of all children that have ended: how this one did, if it is among them, and whether there are none left."""
    status = None
    while True:
        try:
            pid, how = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status, True
        if pid == 0:
            return status, False
        if pid == ours:
            status = how


class Held:
    """Who is dead and cannot be taken leave of, as somebody who is none of it holds it with a debugger: nothing of it is left, so it is not waited for."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def look(self, *, alive: bool, now_s: float) -> bool:
        """After all that live were killed. It takes a moment to be sure."""
        if alive:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        return self._since_s is not None and now_s - self._since_s >= HELD_S


def how_it_ended(pid: int) -> int:
    """As `waitpid` would say it of a zombie of ours."""
    fields = _fields(f"/proc/{pid}/stat")
    return int(fields[-1]) if fields is not None and fields[0] in "ZX" else signal.SIGKILL


def send(pid: int, start: int, number: int) -> None:
    """Signal this very process or nobody: the pid of a grandchild may have changed hands since it was listed."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        found = read_stat(pid)
        if found is not None and found[2] == start:
            signal.pidfd_send_signal(pidfd, number)
    except OSError:
        pass
    finally:
        os.close(pidfd)


def is_keeper(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n") in KEEPERS
    except OSError:
        return False


def signal_all(number: int, skip: str = "Z") -> set[tuple[int, int]]:
    """Who was signalled, by pid and start time; those in a state named by `skip` are left alone, and so are keepers by SIGTERM."""
    signalled = set()
    for pid, state, start in descendants():
        if state not in skip and not (number == signal.SIGTERM and is_keeper(pid)):
            send(pid, start, number)
            signalled.add((pid, start))
    return signalled
