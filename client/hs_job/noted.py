"""How many mini-batches a rank has done, and for want of how much memory it ended, in a file that the agent reads when the job has ended: it may not have been there to be told (docs/job-folder.md)."""

from __future__ import annotations

import os

RECORD_BYTES = 32
_MOST = 10**15


class Noted:
    """A record for each rank, at its number. Nothing that goes wrong here is the script's affair."""

    def __init__(self, path: str) -> None:
        """`path`: "": none was made."""
        self._path = path
        self._fd = -1
        self._rank = -1  # whose record is this process's
        self._said = (-1, 0)

    def note(self, rank: int, step: int, needs_bytes: int = 0) -> None:
        """`needs_bytes`: of its device; 0: it has not run out of that."""
        said = (step, min(needs_bytes, _MOST - 1))
        if (rank, said) == (self._rank, self._said) or not (self._path and 0 <= step < _MOST):
            return
        try:
            if rank != self._rank:
                self._claim(rank)
            os.pwrite(self._fd, b"%15d %15d\n" % said, rank * RECORD_BYTES)
        except Exception:  # not shown in its container; its rank's other process has it; a full disk
            return
        self._said = said

    def _claim(self, rank: int) -> None:
        """Of several processes that say they are this rank the first counts, for as long as it lives."""
        import fcntl

        if self._fd < 0:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_NOFOLLOW)
        fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, RECORD_BYTES, rank * RECORD_BYTES)
        self._rank = rank
