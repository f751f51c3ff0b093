"""How the agent takes what the controller says on its stream."""

import asyncio
import contextlib
import gc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from hs_agent import link, logs
from hs_agent.streams import MAX_LOGS, Streams
from hs_agent.tidings import TOLD_BYTES, Tidings
from hs_controller import links
from hs_core.model import JobSpec
from hs_core.names import JobId, UserName
from hs_core.reports import MOST_AT_ONCE, Exit, JobReport, Phase
from hs_core.wanted import Wanted, WantedJob
from hs_proto import convert, dialect
from hs_proto.v1 import agent_pb2

QUANTUM_S = 60.0


class Stream:
    """Of the controller, whose clock is ahead of this host's: what it said when, and when that is read here."""

    def __init__(self, said: list[tuple[float, float, agent_pb2.ToAgent]], ahead_s: float) -> None:
        self._said, self._ahead_s = said, ahead_s
        self.now_s = 0.0

    async def read(self) -> agent_pb2.ToAgent | None:
        if not self._said:
            return None
        said_s, self.now_s, message = self._said.pop(0)
        message.sent_s = said_s + self._ahead_s
        return message


class Heard:
    def __init__(self) -> None:
        self.late_s: list[float] = []
        self.wanted_late_s: list[float] = []
        self.edges_in_s: list[float | None] = []

    def heard_controller(self, late_s: float) -> None:
        self.late_s.append(late_s)

    def wanted(self, wanted: Wanted, late_s: float) -> None:
        self.wanted_late_s.append(late_s)
        self.edges_in_s.append(wanted.edge_in_s)


def wants(edge_in_s: float) -> agent_pb2.ToAgent:
    wanted = agent_pb2.Wanted(
        term=1, seq=1, quantum_s=QUANTUM_S, turn=agent_pb2.Turn(local=True), edge_in_s=edge_in_s
    )
    return agent_pb2.ToAgent(wanted=wanted)


@pytest.mark.parametrize("ahead_s", [0.0, 5_000.0])
def test_what_was_not_read_for_a_while_is_passed_on_with_how_late_it_is(
    monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    stream = Stream(
        [
            (100.0, 100.25, agent_pb2.ToAgent()),  # a quarter of a second is what it takes here
            (101.0, 101.25, wants(50.0)),
            (102.0, 114.25, agent_pb2.ToAgent()),  # the agent was stopped meanwhile
            (103.0, 114.25, wants(48.0)),
            (115.0, 115.25, wants(36.0)),
        ],
        ahead_s,
    )
    monkeypatch.setattr(link, "boot_s", lambda: stream.now_s)
    heard = Heard()
    connection = link._Connection(SimpleNamespace(report_interval_s=1.0, name="host-a"), heard, stream)  # type: ignore[arg-type]
    asyncio.run(connection._listen())
    assert heard.late_s == pytest.approx([0.0, 0.0, 12.0, 11.0, 0.0])
    assert heard.wanted_late_s == pytest.approx([0.0, 11.0, 0.0])
    assert heard.edges_in_s == pytest.approx([50.0, 37.0, 36.0]), "from now on, not from when it was said"


class Slow:
    """The stream itself: what it takes on the way of one message is up to the test. Like gRPC's, it is over once a write is cancelled."""

    def __init__(self) -> None:
        self.writing, self.goes_on = asyncio.Event(), asyncio.Event()
        self.written: list[int] = []

    async def write(self, message: agent_pb2.FromAgent) -> None:
        self.writing.set()
        await self.goes_on.wait()
        self.written.append(message.log.request_id)


def test_who_wants_no_more_of_a_log_does_not_end_the_stream_to_the_controller() -> None:
    async def write() -> list[int]:
        stream = Slow()
        connection = link._Connection(SimpleNamespace(report_interval_s=1.0, name="host-a"), Heard(), stream)  # type: ignore[arg-type]
        log, other = (
            asyncio.create_task(
                connection._write(agent_pb2.FromAgent(log=agent_pb2.LogData(request_id=number)))
            )
            for number in (1, 2)
        )
        await stream.writing.wait()
        log.cancel()
        assert await asyncio.wait({log}) == ({log}, set())
        stream.goes_on.set()
        await other
        return stream.written

    assert asyncio.run(write()) == [1, 2]


class Sent:
    """The stream itself: of a log, how much has gone over it."""

    def __init__(self) -> None:
        self.data, self.ended = b"", False

    async def write(self, message: agent_pb2.FromAgent) -> None:
        self.data += message.log.data
        self.ended = message.log.end


def test_an_agent_that_stops_as_it_dials_a_controller_that_is_away_leaves_nothing_in_its_log() -> None:
    unheard: list[dict[str, Any]] = []

    async def stops() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: unheard.append(told))
        dials, refused = asyncio.Event(), asyncio.Event()

        async def write(_: agent_pb2.FromAgent) -> None:
            dials.set()
            await refused.wait()
            raise ConnectionRefusedError

        connection = link._Connection(*host_with([]), SimpleNamespace(write=write))  # type: ignore[arg-type]
        link_to_it = asyncio.create_task(connection.run(lambda _: None, None))
        await dials.wait()
        link_to_it.cancel()
        with pytest.raises(asyncio.CancelledError):
            await link_to_it
        refused.set()
        while connection._writes:
            await asyncio.wait(connection._writes)
        gc.collect()

    asyncio.run(stops())
    assert unheard == []


