"""Files of a checkpoint's folder: written under another name until they are durable, read through no link, and verified before they are believed."""
# One place turns errors into reasons:
# ruff: noqa: TRY301

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
from typing import Any, Dict, Iterator, Optional

_MAX_JSON = 1 << 20
_CHUNK = 1 << 20


class TornError(Exception):
    """A generation that does not hold what its manifest says, or has none."""


class Sink:
    """Takes what torch.save writes. An error is kept and raised later: raised from inside, torch's writer would abort the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._digest = hashlib.sha256()
        self.size = 0
        self.error: Optional[OSError] = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self.error is None:
            try:
                rest = view
                while rest.nbytes:
                    rest = rest[os.write(self._fd, rest) :]
                self._digest.update(view)
                self.size += view.nbytes
            except OSError as error:
                self.error = error
        return view.nbytes

    def flush(self) -> None:
        pass

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


@contextlib.contextmanager
def opened(name: str, at: Optional[int] = None, *, links: bool = True) -> Iterator[int]:
    fd = os.open(
        name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW), dir_fd=at
    )
    try:
        yield fd
    finally:
        os.close(fd)


def exists(here: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=here, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def new_file(here: int, name: str) -> Iterator[int]:
    """Under a temporary name until it is durable."""
    temporary = f"{name}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=here)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=here)
    try:
        yield fd
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, name, src_dir_fd=here, dst_dir_fd=here)
    os.fsync(here)


def write_json(here: int, name: str, value: Dict[str, Any]) -> None:
    with new_file(here, name) as fd:
        data = json.dumps(value).encode()
        while data:
            data = data[os.write(fd, data) :]


def read_small(folder: str, name: str, *, links: bool = False) -> Optional[Dict[str, Any]]:
    """None: there is no such file. `links`: the folder may be one."""
    try:
        with opened(folder, links=links) as here:
            return read_json(here, name)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def _open_regular(here: int, name: str) -> int:
    # Non-blocking: a FIFO in its place must not hold us.
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=here)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise TornError(f"{name} is no regular file")
    return fd


def read_json(here: int, name: str) -> Dict[str, Any]:
    fd = _open_regular(here, name)
    with os.fdopen(fd, "rb") as file:
        data = file.read(_MAX_JSON + 1)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TornError(f"{name} is no JSON: {error}") from None
    if len(data) > _MAX_JSON or not isinstance(value, dict):
        raise TornError(f"{name} is not what was written")
    return value


def open_verified(here: int, expected: Dict[str, Any]) -> int:
    """Open, and what the manifest says it is: what is loaded later is what was verified."""
    name = str(expected["name"])
    fd = _open_regular(here, name)
    try:
        size = os.fstat(fd).st_size
        if size != expected.get("size"):
            raise TornError(f"{name} has {size} bytes; expected {expected.get('size')!r}")
        digest = hashlib.sha256()
        while True:
            data = os.read(fd, _CHUNK)
            if not data:
                break
            digest.update(data)
        if digest.hexdigest() != expected.get("sha256"):
            raise TornError(f"{name} has another SHA-256 than its manifest says")
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd
