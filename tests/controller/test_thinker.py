"""The policy thinks on a thread of its own: what it is at keeps nobody waiting, and nothing that ends waits for it."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from hs_controller import thinker as thinkers
from hs_controller.config import Config
from hs_controller.metrics import exposition
from hs_controller.thinker import GivenUpError, Thinker
from hs_core.policy import Memory, Snapshot, Verdict
from hs_proto.v1 import controller_pb2 as pb
from hs_proto.v1.controller_pb2_grpc import HeteroShareStub
from tests.controller.browser import opened
from tests.controller.kit import PLAIN, spec, started, until

LONG_S = 30.0  # nobody waits so long


@dataclass
class Slow:
    """As the plain policy, once it is let."""

    may: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    asked: list[Snapshot] = field(default_factory=list)

    def decide(self, snapshot: Snapshot, memory: Memory) -> Verdict:
        self.asked.append(snapshot)
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


async def _policy(stub: HeteroShareStub) -> pb.PolicyView:
    return await stub.GetPolicy(pb.PolicyRequest())


def test_another_policy_decides_while_the_one_before_stays_at_its_decision(
    lasting: Config, slow: Slow
) -> None:
    async def story() -> None:
        async with started(lasting, replace(PLAIN, decide=slow.decide)) as here:
            agent, stub = await here.agent(gpus=4).join(), here.client.stub
            [job] = await here.client.submit(spec())
            await until(slow.begun.is_set)
            view = await stub.SetPolicy(pb.SetPolicyRequest(key="p", name="fifo"))
            assert view.name == "fifo"
            await until(lambda: agent.wants(job) is not None)
            decided_at = (await _policy(stub)).decided_at
            assert decided_at > 0
            assert (await _policy(stub)).given_up == 1
            page, _ = await exposition(here.loop, here.controller._hub, "")
            assert b"hs_policy_given_up_decisions 1.0" in page.splitlines()
            slow.may.set()
            await until(lambda: here.loop.given_up == 0)
            view = await _policy(stub)
            assert (view.name, view.given_up, view.decided_at) == ("fifo", 0, decided_at)
            assert here.loop.mind.machine.memory.get("rounds") is None, "what it remembers is nobody's"

    asyncio.run(story())


def test_the_same_policy_is_asked_anew_where_it_stays_at_a_decision(config: Config, slow: Slow) -> None:
    async def story() -> None:
        async with started(config, replace(PLAIN, name="fifo", decide=slow.decide)) as here:
            agent, stub = await here.agent(gpus=4).join(), here.client.stub
            [job] = await here.client.submit(spec())
            await until(slow.begun.is_set)
            await stub.SetPolicy(pb.SetPolicyRequest(key="1", name="fifo"))
            assert (await _policy(stub)).given_up == 0, "it may answer any moment"
            await until(lambda: here.loop.mind.machine.stays_at_it(here.loop.clock.now_s()))
            await stub.SetPolicy(pb.SetPolicyRequest(key="2", name="fifo"))
            await until(lambda: len(slow.asked) == 2)
            assert (await _policy(stub)).given_up == 1
            deeds = [event.kind async for event in stub.Events(pb.EventsRequest(deeds=True))]
            assert deeds.count("policy-given-up") == 1
            slow.may.set()
            await until(lambda: agent.wants(job) is not None)
            await until(lambda: here.loop.given_up == 0)

    asyncio.run(story())


def test_previews_do_not_wait_for_a_policy_that_stays_at_a_decision_nor_for_one_that_is_given_up(
    config: Config, slow: Slow
) -> None:
    async def story() -> None:
        async with opened(config, replace(PLAIN, decide=slow.decide)) as cluster:
            await cluster.agent(gpus=4).join()
            stub, tickets = cluster.client.stub, {"tickets": {"ann": 300}}
            await stub.SetUser(pb.SetUserRequest(key="u", name="ann", tickets=100))
            await cluster.client.submit(spec("first"), as_user="ann")
            await until(slow.begun.is_set)
            waits = asyncio.create_task(cluster.post("/preview", tickets, token=cluster.admin))
            await until(lambda: cluster.loop.mind.machine.stays_at_it(cluster.loop.clock.now_s()))
            refused = await cluster.post("/preview", tickets, token=cluster.admin)
            assert (refused.code, "has been deciding for" in refused.text) == (503, True)
            assert not waits.done()
            await stub.SetPolicy(pb.SetPolicyRequest(key="p", name="fifo"))
            assert ((await waits).code, "was given up" in (await waits).text) == (503, True)
            assert (await cluster.post("/preview", tickets, token=cluster.admin)).code == 200

    asyncio.run(story())


def test_what_is_given_up_is_heard_of_by_nobody_and_what_comes_after_has_a_thread_of_its_own() -> None:
    begun, may, heard = threading.Semaphore(0), threading.Event(), list[int]()

    def stay() -> int:
        begun.release()
        return int(may.wait(LONG_S))

    async def story() -> None:
        thinker = Thinker()
        first = await thinker.answer(threading.get_ident)
        thinker.give_up()
        assert await thinker.answer(threading.get_ident) == first, "it was at nothing"
        thinker.ask(stay, heard.append)
        behind = asyncio.create_task(thinker.answer(lambda: 2))
        await until(lambda: begun.acquire(blocking=False))
        thinker.give_up()
        with pytest.raises(GivenUpError):
            await behind
        second = await thinker.answer(threading.get_ident)
        assert second != first
        gone = asyncio.create_task(thinker.answer(stay))
        await until(lambda: begun.acquire(blocking=False))
        gone.cancel()
        await asyncio.wait({gone})
        thinker.give_up()
        assert await thinker.answer(threading.get_ident) not in {first, second}, (
            "that was at what nobody waited for"
        )
        assert thinker.given_up == 2
        may.set()
        await until(lambda: thinker.given_up == 0)
        assert heard == []
        thinker.close()

    asyncio.run(story())


def test_a_loop_without_end_that_was_given_up_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinkers, "LET_END_S", 0.01)
    begun = threading.Event()

    def loop() -> None:
        begun.set()
        while True:
            pass

    async def story() -> None:
        thinker = Thinker()
        thinker.ask(loop, lambda _: None)
        await until(begun.is_set)
        thinker.give_up()
        await until(lambda: thinker.given_up == 0)
        assert await thinker.answer(lambda: 2) == 2
        thinker.close()

    asyncio.run(story())


def test_who_is_given_up_at_the_end_of_its_decision_ends_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinkers, "LET_END_S", 0.0)

    async def story() -> None:
        thinker = Thinker()
        for _ in range(200):
            thinker.ask(lambda: 1, lambda _: None)
            thinker.give_up()
            assert await thinker.answer(lambda: 2) == 2
        await until(lambda: thinker.given_up == 0)
        thinker.close()

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
        with pytest.raises(GivenUpError):
            await thinker.answer(lambda: 4)
        for _ in range(100):
            await asyncio.sleep(0)

    asyncio.run(story())
    assert set(heard) <= {1}, "at most of what it was at"
