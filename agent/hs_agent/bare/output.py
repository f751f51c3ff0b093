"""A job's own output file. Another process writes it, as the job's user: their rights and quotas hold, and on a file system that hangs it hangs alone."""
# pathlib would add to the memory of every job:
# ruff: noqa: PTH208

import contextlib
import os
import select
import signal
import socket
import struct
import time
from typing import Any

from hs_agent.bare.family import read_stat, send
from hs_agent.bare.kernel import PR_SET_DUMPABLE, become, prctl

CHUNK = 64 << 10
PID = struct.Struct("=i")
LAST_S = 10.0  # that the file may take once the job has ended


class Output:
    """The shim's end: nothing waits here but `finish`. One that `took` no file keeps nothing."""

    def __init__(self, identity: dict[str, Any] | None) -> None:
        """Call before the shim is a subreaper: it awaits the end of all that it has to wait for, and this is none of its job's."""
        self._end, theirs = socket.socketpair()
        between = os.fork()
        if between == 0:
            with contextlib.suppress(BaseException):
                if os.fork() == 0:
                    _write(theirs, identity)
            os._exit(0)
        theirs.close()
        os.waitpid(between, 0)
        said = self._end.recv(PID.size, socket.MSG_WAITALL)
        self.trouble = "" if said else _why(said)  # for which the file has not all of it
        self._pid = PID.unpack(said)[0] if said else 0
        found = read_stat(self._pid)
        self._start = found[2] if found else 0
        self._end.setblocking(False)
        self._unwritten = b""
        self._open = False

    def take(self, fd: int) -> None:
        """The file, as the job's user has opened it."""
        try:
            socket.send_fds(self._end, [b"f"], [fd])
            self._open = True
        except OSError:
            self._hear()
        finally:
            os.close(fd)

    @property
    def is_behind(self) -> bool:
        """It takes no more just now."""
        return bool(self._unwritten)

    @property
    def polled(self) -> tuple[int, int]:
        """Descriptor and events after which it can `go_on`."""
        return self._end.fileno(), select.POLLIN | (select.POLLOUT if self._unwritten else 0)

    def keep(self, data: bytes) -> None:
        if self._open:
            self._unwritten += data
            self.go_on()

    def go_on(self) -> None:
        """When there is something to hear of it, or room."""
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._end.send(self._unwritten[:CHUNK]) :]
        except BlockingIOError:
            pass
        except OSError:
            self._hear()  # what it said before it left
        else:
            self._hear()

    def _hear(self) -> None:
        try:
            said = self._end.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said != b"done":
            self._fail(_why(said))
        self._open = False

    def _fail(self, why: str) -> None:
        self.trouble = self.trouble or why
        self._open, self._unwritten = False, b""

    def close(self) -> None:
        self._end.close()

    def finish(self) -> None:
        """The job has ended: what is left is written, if that comes to an end."""
        end_s = time.monotonic() + LAST_S
        poll, hung_up = select.poll(), False
        while self._open:
            if not self._unwritten and not hung_up:
                self._end.shutdown(socket.SHUT_WR)
                hung_up = True
            poll.register(*self.polled)
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                self._fail(f"it took no more for {LAST_S:g} s")
                send(self._pid, self._start, signal.SIGKILL)
                return
            poll.poll(int(left_s * 1000) + 1)
            self.go_on()


def _why(said: bytes) -> str:
    return said.decode(errors="replace") or "who wrote it was killed"


def _write(end: socket.socket, identity: dict[str, Any] | None) -> None:
    """Never returns."""
    try:
        # First of all: once it has become its user, who may stop it, the shim waits for nothing of it any more.
        end.send(PID.pack(os.getpid()))
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # it ends with the shim, by its word
            signal.signal(number, signal.SIG_IGN)
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd != end.fileno():
                with contextlib.suppress(OSError):
                    os.close(fd)
        become(identity)
        prctl(PR_SET_DUMPABLE, 0)  # outside the job's control group: it is not its user's to run things in
        _, fds, _, _ = socket.recv_fds(end, 1, 1)
        while fds and (data := end.recv(CHUNK)):
            while data:
                data = data[os.write(fds[0], data) :]
        for fd in fds:
            os.close(fd)  # some file systems say here what they could not keep
        end.send(b"done")
    except OSError as error:
        with contextlib.suppress(OSError):
            end.send((error.strerror or str(error)).encode())
    finally:
        os._exit(0)
