"""The daemons' logs: who reads them is not waited for."""

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from hs_daemon import logs

LINES = 3_000
LOST = "lines of this log are lost: nobody had read on for a while"
TEXT = "x" * 5_000  # more than is written at once


@pytest.fixture(params=["pipe", "socket"])
def read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end from which this process' log is read."""
    if request.param == "pipe":
        read, write = os.pipe()
    else:
        read, write = (one.detach() for one in socket.socketpair())  # as journald's is
    monkeypatch.setattr(logs, "PATIENCE_MS", 50)
    with os.fdopen(write, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        logs.set_up()
        yield read
    os.close(read)


def read_all(end: int) -> list[str]:
    os.set_blocking(end, False)
    data = b""
    try:
        while more := os.read(end, 1 << 20):
            data += more
    except BlockingIOError:
        pass
    return data.decode().splitlines()


def whole(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def test_a_log_that_nobody_reads_holds_nobody_up_and_says_how_many_lines_are_lost_once_it_is_read(
    read: int,
) -> None:
    log = structlog.get_logger()
    begun_s = time.monotonic()
    for number in range(LINES):
        log.info("said", number=number, text=TEXT)
    assert time.monotonic() - begun_s < 20, "it is waited for once"
    before = read_all(read)
    kept = [json.loads(line)["number"] for line in before if whole(line)]
    assert kept == list(range(len(kept)))
    log.info("read again")
    after = read_all(read)
    told, last = (json.loads(line) for line in after if whole(line))
    assert (told["event"], told["lines"], told["level"]) == (LOST, LINES - len(kept), "warning")
    assert last["event"] == "read again"
    cut_off = [line for line in (*before, *after) if line and not whole(line)]
    assert len(cut_off) <= 1, "the line that it had begun with; what comes next is a line of its own"


def test_a_log_that_is_read_loses_nothing_however_long_its_lines_are(read: int) -> None:
    log = structlog.get_logger()
    for number in range(20):
        log.info("said", number=number, text=TEXT)
        (line,) = read_all(read)
        assert (json.loads(line)["number"], json.loads(line)["text"]) == (number, TEXT)


def test_a_log_file_that_is_cut_to_nothing_begins_anew_also_where_it_was_not_opened_to_be_appended_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `copytruncate` rotates what `hs-controller 2> file` has opened."""
    file = tmp_path / "log"
    with file.open("w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        logs.set_up()
        log = structlog.get_logger()
        log.info("said before")
        assert file.stat().st_size > 0
        os.truncate(file, 0)
        log.info("said after")
    assert [json.loads(line)["event"] for line in file.read_text().splitlines()] == ["said after"]
