"""Reading jobs' logs for people: the tail, then what comes, across the turn from `log` to `log.1`."""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import BinaryIO

from hs_agent.folder import parse_key
from hs_core.names import JobId

CHUNK = 64 << 10
POLL_S = 0.25
MOMENTS = 100
_NOTE = re.compile(rb"\[heteroshare: \d+ bytes of earlier output were dropped\]\n")
_NOTE_BYTES = 128  # at most


def found(job: JobId, *roots: Path) -> dict[int, Path]:
    """By incarnation, the folders of the job that have a log on this host."""
    there: dict[int, Path] = {}
    for root in roots:
        with contextlib.suppress(OSError):
            for entry in os.scandir(root):
                key, path = parse_key(entry.name), Path(entry.path)
                # A folder whose log has moved to the ended ones stays for a moment.
                if (
                    key is not None
                    and key.job == job
                    and ((path / "log").exists() or (path / "log.1").exists())
                ):
                    there.setdefault(key.epoch, path)
    return there


def _open(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except OSError:
        return None


def _together(folder: Path, tries: int = MOMENTS) -> list[BinaryIO]:
    """`log.1` and `log` of one moment, if it lasts for long enough: a job that floods its log turns it often."""
    newest, older = _open(folder / "log"), _open(folder / "log.1")
    found = [file for file in (older, newest) if file]
    if tries == 1 or newest is None or _is_at(newest, folder / "log"):
        return found
    for file in found:
        file.close()
    return _together(folder, tries - 1)


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Still, or nothing is there just now."""
    try:
        found = path.stat()
    except OSError:
        return True
    own = os.fstat(file.fileno())
    return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)


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


def _note(file: BinaryIO) -> bytes:
    """The line at its head that says how much was dropped: of what came before `log.1`."""
    found = _NOTE.match(os.pread(file.fileno(), _NOTE_BYTES, 0))
    return found[0] if found else b""


class _Both:
    """`log.1` and `log` as one text, and before it the newest note of what was dropped."""

    def __init__(self, folder: Path) -> None:
        self.files = _together(folder)
        notes = [_note(file) for file in self.files]
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

    def close(self) -> None:
        for file in self.files:
            file.close()


async def read(
    folder: Path,
    tail_lines: int,
    *,
    follow: bool,
    alive: Callable[[], bool],
    where: Callable[[], Path | None] | None = None,
) -> AsyncGenerator[bytes, None]:
    """Chunks of at most 64 KiB. Following ends when the job has ended and all was read.

    `where`: the job's folder as it is now: it moves when the job has ended, and that may be before there was a log to open.
    """
    both = _Both(folder)
    current: BinaryIO | None = (
        os.fdopen(os.dup(both.files[-1].fileno()), "rb") if follow and both.files else None
    )
    try:
        size = both.size
        position = (
            0 if tail_lines < 0 else size if tail_lines == 0 else tail_start(both.read, size, tail_lines)
        )
        while position < size:
            chunk = both.read(position, min(CHUNK, size - position))
            if not chunk:
                break
            position += len(chunk)
            yield chunk
        offset = both.sizes[-1] if both.sizes else 0
    finally:
        both.close()
    try:
        while follow:
            was_alive = alive()
            while current is not None and (chunk := os.pread(current.fileno(), CHUNK, offset)):
                offset += len(chunk)
                yield chunk
            turned = _turned(current, where or (lambda: folder))
            if turned is not None:
                # Read the rest of the old one first: it may have grown since.
                while current is not None and (chunk := os.pread(current.fileno(), CHUNK, offset)):
                    offset += len(chunk)
                    yield chunk
                if current is not None:
                    current.close()
                current, offset = turned
                continue
            if not was_alive:
                return
            await asyncio.sleep(POLL_S)
    finally:
        if current is not None:
            current.close()


def _turned(current: BinaryIO | None, where: Callable[[], Path | None]) -> tuple[BinaryIO, int] | None:
    """What comes after the one that is open, once that is no longer `log` (or there was none yet), and where in it to go on."""
    while (folder := where()) is not None:
        newest, older = folder / "log", folder / "log.1"
        if not newest.exists():
            if where() != folder:
                continue  # it moved between the two
            return None
        if current is None:
            return _begin(newest, skip_note=False)
        if _is_at(current, newest):
            return None
        if not older.exists() or _is_at(current, older):
            return _begin(newest, skip_note=True)  # what was dropped has been read here
        return _begin(older, skip_note=False)  # it turned more than once, and what is gone by now is told
    return None


def _begin(path: Path, *, skip_note: bool) -> tuple[BinaryIO, int] | None:
    file = _open(path)
    return None if file is None else (file, len(_note(file)) if skip_note else 0)
