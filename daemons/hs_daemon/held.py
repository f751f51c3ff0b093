"""A state folder is one process's at a time."""

import contextlib
import errno
import fcntl
import os
from pathlib import Path

NOTE = "lock"  # in the folder: the number of the process that has it, for people


class HeldError(Exception):
    """Another process has it."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


def hold(folder: Path) -> int:
    """The folder's lock, held until the descriptor is closed, which the system does when the process ends however it ends. Raises HeldError, OSError.

    It is the folder's own: of a file in it that somebody removes the next process would make another.
    """
    note = os.open(folder / NOTE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            lock = _locked(lock, note)
        except BaseException as error:
            os.close(lock)
            if isinstance(error, BlockingIOError):
                raise HeldError(os.pread(note, 32, 0).decode(errors="replace").strip() or "unknown") from None
            raise
        with contextlib.suppress(OSError):  # a full disk
            os.ftruncate(note, 0)
            os.pwrite(note, f"{os.getpid()}\n".encode(), 0)
    finally:
        os.close(note)
    return lock


def _locked(lock: int, note: int) -> int:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP}:
            raise
        # On NFS only what can be written can be locked.
        fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.dup2(note, lock, inheritable=False)
    return lock
