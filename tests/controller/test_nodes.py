"""Servers: drained, removed, away, in trouble; audited, repeatable, refused to others (that is in test_permissions)."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import grpc
import pytest

from hs_controller import admin_service, pki, views
from hs_controller.config import Config
from hs_core.cluster import Settings
from hs_core.cluster.harness import World
from hs_core.names import JobId
from hs_core.policies import find
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.kit import audited, refused_as, spec, started, until


def test_a_node_is_drained_and_undrained_once_however_often_it_is_asked(config: Config) -> None:
    async def story() -> None:
        async with started(config) as here:
            stub, you = here.client.stub, (await here.client.stub.Info(pb.InfoRequest())).you
            agent = await here.agent().join()
            request = pb.DrainNodeRequest(key="d", node="h1", reason="new fan", deadline_s=600)
            first = await stub.DrainNode(request)
            assert (first.draining, first.drain_reason, first.state) == (True, "new fan", "up")
            assert 590 < first.drain_deadline_at - here.loop.clock.now_s() <= 600
            assert await stub.DrainNode(request) == first, "the same key, the same answer"
            [job] = await here.client.submit(spec())
            await until(lambda: here.loop.mind.watched.decided_s > 0)
            assert (await here.client.view(job)).host == "", "nothing new comes to it"
            for key in ("u", "v"):
                assert not (await stub.UndrainNode(pb.NodeRequest(key=key, node="h1"))).draining
            await agent.until(lambda: agent.wants(job) is not None)
            told = await audited(here)
            assert told.count(("host-drained", you)) == told.count(("host-undrained", you)) == 1
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.DrainNode(pb.DrainNodeRequest(key="x", node="h9"))
            refused_as(error, grpc.StatusCode.NOT_FOUND, "unknown server 'h9'")
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.DrainNode(pb.DrainNodeRequest(node="h1"))
            refused_as(error, grpc.StatusCode.INVALID_ARGUMENT, "idempotency key")
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.DrainNode(pb.DrainNodeRequest(key="y", node="h1", deadline_s=1e12))
            refused_as(error, grpc.StatusCode.INVALID_ARGUMENT, "days): at most 366 days")  # no date

    asyncio.run(story())


def test_while_a_directory_is_asked_for_an_account_or_the_host_others_are_answered(
    lasting: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow(*_: object) -> str:
        asked.set()
        assert answer.wait(5.0), "the event loop stood still meanwhile"
        return "gpu-head:7443"

    monkeypatch.setattr(admin_service, "check_account", slow)
    monkeypatch.setattr(Config, "reached_at", slow)
    pki.init(lasting.state_dir)

    async def story() -> None:
        async with started(lasting) as here:
            stub = here.client.stub
            for method, request in (
                (stub.SetUser, pb.SetUserRequest(key="u", name="ann", run_as="ann2")),
                (stub.EnrollNode, pb.EnrollNodeRequest(key="n", node="v1")),
            ):
                call = method(request)
                await until(asked.is_set)
                await stub.Info(pb.InfoRequest())
                answer.set()
                await call
                asked.clear()
                answer.clear()

    asyncio.run(story())


def test_of_a_drained_server_only_those_gpus_count_as_usable_on_which_somebody_still_runs(
    config: Config,
) -> None:
    async def story() -> None:
        async with started(config) as here:
            stub, agent = here.client.stub, await here.agent(gpus=4).join()
            [job] = await here.client.submit(spec())
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running")
            await here.client.until(job, lambda view: view.state == "running")

            async def pool() -> tuple[int, int, int]:
                [pool] = (await stub.Shares(pb.SharesRequest())).pools
                return pool.gpus, pool.healthy, pool.busy

            assert await pool() == (4, 4, 1)
            await stub.DrainNode(pb.DrainNodeRequest(key="d", node="h1"))
            assert await pool() == (4, 1, 1)
            await stub.UndrainNode(pb.NodeRequest(key="u", node="h1"))
            await stub.SetGpuDrain(pb.SetGpuDrainRequest(key="g", node="h1", gpus=[0, 1], drain=True))
            assert await pool() == (4, 3, 1), "one of the drained ones is still somebody's"

    asyncio.run(story())


def test_gpus_are_drained_by_their_indices_and_stay_so_after_a_restart(config: Config) -> None:
    async def story() -> None:
        async with started(config) as here:
            stub = here.client.stub
            await here.agent().join()
            drain = await stub.SetGpuDrain(pb.SetGpuDrainRequest(key="a", node="h1", gpus=[1, 2], drain=True))
            assert list(drain.drained_gpus) == [1, 2]
            less = await stub.SetGpuDrain(pb.SetGpuDrainRequest(key="b", node="h1", gpus=[2]))
            assert list(less.drained_gpus) == [1]
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.SetGpuDrain(pb.SetGpuDrainRequest(key="c", node="h1", gpus=[7], drain=True))
            refused_as(error, grpc.StatusCode.NOT_FOUND, "no GPU 7; it has 0, 1, 2, 3")
        async with started(config) as here:
            await here.agent().join()
            [node] = (await here.client.stub.ListNodes(pb.ListNodesRequest())).nodes
            assert list(node.drained_gpus) == [1]

    asyncio.run(story())


def test_a_removed_node_is_gone_and_its_jobs_are_queued_again(config: Config) -> None:
    async def story() -> None:
        async with started(config) as here:
            stub = here.client.stub
            agent = await here.agent().join()
            [job] = await here.client.submit(spec())
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running")
            await here.client.until(job, lambda view: view.state == "running")
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.RemoveNode(pb.RemoveNodeRequest(key="r", node="h1"))
            refused_as(error, grpc.StatusCode.ABORTED, "drain it first")
            await agent.leave()
            await until(lambda: not here.loop.mind.machine.connected)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.RemoveNode(pb.RemoveNodeRequest(key="r1", node="h1"))
            refused_as(error, grpc.StatusCode.ABORTED, f"job {job} may still run there, then twice")
            answer = await stub.RemoveNode(pb.RemoveNodeRequest(key="r2", node="h1", force=True))
            assert (answer.node, list(answer.requeued_jobs)) == ("h1", [job])
            assert not (await stub.ListNodes(pb.ListNodesRequest())).nodes
            assert (await stub.RemoveNode(pb.RemoveNodeRequest(key="r3", node="h1"))).node == "h1", (
                "safe to repeat"
            )
            told = await audited(here)
            assert [kind for kind, _ in told].count("host-removed") == 1
        async with started(config) as here:
            assert not (await here.client.stub.ListNodes(pb.ListNodesRequest())).nodes, "after a restart too"

    asyncio.run(story())


def test_of_a_removed_nodes_jobs_those_that_have_found_another_home_by_then_are_named_too(
    config: Config,
) -> None:
    async def story() -> None:
        async with started(config, find("gandiva-fair")) as here:
            agent = await here.agent().join()
            [job] = await here.client.submit(spec())
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running")
            await here.client.until(job, lambda view: view.state == "running")
            other = await here.agent(name="h2").join()
            await agent.leave()
            machine, clock = here.loop.mind.machine, here.loop.clock
            await until(lambda: "h1" not in machine.connected)
            watched, pause_s = here.loop.mind.watched, machine.settings.settle_s
            await until(
                lambda: clock.now_s() - watched.decided_s >= pause_s
            )  # so that the removal is decided about at once
            answer = await here.client.stub.RemoveNode(pb.RemoveNodeRequest(key="r", node="h1", force=True))
            assert list(answer.requeued_jobs) == [job]
            await other.until(lambda: other.wants(job) is not None)

    asyncio.run(story())


def test_an_agent_that_says_nothing_is_away_when_its_lease_is_over(config: Config) -> None:
    quick = Config(file=config.file, state_dir=config.state_dir, socket=config.socket, lease_s=0.3)

    async def story() -> None:
        async with started(quick) as here:
            agent = await here.agent().join()
            await until(lambda: agent.error is not None)
            assert "said nothing for 0.3 s" in agent.error.details()
            await until(lambda: not here.loop.mind.machine.connected)

    asyncio.run(story())


def test_an_agent_is_not_silent_while_a_slow_disk_keeps_its_reports_unread(config, monkeypatch):
    async def story():
        async with started(replace(config, lease_s=0.5)) as here:
            agent = await here.agent().join()
            link, journal = here.controller._hub.link("h1"), here.loop.store._journal
            [job] = await here.client.submit()
            await agent.until(lambda: agent.wants(job) is not None)
            commit, slow = journal.commit, threading.Event()

            def stalls(batch):
                slow.set()
                time.sleep(2.0)  # what is tested: much longer than a lease
                commit(batch)

            monkeypatch.setattr(journal, "commit", stalls)
            await agent.report(job, "running")
            await until(slow.is_set)
            monkeypatch.setattr(journal, "commit", commit)
            while (await here.client.view(job)).state != "running":
                await agent.report(job, "running")  # goes on reporting all the time
            assert (link.closed.is_set(), agent.error) == (False, None)
            assert here.loop.mind.machine.connected == {"h1"}
            await agent.leave()

    asyncio.run(story())


def test_agents_hear_the_controller_though_it_has_nothing_to_say(config: Config) -> None:
    quick = Config(file=config.file, state_dir=config.state_dir, socket=config.socket, fence_after_s=0.4)

    async def story() -> None:
        async with started(quick) as here:
            agent = await here.agent().join()
            stamps: list[float] = []
            agent.on_any = lambda message: stamps.append(message.sent_s)
            await until(lambda: len(stamps) >= 3)
            assert stamps == sorted(stamps)

    asyncio.run(story())


def test_troubles_of_a_server_are_among_its_warnings_for_as_long_as_it_has_them(config: Config) -> None:
    async def story() -> None:
        async with started(config) as here:
            agent = await here.agent().join()

            async def warned(*expected: str) -> None:
                async with asyncio.timeout(60):
                    while True:
                        [node] = (await here.client.stub.ListNodes(pb.ListNodesRequest())).nodes
                        if tuple(node.warnings) == expected:
                            return

            await warned()
            await agent.has_troubles("no job can be started: No space left on device", "x" * 5000)
            await warned("no job can be started: No space left on device", "x" * 500)
            await agent.has_troubles()
            await warned()

    asyncio.run(story())


@pytest.mark.parametrize(
    "more_than", [lambda term, _: (term + 1, 0), lambda term, seq: (term, seq + 100)], ids=["term", "seq"]
)
def test_what_a_server_has_heard_of_another_controller_is_none_of_what_this_one_wants_and_is_told(
    config: Config, more_than: Callable[[int, int], tuple[int, int]]
) -> None:
    async def story() -> None:
        async with started(config) as here:
            agent = await here.agent().join()
            await agent.has_heard(*more_than(*here.loop.mind.machine.newest_order))
            async with asyncio.timeout(60):
                warnings: tuple[str, ...] = ()
                while not warnings:
                    [node] = (await here.client.stub.ListNodes(pb.ListNodesRequest())).nodes
                    warnings = tuple(node.warnings)
            assert "has obeyed another controller" in warnings[0]
            assert here.loop.mind.machine._contents.newest_heard == {}

    asyncio.run(story())


def test_a_job_that_ran_on_a_server_which_is_away_is_listed_with_that() -> None:
    at = World(find("las"), Settings(quantum_s=10.0, settle_s=0.0))
    for line in ("user alice", "host n1 V100:4", "submit alice a", "report n1 1:0=running"):
        at.do(line)
    assert views.job_view(at.machine, at.machine.job(JobId(1)), 0.0, mine=True).reason == ""
    at.do("leave n1")
    shown = views.job_view(at.machine, at.machine.job(JobId(1)), 0.0, mine=True)
    assert (shown.state, shown.reason) == ("running", "host-away")
    assert shown.reason_text == "its server n1 is not connected; what it was doing there goes on"


def test_who_is_told_of_times_is_told_the_time_by_the_same_clock(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wall clock is moved after the start: certificates go by it, all else does not."""

    async def story() -> None:
        async with started(config) as here:
            stub = here.client.stub
            await here.agent().join()
            [job] = await here.client.submit(spec())
            wall_s = time.time()
            monkeypatch.setattr("hs_controller.service.time.time", lambda: wall_s + 86_400.0)
            listed = await stub.ListNodes(pb.ListNodesRequest())
            told = [
                listed.now,
                (await stub.Info(pb.InfoRequest())).now,
                (await stub.GetJob(pb.JobRequest(job_id=job))).now,
                (await stub.ListTokens(pb.ListTokensRequest())).now,
            ]
            assert told == pytest.approx([here.loop.clock.now_s()] * 4, abs=60.0)
            assert listed.now >= listed.nodes[0].last_report_at > 0
            assert listed.wall_now == wall_s + 86_400.0

    asyncio.run(story())
