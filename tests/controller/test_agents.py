"""An agent at the controller's door: what it has to say first, and what is believed of what it says."""

import asyncio
from types import SimpleNamespace

import grpc
import pytest

from hs_controller import links
from hs_controller.links import CONTROL_MESSAGES, LOGS, Hub, Link
from hs_controller.permissions import Caller, Role
from hs_controller.rows import Kept, NodeIdentity
from hs_core.errors import RefusedError
from hs_core.names import JobId
from hs_core.wanted import Turn, Wanted
from hs_proto import convert
from hs_proto.v1 import agent_pb2, agent_pb2_grpc, common_pb2
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.kit import (
    INVALID,
    FakeAgent,
    channel_to,
    refused,
    started,
    until,
)


def test_an_agent_says_hello_first(lasting):
    async def story():
        async with started(lasting) as here:
            call = agent_pb2_grpc.AgentLinkStub(here.channel).Connect()
            await call.write(agent_pb2.FromAgent(report=agent_pb2.Report()))
            async with refused(*INVALID, "Hello was expected"):
                await call.read()

    asyncio.run(story())


def test_an_agent_that_says_nothing_is_sent_away(lasting, monkeypatch):
    monkeypatch.setattr("hs_controller.agents.HELLO_S", 0.2)

    async def story():
        async with started(lasting) as here:
            call = agent_pb2_grpc.AgentLinkStub(here.channel).Connect()
            async with refused(*INVALID, "no Hello"):
                await call.read()

    asyncio.run(story())


def test_a_server_that_is_removed_while_it_says_hello_is_not_there_again(lasting, monkeypatch):
    node = Caller(name="h1", node="h1", serial="1", roles=frozenset({Role.NODE}), account=False)
    monkeypatch.setattr("hs_controller.agents.CALLER", SimpleNamespace(get=lambda: node))

    async def story():
        async with started(lasting) as here:
            stub, attach = here.client.stub, Hub.attach
            await here.loop.tell(
                lambda now_s, _machine: [
                    Kept(now_s=now_s, rows=(NodeIdentity(node="h1", serials={"1": 9e9}),))
                ]
            )

            def removed_meanwhile(hub, link):
                attach(hub, link)
                gone = here.loop.mind.registry.removed("h1", here.loop.clock.now_s())
                here.loop.tell(lambda now_s, _machine: [Kept(now_s=now_s, rows=(gone,))])

            monkeypatch.setattr(Hub, "attach", removed_meanwhile)
            with pytest.raises(grpc.aio.AioRpcError, match="h1 was removed from the cluster"):
                await here.agent().join()
            assert list((await stub.ListNodes(pb.ListNodesRequest())).nodes) == []

    asyncio.run(story())


def test_an_agent_without_gpus_is_told_so(lasting):
    async def story():
        async with started(lasting) as here:
            with pytest.raises(grpc.aio.AioRpcError, match="no GPU"):
                await here.agent(gpus=0).join()

    asyncio.run(story())


@pytest.mark.parametrize("name", ["", "v1\n", "\x1b[31mv1", "v" * 5000])
def test_an_agent_whose_name_is_no_hosts_is_refused_and_nothing_is_kept_of_it(lasting, name):
    async def story():
        async with started(lasting) as here:
            with pytest.raises(grpc.aio.AioRpcError, match=r"host: .* a host name"):
                await here.agent(name=name).join()
            assert here.loop.store._journal.load().hosts == ()
            assert not (await here.client.stub.ListNodes(pb.ListNodesRequest())).nodes

    asyncio.run(story())


def test_a_counter_that_is_no_number_is_not_charged(lasting):
    async def story():
        async with started(lasting) as here:
            agent = await here.agent().join()
            [job] = await here.client.submit()
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running", gpu_s=float("nan"))
            await agent.until(lambda: agent.error is not None)
            assert "gpu_s" in agent.error.details()
            assert here.loop.mind.ledger.totals == {}

    asyncio.run(story())


