"""The agents that are connected: what each has said on its connection, and what is to be sent to it."""

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

import structlog

from hs_controller.questions import Questions
from hs_core.errors import Kind, RefusedError
from hs_core.events.cluster import HostJoined
from hs_core.model import Host
from hs_core.names import HostName, JobId
from hs_core.reports import MOST_AT_ONCE, JobReport, Phase
from hs_core.wanted import Wanted, WantedJob
from hs_daemon import boot_s, version
from hs_proto import convert, dialect
from hs_proto.v1 import agent_pb2, common_pb2

log = structlog.get_logger("hs_controller.links")

AT_ONCE, PAUSE_S = 32, 0.005  # so many agents are told something in one go, and then so long nobody
# That an agent sends at once, and of these to one user: nobody is to keep all others out.
LOGS, LOGS_OF_ONE = 64, 32
ERRANDS_OF_ONE = 4  # commands beside jobs; how many in all an agent decides
CONTROL_MESSAGES = 1024  # log requests and the like that wait to be sent
# Of what one agent says of jobs: as much as a Hello may say, counted with what each takes in memory beside.
REPORTS_BYTES, REPORT_BYTES = 256 << 20, 512
TOLD_BYTES = 64 << 20  # likewise of what it was told, after a backup was put back


T = TypeVar("T")


class Reader(Generic[T]):
    """One caller's view of what an agent sends bit by bit. It sends only as much as the caller has not taken yet, within a window."""

    what = "than it was asked for"

    def __init__(self, link: "Link", request: int, whose: str, window_bytes: int) -> None:
        self.request, self.whose = request, whose
        self._link = link
        self._window = window_bytes
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._taken = 0  # bytes of which the agent has not been told
        self._more = asyncio.Event()
        self._end: RefusedError | None = None
        self._ended = False

    def put(self, item: T, size: int) -> None:
        if self._ended:
            return
        if self._bytes + size > self._window:
            self._link.cancel(self)
            self.end(f"{self._link.host.name} sends more {self.what}")
            return
        self._items.append((item, size))
        self._bytes += size
        self._more.set()

    def end(self, error: str = "", kind: Kind = Kind.UNAVAILABLE) -> None:
        if self._ended:
            return
        self._ended = True
        self._end = RefusedError(error, kind) if error else None
        self._link.forget(self)
        self._more.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if self._ended:
                if self._end is not None:
                    raise self._end
                raise StopAsyncIteration
            self._more.clear()
            await self._more.wait()
        item, size = self._items.popleft()
        self._bytes -= size
        self._taken += size
        if self._taken >= self._window // 4 and not self._ended:
            self._link.taken(self, self._taken)
            self._taken = 0
        return item


class LogReader(Reader[bytes]):
    what = "of the log than it was asked for"


class ErrandReader(Reader[agent_pb2.ExecData]):
    """What a command beside a job says; the last is how it ended."""

    what = "of what a command says than it was asked for"


def unlike_ours(hello: agent_pb2.Hello) -> str:
    """What to tell people where its agent does not know the same messages as this controller; empty: it does."""
    return dialect.unlike(
        dialect.Speaker("the agent", hello.version, hello.dialect),
        dialect.Speaker("this controller", version(), dialect.of_agents()),
    )


