"""Reading jobs' logs for people: the tail, or what was written since, then what comes, across the turn from `log` to `log.1`."""

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hs_agent.bare import times
from hs_agent.folder import parse_key
from hs_core.names import JobId
from hs_daemon.there import exists

CHUNK = 64 << 10
POLL_S = 0.25
MAX_LINE = 4096  # of which one that was begun before is shown whole
_NOTE = re.compile(rb"\[heteroshare: (\d+) bytes of earlier output were dropped\]\n")
_NOTE_BYTES = 128  # at most


def found(job: JobId, *roots: Path) -> dict[int, Path]:
    """By incarnation, the folders of the job that have a log on this host."""
    there: dict[int, Path] = {}
    for root in roots:
        with contextlib.suppress(OSError):
            for entry in os.scandir(root):
                key, path = parse_key(entry.name), Path(entry.path)
                if key is not None and key.job == job and (exists(path / "log") or exists(path / "log.1")):
                    there.setdefault(key.epoch, path)
    return there


def _open(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None


def tail_start(data_size: Callable[[int, int], bytes], size: int, lines: int) -> int:
    """Offset of the last `lines` lines, found from the end backwards."""
    position, left = size, lines
    while position > 0:
        start = max(position - CHUNK, 0)
        chunk = data_size(start, position - start)
        # The newline that ends the last line starts none.
        at = len(chunk) - (position == size and chunk.endswith(b"\n"))
        found = chunk.count(b"\n", 0, at)
        if found >= left:
            for _ in range(left):
                at = chunk.rfind(b"\n", 0, at)
            return start + at + 1
        position, left = start, left - found
    return 0


def _note(file: BinaryIO) -> tuple[bytes, int]:
    """The line at its head that says how much was dropped, of what came before the file before it; and how much."""
    found = _NOTE.match(os.pread(file.fileno(), _NOTE_BYTES, 0))
    return (found[0], int(found[1])) if found else (b"", 0)


def _halves(folder: Path) -> list[BinaryIO]:
    """`log.1` and `log`, those that are there, and nothing that was said between the two is missing."""
    while True:
        files = [file for file in (_open(folder / "log.1"), _open(folder / "log")) if file]
        try:
            older: os.stat_result | None = (folder / "log.1").stat()
        except OSError:
            older = None
        if older is None or (files and os.path.samestat(os.fstat(files[0].fileno()), older)):
            return files
        for file in files:  # it turned between the two
            file.close()


class _Both:
    """`log.1` and `log` as one text, and before it the newest note of what was dropped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files = _halves(folder)
        notes = [_note(file)[0] for file in self.files]
        self._head = notes[-1] if notes else b""
        self._begins = [len(note) for note in notes]
        self.sizes = [os.fstat(file.fileno()).st_size for file in self.files]

    @property
    def size(self) -> int:
        return len(self._head) + sum(self.sizes) - sum(self._begins)

    def read(self, start: int, length: int) -> bytes:
        data, base = self._head[start : start + length], len(self._head)
        for file, begin, size in zip(self.files, self._begins, self.sizes, strict=True):
            low, high = max(start - base, 0), min(start + length - base, size - begin)
            if low < high:
                data += os.pread(file.fileno(), high - low, begin + low)
            base += size - begin
        return data

    def since(self, ago_s: float) -> int:
        """Where begins what was written in the last so many seconds, with the whole of its first line; the end: nothing was."""
        base = len(self._head)
        for number, (file, begin, size) in enumerate(zip(self.files, self._begins, self.sizes, strict=True)):
            offset = _offset_since(self._folder, file, ago_s)
            if offset is not None and offset < size:
                # All that is kept, and perhaps of what was dropped before: that is said, too.
                return 0 if number == 0 and offset <= begin else self._line_at(base + max(offset - begin, 0))
            base += size - begin
        return self.size

    def _line_at(self, position: int) -> int:
        start = max(position - MAX_LINE, 0)
        before = self.read(start, position - start)
        at = before.rfind(b"\n") + 1
        return start + at if at or start == 0 else position

    def close(self) -> None:
        for file in self.files:
            file.close()


def _offset_since(folder: Path, file: BinaryIO, ago_s: float) -> int | None:
    """In this file, as its times tell; where there are none, it counts whole if anything of it does."""
    about = os.fstat(file.fileno())
    for _ in range(2):  # it may turn between the two looks
        for name in ("log.times", "log.1.times"):
            found = times.read(str(folder / name))
            if found is not None and found.inode == about.st_ino:
                return found.offset_since(ago_s)
    return 0 if about.st_mtime >= time.time() - ago_s else None


@dataclass(frozen=True, slots=True)
class _Half:
    """A file of a log that is read on."""

    file: BinaryIO
    before: int  # bytes of all files before it
    note: bytes
    dropped: int  # of what came before the file before it


class _Follower:
    """What a log still grows by, file after file, however often it turns meanwhile."""

    def __init__(self, both: _Both, where: Callable[[], Path | None]) -> None:
        self._where = where
        self._now: _Half | None = None
        self._next: _Half | None = None
        self._offset = 0
        if both.files:
            self._now = _kept(both.files, len(both.files) - 1)
            self._offset = both.sizes[-1]

    def look(self) -> bool:
        """Whether another file has come after this one: then this one grows no more."""
        while (folder := self._where()) is not None:
            if files := _halves(folder):
                self._look_in(files)
                break
            if self._where() == folder:
                break
            # It moved between the two.
        return self._next is not None

    def _look_in(self, files: list[BinaryIO]) -> None:
        own = None if self._now is None else os.fstat(self._now.file.fileno())
        is_open = [own is not None and os.path.samestat(os.fstat(file.fileno()), own) for file in files]
        at = is_open.index(True) + 1 if True in is_open else 0
        # An empty one is about to get its note.
        if at < len(files) and os.fstat(files[at].fileno()).st_size:
            self._next = _kept(files, at)
        for file in files:
            file.close()

    def read(self) -> bytes:
        """The next of the file that is open."""
        if self._now is None:
            return b""
        chunk = os.pread(self._now.file.fileno(), CHUNK, self._offset)
        self._offset += len(chunk)
        return chunk

    def turn(self) -> None:
        """Over to the file that was found, all of this one having been read."""
        assert self._next is not None
        read = 0 if self._now is None else self._now.before
        # What it says was dropped has been read here, unless that is more.
        self._offset = len(self._next.note) if self._next.dropped == read else 0
        if self._now is not None:
            self._now.file.close()
        self._now, self._next = self._next, None

    def close(self) -> None:
        for half in (self._now, self._next):
            if half is not None:
                half.file.close()


def _kept(files: list[BinaryIO], at: int) -> _Half:
    """One of the two, of its own."""
    dropped = _note(files[-1])[1]
    before = dropped + sum(os.fstat(file.fileno()).st_size for file in files[:-1]) * at
    return _Half(os.fdopen(os.dup(files[at].fileno()), "rb"), before, *_note(files[at]))


async def read(
    folder: Path,
    tail_lines: int,
    *,
    follow: bool,
    alive: Callable[[], bool],
    where: Callable[[], Path | None] | None = None,
    ago_s: float = 0.0,
) -> AsyncGenerator[bytes, None]:
    """Chunks of at most 64 KiB, as fast as they are taken. Following ends when the job has ended and all was read.

    `ago_s`: of these, only what was written in the last so many seconds; 0: whenever that was.

    What the job's log drops while nobody takes more of it is told by a line in its place.
    `where`: the job's folder as it is now: it moves when the job has ended, and that may be before there was a log to open.
    """
    both = _Both(folder)
    follower = _Follower(both, where or (lambda: folder)) if follow else None
    try:
        try:
            size = both.size
            position = (
                0 if tail_lines < 0 else size if tail_lines == 0 else tail_start(both.read, size, tail_lines)
            )
            if ago_s > 0:
                position = max(position, both.since(ago_s))
            while position < size:
                chunk = both.read(position, min(CHUNK, size - position))
                if not chunk:
                    break
                position += len(chunk)
                yield chunk
        finally:
            both.close()
        while follower is not None:
            was_alive, turned = alive(), follower.look()
            while chunk := follower.read():
                yield chunk
            if turned:
                follower.turn()
                continue
            if not was_alive:
                return
            await asyncio.sleep(POLL_S)
    finally:
        if follower is not None:
            follower.close()