def test_the_newest_connection_of_a_host_takes_the_place_of_the_one_before(lasting):
    async def story():
        async with started(lasting) as here:
            old = await here.agent().join()
            async with channel_to(f"unix:{lasting.socket}") as other:
                new = await FakeAgent(other).join()
                await old.until(lambda: old.error is not None)
                assert "took its place" in old.error.details()
                assert here.loop.mind.machine.connected == {"h1"}, "the old one's end is not the host's"
                [job] = await here.client.submit()
                await new.until(lambda: new.wants(job) is not None)
                await new.leave()

    asyncio.run(story())


def test_two_machines_with_one_identity_do_not_push_each_other_out_and_people_are_told(lasting):
    async def story():
        async with started(lasting) as here:
            first = await here.agent().join()
            async with channel_to(f"unix:{lasting.socket}") as other:
                for _ in range(2):
                    with pytest.raises(
                        grpc.aio.AioRpcError, match="another machine is connected as h1"
                    ) as why:
                        await FakeAgent(other, boot="boot-2").join()
                    assert why.value.code() is grpc.StatusCode.ABORTED
            [job] = await here.client.submit()
            await first.until(lambda: first.wants(job) is not None)
            told = [event async for event in here.client.stub.Events(pb.EventsRequest())]
            assert [event.host for event in told if event.kind == "host-doubled"] == ["h1"]
            await first.leave()

    asyncio.run(story())


def test_two_agents_on_one_machine_do_not_push_each_other_out_and_people_are_told(lasting):
    async def story():
        async with started(lasting) as here:
            first = await here.agent(process="one").join()
            [job] = await here.client.submit()
            async with channel_to(f"unix:{lasting.socket}") as other:

                async def refused_again():
                    with pytest.raises(
                        grpc.aio.AioRpcError, match="another agent of this machine is connected"
                    ):
                        await FakeAgent(other, process="two").join()

                async def told():
                    events = [event async for event in here.client.stub.Events(pb.EventsRequest())]
                    return [event.text for event in events if event.kind == "host-doubled"]

                await refused_again()
                assert await told() == [], "it may have been killed, and be started again"
                await first.until(lambda: first.wants(job) is not None)
                await first.report(job, "running")
                await here.client.until(job, lambda view: view.state == "running")
                await refused_again()
                async with asyncio.timeout(20):
                    async for event in here.client.stub.Events(pb.EventsRequest(follow=True)):
                        if event.kind == "host-doubled":
                            assert "a second agent on its machine" in event.text
                            break
                assert len(await told()) == 1
            await first.leave()

    asyncio.run(story())


def test_an_agent_that_was_killed_and_is_started_again_is_in_as_soon_as_its_connection_has_ended(lasting):
    async def story():
        async with started(lasting) as here:
            async with channel_to(f"unix:{lasting.socket}") as other:
                first = await FakeAgent(other, process="one").join()
                await first.leave()
            await until(lambda: not here.loop.mind.machine.connected)
            again = await here.agent(process="two").join()
            told = [event.kind async for event in here.client.stub.Events(pb.EventsRequest())]
            assert "host-doubled" not in told
            await again.leave()

    asyncio.run(story())


def test_a_machine_that_was_booted_again_takes_the_place_of_a_connection_that_has_gone_quiet(
    lasting, monkeypatch
):
    monkeypatch.setattr("hs_controller.agents.STILL_HERE", -1e9)  # it is quiet at once

    async def story():
        async with started(lasting) as here:
            old = await here.agent().join()
            async with channel_to(f"unix:{lasting.socket}") as other:
                new = await FakeAgent(other, boot="boot-2").join()
                await old.until(lambda: old.error is not None)
                assert "took its place" in old.error.details()
                await new.leave()

    asyncio.run(story())


def test_what_a_host_has_may_come_in_several_messages(lasting):
    async def story():
        async with started(lasting) as here:
            agent = await here.agent().join()
            jobs = [*await here.client.submit(), *await here.client.submit()]
            for job in jobs:
                await agent.until(lambda job=job: agent.wants(job) is not None)
                await agent.report(job, "running", gpu_s=1.0)
                await here.client.until(job, lambda view: view.state == "running")
            await agent.leave()
            parts = [
                (common_pb2.JobReport(job_id=job, phase="running", gpu_s=gpu_s, checkpoint_step=-1),)
                for job, gpu_s in zip(jobs, (2.0, 3.0), strict=True)
            ]
            async with channel_to(f"unix:{lasting.socket}") as other:
                back = await FakeAgent(other).join(*parts)
                for job, gpu_s in zip(jobs, (2.0, 3.0), strict=True):
                    await here.client.until(job, lambda view, gpu_s=gpu_s: view.gpu_s == gpu_s)
                await back.leave()

    asyncio.run(story())


