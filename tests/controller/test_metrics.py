"""`/metrics`: who may read it, that its figures are those that people are shown, and that it stays what boards stand on."""

import asyncio
import contextlib
import http.client
import socket
import sqlite3
import ssl
import time
import urllib.error
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import grpc
import pytest
from cryptography import x509
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse

from hs_controller import backup, metrics, pieces
from hs_controller.config import Config
from hs_controller.meters import AT_ONCE, Meters
from hs_controller.pki import Authority
from hs_controller.rows import Event
from hs_core.events import Fact
from hs_core.model import Job, JobSpec
from hs_core.names import HostName, JobId, UserName
from hs_core.reports import JobReport, Phase, Tier
from hs_daemon import version
from hs_proto.certified import CONTROLLER_DNS
from hs_proto.v1 import common_pb2, controller_pb2_grpc
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.browser import fetch, opened
from tests.controller.kit import FakeAgent, spec
from tests.controller.secured import Cluster, free_port
from tests.controller.test_loop import Commits, disk_error


@contextlib.asynccontextmanager
async def scraped(config: Config) -> AsyncIterator[SimpleNamespace]:
    """A controller, and who reads it as Prometheus does."""
    async with opened(config) as cluster:

        async def ask(token: str = cluster.admin, **more: str) -> SimpleNamespace:
            return await cluster.get("/metrics", token=token, **more)

        async def read() -> dict[str, dict[tuple[str, ...], float]]:
            """Each sample by its name and the values of its labels, by their names."""
            answer = await ask()
            assert answer.code == 200, answer.text
            found: dict[str, dict[tuple[str, ...], float]] = {}
            for family in parse(answer.text):
                for sample in family.samples:
                    values = tuple(sample.labels[name] for name in sorted(sample.labels))
                    found.setdefault(sample.name, {})[values] = sample.value
            return found

        yield SimpleNamespace(**vars(cluster), ask=ask, read=read)


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


# --- over TLS --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    port = free_port()
    one = Cluster(tmp_path_factory.mktemp("metrics"), more=f'web_listen = "127.0.0.1:{port}"\n')
    one.metrics = f"https://127.0.0.1:{port}/metrics"
    one.start()
    yield one
    if one.process is not None and one.process.poll() is None:
        one.kill()


def trusting(cluster: Cluster) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(cluster.folder / "state" / "pki" / "ca.pem"))
    context.set_alpn_protocols(["http/1.1"])
    return context


def token_of(cluster: Cluster) -> str:
    with grpc.insecure_channel(f"unix:{cluster.socket}") as channel:
        stub = controller_pb2_grpc.HeteroShareStub(channel)
        stub.SetUser(pb.SetUserRequest(key="u", name="prometheus", tickets=1))
        return stub.CreateToken(pb.CreateTokenRequest(key="t", user="prometheus")).token


def test_over_tls_it_shows_the_controllers_certificate_and_asks_for_a_token_all_the_same(
    secure: Cluster,
) -> None:
    context, token = trusting(secure), token_of(secure)
    port = int(secure.metrics.split(":")[2].split("/")[0])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=CONTROLLER_DNS) as tls,
    ):
        assert tls.version() == "TLSv1.3"
        head = (
            f"GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
        )
        tls.sendall(head.encode())
        answer = b"".join(iter(lambda: tls.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"hs_controller_term" in answer
    context.check_hostname = False
    assert fetch(secure.metrics, context=context).code == 401


def test_over_tls_a_nodes_certificate_is_no_token(secure: Cluster) -> None:
    node = secure.joined("m1")
    context = trusting(secure)
    context.check_hostname = False
    folder = secure.folder / "identity-m1"
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    assert node is not None
    assert fetch(secure.metrics, context=context).code == 401


def test_older_tls_and_plaintext_are_not_spoken(secure: Cluster) -> None:
    context = trusting(secure)
    context.check_hostname = False
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(urllib.error.URLError):
        fetch(secure.metrics, context=context)
    with pytest.raises((urllib.error.URLError, ConnectionError, http.client.HTTPException)):
        fetch(secure.metrics.replace("https:", "http:"))


# --- what is counted -------------------------------------------------------------------------------------------------

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


def test_the_ends_of_certificates_are_there_and_when_the_process_began(secure: Cluster) -> None:
    mine = secure.joined("m2")

    async def connect() -> None:
        async with secure.channel(mine) as channel:
            agent = await FakeAgent(channel, "m2").join()
            await agent.leave()

    asyncio.run(connect())
    context = trusting(secure)
    context.check_hostname = False
    page = fetch(secure.metrics, context=context, token=token_of(secure)).text
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in parse(page)
        for sample in family.samples
    }
    ca = Authority.load(secure.folder / "state")
    assert ca is not None
    assert found["hs_certificate_end_seconds", "ca"] == ca.until_s
    shown = x509.load_pem_x509_certificate((secure.folder / "state/pki/server.pem").read_bytes())
    assert found["hs_certificate_end_seconds", "controller"] == shown.not_valid_after_utc.timestamp()
    assert found["hs_node_certificate_end_seconds", "m2"] == mine.not_after_s
    assert 0.0 < time.time() - found[("process_start_time_seconds",)] < 600.0