class Link:
    """One connection of one agent."""

    def __init__(self, hello: agent_pb2.Hello, host: Host, now_s: float) -> None:
        self.host = host
        self.version = hello.version
        self.unlike = unlike_ours(hello)  # for people
        self.process = hello.process
        self.rival_s: float | None = None  # another process of its name and boot was refused, first
        self.gpus = tuple(hello.gpus)  # with readings for people
        self.memory: agent_pb2.HostMemory | None = None  # for people
        self.troubles: tuple[str, ...] = ()  # likewise
        self.reports: dict[JobId, JobReport] = {}
        self._sizes: dict[JobId, int] = {}  # of those
        self._size = 0
        self._last_words: tuple[JobReport, ...] = ()  # of the Hello
        self._told: list[WantedJob] = []  # of jobs that were submitted since the backup that was put back
        self._told_bytes = 0
        self.last_report_s = now_s
        self.unread_s = now_s  # until then nothing was read of it, as what it had said was being taken in
        self._behind_s: float | None = (
            None  # its boot clock, behind this host's; None: it does not say what it shows
        )
        self.taken_in = (-1, -1)  # (term, seq) of the newest Wanted, as it said last
        self.logs: dict[int, LogReader] = {}
        self.errands: dict[int, ErrandReader] = {}  # of the same numbers
        self._which = Questions[tuple[int, ...]]()  # of which incarnations of a job it has logs
        self._doctors = Questions[str]()
        self.closed = asyncio.Event()
        self.why_closed = ""
        self._wanted: tuple[Wanted, float] | None = None  # newest, not sent yet, and when it was said
        self._control: deque[agent_pb2.ToAgent] = deque()
        self._something = asyncio.Event()
        self._requests = itertools.count(1)
        self.greeted(hello, now_s)

    def greeted(self, hello: agent_pb2.Hello, now_s: float) -> None:
        """Takes in what it says of itself, or the rest of that."""
        self._not_too_many(len(hello.jobs) + len(hello.last_words))
        self.shows(hello.said_s)
        self.heard(hello.jobs, (), now_s)
        self._last_words += tuple(sane(convert.to_report(job)) for job in hello.last_words)
        if len(self._last_words) > MOST_AT_ONCE:
            raise RefusedError(
                f"{self.host.name} has last words of {len(self._last_words)} jobs; at most {MOST_AT_ONCE} were expected"
            )

    def told_of(self, said: agent_pb2.Told, unknown: range) -> None:
        """Of jobs of these numbers that it has: what it was told last, by this controller before its state was lost or by another. What makes no sense is passed over."""
        for job in said.jobs:
            self._told_bytes += job.ByteSize()
            if self._told_bytes > TOLD_BYTES:
                raise RefusedError(
                    f"{self.host.name} says that it was told more than {TOLD_BYTES >> 20} MiB of its jobs"
                )
            if job.job_id not in unknown:
                continue
            try:
                self._told.append(convert.to_wanted_job(job))
            except RefusedError as refused:
                log.warning("told-of-no-job", host=self.host.name, job=job.job_id, why=str(refused))

    def shows(self, said_s: float) -> None:
        """Its boot clock, when it said what was just heard; 0: nothing is known of it."""
        if said_s > 0 and math.isfinite(said_s):
            self._behind_s = boot_s() - said_s

    @property
    def clock_s(self) -> float | None:
        """What its boot clock shows now."""
        return None if self._behind_s is None else boot_s() - self._behind_s

    def heard(
        self, jobs: Sequence[common_pb2.JobReport], gpus: Sequence[common_pb2.Gpu], now_s: float
    ) -> tuple[JobReport, ...]:
        """Takes in what a message says of jobs and devices; raises RefusedError where it makes no sense."""
        self._not_too_many(len(jobs))
        told = tuple(map(self._report, jobs))
        if gpus:
            self.host = replace(self.host, gpus=convert.to_gpus(gpus))
            self.gpus = tuple(gpus)
        for report in told:
            self.reports[report.job] = report
        self.last_report_s = now_s
        return told

    def _not_too_many(self, reports: int) -> None:
        if reports > MOST_AT_ONCE:
            raise RefusedError(
                f"{self.host.name} says {reports} reports in one message; at most {MOST_AT_ONCE} were expected"
            )

    def _report(self, said: common_pb2.JobReport) -> JobReport:
        report, size = sane(convert.to_report(said)), said.ByteSize() + REPORT_BYTES
        self._size += size - self._sizes.get(report.job, 0)
        self._sizes[report.job] = size
        if self._size > REPORTS_BYTES:
            raise RefusedError(
                f"{self.host.name} says too much of jobs: {len(self._sizes)} of them take more than {REPORTS_BYTES >> 20} MiB"
            )
        return report

    def joined(self, now_s: float) -> HostJoined:
        """Last words are for whom it meets: they grow old."""
        said, self._last_words = self._last_words, ()
        return HostJoined(
            now_s=now_s,
            host=self.host,
            reports=tuple(self.reports.values()),
            last_words=said,
            said_s=self.clock_s,
            told=tuple(self._told),
        )

    def direct(self, wanted: Wanted, said_s: float) -> None:
        self._wanted = wanted, said_s
        # What ended and is no longer wanted, the agent forgets, and so do we.
        named = {job.job for job in wanted.jobs}
        self.reports = {j: r for j, r in self.reports.items() if j in named or r.phase is not Phase.EXITED}
        self._sizes = {job: self._sizes[job] for job in self.reports}
        self._size = sum(self._sizes.values())

    def release(self) -> None:
        """What is wanted may go out now."""
        self._something.set()

    def log(
        self,
        job: JobId,
        *,
        whose: str,
        tail_lines: int,
        follow: bool,
        window_bytes: int,
        epoch: int | None = None,
        ago_s: float = 0.0,
    ) -> LogReader:
        """`epoch`: of that incarnation; None: the newest that was there. `ago_s`: written in the last so many seconds; 0: ever. Raises RefusedError where too many are read."""
        theirs = sum(reader.whose == whose for reader in self.logs.values())
        if theirs >= LOGS_OF_ONE:
            raise RefusedError(
                f"{self.host.name} sends {theirs} logs to {whose} already, the most for one user; end some first",
                Kind.UNAVAILABLE,
            )
        if len(self.logs) >= LOGS:
            raise RefusedError(
                f"{self.host.name} sends {LOGS} logs already; try again later", Kind.UNAVAILABLE
            )
        reader = LogReader(self, next(self._requests), whose, window_bytes)
        request = agent_pb2.LogRequest(
            request_id=reader.request,
            job_id=job,
            tail_lines=tail_lines,
            follow=follow,
            epoch=epoch,
            window_bytes=window_bytes,
            ago_s=ago_s,
        )
        self._send(agent_pb2.ToAgent(log=request))
        self.logs[reader.request] = reader
        return reader

    async def logs_of(self, job: JobId) -> tuple[int, ...]:
        """Of which incarnations it has logs."""
        number = next(self._requests)
        request = agent_pb2.LogRequest(request_id=number, job_id=job, tail_lines=-1, which=True)
        return await self._which.ask(number, lambda: self._send(agent_pb2.ToAgent(log=request)))

    async def doctor(self) -> str:
        """What `hs-agent doctor` says there now."""
        number = next(self._requests)
        request = agent_pb2.Doctor(request_id=number)
        return await self._doctors.ask(number, lambda: self._send(agent_pb2.ToAgent(doctor=request)))

    def doctor_said(self, said: agent_pb2.DoctorSaid) -> None:
        self._doctors.answered(said.request_id, said.text)

    def exec(
        self,
        job: JobId,
        epoch: int,
        command: Sequence[str],
        *,
        whose: str,
        limit_s: float,
        window_bytes: int,
    ) -> ErrandReader:
        """Raises RefusedError where too many run."""
        theirs = sum(reader.whose == whose for reader in self.errands.values())
        if theirs >= ERRANDS_OF_ONE:
            raise RefusedError(
                f"{self.host.name} runs {theirs} commands for {whose} already, the most for one user; end some first",
                Kind.UNAVAILABLE,
            )
        reader = ErrandReader(self, next(self._requests), whose, window_bytes)
        request = agent_pb2.Exec(
            request_id=reader.request,
            job_id=job,
            epoch=epoch,
            command=command,
            limit_s=limit_s,
            window_bytes=window_bytes,
        )
        self._send(agent_pb2.ToAgent(exec=request))
        self.errands[reader.request] = reader
        return reader

    def cancel(self, reader: Reader[Any]) -> None:
        """Nobody reads it any more. That is said however much waits to be sent: else the agent would keep it, and its place, for ever."""
        if self.forget(reader) and not self.closed.is_set():
            self._put(agent_pb2.ToAgent(cancel=agent_pb2.Cancel(request_id=reader.request)))

    def forget(self, reader: Reader[Any]) -> bool:
        """Whether it was known."""
        log, errand = self.logs.pop(reader.request, None), self.errands.pop(reader.request, None)
        return log is not None or errand is not None

    def taken(self, reader: Reader[Any], taken_bytes: int) -> None:
        """So much more of it may be sent."""
        self._send(agent_pb2.ToAgent(taken=agent_pb2.Taken(request_id=reader.request, bytes=taken_bytes)))

    def log_data(self, data: agent_pb2.LogData) -> None:
        self._which.answered(data.request_id, tuple(data.epochs))
        reader = self.logs.get(data.request_id)
        if reader is None:
            return
        if data.data:
            reader.put(data.data, len(data.data))
        if data.end:
            reader.end(data.error, Kind.NOT_FOUND)

    def errand_data(self, data: agent_pb2.ExecData) -> None:
        reader = self.errands.get(data.request_id)
        if reader is None:
            return
        if data.error:
            reader.end(data.error, convert.word(Kind, data.error_kind, "error_kind"))
            return
        reader.put(data, len(data.data))
        if data.HasField("end"):
            reader.end()

    def _send(self, message: agent_pb2.ToAgent) -> None:
        if len(self._control) >= CONTROL_MESSAGES:
            raise RefusedError(
                f"{self.host.name} does not take its messages; try again later", Kind.UNAVAILABLE
            )
        self._put(message)

    def _put(self, message: agent_pb2.ToAgent) -> None:
        self._control.append(message)
        self._something.set()

    async def next(self, now_s: Callable[[], float]) -> agent_pb2.ToAgent:
        """What is to be sent; of several Wanted only the newest, with what is left now of the time to its edge."""
        while True:
            if self._control:
                return self._control.popleft()
            if self._wanted is not None:
                (wanted, said_s), self._wanted = self._wanted, None
                message = convert.from_wanted(wanted)
                if wanted.edge_in_s is not None:
                    message.edge_in_s = max(0.0, wanted.edge_in_s - (now_s() - said_s))
                return agent_pb2.ToAgent(wanted=message)
            self._something.clear()
            await self._something.wait()

    def close(self, why: str) -> None:
        if not self.closed.is_set():
            self.why_closed = why
            self.closed.set()
        readers: list[Reader[Any]] = [*self.logs.values(), *self.errands.values()]
        for reader in readers:
            reader.end(f"{self.host.name} went away: {why}")


