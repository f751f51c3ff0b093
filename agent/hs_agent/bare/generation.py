"""A generation of a job's checkpoints where it lies: files whose folder is the job's user's, and so are its traps."""
# Descriptors of folders and O_NOFOLLOW are os:
# ruff: noqa: PTH208

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any

from hs_agent.bare.frames import CHUNK, TornError

MAX_MANIFEST = 1 << 20
MAX_FILES = 4096
SIGN_EVERY_S = 5.0  # while there is nothing to send yet: the other side does not wait for who is silent
RANK_FILE = re.compile(r"rank(0|[1-9][0-9]{0,5})\.pt")
GENERATION = re.compile(r"gen-(0|[1-9][0-9]{0,17})")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_READ = (
    os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
)  # a FIFO in a file's place must not hold us
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


# --- reading -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def folder(name: str, at: int | None = None, *, links: bool = True) -> Iterator[int]:
    fd = os.open(name, _FOLDER | (0 if links else os.O_NOFOLLOW), dir_fd=at)
    try:
        yield fd
    finally:
        os.close(fd)


def open_regular(here: int, name: str, flags: int = _READ) -> int:
    fd = os.open(name, flags, 0o600, dir_fd=here)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise TornError(f"{name} is no regular file")
    return fd


def read_small(here: int, name: str) -> bytes:
    fd = open_regular(here, name)
    with os.fdopen(fd, "rb") as file:
        data = file.read(MAX_MANIFEST + 1)
    if len(data) > MAX_MANIFEST:
        raise TornError(f"{name} is larger than {MAX_MANIFEST} bytes")
    return data


def digest_of(fd: int, size: int, sign: Callable[[], None] = lambda: None) -> Any:
    """SHA-256 of the first `size` bytes, to go on with; a sign now and then that it is at it."""
    digest, at, signed_s = hashlib.sha256(), 0, time.monotonic()
    while at < size and (data := os.pread(fd, min(CHUNK, size - at), at)):
        digest.update(data)
        at += len(data)
        if time.monotonic() - signed_s >= SIGN_EVERY_S:
            signed_s = time.monotonic()
            sign()
    if at < size:
        raise TornError("it is shorter than it should be")
    return digest


def files_of(manifest: bytes, generation: int) -> tuple[dict[str, tuple[int, str]], int]:
    """Size and SHA-256 by name, and the step. Written by the job: nothing in it is believed unseen."""
    try:
        value = json.loads(manifest)
        if value["generation"] != generation:
            raise TornError(f"its manifest is of generation {value['generation']!r}")
        step = value["step"]
        files = {str(each["name"]): (each["size"], each["sha256"]) for each in value["files"]}
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise TornError(f"its manifest makes no sense: {type(error).__name__}: {error}") from None
    if not 0 < len(files) <= MAX_FILES or type(step) is not int or not 0 <= step < 1 << 63:
        raise TornError(f"its manifest names {len(files)} files at step {step!r}")
    for name, (size, digest) in files.items():
        if not RANK_FILE.fullmatch(name):
            raise TornError(f"its manifest names {name!r}: expected rank<number>.pt")
        if type(size) is not int or not 0 <= size < 1 << 62 or not _DIGEST.fullmatch(str(digest)):
            raise TornError(f"its manifest says of {name} size {size!r} and SHA-256 {digest!r}")
    if total(files) >= 1 << 62:  # more than any message has room for, and any disk
        raise TornError(f"its manifest says that it takes {total(files)} bytes")
    return files, step


def total(files: dict[str, tuple[int, str]]) -> int:
    """Bytes of all of them."""
    return sum(size for size, _ in files.values())


def expect(here: int, files: dict[str, tuple[int, str]]) -> None:
    """They are there, of the sizes that their manifest says. Raises TornError, OSError."""
    for name, (size, _) in files.items():
        fd = open_regular(here, name)
        try:
            there = os.fstat(fd).st_size
        finally:
            os.close(fd)
        if there != size:
            raise TornError(f"{name} has {there} bytes; expected {size}")


# --- writing -----------------------------------------------------------------------------------------------------------


def check_room(here: int, needed: int) -> None:
    room = os.fstatvfs(here)
    if needed > room.f_bavail * room.f_frsize:
        free = room.f_bavail * room.f_frsize
        raise OSError(errno.ENOSPC, f"it takes {needed} bytes; {free} are free here")


def write_whole(here: int, name: str, data: bytes) -> None:
    temporary = f"{name}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=here)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=here), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, name, src_dir_fd=here, dst_dir_fd=here)
    os.fsync(here)


def clear_others(root: int, generation: int) -> None:
    """Generations of an earlier stay, which the job has left behind elsewhere: nobody may fall back to them."""
    for other in os.listdir(root):
        if GENERATION.fullmatch(other) and other != f"gen-{generation}":
            with contextlib.suppress(OSError), folder(other, root, links=False) as here:
                for name in os.listdir(here):
                    os.unlink(name, dir_fd=here)
                os.rmdir(other, dir_fd=root)
