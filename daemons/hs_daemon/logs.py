"""Logs to standard error: events with keys, a line each; under systemd with their level, as the journal keeps it."""

import contextlib
import fcntl
import io
import logging
import os
import select
import stat
import sys
from collections.abc import Callable
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, WrappedLogger

from hs_daemon.journal import PRIORITIES, journal_reads

PATIENCE_MS = 1000
"""With who reads the log, and has not for a while; then it is not waited for again before it reads on."""


class _Lossy(io.TextIOBase):
    """Lines that nobody could write are lost, as those that nobody reads: neither a full disk under the log nor a journald that stands still is a reason to stop. Nothing is kept for later, which would fail at exit."""

    def __init__(self, fd: int, told: Callable[[int], str]) -> None:
        """`told`: the line that says how many are lost."""
        self._fd, self._told = fd, told
        mode = os.fstat(fd).st_mode
        # What holds only so much until it is read takes as much as this without a wait, once it is said to take anything.
        self._at_once = select.PIPE_BUF if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None
        self._room = select.poll()
        self._room.register(fd, select.POLLOUT)
        self._lost, self._amid = 0, False
        if stat.S_ISREG(mode):
            # Else who rotates it by cutting it to nothing finds a hole where it was before.
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)

    def write(self, text: str) -> int:
        if self._lost and self._takes():
            lost, self._lost = self._lost, 0
            self._write(self._told(lost))
        self._write(text)
        return len(text)

    def _write(self, text: str) -> None:
        data = b"\n" * self._amid + text.encode(errors="backslashreplace")
        with contextlib.suppress(OSError):
            while data:
                if not self._takes():
                    self._lost += 1
                    break
                data = data[os.write(self._fd, data[: self._at_once]) :]
                self._amid = bool(data)

    def _takes(self) -> bool:
        return bool(self._room.poll(0 if self._lost else PATIENCE_MS))


def set_up() -> None:
    """JSON for journald, key=value in colours for people on a terminal."""
    people = sys.stderr.isatty()
    render: structlog.typing.Processor = structlog.processors.JSONRenderer(ensure_ascii=False)
    if people:
        render = structlog.dev.ConsoleRenderer()
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *(() if people else (structlog.processors.format_exc_info, _event_first)),
        render,
        *((_with_priority,) if journal_reads(sys.stderr.fileno()) else ()),
    ]

    def told(lost: int) -> str:
        # Not by a logger: it is in the middle of another's line.
        line: Any = {"event": "lines of this log are lost: nobody had read on for a while", "lines": lost}
        for process in processors:
            line = process(None, "warning", line)
        return f"{line}\n"

    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Lossy(sys.stderr.fileno(), told))),
        cache_logger_on_first_use=True,
    )


def _event_first(_logger: WrappedLogger, _method: str, said: EventDict) -> EventDict:
    return {"event": said.pop("event"), **said}


def _with_priority(_logger: WrappedLogger, method: str, line: str) -> str:
    return f"<{PRIORITIES[method]}>{line}"
