"""Whether there is something, where a disk that cannot be read is not one that has nothing.

`Path.exists` and its like answer False from Python 3.14 on whatever goes wrong: a daemon would begin afresh where it cannot look at what it has.
"""

import errno
import stat
from pathlib import Path

_NOTHING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP})


def exists(path: Path) -> bool:
    """A link counts as what it leads to. Raises OSError where it cannot be known."""
    return _mode(path) is not None


def is_dir(path: Path) -> bool:
    """As `exists` has it."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def is_file(path: Path) -> bool:
    """As `exists` has it: a plain one."""
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode)


def _mode(path: Path) -> int | None:
    """None: there is nothing, and with such a name there cannot be."""
    try:
        return path.stat().st_mode
    except OSError as error:
        if error.errno in _NOTHING:
            return None
        raise
    except ValueError:  # a NUL
        return None
