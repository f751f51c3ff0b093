"""An agent whose mind breaks by what one job says ends that job and serves the others; by what comes from elsewhere, leaves that out; by itself, stands still."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from hs_agent import cgroup, procs
from hs_agent.breaks import Breaks
from hs_agent.devices import open_devices
from hs_agent.folder import Key
from hs_agent.loop import Agent
from hs_core.errors import BrokenError
from hs_core.events.host import JobProgressed, Woke
from hs_core.host import HostMachine, blame, host_memory, said, wants
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
    breaks.note(event, KeyError("x"), event.now_s)
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


@contextlib.asynccontextmanager
async def an_agent(config) -> AsyncIterator[Agent]:
    agent = Agent(config, open_devices(config), cgroup.Cgroups())
    await agent.start()
    try:
        yield agent
    except BaseException:
        await agent.jobs.end_all(0.0)
        raise
    finally:
        await agent.stop()


async def breaks_within(agent: Agent, limit_s: float = 30.0) -> None:
    await asyncio.wait_for(agent.broken.wait(), limit_s)


@pytest.fixture
def both(job) -> Wanted:
    jobs = tuple(job(key.job, "sleep", "600", **UNSUSPENDED) for key in (TALKS, OTHER))
    return Wanted(term=1, seq=1, quantum_s=1.0, turn=Turn(), jobs=jobs)


async def both_run(agent: Agent) -> None:
    await until(agent, TALKS, Phase.RUNNING)
    await until(agent, OTHER, Phase.RUNNING)
    async with asyncio.timeout(30):
        while len(agent.jobs.running) < 2:  # noqa: ASYNC110 — nobody tells
            await asyncio.sleep(0.01)


def test_a_reading_that_breaks_the_agent_twice_in_a_row_is_left_out_and_jobs_are_served(
    settings, both, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings()

    def sees(*_args: object) -> None:
        raise KeyError("no such reading")

    async def scene() -> None:
        async with an_agent(config) as agent:
            agent.wanted(both, 0.0)
            await both_run(agent)
        monkeypatch.setattr(host_memory, "seen", sees)
        for _ in range(2):
            async with an_agent(config) as agent:
                await breaks_within(agent)
        async with an_agent(config) as agent:
            say(agent, OTHER)
            assert report(agent, OTHER).step == 1
            await agent.watch.look_at_memory()
            assert not agent.broken.is_set()
            (told,) = agent.troubles
            assert "leaves out how much memory it has left, by which it would: KeyError" in told
            agent.wanted(replace(both, seq=2, jobs=both.jobs[1:]), 0.0)
            await until_gone(agent, TALKS)
            await agent.jobs.end_all(0.0)

    asyncio.run(scene())


async def until_gone(agent: Agent, key: Key) -> None:
    async with asyncio.timeout(30):
        while any((r.job, r.epoch) == key for r in agent.reports()):  # noqa: ASYNC110 — nobody tells
            await asyncio.sleep(0.01)


def test_an_order_that_breaks_the_agent_twice_in_a_row_is_left_out_whole_and_the_next_is_taken(
    settings, both, job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It breaks by its last job, when all else of it was taken."""
    config, want = settings(), wants.want
    third = job(3, "sleep", "600", **UNSUSPENDED)
    bad = replace(both, seq=2, jobs=(both.jobs[1], third))

    def breaks(board, entry) -> None:
        want(board, entry)
        if entry.job == third.job:
            raise KeyError("what is wanted")

    monkeypatch.setattr(wants, "want", breaks)

    async def scene() -> None:
        async with an_agent(config) as agent:
            agent.wanted(both, 0.0)
            await both_run(agent)
        for _ in range(2):
            async with an_agent(config) as agent:
                agent.wanted(bad, 0.0)
                await breaks_within(agent)
        async with an_agent(config) as agent:
            agent.wanted(bad, 0.0)
            assert not agent.broken.is_set()
            assert {r.job for r in agent.reports()} == {TALKS.job, OTHER.job}
            assert agent.heard() == (1, 1)
            assert "leaves out what the controller wants" in agent.troubles[0]
            agent.wanted(replace(both, seq=3, jobs=both.jobs[1:]), 0.0)
            await until_gone(agent, TALKS)
            assert agent.heard() == (1, 3)
            assert "leaves out" not in agent.troubles[0]
            await agent.jobs.end_all(0.0)

    asyncio.run(scene())


@pytest.mark.parametrize("where", ["by itself", "as it begins"])
def test_an_agent_that_cannot_go_on_stands_still_while_its_jobs_go_on(
    settings, both, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings()

    def breaks(*_args: object, **_how: object) -> None:
        raise KeyError("what is remembered")

    async def scene() -> None:
        async with an_agent(config) as agent:
            agent.wanted(both, 0.0)
            await both_run(agent)
        left = (config.state_dir / "host.json").read_bytes()
        monkeypatch.setattr(blame, "RETRY_S", 3.0)
        with monkeypatch.context() as broken:
            if where == "by itself":
                broken.setattr(HostMachine, "_settle", breaks)
            else:
                broken.setattr("hs_core.host.memory.load", breaks)
            for _ in range(blame.MOST_TRIES):
                async with an_agent(config) as agent:
                    assert not agent.stands
                    await breaks_within(agent)
            async with an_agent(config) as agent:
                assert agent.stands
                assert agent.breaks.condemned == ()  # of jobs that did nothing
                assert all(not gpu.healthy and "stands still" in gpu.why_unhealthy for gpu in agent.gpus)
                assert "stands still for" in agent.breaks.text(boot_s())
                agent.post(Woke(now_s=boot_s()))
                if agent.machine is not None:
                    agent.wanted(replace(both, seq=2, jobs=()), 0.0)
                    assert [r.phase for r in agent.reports()] == [Phase.RUNNING] * 2
                await breaks_within(agent)  # the next one tries
            assert (config.state_dir / "host.json").read_bytes() == left
        async with an_agent(config) as agent:
            assert [r.phase for r in agent.reports()] == [Phase.RUNNING] * 2
            assert len(agent.jobs.running) == 2
            await agent.jobs.end_all(0.0)

    asyncio.run(scene())


def test_an_agent_that_is_to_take_its_jobs_along_does_so_where_it_is_told_to_stop_and_not_where_it_breaks(
    settings, both, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(end_jobs_on_stop=True)

    def breaks(*_: object) -> None:
        raise KeyError("what is remembered")

    async def scene() -> None:
        async with an_agent(config) as agent:
            agent.wanted(both, 0.0)
            await both_run(agent)
            shims = [running.shim for running in agent.jobs.running.values()]
            monkeypatch.setattr(HostMachine, "_settle", breaks)
            agent.post(Woke(now_s=boot_s()))
        for _ in range(1, blame.MOST_TRIES):
            async with an_agent(config) as agent:
                await breaks_within(agent)
        async with an_agent(config) as agent:
            assert agent.stands
            assert all(map(procs.alive, shims))
        async with asyncio.timeout(30):
            while any(map(procs.alive, shims)):  # noqa: ASYNC110 — nobody tells
                await asyncio.sleep(0.01)

    asyncio.run(scene())
