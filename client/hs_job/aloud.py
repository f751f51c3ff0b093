"""What the user is to read, in the job's log. Imports next to nothing."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """One line."""
    try:
        sys.stderr.write(f"heteroshare: {line}\n")
        sys.stderr.flush()
    except Exception:  # a closed stderr is the user's choice
        pass
