"""When a log was written: beside it a small file with one record for each second in which something was, as far as there is room."""
# pathlib would add to the memory of every job:
# ruff: noqa: PTH105, PTH123

import contextlib
import os
import struct
import time
from array import array

FINEST_S = 1.0
RECORDS = (
    4096  # that a file holds; beyond, every other one or so is dropped and the rest says less exactly when
)
HEAD = struct.Struct("<36s4xQdd")  # boot id; the log's inode; wall clock less boot clock; seconds
RECORD = struct.Struct("<dQ")  # from this offset on it was written at this time of the boot clock, or later


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


class Times:
    """Of one log file. What is between two records was written within `finest_s` of the first one's time.

    By the boot clock, which nobody sets; how far the wall clock is from it is looked at once, for readers after another boot.
    """

    def __init__(self, path: str, fd: int) -> None:
        """`fd`: the log. What is known of it is read, and gone on with."""
        self.path = path
        self.inode = os.fstat(fd).st_ino
        self.ahead_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        self.finest_s = FINEST_S
        self.at_s, self.offsets = array("d"), array("Q")
        self.written = -1  # records that the file has; below 0: it is to be written anew
        found = read(path)
        if found is not None and found.inode == self.inode:
            # Started again after another boot: as if that clock had gone on.
            shift_s = 0.0 if found.boot_id == boot_id() else found.ahead_s - self.ahead_s
            self.finest_s, self.offsets = found.finest_s, found.offsets
            self.at_s = array("d", (at_s + shift_s for at_s in found.at_s))

    def note(self, offset: int) -> None:
        """What follows is about to be written there. A full disk loses times, as it does output."""
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        if not self.at_s or now_s - self.at_s[-1] >= self.finest_s:
            if len(self.at_s) >= RECORDS:
                self.thin_out()
            self.at_s.append(now_s)
            self.offsets.append(offset)
        if self.written != len(self.at_s):
            with contextlib.suppress(OSError):
                self.keep()

    def thin_out(self) -> None:
        """Who is left out has another one so shortly before it that it is as good."""
        while len(self.at_s) > RECORDS // 2:
            self.finest_s *= 2
            at_s, offsets = array("d"), array("Q")
            for when_s, offset in zip(self.at_s, self.offsets, strict=True):
                if not at_s or when_s - at_s[-1] >= self.finest_s:
                    at_s.append(when_s)
                    offsets.append(offset)
            self.at_s, self.offsets = at_s, offsets
        self.written = -1

    def keep(self) -> None:
        if self.written < 0:
            self.keep_all()
            return
        data = self.packed(self.written)
        fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.pwrite(fd, data, HEAD.size + RECORD.size * self.written) == len(data):
                self.written = len(self.at_s)
        finally:
            os.close(fd)

    def keep_all(self) -> None:
        fresh = f"{self.path}.next"
        head = HEAD.pack(boot_id().encode(), self.inode, self.ahead_s, self.finest_s)
        data = head + self.packed(0)
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            whole = os.write(fd, data) == len(data)
        finally:
            os.close(fd)
        if whole:
            os.replace(fresh, self.path)
            self.written = len(self.at_s)

    def packed(self, begin: int) -> bytes:
        return b"".join(map(RECORD.pack, self.at_s[begin:], self.offsets[begin:]))


class Found:
    """What a file of times says."""

    def __init__(self, data: bytes) -> None:
        boot, self.inode, self.ahead_s, self.finest_s = HEAD.unpack_from(data)
        self.boot_id = boot.decode("ascii", "replace")
        self.at_s, self.offsets = array("d"), array("Q")
        whole = (len(data) - HEAD.size) // RECORD.size * RECORD.size
        for at_s, offset in RECORD.iter_unpack(data[HEAD.size : HEAD.size + whole]):
            self.at_s.append(at_s)
            self.offsets.append(offset)

    def offset_since(self, ago_s: float) -> int | None:
        """From where on it was written in the last so many seconds: too early by what it cannot tell, never too late. None: nothing was."""
        if self.boot_id == boot_id():
            since_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ago_s
        else:
            since_s = time.time() - ago_s - self.ahead_s
        if self.at_s and since_s <= self.at_s[0]:
            return 0  # also what was written when a full disk had no room for its time
        for at_s, offset in zip(self.at_s, self.offsets, strict=True):
            if at_s + self.finest_s > since_s:
                return offset
        return None


def read(path: str) -> Found | None:
    """None: there is none, or it makes no sense."""
    try:
        with open(path, "rb") as file:
            data = file.read(HEAD.size + RECORD.size * RECORDS)
        return Found(data) if len(data) >= HEAD.size else None
    except OSError:
        return None