class Hub:
    """One link a host: the newest."""

    def __init__(self) -> None:
        self._links: dict[HostName, Link] = {}
        self._heard_s: dict[HostName, float] = {}  # from those that are away
        self._told: deque[Link] = deque()  # with something to be sent, in that order
        self._pumping: asyncio.TimerHandle | None = None

    def attach(self, link: Link) -> None:
        old = self._links.get(link.host.name)
        self._links[link.host.name] = link
        if old is not None:
            boot = "" if old.host.boot_id == link.host.boot_id else ", from another boot"
            log.warning("link-replaced", host=link.host.name, why=f"a second connection of this host{boot}")
            old.close(f"another connection of {link.host.name} took its place{boot}")

    def detach(self, link: Link, why: str) -> bool:
        """Whether the host is away now (False: another connection had taken its place)."""
        link.close(why)
        if self._links.get(link.host.name) is not link:
            return False
        del self._links[link.host.name]
        self._heard_s[link.host.name] = link.last_report_s
        return True

    def heard_s(self, host: HostName) -> float:
        """When it reported last; 0: not since this controller runs."""
        link = self._links.get(host)
        return self._heard_s.get(host, 0.0) if link is None else link.last_report_s

    def link(self, host: HostName) -> Link | None:
        return self._links.get(host)

    def names(self) -> Sequence[HostName]:
        return sorted(self._links)

    def direct(self, host: HostName, wanted: Wanted, said_s: float) -> None:
        link = self._links.get(host)
        if link is not None:  # else it is told when it is back
            link.direct(wanted, said_s)
            self._told.append(link)
            if self._pumping is None:
                self._pump()

    def _pump(self) -> None:
        """A decision may have something to say to thousands; between them requests get their turn."""
        for _ in range(min(AT_ONCE, len(self._told))):
            self._told.popleft().release()
        more = bool(self._told)
        self._pumping = asyncio.get_running_loop().call_later(PAUSE_S, self._pump) if more else None

    def joined(self, host: HostName, now_s: float) -> Sequence[HostJoined]:
        link = self._links.get(host)
        return [] if link is None or link.closed.is_set() else [link.joined(now_s)]

    def close(self, why: str) -> None:
        if self._pumping is not None:
            self._pumping.cancel()
        for link in list(self._links.values()):
            link.close(why)


_COUNTERS = ("gpu_s", "run_s", "suspend_s", "resume_s", "lost_gpu_s")


def sane(report: JobReport) -> JobReport:
    """A rate, or a time, that is no number is none; a counter that is none cannot be charged."""
    for name in _COUNTERS:
        value = getattr(report, name)
        if not math.isfinite(value) or value < 0:
            raise RefusedError(f"job {report.job}: {name}: {value!r}: a number from 0 up was expected")
    if not math.isfinite(report.steps_per_s) or report.steps_per_s < 0:
        report = replace(report, steps_per_s=0.0)
    return report if math.isfinite(report.since_s) else replace(report, since_s=0.0)
