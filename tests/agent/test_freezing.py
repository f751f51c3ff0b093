"""Jobs without a hook on a host without control groups: their shims stop them, once they are told."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hs_agent import jobs as of_jobs
from hs_agent import procs
from hs_agent.cgroup import JobCgroup
from hs_agent.folder import Folder, Key
from hs_agent.jobs import Jobs, RunningJob
from hs_core.events.host import HostEvent, JobFroze, JobHeld, Kill, Resume, Suspend, SuspendFailed
from hs_core.names import JobId
from hs_core.reports import Tier

KEY = Key(JobId(1), 1)
NOBODY = procs.Identity(0, 0, "")
STOP = Suspend(job=KEY.job, epoch=KEY.epoch, tier=Tier.FREEZE)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30.0):
        while not condition():  # noqa: ASYNC110 — nobody tells
            await asyncio.sleep(0.01)


def one_job(place: Path) -> tuple[Jobs, RunningJob, list[HostEvent]]:
    """Whose shim is on its way."""
    said: list[HostEvent] = []
    jobs = Jobs(cast(Any, None), cast(Any, None), said.append, lambda _: 0, cast(Any, None))
    folder = Folder(place / "1-1", KEY)
    folder.make()
    running = RunningJob(
        KEY, folder, NOBODY, -1, JobCgroup(None, {}), gang=cast(Any, None), sock=cast(Any, None)
    )
    jobs.running[KEY] = running
    return jobs, running, said


def listens(folder: Folder) -> int:
    path = folder.path / "control"
    os.mkfifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def test_who_is_told_to_stop_before_its_shim_listens_is_stopped_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    tell = Folder.control
    monkeypatch.setattr(Folder, "control", lambda *said: told.append(tell(*said)) or told[-1])

    async def story() -> None:
        jobs, running, said = one_job(tmp_path)
        jobs.suspend(STOP)
        await until(lambda: told)
        control = listens(running.folder)
        await until(lambda: _heard(control))
        assert (told[0], told[-1], said) == (False, True, [])
        state = {"shim": {"pid": 1, "start": 1}, "job": None, "boot_id": "", "frozen": True}
        (running.folder.path / "shim.json").write_text(json.dumps(state))
        await until(lambda: said)
        os.close(control)
        assert [type(event) for event in said] == [JobFroze]

    asyncio.run(story())


def _heard(control: int) -> bool:
    try:
        return os.read(control, 100) == b"freeze\n"
    except BlockingIOError:
        return False


def test_whose_shim_is_gone_cannot_be_stopped(tmp_path: Path) -> None:
    async def story() -> None:
        jobs, running, said = one_job(tmp_path)
        running.gone.set()
        jobs.suspend(STOP)
        await until(lambda: said)
        (event,) = said
        assert isinstance(event, SuspendFailed)
        assert event.why == "the freezer: its shim does not listen"

    asyncio.run(story())


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[signal.Signals]:
    """To the job's shim."""
    made: list[signal.Signals] = []
    monkeypatch.setattr(procs, "send", lambda _who, number: made.append(number))
    return made


def test_one_that_stands_still_and_cannot_be_told_to_go_on_any_more_is_ended(
    tmp_path: Path, sent: list[signal.Signals]
) -> None:
    async def story() -> None:
        jobs, running, _ = one_job(tmp_path)
        running.gang = cast(Any, SimpleNamespace(order=lambda _: None))
        control = listens(running.folder)
        jobs.suspend(STOP)
        await until(lambda: _heard(control))
        jobs.resume(Resume(job=KEY.job, epoch=KEY.epoch))
        assert (_words(control, []), sent) == ([b"thaw"], [])
        jobs.suspend(STOP)
        await until(lambda: _heard(control))
        (running.folder.path / "control").unlink()
        jobs.resume(Resume(job=KEY.job, epoch=KEY.epoch))
        assert sent == [signal.SIGTERM]
        os.close(control)

    asyncio.run(story())


def test_one_whose_folder_somebody_has_emptied_is_ended_all_the_same(
    tmp_path: Path, sent: list[signal.Signals], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_jobs, "CUT_OFF_S", 0.3)

    async def story() -> None:
        jobs, _, _ = one_job(tmp_path)
        jobs.kill(Kill(job=KEY.job, epoch=KEY.epoch, grace_s=1.0, why="cancelled"))
        await until(lambda: sent)
        assert sent == [signal.SIGTERM]

    asyncio.run(story())


@pytest.mark.parametrize("settled", [False, True], ids=["before it has", "when it has"])
def test_who_says_that_it_stands_at_a_step_edge_as_the_freezer_takes_it_is_let_out_and_hears_the_next_order(
    tmp_path: Path, settled: bool
) -> None:
    """Frozen on while it is taken to be held, it would answer nothing, and have no turn before its host gives up waiting."""
    words: list[bytes] = []

    async def story() -> None:
        jobs, running, said = one_job(tmp_path)
        control = listens(running.folder)
        jobs.suspend(STOP)
        await until(lambda: _words(control, words) == [b"freeze"])
        if settled:
            state = {"shim": {"pid": 1, "start": 1}, "job": None, "boot_id": "", "frozen": True}
            (running.folder.path / "shim.json").write_text(json.dumps(state))
            await until(lambda: said)
        jobs._said(JobHeld(now_s=1.0, job=KEY.job, epoch=KEY.epoch, step=5, tier=Tier.HOLD))
        assert not running.frozen
        assert _words(control, words) == [b"freeze", b"thaw"]
        assert [type(event) for event in said] == [JobFroze] * settled + [JobHeld]
        os.close(control)

    asyncio.run(story())


def _words(control: int, words: list[bytes]) -> list[bytes]:
    with contextlib.suppress(BlockingIOError):
        words += os.read(control, 100).split()
    return words
