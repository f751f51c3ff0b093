"""Lines for people and for systemd's journal, which takes their level from how they begin. Standard library only: said also where packages are missing."""

import contextlib
import os
import sys

PRIORITIES = {"critical": 2, "error": 3, "exception": 3, "warning": 4, "info": 6, "debug": 7}  # syslog's


def complain(text: str) -> None:
    """Why a daemon does not start, in plain words: to people and, as an error, to the journal."""
    with contextlib.suppress(OSError):
        mark = f"<{PRIORITIES['error']}>" if journal_reads(sys.stderr.fileno()) else ""
        sys.stderr.write(f"{mark}{text}\n")
        sys.stderr.flush()


def journal_reads(fd: int) -> bool:
    """systemd says which stream is the journal's; what is started from a service may have been sent elsewhere since."""
    with contextlib.suppress(OSError):
        stream = os.fstat(fd)
        return os.environ.get("JOURNAL_STREAM", "") == f"{stream.st_dev}:{stream.st_ino}"
    return False