def test_last_words_are_taken_in_once_in_however_many_messages_and_are_not_of_what_is_there():
    def says(job: int, epoch: int, phase: str) -> common_pb2.JobReport:
        return common_pb2.JobReport(job_id=job, epoch=epoch, phase=phase, checkpoint_step=-1)

    gpus = [common_pb2.Gpu(id="GPU-0", index=0, model="V100", memory_bytes=1, healthy=True)]
    last = [says(1, 0, "exited"), says(2, 0, "exited"), says(1, 3, "checkpointed")]
    hello = agent_pb2.Hello(host="a", boot_id="b", gpus=gpus, last_words=last[:2], more=True)
    link = Link(hello, convert.to_host(hello), 0.0)
    link.greeted(agent_pb2.Hello(last_words=last[2:], jobs=[says(1, 4, "running")]), 0.0)
    joined = link.joined(0.0)
    assert [(said.job, said.epoch) for said in joined.last_words] == [(1, 0), (2, 0), (1, 3)]
    assert [(said.job, said.epoch) for said in joined.reports] == [(1, 4)]
    assert link.joined(1.0).last_words == ()


@pytest.mark.parametrize("said_s", [float("nan"), float("inf"), 0.0, -1.0])
def test_what_a_hosts_clock_shows_is_known_from_when_it_last_said_so(monkeypatch, said_s: float) -> None:
    now_s = 5_000.0
    monkeypatch.setattr(links, "boot_s", lambda: now_s)
    gpus = [common_pb2.Gpu(id="GPU-0", index=0, model="V100", memory_bytes=1, healthy=True)]
    ended = common_pb2.JobReport(job_id=1, phase="exited", since_s=70.0, checkpoint_step=-1)
    hello = agent_pb2.Hello(host="a", boot_id="b", gpus=gpus, jobs=[ended], said_s=100.0)
    link = Link(hello, convert.to_host(hello), 0.0)
    assert link.joined(0.0).said_s == 100.0
    now_s += 20.0
    joined = link.joined(20.0)
    assert (joined.said_s, joined.reports[0].since_s) == (120.0, 70.0)
    link.shows(said_s)
    assert link.joined(20.0).said_s == 120.0, "what is no time says nothing"
    odd = common_pb2.JobReport(job_id=1, phase="exited", since_s=float("nan"), checkpoint_step=-1)
    assert link.heard([odd], (), 20.0)[0].since_s == 0.0


def test_what_an_agent_was_not_asked_for_as_it_takes_no_messages_has_none_of_its_places():
    gpus = [common_pb2.Gpu(id="GPU-0", index=0, model="V100", memory_bytes=1, healthy=True)]
    hello = agent_pb2.Hello(host="a", boot_id="b", gpus=gpus)
    link = Link(hello, convert.to_host(hello), 0.0)
    asked = {"whose": "ann", "window_bytes": 1 << 20}

    async def asks() -> list[agent_pb2.ToAgent]:
        readers = [link.log(JobId(1), tail_lines=-1, follow=True, **asked)]
        readers.append(link.exec(JobId(1), 0, ["true"], limit_s=1.0, **asked))
        while len(link._control) < CONTROL_MESSAGES:
            link.taken(readers[0], 1)
        for _ in range(LOGS):
            with pytest.raises(RefusedError, match="a does not take its messages"):
                link.log(JobId(1), tail_lines=-1, follow=True, **asked)
            with pytest.raises(RefusedError, match="a does not take its messages"):
                link.exec(JobId(1), 0, ["true"], limit_s=1.0, **asked)
        for reader in readers:
            link.cancel(reader)
        assert not link.logs
        assert not link.errands
        return [await link.next(lambda: 0.0) for _ in range(CONTROL_MESSAGES + 2)]

    told = asyncio.run(asks())
    assert [message.cancel.request_id for message in told[-2:]] == [
        told[0].log.request_id,
        told[1].exec.request_id,
    ], "what it was asked for it is told to leave, however much it has not taken"


