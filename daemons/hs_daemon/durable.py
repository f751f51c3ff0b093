"""Files that a power cut does not take back."""

import os
from pathlib import Path


def write_new(file: Path, data: bytes) -> None:
    """Its owner's alone. Raises FileExistsError where there is one. Its name lasts only when `sync_folder` has been called, too."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())


def sync_folder(folder: Path) -> None:
    """What was made, renamed and removed in it."""
    there = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(there)
    finally:
        os.close(there)
