"""Logs of jobs: read from their ends, followed, bounded, and kept once their jobs have ended."""

import asyncio
import contextlib
import errno
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from hs_agent import cgroup, folder, launch, logs
from hs_agent.bare.log import Log
from hs_core.names import JobId


def test_the_tail_of_a_log_is_bounded_and_whole_text(place) -> None:
    made = folder.Folder(place, folder.Key(JobId(1), 1))
    assert made.log_tail() == ""
    (place / "log").write_bytes(b"x" * 100_000 + b"\n\xff\xfe end\n")
    tail = made.log_tail(lines=2, most=1000)
    assert tail.endswith("\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} end")
    assert len(tail) <= 1000


def collect(path: Path, lines: int) -> bytes:
    async def go() -> bytes:
        return b"".join([chunk async for chunk in logs.read(path, lines, follow=False, alive=lambda: False)])

    return asyncio.run(go())


def test_a_log_is_read_from_its_end_across_both_halves(place) -> None:
    (place / "log.1").write_bytes(b"".join(b"%d\n" % i for i in range(50_000)))
    (place / "log").write_bytes(b"".join(b"%d\n" % i for i in range(50_000, 50_010)) + b"unfinished")
    assert collect(place, 2) == b"50009\nunfinished"
    assert collect(place, 12).startswith(b"49999\n50000\n")
    assert collect(place, 0) == b""
    assert collect(place, -1) == (place / "log.1").read_bytes() + (place / "log").read_bytes()
    assert collect(place, 10**6) == collect(place, -1)


def note(dropped: int) -> bytes:
    return b"[heteroshare: %d bytes of earlier output were dropped]\n" % dropped


def test_what_was_dropped_is_said_before_what_is_kept_and_not_amid_it(place) -> None:
    (place / "log.1").write_bytes(note(7) + b"half a li")
    (place / "log").write_bytes(note(99) + b"ne\nthe last\n")
    assert collect(place, -1) == note(99) + b"half a line\nthe last\n"
    assert collect(place, 2) == b"half a line\nthe last\n"
    assert collect(place, 1) == b"the last\n"


def test_who_follows_a_log_is_not_told_of_what_it_was_shown(place) -> None:
    log = place / "log"
    (place / "log.1").write_bytes(b"seen\n")
    log.write_bytes(b"half a li")
    alive = [True]

    async def go() -> bytes:
        chunks = logs.read(place, -1, follow=True, alive=lambda: alive[0])
        said = await anext(chunks)
        log.rename(place / "log.1")
        log.write_bytes(note(5) + b"ne\n")
        alive[0] = False
        async for chunk in chunks:
            said += chunk
        return said

    assert asyncio.run(go()) == b"seen\nhalf a line\n"


@pytest.mark.parametrize("lines", [3, 6, 11, 100])
def test_who_follows_a_log_slowly_misses_what_was_dropped_meanwhile_and_is_told_so(place, lines: int) -> None:
    kept = Log(str(place), 2 * 4096)  # four lines, and `log` turns
    said = [b"%04d" % number + b"." * 1019 + b"\n" for number in range(lines)]
    alive = [True]

    async def go() -> bytes:
        kept.write(said[0])
        chunks = logs.read(place, -1, follow=True, alive=lambda: alive[0])
        heard = await anext(chunks)
        for line in said[1:]:
            kept.write(line)
        alive[0] = False
        async for chunk in chunks:
            heard += chunk
        return heard

    heard = asyncio.run(go())
    if lines < 12:
        assert heard == b"".join(said)
    else:
        older, newest = (place / "log.1").read_bytes(), (place / "log").read_bytes()
        assert older.startswith(b"[heteroshare: ")
        assert heard == b"".join(said[:4]) + older + newest.partition(b" dropped]\n")[2]


def test_who_follows_a_log_that_turns_twice_between_two_looks_misses_nothing_that_is_there(place) -> None:
    log = place / "log"
    log.write_bytes(b"first\n")
    alive = [True]

    async def go() -> bytes:
        chunks = logs.read(place, -1, follow=True, alive=lambda: alive[0])
        said = await anext(chunks)
        for text in (b"second\n", note(6) + b"third\n"):
            log.rename(place / "log.1")
            log.write_bytes(text)
        alive[0] = False
        async for chunk in chunks:
            said += chunk
        return said

    assert asyncio.run(go()) == b"first\nsecond\nthird\n"


def test_both_halves_of_a_log_are_of_one_moment(place, monkeypatch) -> None:
    log = place / "log"
    (place / "log.1").write_bytes(b"first\n")
    log.write_bytes(b"second\n")
    really, turns = logs._open, [1]

    def open_as_it_turns(path: Path):
        file = really(path)
        if turns and turns.pop():
            log.rename(place / "log.1")
            log.write_bytes(b"third\n")
        return file

    monkeypatch.setattr(logs, "_open", open_as_it_turns)
    assert collect(place, -1) == b"second\nthird\n"


def test_a_log_that_somebody_removes_is_begun_anew_with_what_was_lost_and_whoever_follows_goes_along(
    place,
) -> None:
    (place / "control").touch()
    log = Log(str(place), 1 << 20)
    log.write(b"before\n")
    seen: list[bytes] = []

    async def go() -> None:
        chunks = logs.read(place, -1, follow=True, alive=lambda: b"again" not in seen[-1])
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                seen.append(chunk)
                if chunk == b"before\n":
                    (place / "log").unlink()
                    log.write(b"after\n")
                    log.write(b"again\n")

    asyncio.run(asyncio.wait_for(go(), 30))
    assert collect(place, -1) == note(7) + b"after\nagain\n"
    assert b"".join(seen) == b"before\n" + note(7) + b"after\nagain\n"
    assert log.dropped == 7


