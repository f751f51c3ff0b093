"""A backup is put back: what servers show of jobs that were submitted since it was made."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import grpc
import pytest

from hs_controller import backup
from hs_controller.config import Config
from hs_proto.v1 import agent_pb2, common_pb2
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.kit import FakeAgent, audited, spec, started


async def submitted_since(config: Config) -> agent_pb2.WantedJob:
    """What a server is told of a job that comes after a backup was made, which is put back afterwards."""
    copy = config.state_dir.with_name("copy.db")
    async with started(config) as here:
        agent = await here.agent().join()
        with backup.take(config.state_dir) as taken:
            copy.write_bytes(b"".join(chunk.data for chunk in taken.chunks()))
        [job] = await here.client.submit(spec(env={"A": "1", "B": "2"}, max_duration_s=3600.0))
        await agent.until(lambda: agent.wants(job) is not None)
        wanted = agent.wants(job)
    assert wanted is not None
    backup.restore(config.state_dir, copy, force=True)
    return wanted


def trains(job: int, gpu_s: float = 5.0) -> common_pb2.JobReport:
    return common_pb2.JobReport(
        job_id=job, phase="running", gpus=["GPU-h1-0"], gpu_s=gpu_s, run_s=gpu_s, sliceable=True
    )


async def jobs_of(here: SimpleNamespace) -> dict[int, pb.JobView]:
    return {job.id: job for job in (await here.client.stub.ListJobs(pb.ListJobsRequest())).jobs}


def shows(agent: FakeAgent, *told: agent_pb2.WantedJob) -> FakeAgent:
    """Each in a message of its own."""
    agent.told = [agent_pb2.Told(jobs=[job], more=job is not told[-1]) for job in told]
    return agent


def test_they_go_on_over_further_starts_too_under_numbers_that_nobody_else_gets(config: Config) -> None:
    async def story() -> None:
        wanted = await submitted_since(config)
        job = wanted.job_id
        async with started(config) as here:
            assert await jobs_of(here) == {}
            agent = await shows(here.agent(), wanted).join((trains(job),))
            told = agent.wants(job)
            assert told is not None
            assert (told.epoch, told.seal, told.spec) == (wanted.epoch, wanted.seal, wanted.spec)
            view = await here.client.until(job, lambda view: view.state == "running")
            assert (view.submitted_at, view.gpu_s) == (wanted.arrival_s, 5.0)
            assert ("taken-up", "") in await audited(here)
            assert await here.client.submit() > [job]
        async with started(config) as here:
            assert (await jobs_of(here))[job].state == "running"
            agent = await shows(here.agent(), wanted).join((trains(job, 6.0),))
            assert agent.wants(job) is not None
            assert [kind for kind, _ in await audited(here)].count("taken-up") == 1

    asyncio.run(story())


@pytest.mark.parametrize(
    "forge",
    [
        lambda wanted: wanted.MergeFrom(agent_pb2.WantedJob(run_as="mallory")),
        lambda wanted: wanted.spec.command.append("--more"),
        lambda wanted: wanted.ClearField("seal"),
    ],
)
def test_what_this_controller_did_not_say_is_ended_and_told(
    config: Config, forge: Callable[[agent_pb2.WantedJob], None]
) -> None:
    async def story() -> None:
        wanted = await submitted_since(config)
        forge(wanted)
        async with started(config) as here:
            agent = await shows(here.agent(), wanted).join((trains(wanted.job_id),))
            assert agent.wants(wanted.job_id) is None
            assert await jobs_of(here) == {}
            assert ("not-taken-up", "") in await audited(here)

    asyncio.run(story())


def test_what_makes_no_sense_is_passed_over_and_the_rest_is_taken_up(config: Config) -> None:
    async def story() -> None:
        wanted = await submitted_since(config)
        odd, beyond = agent_pb2.WantedJob(), agent_pb2.WantedJob()
        odd.CopyFrom(wanted)
        odd.job_id, odd.spec.suspend = wanted.job_id + 1, "never-heard-of"
        beyond.CopyFrom(wanted)
        beyond.job_id = 1 << 60
        async with started(config) as here:
            agent = await shows(here.agent(), odd, beyond, wanted).join((trains(wanted.job_id),))
            assert agent.wants(wanted.job_id) is not None
            assert list(await jobs_of(here)) == [wanted.job_id]

    asyncio.run(story())


def test_who_does_not_answer_is_sent_away_and_one_of_another_version_is_not_asked(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hs_controller.agents.HELLO_S", 0.5)
    monkeypatch.setattr("hs_controller.agents.HELLO_MESSAGES", 3)

    async def story() -> None:
        await submitted_since(config)
        async with started(config) as here:
            agent = here.agent()
            agent.told = []
            with pytest.raises(grpc.aio.AioRpcError, match="no word of what it was told of its jobs within"):
                await agent.join()
            agent = here.agent()
            agent.told = [agent_pb2.Told(more=True)] * 3
            with pytest.raises(grpc.aio.AioRpcError, match="in more than 3 messages"):
                await agent.join()
            old = here.agent()
            old.dialect, old.told = "another", []
            await old.join()
            assert old.welcome is not None
            assert old.welcome.unknown_until == 0

    asyncio.run(story())


def test_nobody_is_asked_where_no_backup_was_put_back(config: Config) -> None:
    async def story() -> None:
        async with started(config) as here:
            agent = await here.agent().join()
            assert agent.welcome is not None
            assert agent.welcome.unknown_from >= agent.welcome.unknown_until

    asyncio.run(story())


def test_a_server_with_a_job_that_nobody_submitted_here_is_told_nothing(config: Config) -> None:
    """A state that was put back by other means: its jobs go on until that is mended."""

    async def story() -> None:
        async with started(config) as here:
            agent = here.agent()
            joining = asyncio.create_task(agent.join((trains(77),)))
            await agent.until(lambda: agent.welcome is not None)
            [job] = await here.client.submit()
            await here.client.until(job, lambda view: view.reason == "host-trouble")
            assert ("orders-refused", "") in await audited(here)
            [node] = (await here.client.stub.ListNodes(pb.ListNodesRequest())).nodes
            assert "it has job 77" in str(node.warnings)
            assert agent.wanted == []
            joining.cancel()
            await asyncio.gather(joining, return_exceptions=True)

    asyncio.run(story())
