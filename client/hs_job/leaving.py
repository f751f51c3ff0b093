"""How a process leaves whose state is durable."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

LEFT_ON_PURPOSE = 75


def end_workers() -> None:
    """A DataLoader's would outlive us by seconds."""
    with contextlib.suppress(ValueError):  # not in the main thread
        # torch raises where one of them is killed: we would leave as if we had failed.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    workers = sys.modules.get("multiprocessing.process")
    for child in workers.active_children() if workers is not None else ():
        child.kill()


def vanish() -> None:
    """Without running user code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(LEFT_ON_PURPOSE)