@pytest.mark.parametrize("follow", [False, True])
def test_a_log_is_read_only_as_far_as_its_reader_has_room(tmp_path: Path, follow: bool) -> None:
    said = b"".join(b"%07d\n" % number for number in range(10 * logs.CHUNK // 8))
    (tmp_path / "log").write_bytes(said)
    side = SimpleNamespace(log_folder=lambda _job, _epoch: tmp_path, is_running=lambda _job, _epoch: False)

    async def send() -> None:
        stream = Sent()
        streams = Streams("host-a", side, stream.write)
        request = agent_pb2.LogRequest(
            request_id=1, job_id=1, tail_lines=-1, follow=follow, window_bytes=2 * logs.CHUNK
        )
        await streams.log(request)
        (sending,) = streams.tasks
        for chunks in (2, 3, 6):
            for _ in range(1000):  # as long as it has something to do, and longer
                await asyncio.sleep(0)
            assert len(stream.data) == chunks * logs.CHUNK
            more = {2: 1, 3: 3, 6: 9}[chunks] * logs.CHUNK
            streams.taken(agent_pb2.Taken(request_id=1, bytes=more))
        await sending
        assert (stream.data, stream.ended) == (said, True)
        await asyncio.sleep(0)
        streams.taken(agent_pb2.Taken(request_id=1, bytes=1))  # the end was on its way

    asyncio.run(asyncio.wait_for(send(), 30))


def test_whose_logs_there_are_is_answered_though_as_many_are_sent_as_may_be() -> None:
    side = SimpleNamespace(
        logs_of=lambda _job: (0, 2),
        log_folder=lambda _job, _epoch: None,
        is_running=lambda _job, _epoch: True,
    )

    async def ask() -> list[agent_pb2.LogData]:
        said: list[agent_pb2.LogData] = []

        async def write(message: agent_pb2.FromAgent) -> None:
            said.append(message.log)

        streams = Streams("host-a", side, write)
        for number in range(MAX_LOGS):
            await streams.log(agent_pb2.LogRequest(request_id=number, job_id=1, follow=True))
        for number, which in ((100, True), (101, False)):
            await streams.log(agent_pb2.LogRequest(request_id=number, job_id=1, which=which))
        *logs_of_jobs, asked = streams.tasks
        await asked
        for task in logs_of_jobs:
            task.cancel()
        return sorted(said, key=lambda each: each.request_id)

    which, log = asyncio.run(asyncio.wait_for(ask(), 30))
    assert (list(which.epochs), which.error) == ([0, 2], "")
    assert log.error == "this agent sends 64 logs already"


def host_with(reports: list[JobReport], last_words: tuple[JobReport, ...] = ()) -> tuple[Any, Any]:
    """And its configuration."""
    side = SimpleNamespace(
        reports=lambda: reports,
        last_words=lambda: last_words,
        readings=(),
        gpus=(),
        warnings=(),
        setup="s",
        peer_address="",
    )
    config = SimpleNamespace(report_interval_s=1.0, name="host-a", cgroup_root="")
    return config, side


@pytest.mark.parametrize(("jobs", "log_tail"), [(0, ""), (10, "the end"), (1500, "α" * 4000), (20_000, "")])
def test_a_hello_comes_in_messages_that_the_controller_takes_and_leaves_nothing_out(
    jobs: int, log_tail: str
) -> None:
    ended = Exit(code=1, why="no such program", log_tail=log_tail)
    reports = [
        JobReport(job=JobId(number), epoch=1, phase=Phase.EXITED, exit=ended, note="disk full")
        for number in range(jobs)
    ]
    last_words = tuple(replace(report, epoch=0) for report in reports[:32])
    hello = Tidings(*host_with(reports, last_words)).hello()
    assert all(agent_pb2.FromAgent(hello=part).ByteSize() < 1 << 20 for part in hello)
    assert all(len(part.jobs) + len(part.last_words) <= MOST_AT_ONCE for part in hello)
    assert [part.more for part in hello] == [True] * (len(hello) - 1) + [False]
    assert [part.host for part in hello] == ["host-a"] + [""] * (len(hello) - 1)
    assert [convert.to_report(job) for part in hello for job in part.jobs] == reports
    assert tuple(convert.to_report(job) for part in hello for job in part.last_words) == last_words
    assert (len(hello) > 1) == (jobs > 10)


def wanted(number: int, text: str) -> WantedJob:
    spec = JobSpec(name=f"job-{number}", command=("sh", "-c", text))
    return WantedJob(
        job=JobId(number), epoch=1, user=UserName("ann"), run_as="ann", job_class="c", spec=spec, tickets=1.0, seal="s"
    )  # fmt: skip


@pytest.mark.parametrize(("jobs", "text"), [(0, ""), (3, "true"), (40, "x" * 200_000), (3000, "true")])
def test_what_it_was_told_of_jobs_comes_in_messages_that_the_controller_takes(jobs: int, text: str) -> None:
    config, host = host_with([])
    host.told = lambda: tuple(wanted(number, text) for number in range(jobs + 10))
    told = Tidings(config, host).told(range(jobs))
    assert all(agent_pb2.FromAgent(told=part).ByteSize() < 1 << 20 for part in told)
    assert [part.more for part in told] == [True] * (len(told) - 1) + [False] * (jobs > 0)
    assert [convert.to_wanted_job(job) for part in told for job in part.jobs] == list(host.told())[:jobs]


def test_of_what_it_was_told_no_more_is_said_than_the_controller_takes_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert TOLD_BYTES < links.TOLD_BYTES
    monkeypatch.setattr("hs_agent.tidings.TOLD_BYTES", 2 << 20)
    config, host = host_with([])
    host.told = lambda: tuple(wanted(number, "x" * 200_000) for number in range(40))
    assert sum(len(part.jobs) for part in Tidings(config, host).told(range(40))) == 10


def test_what_ends_at_one_time_is_told_in_messages_that_the_controller_takes() -> None:
    reports = [JobReport(job=JobId(number), epoch=1, phase=Phase.RUNNING) for number in range(500)]
    tidings = Tidings(*host_with(reports))
    tidings.hello()
    ended = Exit(code=1, log_tail="x" * 8000)
    reports[:] = [replace(report, phase=Phase.EXITED, exit=ended) for report in reports]
    told: list[int] = []
    while (news := tidings.news()) is not None:
        assert news.ByteSize() < 1 << 20
        told += [job.job_id for job in news.jobs]
    assert told == list(range(500))


def test_a_controller_that_knows_other_messages_is_named() -> None:
    side = SimpleNamespace(term=lambda: 1, described="")
    config = SimpleNamespace(secure=False, controller="head:7443")
    one = link.Link(config, side, None)  # type: ignore[arg-type]
    with capture_logs() as told:
        one._welcomed(agent_pb2.Welcome(term=1, version="9.0.0", dialect="0123456789ab"))
        one._welcomed(agent_pb2.Welcome(term=1, version="9.0.0", dialect=dialect.of_agents()))
    (line,) = (line for line in told if line["log_level"] == "warning")
    assert line["why"].startswith("the controller is of version 9.0.0, messages 0123456789ab; this agent")


REMOVED = "h1 was removed from the cluster; join anew: hsctl node enroll h1"


@pytest.mark.parametrize(
    ("code", "said", "is_secure", "ends"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, REMOVED, True, True),
        (grpc.StatusCode.PERMISSION_DENIED, REMOVED, True, True),
        (grpc.StatusCode.UNAUTHENTICATED, REMOVED, False, False),  # anybody may have said it
        (grpc.StatusCode.UNAVAILABLE, REMOVED, True, False),
        (grpc.StatusCode.UNAUTHENTICATED, REMOVED.replace("h1", "h10"), True, False),
        (grpc.StatusCode.UNAUTHENTICATED, "the certificate of h1 was replaced by a newer one", True, False),
    ],
)
def test_jobs_end_where_the_controller_says_over_tls_that_the_host_was_removed(
    monkeypatch: pytest.MonkeyPatch, code: grpc.StatusCode, said: str, is_secure: bool, ends: bool
) -> None:
    told: list[str] = []

    def refused(*_: object) -> None:
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), said)

    monkeypatch.setattr(link.dialling, "channel", refused)
    config = SimpleNamespace(secure=is_secure, name="h1", controller="head:7443", report_interval_s=1.0)
    keeper = SimpleNamespace(look=lambda: None, why_not_good=lambda: "")
    identity = SimpleNamespace(keeper=keeper)
    side = SimpleNamespace(cast_out=lambda: told.append("cast out"))
    assert said in asyncio.run(link.Link(config, side, identity)._once())  # type: ignore[arg-type]
    assert told == ["cast out"] * ends


