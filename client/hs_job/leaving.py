"""How a process leaves whose state is durable."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import stat
import sys
from typing import Iterator

LEFT_ON_PURPOSE = 75
EXIT = os._exit
"""Without the last word of a runtime that has begun."""
_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Nothing of the script's runs any more, whoever ends it: its host, as it is wanted elsewhere by now, or the process that has spawned it and left before (torch has that send SIGINT)."""
    kept = {}
    with contextlib.suppress(ValueError):  # not in the main thread
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not None:  # else it could not be put back
                kept[number] = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def end_workers() -> None:
    """A DataLoader's would outlive us by seconds."""
    with contextlib.suppress(ValueError):  # not in the main thread
        # torch raises where one of them is killed: we would leave as if we had failed.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    workers = sys.modules.get("multiprocessing.process")
    for child in workers.active_children() if workers is not None else ():
        child.kill()


def remove_sockets() -> None:
    """To a DataLoader's workers: multiprocessing keeps them in a folder that it removes at exit, and whoever leaves as we do leaves it behind each time."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is None or processes.parent_process() is not None:
        return  # a child's is its parent's
    folder = getattr(processes.current_process(), "_config", {}).get("tempdir")
    if folder:
        from shutil import rmtree

        rmtree(folder, ignore_errors=True)


def remove_semaphores() -> None:
    """Of locks that processes share which were spawned, as a DataLoader's workers may be: multiprocessing says of those that are left that they leaked, in the job's log."""
    util, locks = (sys.modules.get(f"multiprocessing.{name}") for name in ("util", "synchronize"))
    if util is None or locks is None:
        return
    for each in list(util._finalizer_registry.values()):  # noqa: SLF001 - there is no public way to some of them
        if each._callback is locks.SemLock._cleanup:  # noqa: SLF001 - likewise
            each()


def works_for_a_loader() -> bool:
    """This process is a DataLoader's worker, started and not forked. It ends with who trains: torch would call its leaving by itself a failure."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def flush_files() -> None:
    """What a script has written of its batches so far: they are not trained on again."""
    for thing in gc.get_objects():
        if type(thing) in _BUFFERED:
            with contextlib.suppress(Exception):  # closed, or its disk is full
                if stat.S_ISREG(os.fstat(thing.fileno()).st_mode):
                    thing.flush()


def hush() -> None:
    """Nothing is logged any more."""
    logs = sys.modules.get("logging")
    if logs is not None:
        logs.disable(logs.CRITICAL)


def vanish() -> None:
    """Without running user code."""
    flush_files()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(Exception):  # nothing may keep us
        remove_sockets()
        remove_semaphores()
    EXIT(LEFT_ON_PURPOSE)
