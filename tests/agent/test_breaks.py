"""An agent whose mind breaks by what one job says ends that job and serves the others."""

import asyncio
from pathlib import Path

import pytest

from hs_agent import cgroup
from hs_agent.breaks import Breaks
from hs_agent.devices import open_devices
from hs_agent.folder import Key
from hs_agent.loop import Agent
from hs_core.errors import BrokenError
from hs_core.events.host import JobProgressed, Woke
from hs_core.host import said
from hs_core.names import JobId
from hs_core.reports import BROKE_AGENT, JobReport, Phase
from hs_core.wanted import Turn, Wanted
from hs_daemon import boot_s
from tests.agent.real_jobs import UNSUSPENDED

TALKS, OTHER = Key(JobId(1), 1), Key(JobId(2), 1)


@pytest.fixture
def _breaks_by_what_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    hear = said.hear

    def breaks(board, job, event) -> None:
        if isinstance(event, JobProgressed) and event.job == TALKS.job:
            raise BrokenError("what must hold does not")
        hear(board, job, event)

    monkeypatch.setattr(said, "hear", breaks)


def report(agent: Agent, key: Key) -> JobReport:
    return next(each for each in agent.reports() if (each.job, each.epoch) == key)


async def until(agent: Agent, key: Key, phase: Phase) -> None:
    async with asyncio.timeout(30):
        while not any((r.job, r.epoch, r.phase) == (*key, phase) for r in agent.reports()):  # noqa: ASYNC110 — nobody tells
            await asyncio.sleep(0.01)


def say(agent: Agent, key: Key) -> None:
    agent.post(
        JobProgressed(
            now_s=boot_s(), job=key.job, epoch=key.epoch, step=1, steps_per_s=1.0, device_memory_bytes=1
        )
    )


@pytest.mark.usefixtures("_breaks_by_what_one_says")
def test_a_job_whose_words_break_the_agent_twice_in_a_row_is_ended_and_the_others_go_on(
    settings, job
) -> None:
    wanted = Wanted(
        term=1, seq=1, quantum_s=1.0, turn=Turn(),
        jobs=tuple(job(key.job, "sleep", "600", **UNSUSPENDED) for key in (TALKS, OTHER)),
    )  # fmt: skip

    async def breaks() -> None:
        agent = Agent(settings(), open_devices(settings()), cgroup.Cgroups())
        await agent.start()
        agent.wanted(wanted, 0.0)
        await until(agent, TALKS, Phase.RUNNING)
        await until(agent, OTHER, Phase.RUNNING)
        assert agent.breaks.condemned == ()
        say(agent, TALKS)
        assert agent.broken.is_set()
        await agent.stop()

    async def goes_on() -> None:
        agent = Agent(settings(), open_devices(settings()), cgroup.Cgroups())
        await agent.start()
        try:
            say(agent, TALKS)
            await until(agent, TALKS, Phase.EXITED)
            assert report(agent, TALKS).exit.why == BROKE_AGENT
            say(agent, OTHER)
            assert not agent.broken.is_set()
            assert (report(agent, OTHER).phase, report(agent, OTHER).step) == (Phase.RUNNING, 1)
            (told,) = agent.troubles
            assert "broke 2 times within the hour" in told
            assert "ended for what they said: job 1" in told
        finally:
            await agent.jobs.end_all(0.0)
            await agent.stop()

    asyncio.run(breaks())
    asyncio.run(breaks())
    asyncio.run(goes_on())


def broke(place: Path, key: Key | None) -> tuple[Key, ...]:
    """Who is to end when an agent starts that broke as it heard of this one, or of nobody."""
    breaks = Breaks(place, boot_s())
    event = (
        Woke(now_s=boot_s())
        if key is None
        else JobProgressed(
            now_s=boot_s(), job=key.job, epoch=key.epoch, step=1, steps_per_s=1.0, device_memory_bytes=1
        )
    )
    breaks.note(event, KeyError("x"))
    return Breaks(place, boot_s()).condemned


def test_who_is_to_end_is_remembered_until_the_host_boots(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [broke(tmp_path, TALKS) for _ in range(2)] == [(), (TALKS,)]
    assert Breaks(tmp_path, boot_s()).condemned == (TALKS,)
    monkeypatch.setattr("hs_agent.procs.boot_id", lambda: "another")
    assert Breaks(tmp_path, boot_s()).condemned == ()


def test_where_it_breaks_by_one_and_by_another_nobody_is_ended(tmp_path) -> None:
    assert [broke(tmp_path, key) for key in (TALKS, OTHER, TALKS, None, TALKS)] == [()] * 5


def test_what_nobody_can_read_of_earlier_breaks_keeps_no_agent_from_starting(tmp_path) -> None:
    broke(tmp_path, TALKS)
    kept = (tmp_path / "breaks.json").read_text()
    (tmp_path / "breaks.json").write_text(kept.replace("suspects", "suspect"))
    assert broke(tmp_path, TALKS) == ()
