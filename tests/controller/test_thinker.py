"""The policy thinks on a thread of its own: what it is at keeps nobody waiting, and nothing that ends waits for it."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from hs_controller.config import Config
from hs_controller.thinker import Thinker
from hs_core.policy import Memory, Snapshot, Verdict
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.browser import opened
from tests.controller.kit import PLAIN, spec, started, until

LONG_S = 30.0  # nobody waits so long


@dataclass
class Slow:
    """As the plain policy, once it is let."""

    may: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)

    def decide(self, snapshot: Snapshot, memory: Memory) -> Verdict:
        self.begun.set()
        assert self.may.wait(LONG_S)
        return PLAIN.decide(snapshot, memory)


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.may.set()


def test_jobs_are_submitted_shown_and_cancelled_while_the_policy_thinks(config: Config, slow: Slow) -> None:
    async def story() -> None:
        async with started(config, replace(PLAIN, decide=slow.decide)) as here:
            agent = await here.agent(gpus=4).join()
            [first] = await here.client.submit(spec("first"))
            await until(slow.begun.is_set)
            [second] = await here.client.submit(spec("second"))
            jobs = (await here.client.stub.ListJobs(pb.ListJobsRequest())).jobs
            assert {job.id for job in jobs} == {first, second}
            await here.client.stub.Cancel(pb.JobsRequest(key="c", job_ids=[first]))
            assert agent.wants(first) is None
            assert agent.wants(second) is None
            slow.may.set()
            await until(lambda: agent.wants(second) is not None)
            assert agent.wants(first) is None, "it was cancelled before the policy had said where it lives"

    asyncio.run(story())


def test_a_controller_stops_while_its_policy_thinks(config: Config, slow: Slow) -> None:
    async def story() -> None:
        async with started(config, replace(PLAIN, decide=slow.decide)) as here:
            await here.agent(gpus=4).join()
            await here.client.submit(spec())
            await until(slow.begun.is_set)
        assert not slow.may.is_set()

    asyncio.run(story())


def test_how_long_the_policy_has_been_at_it_is_shown(config: Config, slow: Slow) -> None:
    async def story() -> None:
        async with started(config, replace(PLAIN, decide=slow.decide)) as here:
            await here.agent(gpus=4).join()
            stub = here.client.stub
            assert (await stub.GetPolicy(pb.PolicyRequest())).deciding_s == 0.0
            await here.client.submit(spec())
            await until(slow.begun.is_set)
            assert (await stub.GetPolicy(pb.PolicyRequest())).deciding_s > 0.0
            slow.may.set()

    asyncio.run(story())


def test_who_asks_for_a_preview_waits_for_the_decision_and_nobody_else_for_the_preview(
    config: Config, slow: Slow
) -> None:
    async def story() -> None:
        async with opened(config, replace(PLAIN, decide=slow.decide)) as cluster:
            await cluster.agent(gpus=4).join()
            await cluster.client.stub.SetUser(pb.SetUserRequest(key="u", name="ann", tickets=100))
            await cluster.client.submit(spec("first"), as_user="ann")
            await until(slow.begun.is_set)
            asked = asyncio.create_task(
                cluster.post("/preview", {"tickets": {"ann": 300}}, token=cluster.admin)
            )
            await cluster.client.submit(spec("second"), as_user="ann")
            assert not asked.done()
            slow.may.set()
            assert (await asked).code == 200

    asyncio.run(story())


def test_nobody_hears_of_what_is_thought_after_the_end() -> None:
    may, heard = threading.Event(), list[int]()

    async def story() -> None:
        thinker = Thinker()
        thinker.ask(lambda: int(may.wait(LONG_S)), heard.append)
        thinker.ask(lambda: 2, heard.append)
        thinker.close()
        thinker.ask(lambda: 3, heard.append)
        may.set()
        with contextlib.suppress(RuntimeError):
            await thinker.answer(lambda: 4)
        for _ in range(100):
            await asyncio.sleep(0)

    asyncio.run(story())
    assert set(heard) <= {1}, "at most of what it was at"
