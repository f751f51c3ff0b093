"""A file that is there when it is whole, and its owner's alone."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hs_client.errors import InvalidError
from hs_client.there import exists, is_dir

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})


@contextmanager
def written(path: Path, *, replace: bool) -> Iterator[BinaryIO]:
    """Its name is given to it at the end, whatever ends this before. One that is there stays, but with `replace`."""
    if is_dir(path):
        raise InvalidError(f"{path} is a folder: expected the name of a file")
    if os.path.lexists(path) and not replace:
        raise _is_there(path)
    # As long a name as the file system takes is to be had, too: of four octets a character at most, this one is shorter.
    fresh = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(_nameless(fresh), "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            if not exists(fresh):
                _name(stream.fileno(), fresh)
        if replace:
            fresh.replace(path)
        else:
            _rename_to_new(fresh, path)
    except FileExistsError:
        raise _is_there(path) from None
    except OSError as error:
        raise InvalidError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):  # where nothing could be made nothing can be removed: why is said before
            fresh.unlink(missing_ok=True)


def _is_there(path: Path) -> InvalidError:
    return InvalidError(f"{path} is there already: expected a new name")


def _nameless(fresh: Path) -> int:
    """A file that is gone with its process, where the file system has such; else one of that name."""
    with suppress(AttributeError, OSError):  # not on Linux; a file system without
        return os.open(fresh.parent, os.O_WRONLY | os.O_TMPFILE, 0o600)
    return os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def _name(handle: int, fresh: Path) -> None:
    folder = os.open(fresh.parent, os.O_RDONLY)
    try:  # without a folder's descriptor Python would link the link that /proc has
        os.link(f"/proc/self/fd/{handle}", fresh.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _rename_to_new(fresh: Path, path: Path) -> None:
    """Raises FileExistsError where somebody has put another there meanwhile."""
    try:
        path.hardlink_to(fresh)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        fresh.rename(path)
