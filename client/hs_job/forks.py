"""Whether this process is a fork server of multiprocessing's: what Python 3.14 starts others from where a script says nothing."""

from __future__ import annotations

import sys
from typing import Any


def are_served() -> bool:
    """It is, and no process that was forked of one. Such a server imports what its script does, torch too, but trains nothing and works for nobody."""
    server: Any = sys.modules.get("multiprocessing.forkserver")
    frame: Any = sys._getframe() if server is not None else None  # noqa: SLF001 - documented so
    while frame is not None:
        if frame.f_code is server._serve_one.__code__:  # noqa: SLF001 - where those begin that were forked of it
            return False
        if frame.f_code is server.main.__code__:
            return True
        frame = frame.f_back
    return False
