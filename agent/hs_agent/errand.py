"""A command that somebody runs beside a job (`hsctl exec`): started as the job was, and gone, with all that came of it, when it ends or nobody waits for it.

Run as `python -I -S errand.py`, its standard input a socket to the agent: from there comes as JSON, in a line, what to start. Standard output and error are the
command's. How it ended is said on the socket. Where the agent closes that, or is gone, the command is told to end, and ended; at a byte at once.
"""
# pathlib would add to what is loaded beside every job:
# ruff: noqa: PTH100, PTH120

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

if __name__ == "__main__":  # by its path, without a way to its neighbours
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from hs_agent.bare.child import execute, fork
from hs_agent.bare.family import Held, how_it_ended, reap_children, signal_all
from hs_agent.bare.kernel import PR_SET_CHILD_SUBREAPER, prctl

MAX_ORDER = 2 << 20
GRACE_S = 1.0  # of a command that nobody waits for any more
PURGE_EVERY_S, PURGE_AT_MOST_S = 0.02, 1.0


class Errand:
    def __init__(self, agent: socket.socket) -> None:
        self.agent = agent
        self.command = 0
        self.status: int | None = None  # of the command itself
        self.childless = False
        self.held, self.is_held = Held(), False
        self.is_late = False
        self.hung_up = False  # nothing more comes from the agent
        self.deadline_s: float | None = None  # until which it may end by itself
        self.purge_at_s, self.purge_pause_s = 0.0, PURGE_EVERY_S
        self.wake = -1
        self.channel: socket.socket | None = None

    def order(self) -> dict[str, Any] | None:
        """None: the agent is gone."""
        said = b""
        while not said.endswith(b"\n"):
            data = self.agent.recv(1 << 16)
            said += data
            if not data or len(said) > MAX_ORDER:
                return None
        order: dict[str, Any] = json.loads(said)
        return order

    def begin(self, launch: dict[str, Any]) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # nobody of it gets away
        self.wake, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self.end())
        self.channel, channel_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.command = fork()
        if self.command == 0:
            execute(launch, channel_end, 1, parent, errors=2)
        channel_end.close()
        # What is said has an end when the command has one.
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, 1)
        os.dup2(null, 2)

    def run(self, launch: dict[str, Any]) -> None:
        limit_s = time.monotonic() + launch["limit_s"]
        self.begin(launch)
        while not (self.childless and self.status is not None):
            self.wait(limit_s)
            self.reap()
            now_s = time.monotonic()
            if now_s >= limit_s and self.status is None and self.deadline_s is None:
                self.is_late = True
                self.end()
            over = self.status is not None or (self.deadline_s is not None and now_s >= self.deadline_s)
            if over and now_s >= self.purge_at_s:
                self.purge()

    def wait(self, limit_s: float) -> None:
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        if not self.hung_up:
            poll.register(self.agent, select.POLLIN)
        ready = dict(poll.poll(self.wait_ms(limit_s)))
        if self.wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 4096)
        if self.agent.fileno() in ready:
            self.hear()

    def wait_ms(self, limit_s: float) -> int:
        if self.status is not None:
            until_s = self.purge_at_s
        elif self.deadline_s is not None:
            until_s = max(self.deadline_s, self.purge_at_s)
        else:
            until_s = limit_s
        return max(int((until_s - time.monotonic()) * 1000) + 1, 0)

    def hear(self) -> None:
        try:
            word = self.agent.recv(1)
        except OSError:
            word = b""
        self.hung_up = self.hung_up or not word
        self.end(0.0 if word else GRACE_S)

    def end(self, grace_s: float = GRACE_S) -> None:
        if self.deadline_s is None and grace_s:
            signal_all(signal.SIGTERM)
        deadline_s = time.monotonic() + grace_s
        self.deadline_s = deadline_s if self.deadline_s is None else min(self.deadline_s, deadline_s)

    def purge(self) -> None:
        """Called until waitpid says that nobody is left."""
        if self.childless:
            return
        signal_all(signal.SIGSTOP, skip="ZTt")  # nobody forks away between being listed and being killed
        if self.held.look(alive=bool(signal_all(signal.SIGKILL)), now_s=time.monotonic()):
            self.is_held = self.childless = True
            self.status = how_it_ended(self.command) if self.status is None else self.status
            return
        self.purge_at_s = time.monotonic() + self.purge_pause_s
        self.purge_pause_s = min(2 * self.purge_pause_s, PURGE_AT_MOST_S)

    def reap(self) -> None:
        status, childless = reap_children(self.command)
        self.childless = childless or self.is_held
        if status is not None:
            self.status = status

    def why_not(self) -> str:
        """What the child said before it would have become the command."""
        assert self.channel is not None
        with contextlib.suppress(OSError):
            said = self.channel.recv(1 << 16)
            if said.startswith(b"error "):
                return said[6:].decode(errors="replace")
        return ""

    def tell(self) -> None:
        assert self.status is not None
        signalled = os.WIFSIGNALED(self.status)
        ended = {
            "code": 0 if signalled else os.WEXITSTATUS(self.status),
            "signal": os.WTERMSIG(self.status) if signalled else 0,
            "is_late": self.is_late,
            "error": self.why_not(),
        }
        with contextlib.suppress(OSError):  # the agent is gone
            self.agent.sendall(json.dumps(ended).encode() + b"\n")


def main() -> None:
    os.chdir("/")
    errand = Errand(socket.socket(fileno=os.dup(0)))
    launch = errand.order()
    if launch is None:
        return
    try:
        errand.run(launch)
    finally:
        while errand.command and not errand.childless:  # whatever is short
            with contextlib.suppress(Exception):
                errand.purge()
            errand.reap()
            time.sleep(PURGE_EVERY_S)
    errand.tell()


if __name__ == "__main__":
    main()
