"""What is counted as it happens: switches, events, trades and moves, each once."""

import asyncio

import pytest

from hs_controller.config import Config
from hs_controller.meters import AT_ONCE, Meters
from hs_controller.rows import Event
from hs_core.facts import Fact
from hs_core.model import Job, JobSpec
from hs_core.names import HostName, JobId, UserName
from hs_core.reports import JobReport, Phase, Tier
from hs_proto.v1 import common_pb2
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.scraped import scraped

JOB = JobId(1)


def reports(suspends: int, suspend_s: float, *, epoch: int = 0) -> JobReport:
    return JobReport(
        job=JOB, epoch=epoch, phase=Phase.HELD, suspends=suspends, suspend_s=suspend_s, tier=Tier.HOLD
    )


def counted(meters: Meters, name: str) -> float:
    return meters.registry.get_sample_value(name, {"tier": "hold"}) or 0.0


@pytest.mark.parametrize(
    ("before", "after", "times", "seconds"),
    [
        (reports(2, 0.2), reports(3, 0.25), 1, 0.05),
        (reports(2, 0.2), reports(5, 0.8), 3, 0.6),
        (reports(2, 0.2), reports(2, 0.2), 0, 0.0),
        (None, reports(1, 0.1), 1, 0.1),
        (reports(2, 0.2), reports(3, 0.3, epoch=1), 0, 0.0),
        (reports(9, 0.9), reports(3, 0.3), 0, 0.0),
        (reports(0, 0.0), reports(10**12, 1.0), AT_ONCE, AT_ONCE / 10**12),
    ],
    ids=[
        "one",
        "several",
        "none",
        "first report",
        "of an incarnation that is no more",
        "fewer than before",
        "nonsense",
    ],
)
def test_switches_between_two_reports_are_counted_once_each(
    before: JobReport | None, after: JobReport, times: int, seconds: float
) -> None:
    meters, host = Meters(), HostName("h1")
    row = Job(
        id=JOB,
        user=UserName("ann"),
        spec=JobSpec(name="a", command=("true",)),
        arrival_s=0.0,
        reports={} if before is None else {host: before},
    )
    meters.reported(host, (after,), {JOB: row})
    assert counted(meters, "hs_job_suspend_seconds_count") == times
    assert counted(meters, "hs_job_suspend_seconds_sum") == pytest.approx(seconds)
    assert counted(meters, "hs_job_resume_seconds_count") == 0


def test_who_leaves_with_a_checkpoint_is_counted_though_its_row_begins_anew(config: Config) -> None:
    async def story() -> None:
        async with scraped(config) as cluster:
            agents = [
                await cluster.agent(name=name, boot=name, peer=f"{name}:7444").join() for name in ("h1", "h2")
            ]
            [job] = await cluster.client.submit()
            await agents[0].until(lambda: agents[0].wants(job) is not None)
            await agents[0].report(job, "running", step=5, can_checkpoint=True)
            await cluster.client.until(job, lambda view: view.state == "running")
            await cluster.client.stub.DrainNode(pb.DrainNodeRequest(key="d", node="h1", reason="new fans"))
            await agents[0].until(lambda: agents[0].wants(job).leave)
            left = {"step": 7, "suspends": 1, "suspend_s": 2.0, "tier": "checkpoint"}
            await agents[0].report(
                job, "checkpointed", gpus=0, checkpoint_step=7, checkpoint_generation=0, **left
            )
            await agents[1].until(lambda: agents[1].wants(job) is not None)
            found = await cluster.read()
            assert found["hs_job_suspend_seconds_sum"] == {("checkpoint",): 2.0}
            view = await cluster.client.until(job, lambda view: view.host == "h2")
            assert (view.suspends, view.suspend_s) == (1, 2.0)
            [used] = (await cluster.client.stub.Usage(pb.UsageRequest())).rows
            assert used.suspends == 1

    asyncio.run(story())


def test_what_jobs_went_through_while_their_agent_was_away_is_counted_when_it_is_back(config: Config) -> None:
    async def story() -> None:
        async with scraped(config) as cluster:
            agent = await cluster.agent(name="h1", boot="h1").join()
            [job] = await cluster.client.submit()
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running", step=5, suspends=1, suspend_s=0.5, tier="hold")
            await cluster.client.until(job, lambda view: view.suspends == 1)
            await agent.leave()
            told = common_pb2.JobReport(
                job_id=job,
                phase="running",
                gpus=["GPU-h1-0"],
                step=9,
                suspends=3,
                suspend_s=1.5,
                tier="hold",
                sliceable=True,
                checkpoint_step=-1,
                checkpoint_generation=-1,
            )
            await cluster.agent(name="h1", boot="h1").join((told,))
            await cluster.client.until(job, lambda view: view.suspends == 3)
            found = await cluster.read()
            assert found["hs_job_suspend_seconds_count"] == {("hold",): 3.0}
            assert found["hs_job_suspend_seconds_sum"] == {("hold",): 1.5}

    asyncio.run(story())


def test_events_trades_and_migrations_are_counted_by_what_they_are() -> None:
    meters = Meters()
    kinds = [
        ("trade", {}),
        ("trade-undone", {}),
        ("migrated", {"reason": "balance"}),
        ("migrated", {"reason": "drain"}),
        ("reshaped", {"reason": "drain", "from": "a", "to": "b,c"}),
        ("reshaped", {"reason": "drain", "from": "a", "to": "a"}),
    ]
    meters.published(
        Event(seq=number, fact=Fact(now_s=0.0, kind=kind, text="", data=data))
        for number, (kind, data) in enumerate(kinds)
    )
    value = meters.registry.get_sample_value
    assert value("hs_trades_total") == value("hs_trades_undone_total") == 1.0
    assert value("hs_migrations_total", {"reason": "balance"}) == 1.0
    assert value("hs_migrations_total", {"reason": "drain"}) == 2.0, "also in another shape, but in its place"
    assert value("hs_events_total", {"kind": "migrated"}) == 2.0
