"""Logs to standard error: events with keys, a line each; under systemd with their level, as the journal keeps it."""

import contextlib
import io
import logging
import os
import sys
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, WrappedLogger

from hs_daemon.journal import PRIORITIES, journal_reads


class _Lossy(io.TextIOBase):
    """Lines that nobody could write are lost: a full disk under the log is no reason to stop. Nothing is kept for later, which would fail at exit."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, text: str) -> int:
        data = text.encode(errors="backslashreplace")
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._fd, data) :]
        return len(text)


def set_up() -> None:
    """JSON for journald, key=value in colours for people on a terminal."""
    people = sys.stderr.isatty()
    render: structlog.typing.Processor = structlog.processors.JSONRenderer(ensure_ascii=False)
    if people:
        render = structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(() if people else (structlog.processors.format_exc_info, _event_first)),
            render,
            *((_with_priority,) if journal_reads(sys.stderr.fileno()) else ()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Lossy(sys.stderr.fileno()))),
        cache_logger_on_first_use=True,
    )


def _event_first(_logger: WrappedLogger, _method: str, said: EventDict) -> EventDict:
    return {"event": said.pop("event"), **said}


def _with_priority(_logger: WrappedLogger, method: str, line: str) -> str:
    return f"<{PRIORITIES[method]}>{line}"