def test_a_job_that_goes_on_saying_something_keeps_nobody_from_removing_its_folder(place) -> None:
    (place / "made").mkdir()
    log = Log(str(place / "made"), 8192)
    (place / "made" / "log").unlink()
    log.write(b"x" * 100)
    assert [path.name for path in (place / "made").iterdir()] == ["log.times"]
    shutil.rmtree(place / "made")
    log.write(b"x" * 100_000)
    assert log.dropped >= 100_000 - 8192


def test_the_end_of_a_log_without_lines_is_found_across_chunks(place) -> None:
    """As a progress bar writes it."""
    bar = b"epoch 1 |####    |\r" * (3 * logs.CHUNK // 16)
    (place / "log").write_bytes(b"\n" + bar)
    assert collect(place, 1) == bar
    assert collect(place, 2) == b"\n" + bar


def test_following_goes_on_across_a_turn_of_the_log(place) -> None:
    log = place / "log"
    log.write_bytes(b"a\n")
    alive = [True]

    async def go() -> bytes:
        chunks = logs.read(place, -1, follow=True, alive=lambda: alive[0])
        said = await anext(chunks)
        with log.open("ab") as old:
            old.write(b"b\n")
            log.rename(place / "log.1")
            log.write_bytes(b"c\n")
            old.write(b"late\n")
        alive[0] = False
        async for chunk in chunks:
            said += chunk
        return said

    assert asyncio.run(go()) == b"a\nb\nlate\nc\n"


def test_logs_of_ended_jobs_stay_up_to_a_number(settings) -> None:
    config = settings()
    launcher = launch.Launcher(config, cgroup.Cgroups())
    for number in range(5):
        made = launcher.folder(folder.Key(JobId(number), 1))
        made.make()
        (made.path / "log").write_text(str(number))
        launcher.forget(made.key)
        os.utime(launcher.ended / f"{number}-1", (number, number))
    folder.prune(launcher.ended, 2)
    assert sorted(path.name for path in launcher.ended.iterdir()) == ["3-1", "4-1"]
    assert logs.found(JobId(4), launcher.jobs, launcher.ended) == {1: launcher.ended / "4-1"}
    assert logs.found(JobId(0), launcher.jobs, launcher.ended) == {}


def test_the_logs_that_stay_are_those_of_the_last_to_end_also_where_the_clock_was_set_back(settings) -> None:
    launcher = launch.Launcher(settings(), cgroup.Cgroups())
    ahead_s = time.time() + 3600.0
    for number in range(4):
        made = launcher.folder(folder.Key(JobId(number), 1))
        made.make()
        (made.path / "log").write_text(str(number))
        launcher.forget(made.key)
        if number < 2:
            os.utime(launcher.ended / f"{number}-1", (ahead_s, ahead_s + number))
    folder.prune(launcher.ended, 2)
    assert sorted(path.name for path in launcher.ended.iterdir()) == ["2-1", "3-1"]


def test_whatever_a_jobs_user_has_put_beside_a_kept_log_goes_with_it_and_older_ones_too(place: Path) -> None:
    """As it was retired another process of that user was at it, and has dug deeper than calls go since."""
    ended = place / "ended"
    for number in (1, 2):
        made = ended / f"{number}-1"
        made.mkdir(parents=True)
        (made / "log").write_text("it said this")
        os.utime(made, (number, number))
    below = os.open(ended / "1-1", os.O_RDONLY)
    for _ in range(sys.getrecursionlimit() + 500):
        os.mkdir("torchrun", dir_fd=below)
        deeper = os.open("torchrun", os.O_RDONLY, dir_fd=below)
        os.close(below)
        below = deeper
    os.close(below)
    os.utime(ended / "1-1", (1, 1))
    folder.prune(ended, 0)
    assert list(ended.iterdir()) == []


@pytest.mark.parametrize("cut_off", ["mkdir", "rename", "unlink", "rmdir"])
def test_whoever_is_killed_as_a_job_is_forgotten_leaves_its_log(settings, monkeypatch, cut_off: str) -> None:
    launcher = launch.Launcher(settings(), cgroup.Cgroups())
    made = launcher.folder(folder.Key(JobId(4), 1))
    made.make()
    for name in ("launch.json", "log", "log.1", "shim.err"):
        (made.path / name).write_text(name)
    launcher.forget(folder.Key(JobId(3), 1))

    def killed(*_args: object, **_how: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as amid, contextlib.suppress(KeyboardInterrupt):
        amid.setattr(os, cut_off, killed)
        launcher.forget(made.key)
    launcher.forget(made.key)
    kept = launcher.ended / "4-1"
    assert logs.found(JobId(4), launcher.jobs, launcher.ended) == {1: kept}
    assert {path.name: path.read_text() for path in kept.iterdir()} == {"log": "log", "log.1": "log.1"}
    assert not made.path.exists()


def test_a_log_for_which_a_full_disk_has_no_other_place_stays_where_it_is(settings, monkeypatch) -> None:
    launcher = launch.Launcher(settings(), cgroup.Cgroups())
    made = launcher.folder(folder.Key(JobId(4), 1))
    made.make()
    (made.path / "log").write_text("said")

    def full(*_args: object, **_how: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as on_a_full_disk:
        on_a_full_disk.setattr(os, "mkdir", full)
        launcher.forget(made.key)
    assert (logs.found(JobId(4), launcher.jobs, launcher.ended)[1] / "log").read_text() == "said"
