"""How far a job's ranks note that they got, and what they lacked (hs_job.noted), in a file of the job's user in a folder that is not theirs (docs/job-folder.md)."""

import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from hs_core.gang.messages import MAX_RANKS

RECORD_BYTES = 32
ROOM_BYTES = 4096
_RECORD = re.compile(rb" {0,14}([0-9]{1,15}) {1,15}([0-9]{1,15})\n")
_EMPTY = bytes(RECORD_BYTES)


class Word(NamedTuple):
    step: int = -1  # mini-batches that all ranks here have done, as they say; -1: none does
    needs_bytes: int = 0  # of each of its GPUs, of the rank that lacked most as it ended; 0: none did


NOTHING = Word()


def make(path: Path, uid: int, gid: int) -> None:
    """With room, so that a full disk takes no note away."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, ROOM_BYTES)
        if os.geteuid() == 0:
            os.fchown(fd, uid, gid)
    finally:
        os.close(fd)


def noted(path: Path) -> Word:
    """`NOTHING` where it makes no sense.

    Written by the job: nothing in it is believed unseen.
    """
    try:
        # Not to wait for a lease on it that its owner may have taken.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return NOTHING
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return NOTHING
        data = os.read(fd, MAX_RANKS * RECORD_BYTES)
    except OSError:
        return NOTHING
    finally:
        os.close(fd)
    records = [data[at : at + RECORD_BYTES] for at in range(0, len(data), RECORD_BYTES)]
    said = [_RECORD.fullmatch(record) for record in records if record != _EMPTY]
    words = [Word(*map(int, record.groups())) for record in said if record and len(record[0]) == RECORD_BYTES]
    if not words or len(words) < len(said):
        return NOTHING
    return Word(min(word.step for word in words), max(word.needs_bytes for word in words))
