"""One per job: starts it as its user, copies its output into a capped log, holds its exit status, leaves nothing behind.

Run as `python -I -S shim.py <folder>` (docs/job-folder.md); begins at a byte on its standard input. Standard library only and on its own: it outlives the agent,
and may be an older one than the agent that adopts it.
"""
# pathlib would add to the memory of every job:
# ruff: noqa: PTH100, PTH108, PTH110, PTH118, PTH120, PTH123

import array
import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

if __name__ == "__main__":  # by its path, without a way to its neighbours
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from hs_agent.bare.child import execute, fork
from hs_agent.bare.family import Held, how_it_ended, read_stat, reap_children, signal_all
from hs_agent.bare.files import keep_room, replace_json, write_file
from hs_agent.bare.kernel import PR_SET_CHILD_SUBREAPER, prctl
from hs_agent.bare.log import Log
from hs_agent.bare.output import Output

CHUNK = 64 << 10
# A job that floods its output is slowed by its full pipe, so that copying it cannot eat the host's processors.
FLOOD_BYTES, FLOOD_WINDOW_S = 4 << 20, 0.1
PURGE_EVERY_S, PURGE_AT_MOST_S = (
    0.02,
    1.0,
)  # the longer the oftener it was in vain: who does not die at once is waiting for a device or a file system
MAX_LINE = 4096
EXIT_BYTES = 4096  # of the record of an exit, that a full disk must not take
SHUT_DOWN_GRACE_S = 10.0
# What its main process leaves may clear up after it (shared memory, sockets) and end by itself; where that left on purpose so do
# torchrun's ranks, which are told after it and write the last lines of their files first (docs/job-protocol.md).
LEFTOVERS_S, LEAVING_S = 2.0, 10.0
LEFT_ON_PURPOSE = 75
LEASE_LOOK_S = 5.0  # at least so often, where there is one: it may have become shorter


