"""A job's output, capped."""
# pathlib would add to the memory of every job:
# ruff: noqa: PTH104, PTH110, PTH116, PTH118

import contextlib
import os

from hs_agent.bare.times import Times


class Log:
    """Two halves of the limit: `log` grows to a half and becomes `log.1`; what that pushed out is counted. Each has its `.times`."""

    def __init__(self, folder: str, limit: int) -> None:
        self.path, self.older = os.path.join(folder, "log"), os.path.join(folder, "log.1")
        self.control = os.path.join(folder, "control")
        self.half = max(limit // 2, 4096)
        self.dropped = 0
        self.fd = self.open(self.path)
        self.size = os.fstat(self.fd).st_size
        self.times = Times(f"{self.path}.times", self.fd)

    def open(self, path: str) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(path, flags, 0o600)

    def turn(self) -> None:
        """The new one is made before the old one is given up: where a full disk has no room for it, all stays as it is until it has."""
        fresh, pushed_out = self.open(f"{self.path}.next"), 0
        with contextlib.suppress(OSError):
            pushed_out = os.stat(self.older).st_size
        try:
            os.rename(self.path, self.older)
            os.rename(f"{self.path}.next", self.path)
        except OSError:
            os.close(fresh)
            raise
        os.close(self.fd)
        self.fd, self.size = fresh, 0
        with contextlib.suppress(OSError):  # whose times they are they say themselves
            os.rename(f"{self.path}.times", f"{self.older}.times")
        self.times = Times(f"{self.path}.times", fresh)
        self.dropped += pushed_out
        self.say_what_was_dropped()

    def append(self, data: bytes) -> None:
        """A full disk loses output, never the job."""
        self.times.note(self.size)
        try:
            written = os.write(self.fd, data)
        except OSError:
            written = 0
        self.size += written
        self.dropped += len(data) - written

    def begin_anew(self) -> None:
        """Somebody has removed it, to make room perhaps: what it held is dropped."""
        fresh = self.open(self.path)
        os.close(self.fd)
        self.dropped += self.size
        self.fd, self.size = fresh, 0
        self.times = Times(f"{self.path}.times", fresh)
        self.say_what_was_dropped()

    def say_what_was_dropped(self) -> None:
        if self.dropped:
            self.append(f"[heteroshare: {self.dropped} bytes of earlier output were dropped]\n".encode())

    def write(self, data: bytes) -> None:
        # Whoever removes all of its folder is not kept from that.
        if os.fstat(self.fd).st_nlink == 0 and os.path.exists(self.control):
            with contextlib.suppress(OSError):
                self.begin_anew()
        while data:
            if self.size >= self.half:
                try:
                    self.turn()
                except OSError:
                    self.dropped += len(data)
                    return
            room = max(self.half - self.size, 1)
            self.append(data[:room])
            data = data[room:]
