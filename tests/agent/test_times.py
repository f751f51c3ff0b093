"""When a log was written: `hsctl logs --since`."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from hs_agent import logs
from hs_agent.bare import times
from hs_agent.bare.log import Log
from hs_agent.folder import Folder, Key
from hs_core.names import JobId

LARGE = 64 << 20


class Clocks:
    """Of the host, as this test moves them."""

    CLOCK_BOOTTIME = 7

    def __init__(self) -> None:
        self.boot_s, self.wall_s, self.boot = 5_000.0, 1_800_000_000.0, "a" * 36

    def clock_gettime(self, _which: int) -> float:
        return self.boot_s

    def time(self) -> float:
        return self.wall_s

    def go_on(self, seconds: float) -> None:
        self.boot_s += seconds
        self.wall_s += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(times, "time", made)
    monkeypatch.setattr(logs, "time", made)
    monkeypatch.setattr(times, "boot_id", lambda: made.boot)
    return made


def since(folder: Path, ago_s: float, lines: int = -1) -> bytes:
    async def go() -> bytes:
        chunks = logs.read(folder, lines, follow=False, alive=lambda: False, ago_s=ago_s)
        return b"".join([chunk async for chunk in chunks])

    return asyncio.run(go())


def test_what_was_written_since_is_shown_and_what_came_before_is_not(tmp_path: Path, clocks: Clocks) -> None:
    log = Log(str(tmp_path), LARGE)
    for name in (b"first\n", b"second\n", b"third\n"):
        log.write(name)
        clocks.go_on(60)
    assert since(tmp_path, 30) == b""
    assert since(tmp_path, 90) == b"third\n"
    assert since(tmp_path, 150) == b"second\nthird\n"
    assert since(tmp_path, 1e6) == b"first\nsecond\nthird\n"
    assert since(tmp_path, 1e6, lines=2) == b"second\nthird\n"
    assert since(tmp_path, 90, lines=2) == b"third\n"


def test_it_is_right_over_turns_of_the_log_and_where_it_goes_when_its_job_has_ended(
    tmp_path: Path, clocks: Clocks
) -> None:
    folder = Folder(tmp_path / "1-0", Key(JobId(1), 0))
    folder.make()
    log = Log(str(folder.path), 2 * 4096)
    lines = [b"%04d" % number + b"." * 1019 + b"\n" for number in range(15)]
    for line in lines:
        log.write(line)
        clocks.go_on(10)
    folder.retire(tmp_path / "ended")
    ended = tmp_path / "ended/1-0"
    for last in range(1, 6):
        assert since(ended, 10 * last + 5) == b"".join(lines[-last:])
    everything = since(ended, 0)
    assert everything.startswith(b"[heteroshare: ")
    assert since(ended, 1e6) == everything


def test_who_asks_for_more_than_is_kept_is_told_what_was_dropped(tmp_path: Path, clocks: Clocks) -> None:
    log = Log(str(tmp_path), 2 * 4096)
    for _ in range(20):
        log.write(b"." * 1023 + b"\n")
        clocks.go_on(10)
    assert since(tmp_path, 1e6).startswith(b"[heteroshare: ")
    assert not since(tmp_path, 25).startswith(b"[heteroshare: ")


def test_a_line_that_was_begun_before_is_shown_whole(tmp_path: Path, clocks: Clocks) -> None:
    log = Log(str(tmp_path), LARGE)
    for word in (b"old\nloss ", b"0.1 ", b"0.2\n"):
        log.write(word)
        clocks.go_on(60)
    assert since(tmp_path, 70) == b"loss 0.1 0.2\n"


@pytest.mark.parametrize("pause_s", [0.01, 0.7, 1.0, 3.0, 333.0])
def test_however_long_a_job_writes_its_times_are_small_and_tell_a_thousandth_of_it(
    tmp_path: Path, clocks: Clocks, pause_s: float
) -> None:
    log, written = Log(str(tmp_path), LARGE), 10_000
    began_s = clocks.boot_s
    for number in range(written):
        log.write(b"%05d\n" % number)
        clocks.go_on(pause_s)
    assert (tmp_path / "log.times").stat().st_size <= 66_000
    whole_s = clocks.boot_s - began_s
    for number in range(0, written, 997):
        said = since(tmp_path, whole_s - pause_s * number + pause_s / 2)
        assert int(said[:5]) <= number, "what was written since is missing"
        assert pause_s * (number - int(said[:5])) <= max(times.FINEST_S, whole_s / 1000) + pause_s


def test_after_hours_of_work_a_job_that_then_was_silent_has_said_nothing_lately(
    tmp_path: Path, clocks: Clocks
) -> None:
    log = Log(str(tmp_path), LARGE)
    for _ in range(10_000):
        log.write(b"busy\n")
        clocks.go_on(1)
    clocks.go_on(3600)
    assert since(tmp_path, 3500) == b""


def test_a_wall_clock_that_is_set_changes_nothing(tmp_path: Path, clocks: Clocks) -> None:
    log = Log(str(tmp_path), LARGE)
    for name, step_s in ((b"first\n", 0), (b"second\n", -86_400), (b"third\n", 3 * 86_400)):
        clocks.wall_s += step_s
        log.write(name)
        clocks.go_on(60)
    assert since(tmp_path, 90) == b"third\n"
    assert since(tmp_path, 150) == b"second\nthird\n"


def test_after_another_boot_the_wall_clock_counts_and_a_log_is_gone_on_with(
    tmp_path: Path, clocks: Clocks
) -> None:
    Log(str(tmp_path), LARGE).write(b"before\n")
    clocks.go_on(600)
    clocks.boot, clocks.boot_s = "b" * 36, 40.0
    assert since(tmp_path, 500) == b""
    assert since(tmp_path, 700) == b"before\n"
    Log(str(tmp_path), LARGE).write(b"after\n")
    clocks.go_on(10)
    assert since(tmp_path, 500) == b"after\n"
    assert since(tmp_path, 700) == b"before\nafter\n"


def test_another_start_of_an_incarnation_goes_on_with_its_times(tmp_path: Path, clocks: Clocks) -> None:
    for name in (b"first\n", b"second\n"):
        Log(str(tmp_path), LARGE).write(name)
        clocks.go_on(60)
    assert since(tmp_path, 90) == b"second\n"
    assert since(tmp_path, 150) == b"first\nsecond\n"


def test_a_log_whose_times_are_lost_counts_whole_by_when_it_was_written_last(
    tmp_path: Path, clocks: Clocks
) -> None:
    for name, damage in (
        ("gone", lambda path: path.unlink()),
        ("torn", lambda path: os.truncate(path, 5)),
        ("anothers", lambda path: path.write_bytes(times.HEAD.pack(b"a" * 36, 1, 0.0, 1.0))),
    ):
        folder = tmp_path / name
        folder.mkdir()
        Log(str(folder), LARGE).write(b"some\n")
        damage(folder / "log.times")
        os.utime(folder / "log", (clocks.wall_s, clocks.wall_s))
    clocks.go_on(100)
    for name in ("gone", "torn", "anothers"):
        assert (since(tmp_path / name, 90), since(tmp_path / name, 110)) == (b"", b"some\n"), name


def test_a_full_disk_loses_times_and_no_output(
    tmp_path: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(str(tmp_path), LARGE)
    log.write(b"first\n")
    clocks.go_on(60)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as on_a_full_disk:
        on_a_full_disk.setattr(times, "os", SimpleNamespace(**{**vars(os), "pwrite": full}))
        log.write(b"second\n")
        clocks.go_on(60)
    log.write(b"third\n")
    clocks.go_on(60)
    assert since(tmp_path, 0) == b"first\nsecond\nthird\n"
    assert since(tmp_path, 70) == b"third\n"
    assert since(tmp_path, 130) == b"second\nthird\n"


def test_who_follows_is_told_what_was_written_since_and_all_that_comes(
    tmp_path: Path, clocks: Clocks
) -> None:
    log, alive = Log(str(tmp_path), 2 * 4096), [True]
    log.write(b"old\n")
    clocks.go_on(60)
    log.write(b"new\n")

    async def go() -> bytes:
        chunks = logs.read(tmp_path, -1, follow=True, alive=lambda: alive[0], ago_s=30)
        said = await anext(chunks)
        for number in range(6):  # it turns meanwhile
            log.write(b"%d" % number * 1023 + b"\n")
        alive[0] = False
        async for chunk in chunks:
            said += chunk
        return said

    said = asyncio.run(go())
    assert said.startswith(b"new\n000")
    assert [len(line) for line in said.split(b"\n")] == [3, *[1023] * 6, 0]
