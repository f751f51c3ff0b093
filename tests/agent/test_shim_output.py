"""What a job says: the log that the shim keeps, and the file that its user named."""

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hs_agent import procs, shim
from hs_agent.bare.log import Log
from hs_agent.folder import Folder
from tests.agent.conftest import PYTHON, Started, begin

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
NOBODY = {"uid": 65534, "gid": 65534, "groups": [65534, 1234]}


def test_output_and_errors_go_to_the_log(shims) -> None:
    started = shims.python("import sys; print('out'); print('err', file=sys.stderr)")
    started.wait()
    assert sorted(started.log().split()) == ["err", "out"]


def test_the_log_never_outgrows_its_limit_and_counts_what_was_dropped(shims) -> None:
    limit, line = 1 << 20, 100
    total = 5 * limit
    started = shims.python(
        f"import sys\nfor i in range({total // line}): sys.stdout.write(f'{{i:>{line - 1}}}\\n')",
        log_limit=limit,
    )
    record = started.wait()
    log, older = (started.folder.path / name for name in ("log", "log.1"))
    kept = log.stat().st_size + older.stat().st_size
    assert kept <= limit + 200
    said = log.read_bytes().count(b"[heteroshare:")
    assert said == 1
    assert log.read_text().splitlines()[-1].strip() == str(total // line - 1)
    note = max(
        len(entry) + 1
        for entry in (older.read_text() + log.read_text()).splitlines()
        if "[heteroshare" in entry
    )
    assert abs(record["dropped"] + kept - total) <= 12 * note


def test_a_flood_slows_its_own_job_only(shims) -> None:
    flood = shims.python("import sys\nwhile True: sys.stdout.write('x' * 65536)", log_limit=1 << 20)
    flood.says("x")
    sibling = shims.python("print('well')")
    assert sibling.wait()["code"] == 0
    assert sibling.log() == "well\n"
    before = time.process_time()
    size = 0
    for name in ("log.1", "log"):  # the one becomes the other meanwhile
        with contextlib.suppress(FileNotFoundError):
            size += (flood.folder.path / name).stat().st_size
    assert size <= (1 << 20) + 200
    assert time.process_time() - before < 1
    flood.folder.control("term 0")
    assert flood.wait()["signal"] in (signal.SIGKILL, signal.SIGTERM)


def test_a_full_disk_loses_output_and_never_the_job(shims) -> None:
    started = shims.launch(sys.executable, "-c", "print('x' * 100000); raise SystemExit(4)")
    (started.path / "log").symlink_to("/dev/full")
    # The log is never followed through a link, so the shim refuses it and says so: it is the agent's own folder.
    done = subprocess.run(
        [sys.executable, "-I", "-S", shim.__file__, str(started.path)],
        capture_output=True,
        timeout=120,
        check=False,
        input=b"b",
    )
    assert done.returncode != 0
    (started.path / "log").unlink()
    log = Log(str(started.path), 1 << 20)
    os.close(log.fd)
    log.fd = os.open("/dev/full", os.O_WRONLY)
    log.write(b"y" * 1000)
    assert log.dropped == 1000
    os.close(log.fd)


def test_a_log_that_cannot_turn_on_a_full_disk_goes_on_once_there_is_room(
    tmp_path: Path, monkeypatch
) -> None:
    log = Log(str(tmp_path), 8192)
    log.write(b"a" * 4096)
    really, full = os.open, True

    def open_if_there_is_room(path, flags, *more):
        if full and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really(path, flags, *more)

    monkeypatch.setattr("hs_agent.bare.log.os.open", open_if_there_is_room)
    for _ in range(3):
        log.write(b"b" * 100)
    assert log.dropped == 300
    full = False
    log.write(b"c" * 100)
    os.close(log.fd)
    assert (tmp_path / "log.1").read_bytes() == b"a" * 4096
    assert (tmp_path / "log").read_bytes() == (
        b"[heteroshare: 300 bytes of earlier output were dropped]\n" + b"c" * 100
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1", "log.1.times", "log.times"]


@needs_root
def test_output_is_never_written_through_a_link_nor_with_roots_rights(shims, place) -> None:
    work = place / "work"
    work.mkdir()
    os.chown(work, 65534, 65534)
    secret = place / "secret"
    secret.write_text("mine")
    secret.chmod(0o666)
    (work / "out.txt").symlink_to(secret)
    through_link = shims.python("print(1)", identity=NOBODY, workdir=str(work), output="out.txt").wait()
    assert through_link["launch_failed"]
    assert "link" in through_link["why"]
    assert secret.read_text() == "mine"
    elsewhere = shims.python("print(1)", identity=NOBODY, workdir=str(work), output=str(place / "new")).wait()
    assert elsewhere["launch_failed"]
    assert "Permission denied" in elsewhere["why"]


@needs_root
def test_nobody_but_the_user_has_the_output_file_open(shims, place, wait_for) -> None:
    work = place / "work"
    work.mkdir()
    os.chown(work, 65534, 65534)
    started = shims.python(
        "import time; print('up', flush=True); time.sleep(600)",
        identity=NOBODY, workdir=str(work), output="out.txt",
    )  # fmt: skip
    wait_for(lambda: (work / "out.txt").exists() and (work / "out.txt").read_text() == "up\n", "written")
    holders = having_open(work / "out.txt")
    assert [Path(f"/proc/{pid}").stat().st_uid for pid in holders if not is_of(pid, NOBODY)] == []
    assert len(holders) == 1
    started.folder.control("term 0")
    started.wait()
    wait_for(lambda: having_open(work / "out.txt") == [], "who wrote it has left")


def having_open(file: Path) -> list[int]:
    found = []
    for process in procs.everybody():
        with contextlib.suppress(OSError):
            there = Path(f"/proc/{process.pid}/fd")
            if any(fd.readlink() == file for fd in there.iterdir()):
                found.append(process.pid)
    return found


def is_of(pid: int, identity: dict) -> bool:
    """In its credentials: of a process that others must not look into `/proc` is root's."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith("Uid:")).split()[1:] == [str(identity["uid"])] * 4


STUCK = """
import os
from hs_agent import shim
from hs_agent.bare import child, output

output.LAST_S = 0.2
child.open_output = lambda path: os.open(path, os.O_RDWR)
shim.main({folder!r})
"""


def test_a_job_whose_output_file_takes_no_more_can_be_told_to_end(shims, place: Path) -> None:
    os.mkfifo(place / "stuck")  # stands in for a file on a file system that hangs
    folder = shims.launch(PYTHON, "-c", "print('x' * 1_000_000)", output=str(place / "stuck"))
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK.format(folder=str(folder.path))],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    begin(process)
    started = Started(folder, process)
    shims.started.append(started)
    started.says("x" * 65536)
    assert folder.ended() is None
    assert folder.control("term 0.1")
    assert started.wait(20)["signal"] in (signal.SIGTERM, signal.SIGKILL)
    assert "output file: it took no more for 0.2 s; the rest is only here" in started.log()


BECOMES = """
import os, signal
from hs_agent import shim
from hs_agent.bare import output

def become(identity):
    {does}

output.become, output.LAST_S = become, 0.2
shim.main({folder!r})
"""


def with_a_writer_that(does: str, shims, folder: Folder) -> Started:
    """In the moment in which it becomes the job's user."""
    script = BECOMES.format(does=does, folder=str(folder.path))
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, start_new_session=True)
    begin(process)
    shims.started.append(Started(folder, process))
    return shims.started[-1]


def test_whoever_stops_the_writer_of_their_output_file_as_it_begins_holds_up_no_shim(
    shims, place: Path
) -> None:
    folder = shims.launch("/bin/sleep", "600", output=str(place / "out.txt"))
    started = with_a_writer_that("os.kill(os.getpid(), signal.SIGSTOP)", shims, folder)
    assert started.job() is not None
    assert folder.control("term 0.1")
    assert started.wait(20)["signal"] == signal.SIGTERM
    assert "output file: it took no more for 0.2 s" in started.log()


def test_a_writer_that_cannot_become_the_user_writes_nothing_and_says_so(shims, place: Path) -> None:
    folder = shims.launch("/bin/echo", "said", output=str(place / "out.txt"))
    started = with_a_writer_that("raise PermissionError(1, 'Operation not permitted')", shims, folder)
    assert started.wait()["code"] == 0
    assert "said\n" in started.log()
    assert "output file: Operation not permitted; the rest is only here" in started.log()


def test_the_first_output_is_in_the_file_however_late_the_shim_comes_to_read(shims) -> None:
    class File:
        is_behind, trouble, polled = False, "", (os.open(os.devnull, os.O_RDONLY), 0)
        kept: bytes | None = None

        def take(self, fd: int) -> None:
            os.close(fd)
            self.kept = b""

        def keep(self, data: bytes) -> None:
            if self.kept is not None:
                self.kept += data

    one = shim.Shim(str(shims.launch("/bin/true").path))
    one.output = file = File()
    one.control = one.open_control()
    (one.wake, _), (one.pipe, pipe_end) = os.pipe(), os.pipe()
    one.channel, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (one.channel, child):
        end.setblocking(False)
    os.set_blocking(one.pipe, False)
    socket.send_fds(child, [b"output"], [one.wake])
    os.write(pipe_end, b"first")
    one.serve(one.wait())
    assert file.kept == b"first"
    one.channel.close()
    child.close()
