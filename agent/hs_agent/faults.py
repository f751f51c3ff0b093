"""Errors for which a host is to blame, and no job."""

import errno

NO_ROOM = frozenset(
    {
        errno.ENOSPC,
        errno.EROFS,
        errno.EIO,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
        errno.EAGAIN,
    }
)
"""On its disks, for descriptors, or for processes."""

OF_STARTS = NO_ROOM | {
    errno.EDQUOT,
    errno.EACCES,
    errno.EPERM,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ESTALE,
}
"""Those that a start fails with before anything of the job's own is touched: all of its folders are the agent's."""