def test_what_an_agent_says_of_jobs_has_a_bound_in_which_it_may_repeat_itself_and_speak_of_new_ones(
    monkeypatch,
):
    monkeypatch.setattr(links, "REPORTS_BYTES", 100 * (links.REPORT_BYTES + 64))
    gpus = [common_pb2.Gpu(id="GPU-0", index=0, model="V100", memory_bytes=1, healthy=True)]
    hello = agent_pb2.Hello(host="a", boot_id="b", gpus=gpus)
    link = Link(hello, convert.to_host(hello), 0.0)
    nothing = Wanted(term=1, seq=1, quantum_s=1.0, turn=Turn(), jobs=())

    def says(phase: str, *jobs: int, **more) -> None:
        link.heard([common_pb2.JobReport(job_id=job, phase=phase, **more) for job in jobs], (), 0.0)

    for first in range(0, 1000, 100):  # ended, and not wanted: forgotten
        says("exited", *range(first, first + 100), note="x" * 20)
        link.direct(nothing, 0.0)
    for step in range(10):
        says("running", *range(100), step=step)
    assert len(link.reports) == 100
    with pytest.raises(RefusedError, match="a says too much of jobs"):
        says("running", *range(100, 130))
    link = Link(hello, convert.to_host(hello), 0.0)
    with pytest.raises(RefusedError, match="a says too much of jobs"):
        says("running", 1, note="x" * links.REPORTS_BYTES)


def test_no_message_of_an_agent_says_so_much_of_jobs_that_others_would_wait_for_it() -> None:
    gpus = [common_pb2.Gpu(id="GPU-0", index=0, model="V100", memory_bytes=1, healthy=True)]
    hello = agent_pb2.Hello(host="a", boot_id="b", gpus=gpus)
    link = Link(hello, convert.to_host(hello), 0.0)
    many = [common_pb2.JobReport(phase="held")] * 1001
    with pytest.raises(RefusedError, match="a says 1001 reports in one message; at most 1000"):
        link.heard(many, (), 0.0)
    with pytest.raises(RefusedError, match="a says 1001 reports in one message; at most 1000"):
        link.greeted(agent_pb2.Hello(last_words=many), 0.0)
    link.greeted(agent_pb2.Hello(last_words=many[:600]), 0.0)
    with pytest.raises(RefusedError, match="a has last words of 1200 jobs; at most 1000"):
        link.greeted(agent_pb2.Hello(last_words=many[:600]), 0.0)


def test_a_hello_without_an_end_is_not_listened_to(lasting, monkeypatch):
    monkeypatch.setattr("hs_controller.agents.HELLO_MESSAGES", 3)

    async def story():
        async with started(lasting) as here:
            with pytest.raises(grpc.aio.AioRpcError, match="a Hello of more than 3 messages"):
                await here.agent().join((), (), (), ())

    asyncio.run(story())


def test_what_an_agent_says_when_it_comes_back_is_taken_in(lasting):
    async def story():
        async with started(lasting) as here:
            agent = await here.agent().join()
            [job] = await here.client.submit()
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running", gpu_s=1.0)
            await here.client.until(job, lambda view: view.state == "running")
            await agent.leave()
        async with started(lasting) as here:
            said = common_pb2.JobReport(
                job_id=job, phase="exited", gpu_s=9.0, checkpoint_step=-1, exit=common_pb2.Exit(code=7)
            )
            back = await here.agent().join((said,))
            view = await here.client.until(job, lambda view: view.state == "failed")
            assert (view.exit.code, view.gpu_s) == (7, 9.0)
            await back.until(lambda: back.wanted and back.wants(job) is None)
            [row] = (await here.client.stub.Usage(pb.UsageRequest())).rows
            assert row.gpu_s == 9.0
            await back.leave()

    asyncio.run(story())
