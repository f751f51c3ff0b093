"""`/metrics`: who may read it, that its figures are those that people are shown, and that it stays what boards stand on."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace

import grpc
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse

from hs_controller import backup, metrics, pieces
from hs_controller.config import Config
from hs_daemon import version
from hs_proto.v1 import common_pb2
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.kit import spec
from tests.controller.scraped import scraped
from tests.controller.test_loop import Commits, disk_error


def test_who_shows_no_token_or_a_wrong_one_is_told_what_to_show(config: Config) -> None:
    async def story() -> None:
        async with scraped(config) as cluster:
            bare = await cluster.ask(token="")
            assert (bare.code, bare.headers["www-authenticate"]) == (401, "Bearer")
            assert "hsctl token create" in bare.text
            wrong = await cluster.ask(token="hs_guessed")
            assert wrong.code == 401
            assert "not known" in wrong.text
            basic = await cluster.ask(token="", authorization="Basic YTpi")
            assert basic.code == 401

    asyncio.run(story())


def test_a_users_token_opens_it_until_it_is_revoked(config: Config) -> None:
    async def story() -> None:
        async with scraped(config) as cluster:
            stub = cluster.client.stub
            await stub.SetUser(pb.SetUserRequest(key="u", name="prometheus", tickets=1))
            made = await stub.CreateToken(pb.CreateTokenRequest(key="t", user="prometheus", label="metrics"))
            assert (await cluster.ask(token=made.token)).code == 200
            await stub.RevokeToken(pb.RevokeTokenRequest(key="r", id=made.view.id))
            assert (await cluster.ask(token=made.token)).code == 401

    asyncio.run(story())


def test_its_figures_are_those_that_people_are_shown(config: Config) -> None:
    async def story() -> None:
        async with scraped(config) as cluster:
            agent = await cluster.agent(gpus=2).join()
            running, standing = await cluster.client.submit(spec("a"), spec("b"))
            await agent.until(lambda: agent.wants(standing) is not None)
            await agent.report(running, "running", gpu_s=5.0, step=50)
            switched = {"suspends": 1, "suspend_s": 0.03, "resumes": 1, "resume_s": 0.4, "tier": "hold"}
            await agent.report(standing, "held", gpu_s=7.0, lost_gpu_s=1.5, step=50, **switched)
            await agent.has_memory(64 << 30, 48 << 30)
            await cluster.client.until(standing, lambda view: view.suspends == 1)
            found = await cluster.read()
            shares = await cluster.client.stub.Shares(pb.SharesRequest(window_s=metrics.WINDOW_S))
            [share] = shares.shares
            user = share.user
            assert found["hs_user_entitled_gpus"] == {("V100", user): share.entitled_gpus}
            assert found["hs_user_demand_gpus"] == {("V100", user): share.demand_gpus}
            assert found["hs_user_tickets"][user,] == share.tickets
            [row] = (await cluster.client.stub.Usage(pb.UsageRequest())).rows
            assert row.gpu_s >= 5.0
            received = (await cluster.read())["hs_user_received_gpu_seconds_total"]
            assert row.gpu_s <= received["V100", user] <= 12.0
            ledger = cluster.loop.mind.ledger
            await agent.until(lambda: ledger.totals[user, "V100"].entitled_gpu_s > 0)
            told = ledger.totals[user, "V100"].entitled_gpu_s
            due = (await cluster.read())["hs_user_entitled_gpu_seconds_total"]["V100", user]
            [later] = (await cluster.client.stub.Usage(pb.UsageRequest())).rows
            assert told <= due <= later.entitled_gpu_s
            assert due in {told, ledger.totals[user, "V100"].entitled_gpu_s}, "no more than a sample tells"
            assert found["hs_queue_jobs"] == {
                ("running", "running"): 1.0,
                ("waiting-for-turn", "suspended"): 1.0,
            }
            assert found["hs_gpu_state"] == {
                ("0", "V100", "h1", "busy"): 1.0,
                ("1", "V100", "h1", "idle"): 1.0,
            }
            assert found["hs_agent_up"] == {("h1",): 1.0}
            assert found["hs_node_jobs"] == {("h1",): 2.0}
            assert 0.0 <= found["hs_agent_report_age_seconds"]["h1",] < 60.0
            assert found["hs_node_memory_available_bytes"] == {("h1",): float(48 << 30)}
            assert found["hs_job_suspend_seconds_count"] == {("hold",): 1.0}
            assert found["hs_job_suspend_seconds_sum"] == {("hold",): pytest.approx(0.03)}
            assert found["hs_job_resume_seconds_sum"] == {("hold",): pytest.approx(0.4)}
            assert found["hs_events_total"]["submitted",] == 2.0
            assert found["hs_info"].keys() == {("plain", version())}
            assert found["hs_controller_read_only"] == {(): 0.0}
            assert found["hs_policy_failing"] == {(): 0.0}
            assert found["hs_scheduler_cycle_seconds_count"]["plain",] >= 1.0
            assert (
                found["hs_scheduler_cycle_seconds_sum"]["plain",]
                >= found["hs_policy_decision_seconds_sum"]["plain",]
            )
            assert found["hs_journal_commit_seconds_count"][()] >= 1.0

    asyncio.run(story())


def test_a_gpu_has_one_state_and_it_says_why_it_is_not_used(config: Config) -> None:
    async def story() -> None:
        async with scraped(config) as cluster:
            stub = cluster.client.stub
            agent = cluster.agent(gpus=3)
            agent.gpus[2].healthy = False
            await agent.join()
            await stub.SetGpuDrain(pb.SetGpuDrainRequest(key="g", node="h1", gpus=[1], drain=True))
            found = await cluster.read()
            assert sorted(found["hs_gpu_state"]) == [
                ("0", "V100", "h1", "idle"),
                ("1", "V100", "h1", "drained"),
                ("2", "V100", "h1", "unhealthy"),
            ]
            await stub.DrainNode(pb.DrainNodeRequest(key="d", node="h1", reason="new fans"))
            found = await cluster.read()
            assert found["hs_node_draining"] == {("h1",): 1.0}
            assert ("0", "V100", "h1", "drained") in found["hs_gpu_state"]
            await agent.leave()
            await until_async(lambda: away(cluster))

    async def away(cluster: SimpleNamespace) -> bool:
        found = await cluster.read()
        states = {labels[-1] for labels in found["hs_gpu_state"]}
        return found["hs_agent_up"]["h1",] == 0.0 and states == {"away"}

    asyncio.run(story())


async def until_async(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 — of what rings no bell
            await asyncio.sleep(0.01)


def test_state_that_is_parked_in_host_memory_is_counted(config: Config) -> None:
    async def story() -> None:
        async with scraped(config) as cluster:
            agent = await cluster.agent().join()
            [job] = await cluster.client.submit(spec(gpus=2))
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "swapped", gpus=2, device_memory_bytes=3 << 30, suspends=1, tier="swap")
            await cluster.client.until(job, lambda view: view.suspends == 1)
            found = await cluster.read()
            assert found["hs_host_memory_parked_bytes"] == {("h1",): float(6 << 30)}
            assert {labels[-1] for labels in found["hs_gpu_state"]} == {"idle"}

    asyncio.run(story())


def test_who_asks_for_open_metrics_gets_them(config: Config) -> None:
    async def story() -> None:
        async with scraped(config) as cluster:
            await cluster.agent().join()
            answer = await cluster.ask(accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
            assert answer.headers["content-type"].startswith("application/openmetrics-text")
            assert answer.text.count("# EOF") == 1
            named = {family.name for family in parse_open_metrics(answer.text)}
            assert {"hs_agent_up", "hs_scheduler_cycle_seconds", "process_cpu_seconds"} <= named

    asyncio.run(story())


@pytest.mark.parametrize("version", ["abc", "1.x", "=", ""])
def test_who_asks_for_a_version_that_is_none_is_answered(config: Config, version: str) -> None:
    async def story() -> None:
        async with scraped(config) as cluster:
            for kind in ("application/openmetrics-text", "text/plain"):
                answer = await cluster.ask(accept=f"{kind}; version={version}")
                assert answer.code == 200, answer.text
                assert "hs_info{" in answer.text

    asyncio.run(story())


def test_of_many_gpus_it_tells_of_each_once_and_of_each_figure_once_what_it_is(config: Config) -> None:
    async def story() -> None:
        async with scraped(config) as cluster:
            await cluster.agent(gpus=2 * metrics.SAMPLES_AT_ONCE + 7).join()
            for accept, read in (("text/plain", parse), ("application/openmetrics-text", parse_open_metrics)):
                page = await cluster.ask(accept=accept)
                families = list(read(page.text))
                (states,) = [family for family in families if family.name == "hs_gpu_state"]
                gpus = [sample.labels["gpu"] for sample in states.samples]
                assert sorted(map(int, gpus)) == list(range(2 * metrics.SAMPLES_AT_ONCE + 7))
                told = [line.split()[2] for line in page.text.splitlines() if line.startswith("# TYPE")]
                assert len(told) == len(set(told))

    asyncio.run(story())


def test_between_two_pieces_of_a_scrape_others_have_four_times_as_long_to_themselves(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests, sleep = list[float](), asyncio.sleep

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        await sleep(0)

    async def story() -> None:
        async with scraped(config) as cluster:
            await cluster.agent(gpus=8).join()
            monkeypatch.setattr(pieces, "PIECE_S", 0.0)  # nothing is small enough to be done with another
            monkeypatch.setattr(pieces, "asyncio", SimpleNamespace(sleep=rest))
            assert (await cluster.read())["hs_gpu_state"]

    piece_s = pieces.PIECE_S
    asyncio.run(story())
    assert len(rests) > 10, "it was made at once"
    assert min(rests) >= 4 * piece_s


def test_while_the_journal_cannot_be_written_it_says_so_and_goes_on_counting(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with scraped(config) as cluster:
            await cluster.agent(gpus=1).join()
            await cluster.client.submit()
            before = await cluster.read()
            commits = Commits(cluster.loop, monkeypatch)
            commits.error = disk_error(sqlite3.SQLITE_FULL, "database or disk is full")
            with pytest.raises(grpc.aio.AioRpcError, match="cannot write its journal"):
                await cluster.client.submit()
            meanwhile = await cluster.read()
            assert meanwhile["hs_controller_read_only"] == {(): 1.0}
            assert list(meanwhile["hs_agent_up"].values()) == [1.0], "an alert would say that it is away"
            assert [state for *_, state in meanwhile["hs_gpu_state"]] == ["idle"]
            commits.error = None
            await until_async(lambda: writable(cluster))
            after = await cluster.read()
            assert after["hs_controller_term"][()] > before["hs_controller_term"][()]
            assert after["hs_events_total"]["submitted",] >= before["hs_events_total"]["submitted",]
            assert (
                after["hs_journal_commit_seconds_count"][()] >= before["hs_journal_commit_seconds_count"][()]
            )

    async def writable(cluster: SimpleNamespace) -> bool:
        return (await cluster.read())["hs_controller_read_only"] == {(): 0.0}

    asyncio.run(story())


def test_after_a_backup_was_put_back_nothing_that_was_counted_before_counts_as_new(config: Config) -> None:
    """Totals are less than Prometheus has seen, which takes a counter that falls for one that began at 0: an alert would say that all of it was just lost."""
    config = replace(config, quantum_s=600.0)
    lost, received = "hs_lost_gpu_seconds_total", "hs_user_received_gpu_seconds_total"

    async def before() -> bytes:
        async with scraped(config) as cluster:
            agent = await cluster.agent(gpus=1).join()
            [job] = await cluster.client.submit()
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running", gpu_s=5000.0, lost_gpu_s=4000.0)
            await cluster.client.until(job, lambda view: view.lost_gpu_s == 4000.0)
            await agent.report(job, "held", gpu_s=5000.0, lost_gpu_s=4000.0)
            await cluster.client.until(job, lambda view: view.state == "suspended")
            assert list((await cluster.read())[lost].values()) == [4000.0]
            with backup.take(config.state_dir) as copy:
                data = b"".join(chunk.data for chunk in copy.chunks())
            await agent.report(job, "held", gpu_s=7000.0, lost_gpu_s=6000.0)
            await cluster.client.until(job, lambda view: view.lost_gpu_s == 6000.0)
            return data

    async def after() -> None:
        async with scraped(config) as cluster:
            first = await cluster.read()
            assert (list(first[lost].values()), list(first[received].values())) == ([0.0], [0.0])
            told = common_pb2.JobReport(
                job_id=1, phase="held", gpus=["GPU-h1-0"], gpu_s=7000.0, lost_gpu_s=6000.0, sliceable=True
            )
            agent = await cluster.agent(gpus=1).join((told,))
            await cluster.client.until(1, lambda view: view.lost_gpu_s == 6000.0)
            again = await cluster.read()
            assert (list(again[lost].values()), list(again[received].values())) == ([0.0], [0.0])
            [row] = (await cluster.client.stub.Usage(pb.UsageRequest())).rows
            assert (row.gpu_s, row.lost_gpu_s) == (7000.0, 6000.0)
            await agent.report(1, "running", gpu_s=7001.0, lost_gpu_s=6003.0)
            await cluster.client.until(1, lambda view: view.state == "running")
            assert list((await cluster.read())[lost].values()) == [3.0]

    copy = config.state_dir.with_name("copy.db")
    copy.write_bytes(asyncio.run(before()))
    backup.restore(config.state_dir, copy, force=True)
    asyncio.run(after())


def test_who_only_connects_keeps_scrapers_of_other_addresses_and_calls_in(config: Config) -> None:
    async def story() -> None:
        async with scraped(config) as cluster:
            host, _, port = cluster.controller.web_address.partition(":")
            idle = [await asyncio.open_connection(host, int(port)) for _ in range(40)]
            try:
                closed = await asyncio.wait_for(idle[-1][0].read(), 60)
                assert closed == b"", "one address has 32 at most"
                assert await cluster.client.submit() == [1]
            finally:
                for _, writer in idle:
                    writer.close()
            await until_async(lambda: answered(cluster))

    async def answered(cluster: SimpleNamespace) -> bool:
        with contextlib.suppress(OSError):
            return (await cluster.ask()).code == 200
        return False

    asyncio.run(story())