class Shim:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        with open(os.path.join(folder, "launch.json"), encoding="utf-8") as file:
            self.launch: dict[str, Any] = json.load(file)
        self.log = Log(folder, self.launch["log_limit"])
        self.job = 0
        self.job_start = 0
        self.status: int | None = None  # of the job's main process
        self.childless = False
        self.doomed: set[tuple[int, int]] = set()  # who was killed last
        self.held, self.is_held = Held(), False
        self.purge_at_s, self.purge_pause_s = 0.0, PURGE_EVERY_S
        self.frozen = False
        self.deadline_s: float | None = None
        self.launch_error = ""
        self.lost = ""  # why it ends that its user is not to blame for
        self.lease_look_s = 0.0 if self.launch["lease"] else float("inf")
        self.output: Output | None = None
        self.pipe = -1
        self.channel: socket.socket | None = None
        self.control = -1
        self.commands = b""
        self.window_s, self.window_bytes = 0.0, 0
        self.paused = False

    # what the agent reads

    def tell(self) -> None:
        def who(pid: int, start: int) -> dict[str, int]:
            return {"pid": pid, "start": start}

        own = read_stat(os.getpid())
        replace_json(self.folder, "shim.json", {
            "shim": who(os.getpid(), own[2] if own else 0),
            "job": who(self.job, self.job_start) if self.job else None,
            "boot_id": boot_id(),
            "frozen": self.frozen,
            "start": self.launch["start"],
        })  # fmt: skip

    def tell_if_it_can(self) -> None:
        """On a full disk the agent gives up on a freeze that it does not see; the job goes on."""
        with contextlib.suppress(OSError):
            self.tell()

    def finish(self, why: str = "") -> None:
        code = signal_number = 0
        if self.status is not None and not why:
            if os.WIFSIGNALED(self.status):
                signal_number = os.WTERMSIG(self.status)
            else:
                code = os.WEXITSTATUS(self.status)
        replace_json(self.folder, "exit.json", {
            "code": code, "signal": signal_number, "why": why, "launch_failed": bool(self.launch_error),
            "start": self.launch["start"], "boot_id": boot_id(), "ended_s": time.clock_gettime(time.CLOCK_BOOTTIME), "dropped": self.log.dropped,
        })  # fmt: skip

    # life

    def begin(self) -> None:
        if self.launch["output"]:
            self.output = Output(self.launch["identity"])
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        keep_room(self.folder, "exit.json", EXIT_BYTES)
        if self.launch["identity"] is not None:
            # When memory runs out the job goes first, and its shim says so.
            with contextlib.suppress(OSError):
                write_file("/proc/self/oom_score_adj", "-900")
        self.control = self.open_control()
        wake, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.shut_down())
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        self.wake = wake
        self.fork()
        self.tell()

    def open_control(self) -> int:
        path = os.path.join(self.folder, "control")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.mkfifo(path, 0o600)
        # Held open for writing too: it never ends when an agent goes away.
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)

    def fork(self) -> None:
        self.pipe, pipe_end = os.pipe2(os.O_CLOEXEC)
        self.channel, channel_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.job = fork()
        if self.job == 0:
            execute(self.launch, channel_end, pipe_end, parent)
        os.set_blocking(self.pipe, False)
        self.channel.setblocking(False)
        channel_end.close()
        os.close(pipe_end)
        found = read_stat(self.job)
        self.job_start = found[2] if found else 0

    def run(self) -> None:
        self.begin()
        while not (self.childless and self.status is not None):
            self.serve(self.wait())
            self.reap()
            now_s = time.monotonic()
            if now_s >= self.lease_look_s:
                self.look_at_lease()
            self.paused = self.paused and now_s - self.window_s < FLOOD_WINDOW_S
            if self.deadline_s is not None and now_s >= max(self.deadline_s, self.purge_at_s):
                self.purge()
        self.hear()
        self.drain()
        if self.output is not None:
            self.output.finish()
            self.tell_trouble()
        self.finish(self.launch_error or self.lost)

    def wait(self) -> list[int]:
        """Who is ready, in the order of `watched`: of the output file is heard before any output is read."""
        poll = select.poll()
        for fd, events in self.watched():
            poll.register(fd, events)
        ready = {fd for fd, _ in poll.poll(self.wait_ms())}
        return [fd for fd, _ in self.watched() if fd in ready]

    def watched(self) -> Iterator[tuple[int, int]]:
        yield self.wake, select.POLLIN
        yield self.control, select.POLLIN
        if self.channel is not None:
            yield self.channel.fileno(), select.POLLIN
        if self.output is not None:
            yield self.output.polled
        # Who writes faster than its file takes it waits for its file.
        if self.pipe >= 0 and not self.paused and not (self.output is not None and self.output.is_behind):
            yield self.pipe, select.POLLIN

    def serve(self, ready: Iterable[int]) -> None:
        for fd in ready:
            if fd == self.wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake, 4096)
            elif fd == self.control:
                self.obey()
            elif fd == self.pipe:
                self.copy()
            elif self.output is not None and fd == self.output.polled[0]:
                self.output.go_on()
                self.tell_trouble()
            else:
                self.hear()

    def wait_ms(self) -> int | None:
        waits = []
        if self.paused:
            waits.append(self.window_s + FLOOD_WINDOW_S)
        if self.deadline_s is not None:
            waits.append(max(self.deadline_s, self.purge_at_s))
        if self.lease_look_s < float("inf"):
            waits.append(self.lease_look_s)
        if not waits:
            return None
        return max(int((min(waits) - time.monotonic()) * 1000) + 1, 0)

    def reap(self) -> None:
        status, childless = reap_children(self.job)
        self.childless = childless or self.is_held
        if status is not None:
            self.status = status
            leaves = os.WIFEXITED(status) and os.WEXITSTATUS(status) == LEFT_ON_PURPOSE
            self.purge_within(LEAVING_S if leaves else LEFTOVERS_S)

    # its output

    def copy(self) -> None:
        now_s = time.monotonic()
        if now_s - self.window_s >= FLOOD_WINDOW_S:
            self.window_s, self.window_bytes = now_s, 0
        try:
            data = os.read(self.pipe, CHUNK)
        except BlockingIOError:
            return
        if not data:  # every writer closed it; the job may live on
            os.close(self.pipe)
            self.pipe = -1
            return
        self.keep(data)
        self.window_bytes += len(data)
        self.paused = self.window_bytes >= FLOOD_BYTES

    def keep(self, data: bytes) -> None:
        self.log.write(data)
        if self.output is not None:
            self.output.keep(data)
            self.tell_trouble()

    def tell_trouble(self) -> None:
        if self.output is not None and self.output.trouble:
            note = f"[heteroshare: output file: {self.output.trouble}; the rest is only here]\n"
            self.log.write(note.encode())
            self.output.close()
            self.output = None

    def drain(self) -> None:
        """What is still in the pipe; bounded, for a stranger may have been handed its other end."""
        for _ in range(64 if self.pipe >= 0 else 0):
            try:
                data = os.read(self.pipe, CHUNK)
            except BlockingIOError:
                return
            if not data:
                return
            self.keep(data)

    def hear(self) -> None:
        """From the child before it becomes the job."""
        while self.channel is not None:
            try:
                data, ancillary, _, _ = self.channel.recvmsg(CHUNK, socket.CMSG_SPACE(4))
            except BlockingIOError:
                return
            except OSError:
                data, ancillary = b"", []
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fd = array.array("i", payload[:4])[0]
                    if self.output is None:
                        os.close(fd)
                    else:
                        self.output.take(fd)
            if data.startswith(b"error "):
                self.launch_error = data[6:].decode(errors="replace")
            elif not data:
                self.channel.close()
                self.channel = None

    # orders

    def obey(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.commands += os.read(self.control, MAX_LINE)
        *lines, self.commands = self.commands.split(b"\n")
        self.commands = self.commands[-MAX_LINE:]
        for line in lines:
            words = line.decode(errors="replace").split()
            if words[:1] == ["term"]:
                try:
                    grace_s = float(words[1])
                except (IndexError, ValueError):
                    grace_s = 0.0
                self.end(grace_s)
            elif words == ["freeze"]:
                self.freeze()
            elif words == ["thaw"]:
                self.thaw()

    def look_at_lease(self) -> None:
        """A job that must not go on without the controller's word ends by itself, also where no agent is left to end it."""
        try:
            with open(os.path.join(self.folder, "lease"), encoding="ascii") as file:
                until_s, grace_s = map(float, file.read().split())
            left_s = until_s - time.clock_gettime(time.CLOCK_BOOTTIME)
        except (OSError, ValueError):
            left_s, grace_s = LEASE_LOOK_S, 0.0  # none was given yet
        if left_s > 0:
            self.lease_look_s = time.monotonic() + min(left_s, LEASE_LOOK_S)
            return
        self.lease_look_s = float("inf")
        self.lost = "lost with its host: fenced: no word from the controller, as its lease says"
        self.end(grace_s)

    def shut_down(self) -> None:
        """The host goes down, and tells all of its processes."""
        if self.status is None and not self.lost:
            self.lost = "lost with its host: it was shut down"
        self.end(SHUT_DOWN_GRACE_S)

    def end(self, grace_s: float) -> None:
        signal_all(signal.SIGTERM)
        self.thaw_cgroup()
        signal_all(signal.SIGCONT)
        self.purge_within(grace_s)

    def purge_within(self, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        self.deadline_s = deadline_s if self.deadline_s is None else min(self.deadline_s, deadline_s)

    def freeze(self) -> None:
        for _ in range(100):  # whoever forks while we list comes up in the next round
            if not signal_all(signal.SIGSTOP, skip="ZTt"):
                break
            time.sleep(0.002)
        self.frozen = True
        self.tell_if_it_can()

    def thaw(self) -> None:
        signal_all(signal.SIGCONT)
        self.frozen = False
        self.tell_if_it_can()

    def thaw_cgroup(self) -> None:
        for path, word in (
            (self.launch["cgroup"]["freeze"], "0"),
            (self.launch["cgroup"]["freezer"], "THAWED"),
        ):
            if path:
                with contextlib.suppress(OSError):
                    write_file(path, word)

    def purge(self) -> None:
        """Everything at once, however it hid; called until waitpid says that nobody is left."""
        if self.childless:
            return
        if self.launch["cgroup"]["kill"]:
            with contextlib.suppress(OSError):
                write_file(self.launch["cgroup"]["kill"], "1")
        else:
            signal_all(signal.SIGSTOP, skip="ZTt")  # nobody forks away between being listed and being killed
        killed = signal_all(signal.SIGKILL)
        self.thaw_cgroup()  # a frozen process (v1) dies when it thaws
        if self.held.look(alive=bool(killed), now_s=time.monotonic()):
            self.is_held = self.childless = True
            self.status = how_it_ended(self.job) if self.status is None else self.status
            return
        again = killed <= self.doomed
        self.doomed = killed
        self.purge_pause_s = min(2 * self.purge_pause_s, PURGE_AT_MOST_S) if again else PURGE_EVERY_S
        self.purge_at_s = time.monotonic() + self.purge_pause_s


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def main(folder: str) -> None:
    if os.path.exists(os.path.join(folder, "exit.json")):
        return
    if not os.read(0, 1):
        return  # its agent cannot watch it, so it is not to be
    os.chdir("/")
    shim = Shim(folder)
    try:
        shim.run()
    except BaseException as error:
        while not shim.childless:
            with contextlib.suppress(Exception):  # whatever is short: its end is told when it has one
                shim.purge()
            shim.reap()
            time.sleep(shim.purge_pause_s)
        shim.finish(f"its shim failed: {type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main(sys.argv[1])
