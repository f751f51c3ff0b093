"""A job's output, capped."""
# pathlib would add to the memory of every job:
# ruff: noqa: PTH104, PTH116, PTH118

import contextlib
import os


class Log:
    """Two halves of the limit: `log` grows to a half and becomes `log.1`; what that pushed out is counted."""

    def __init__(self, folder: str, limit: int) -> None:
        self.path, self.older = os.path.join(folder, "log"), os.path.join(folder, "log.1")
        self.half = max(limit // 2, 4096)
        self.dropped = 0
        self.fd = -1
        self.size = 0
        self.open()

    def open(self) -> None:
        self.fd = os.open(
            self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        self.size = os.fstat(self.fd).st_size

    def turn(self) -> None:
        with contextlib.suppress(OSError):
            self.dropped += os.stat(self.older).st_size
        os.rename(self.path, self.older)
        os.close(self.fd)
        self.open()
        if self.dropped:
            self.append(f"[heteroshare: {self.dropped} bytes of earlier output were dropped]\n".encode())

    def append(self, data: bytes) -> None:
        """A full disk loses output, never the job."""
        try:
            written = os.write(self.fd, data)
        except OSError:
            written = 0
        self.size += written
        self.dropped += len(data) - written

    def write(self, data: bytes) -> None:
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
