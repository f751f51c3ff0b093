"""Whether a folder or a file is its account's alone to change: what a daemon believes lies in it."""

import os
from pathlib import Path


def why_not_ours(path: Path) -> str:
    """With what to do about it; empty: nobody else may put anything into it or take it away. Raises OSError."""
    there = path.stat()
    if there.st_uid not in {0, os.geteuid()}:
        return f"belongs to uid {there.st_uid}, who can change what is in it: chown it to uid {os.geteuid()}"
    if there.st_mode & 0o022:
        return f"others can change what is in it (mode {there.st_mode & 0o7777:04o}): chmod go-w it"
    return ""