class Open:
    """A stream to the controller that has welcomed this host and says no more."""

    def __init__(self) -> None:
        self._said = [agent_pb2.ToAgent(welcome=agent_pb2.Welcome(term=1, dialect=dialect.of_agents()))]

    async def read(self) -> agent_pb2.ToAgent:
        if not self._said:
            await asyncio.Event().wait()
        return self._said.pop()

    async def write(self, _: agent_pb2.FromAgent) -> None:
        pass

    def cancel(self) -> None:
        pass


def test_a_host_with_a_new_certificate_connects_anew_at_once_and_complains_of_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[Open] = []

    def stub(_: object) -> SimpleNamespace:
        def connect(**_: object) -> Open:
            opened.append(Open())
            return opened[-1]

        return SimpleNamespace(Connect=connect)

    monkeypatch.setattr(link.dialling, "channel", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(link.dialling, "metadata", lambda _: ())
    monkeypatch.setattr(link.agent_pb2_grpc, "AgentLinkStub", stub)
    _, side = host_with([])
    side.term, side.described = lambda: 1, ""
    keeper = SimpleNamespace(look=lambda: None, why_not_good=lambda: "")
    config = SimpleNamespace(
        secure=True, name="h1", controller="head:7443", report_interval_s=1.0, cgroup_root=""
    )

    async def story() -> None:
        identity = SimpleNamespace(keeper=keeper, renewed=asyncio.Event())
        welcomed = asyncio.Queue[float]()
        side.heard_controller = welcomed.put_nowait
        one = link.Link(config, side, identity)  # type: ignore[arg-type]
        running = asyncio.create_task(one.run())
        async with asyncio.timeout(60):
            for times in (1, 2, 3):
                await welcomed.get()
                assert (len(opened), one.connected) == (times, True)
                identity.renewed.set()
        running.cancel()

    monkeypatch.setattr(link.random, "random", lambda: pytest.fail("there is nothing to wait for"))
    with capture_logs() as told:
        asyncio.run(story())
    assert {line["event"] for line in told} == {"connected"}
