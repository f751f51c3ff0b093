"""The agent's one stream to the controller: tells everything on connect, then what changed; takes what is wanted; sends logs, and what commands beside jobs say.

Nothing here is needed for jobs to run: without the controller the host goes on with what was wanted last.
"""

import asyncio
import contextlib
import random
import secrets
import signal
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import grpc
import structlog

from hs_agent import checkup, dialling, logs, procs
from hs_agent.config import Config, memory_bytes
from hs_agent.delay import Delay
from hs_agent.devices import Reading
from hs_agent.errands import End, Errands
from hs_agent.folder import Key
from hs_agent.now_and_then import NowAndThen
from hs_agent.secure import Secure
from hs_core.errors import Kind, RefusedError
from hs_core.model import Gpu
from hs_core.names import JobId
from hs_core.reports import MOST_AT_ONCE, JobReport, differs, parting
from hs_core.wanted import Wanted
from hs_daemon import boot_s, version
from hs_daemon.notify import status
from hs_proto import certified, convert, dialect
from hs_proto.v1 import agent_pb2, agent_pb2_grpc, common_pb2

MAX_BACKOFF_S = 5.0
FIRST_BACKOFF_S = 0.1
UNREAD_S = 60.0  # that somebody may take over what a command has said, beyond its time
MAX_LOG_STREAMS = 64
MAX_REPORTS_BYTES = 768 << 10  # in one message, of which the controller takes 1 MiB
FRAME_BYTES = 4  # around each of them

PROCESS = secrets.token_hex(8)
"""Which agent this is: a copy of its state on the same machine has the same name, certificate and boot."""

_Call = grpc.aio.StreamStreamCall[agent_pb2.FromAgent, agent_pb2.ToAgent]

log = structlog.get_logger("link")


class Side(Protocol):
    """What the link needs of the agent."""

    warnings: tuple[str, ...]
    errands: Errands

    @property
    def described(self) -> str: ...

    @property
    def gpus(self) -> tuple[Gpu, ...]: ...

    @property
    def readings(self) -> tuple[Reading, ...]: ...

    @property
    def left_bytes(self) -> int | None: ...

    @property
    def troubles(self) -> tuple[str, ...]: ...

    @property
    def peer_address(self) -> str: ...

    @property
    def setup(self) -> str: ...

    def reports(self) -> tuple[JobReport, ...]: ...

    def last_words(self) -> tuple[JobReport, ...]: ...

    def heard(self) -> tuple[int, int]: ...

    def wanted(self, wanted: Wanted, late_s: float) -> None: ...

    def heard_controller(self, late_s: float) -> None: ...

    def cast_out(self) -> None: ...

    def term(self) -> int: ...

    def log_folder(self, job: JobId, epoch: int | None = None) -> Path | None: ...

    def logs_of(self, job: JobId) -> list[int]: ...

    def is_running(self, job: JobId, epoch: int | None = None) -> bool: ...


class Link:
    def __init__(self, config: Config, side: Side, identity: Secure | None = None) -> None:
        self.config, self.side = config, side
        self._identity = identity if config.secure else None
        self.connected = False
        self._complaints = NowAndThen()

    async def run(self) -> None:
        """Until cancelled, or refused for good (RefusedError). Agents that lost one controller together come back spread out: full jitter."""
        attempt = 0
        while True:
            began_s = boot_s()
            why = await self._once()
            self.connected = False
            if not why:
                continue
            attempt = 0 if boot_s() - began_s > MAX_BACKOFF_S else attempt + 1
            most_s = min(FIRST_BACKOFF_S * 2 ** min(attempt, 10), MAX_BACKOFF_S)
            wait_s = random.random() * most_s  # noqa: S311 — jitter
            self._complain(why)
            await asyncio.sleep(wait_s)

    def _complain(self, why: str) -> None:
        status(f"{self.side.described}; no controller: {why}")
        if self._complaints.is_due(why, boot_s()):
            log.warning("no controller", controller=self.config.controller, why=why)

    async def _once(self) -> str:
        """One connection; why it ended. Empty: it begins anew with the certificate that this host has now."""
        options = [
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            # What it wants of this host is said as a whole, however many jobs that are.
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        try:
            if self._identity is not None:
                self._identity.keeper.look()
            async with dialling.channel(self.config, self._identity, options) as channel:
                stub = agent_pb2_grpc.AgentLinkStub(channel)
                call = stub.Connect(metadata=dialling.metadata(self.config))
                connection = _Connection(self.config, self.side, call)
                if self._identity is not None:
                    self._identity.renewed.clear()
                try:
                    renewed = await connection.run(self._welcomed, self._identity)
                finally:
                    call.cancel()
            return "" if renewed else "the controller ended the stream"
        except grpc.aio.AioRpcError as error:
            if self._is_removed(error):
                self.side.cast_out()
                return str(error.details())
            if self._identity is not None and error.code() is grpc.StatusCode.PERMISSION_DENIED:
                why = f"the controller at {self.config.controller} refuses this host: {error.details()}"
                log.error(why, name=self.config.name)
                raise RefusedError(why, Kind.NOT_ALLOWED) from None
            why = self._identity.keeper.why_not_good() if self._identity is not None else ""
            return why or f"{error.code().name}: {error.details()}"
        except (TimeoutError, OSError, RefusedError, asyncio.InvalidStateError) as error:
            return str(error) or type(error).__name__
        except Exception as error:
            log.exception("the link broke")
            return f"{type(error).__name__}: {error}"

    def _is_removed(self, error: grpc.aio.AioRpcError) -> bool:
        """Said by nobody but the controller: over TLS only, to who has a certificate that the cluster's CA signed for it. On this machine nobody is removed so."""
        refusals = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
        if self._identity is None or error.code() not in refusals:
            return False
        return (error.details() or "").startswith(f"{certified.removed(self.config.name)};")

    def _welcomed(self, welcome: agent_pb2.Welcome) -> None:
        self.connected = True
        self._complaints.worked()
        status(f"{self.side.described}; connected to {self.config.controller}")
        log.info("connected", controller=self.config.controller, term=welcome.term)
        unlike = dialect.unlike(
            dialect.Speaker("the controller", welcome.version, welcome.dialect),
            dialect.Speaker("this agent", version(), dialect.of_agents()),
        )
        if unlike:
            log.warning("controller of another version", why=unlike)
        if welcome.term < self.side.term():
            log.error(
                "this host has obeyed a controller of a later term: orders of this one are refused",
                term=welcome.term, heard=self.side.term(), hint=f"if its state was reset on purpose, end the jobs and "
                f"remove {self.config.state_dir}/host.json",
            )  # fmt: skip


class _Window:
    """How much of a log may be sent just now: who reads it has room for so much."""

    def __init__(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        self._more = asyncio.Event()

    def taken(self, more_bytes: int) -> None:
        self._room_bytes += more_bytes
        self._more.set()

    async def room(self, needed_bytes: int) -> None:
        """Once there is so much room; then it is taken up."""
        while self._room_bytes < needed_bytes:
            self._more.clear()
            await self._more.wait()
        self._room_bytes -= needed_bytes


class _Connection:
    def __init__(self, config: Config, side: Side, call: _Call) -> None:
        self.config, self.side, self.call = config, side, call
        self.interval_s = config.report_interval_s
        self._sent: dict[JobId, JobReport] = {}
        self._sent_gpus: list[common_pb2.Gpu] = []
        self._writing = asyncio.Lock()  # one write at a time on a stream
        self._writes: set[asyncio.Task[None]] = set()
        self._logs: dict[int, asyncio.Task[None]] = {}
        self._errands: dict[int, asyncio.Task[None]] = {}
        self._windows: dict[int, _Window] = {}  # of both
        self._others: set[asyncio.Task[None]] = set()
        self._doctor = asyncio.Lock()  # there is one
        self._is_obeyed = True
        self._delay = Delay()

    async def run(self, welcomed: Callable[[agent_pb2.Welcome], None], identity: Secure | None) -> bool:
        """Until it ends; whether that is because this host has a new certificate."""
        asked_s = boot_s()
        for hello in self._hello():
            await self._write(agent_pb2.FromAgent(hello=hello))
        first = await self.call.read()
        if not isinstance(first, agent_pb2.ToAgent) or first.WhichOneof("body") != "welcome":
            raise RefusedError("the controller did not begin with a welcome")
        if first.welcome.report_interval_s > 0:
            self.interval_s = min(max(first.welcome.report_interval_s, 0.05), 60.0)
        self._delay.excess_s(first.sent_s, boot_s())
        self._is_obeyed = first.welcome.term >= self.side.term()
        welcomed(first.welcome)
        self.side.heard_controller(boot_s() - asked_s)  # it answered some time since then
        reporting = asyncio.create_task(self._report_on())
        listening = asyncio.create_task(self._listen())
        ends: set[asyncio.Task[Any]] = {reporting, listening}
        if identity is not None:
            ends.add(asyncio.create_task(identity.renewed.wait()))
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return done.isdisjoint({reporting, listening})
        finally:
            tasks = [*ends, *self._logs.values(), *self._errands.values(), *self._others, *self._writes]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, message: agent_pb2.FromAgent) -> None:
        """Whoever is cancelled meanwhile leaves the write alone: gRPC would cancel all of the stream with it."""
        write = asyncio.create_task(self._write_in_turn(message))
        self._writes.add(write)
        write.add_done_callback(self._written)
        await asyncio.shield(write)

    def _written(self, write: asyncio.Task[None]) -> None:
        self._writes.discard(write)
        if not write.cancelled():
            write.exception()  # nobody may be left whom it would be told

    async def _write_in_turn(self, message: agent_pb2.FromAgent) -> None:
        async with self._writing:
            await self.call.write(message)

    # --- reports ----------------------------------------------------------------------------------------------------

    def _gpus(self) -> list[common_pb2.Gpu]:
        readings = {reading.gpu: reading for reading in self.side.readings}
        return [
            convert.from_gpu(
                gpu, utilization_percent=r.utilization_percent, memory_used_bytes=r.memory_used_bytes
            )
            for gpu in self.side.gpus
            for r in (readings.get(gpu.id, Reading(gpu=gpu.id)),)
        ]

    def _hello(self) -> list[agent_pb2.Hello]:
        """In as many messages as the jobs need."""
        reports = self.side.reports()
        self._sent = {report.job: report for report in reports}
        self._sent_gpus = self._gpus()
        first = agent_pb2.Hello(
            host=self.config.name,
            boot_id=procs.boot_id(),
            process=PROCESS,
            version=version(),
            dialect=dialect.of_agents(),
            gpus=self._sent_gpus,
            warnings=self.side.warnings,
            peer=self.side.peer_address,
            memory_bytes=memory_bytes(self.config.cgroup_root),
            setup=self.side.setup,
            said_s=boot_s(),
        )
        hello, left_bytes = [first], MAX_REPORTS_BYTES
        last_words = self.side.last_words()
        for at, report in enumerate((*last_words, *reports)):
            told = convert.from_report(report)
            said = len(hello[-1].last_words) + len(hello[-1].jobs)
            if told.ByteSize() > left_bytes or said == MOST_AT_ONCE:
                hello[-1].more = True
                hello.append(agent_pb2.Hello())
                left_bytes = MAX_REPORTS_BYTES
            left_bytes -= told.ByteSize() + FRAME_BYTES
            (hello[-1].last_words if at < len(last_words) else hello[-1].jobs).append(told)
        return hello

    def _news(self) -> agent_pb2.Report | None:
        """What differs from what this connection was told. However long the stream stood still: the present state, once."""
        now = {report.job: report for report in self.side.reports()}
        gone = parting(self._sent, now, self.side.last_words)
        self._sent = {job: report for job, report in self._sent.items() if job in now}
        changed = [convert.from_report(report) for report in gone]
        left_bytes = MAX_REPORTS_BYTES - sum(told.ByteSize() + FRAME_BYTES for told in changed)
        for job, report in now.items():
            if not differs(self._sent.get(job), report):
                continue
            told = convert.from_report(report)
            left_bytes -= told.ByteSize() + FRAME_BYTES
            if changed and (left_bytes < 0 or len(changed) == MOST_AT_ONCE):
                break  # the next message says it
            changed.append(told)
            self._sent[job] = report
        gpus = self._gpus()
        told_gpus = [] if gpus == self._sent_gpus else gpus
        self._sent_gpus = gpus
        if not changed and not told_gpus:
            return None
        return agent_pb2.Report(jobs=changed, gpus=told_gpus)

    async def _report_on(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            # Without news an empty one: an agent that says nothing is taken for dead when its lease is over.
            report = self._news() or agent_pb2.Report()
            report.said_s = boot_s()
            report.heard_term, report.heard_seq = self.side.heard()
            if self.side.left_bytes is not None:
                report.memory.total_bytes, report.memory.available_bytes = (
                    memory_bytes(self.config.cgroup_root),
                    self.side.left_bytes,
                )
            report.troubles.extend(self.side.troubles)
            await self._write(agent_pb2.FromAgent(report=report))

    # --- what the controller says -----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            message = await self.call.read()
            if not isinstance(message, agent_pb2.ToAgent):  # grpc.aio.EOF
                return
            late_s = self._delay.excess_s(message.sent_s, boot_s())
            self.side.heard_controller(late_s)  # also by one that says nothing else
            match message.WhichOneof("body"):
                case "wanted":
                    self._wanted(message.wanted, late_s)
                case "log":
                    await self._log_wanted(message.log)
                case "exec":
                    await self._errand_wanted(message.exec)
                case "doctor":
                    self._spawn(self._send_doctors(message.doctor))
                case "taken":
                    self._taken(message.taken)
                case "cancel":
                    number = message.cancel.request_id
                    task = self._logs.get(number) or self._errands.get(number)
                    if task is not None:
                        task.cancel()
                case _:
                    pass

    def _wanted(self, message: agent_pb2.Wanted, late_s: float) -> None:
        try:
            wanted = convert.to_wanted(message)
        except RefusedError as error:
            log.error("what the controller wants makes no sense here and is not done", why=str(error))
            return
        if wanted.edge_in_s is not None:
            wanted = replace(wanted, edge_in_s=wanted.edge_in_s - late_s)
        self.side.wanted(wanted, late_s)

    # --- logs -------------------------------------------------------------------------------------------------------

    async def _log_wanted(self, request: agent_pb2.LogRequest) -> None:
        full = len(self._logs) >= MAX_LOG_STREAMS and not request.which  # that is answered at once
        if full or request.request_id in self._logs:
            why = (
                f"this agent sends {MAX_LOG_STREAMS} logs already"
                if request.request_id not in self._logs
                else "asked twice"
            )
            await self._end_log(request.request_id, why)
            return
        window = self._windows[request.request_id] = _Window(request.window_bytes)
        task = asyncio.create_task(self._send_log(request, window))
        self._logs[request.request_id] = task
        task.add_done_callback(lambda _: self._forget_log(request.request_id))

    def _taken(self, taken: agent_pb2.Taken) -> None:
        window = self._windows.get(taken.request_id)
        if window is not None:  # else its end was under way
            window.taken(taken.bytes)

    def _forget_log(self, request_id: int) -> None:
        del self._logs[request_id], self._windows[request_id]

    async def _send_log(self, request: agent_pb2.LogRequest, window: "_Window") -> None:
        job = JobId(request.job_id)
        if request.which:
            await self._end_log(request.request_id, "", self.side.logs_of(job))
            return
        epoch, error = request.epoch if request.HasField("epoch") else None, ""
        try:
            folder = self.side.log_folder(job, epoch)
            while folder is None and request.follow and self.side.is_running(job, epoch):
                await asyncio.sleep(logs.POLL_S)
                folder = self.side.log_folder(job, epoch)
            if folder is None:
                error = f"{self.config.name} has no log of job {job}"
            else:
                chunks = logs.read(
                    folder,
                    request.tail_lines,
                    follow=request.follow,
                    alive=lambda: self.side.is_running(job, epoch),
                    where=lambda: self.side.log_folder(job, epoch),
                    ago_s=request.ago_s,
                )
                async with contextlib.aclosing(chunks):
                    async for chunk in chunks:
                        await window.room(len(chunk))
                        data = agent_pb2.LogData(request_id=request.request_id, data=chunk)
                        await self._write(agent_pb2.FromAgent(log=data))
        except OSError as broken:
            error = f"the log cannot be read: {broken.strerror}"
        await self._end_log(request.request_id, error)

    async def _end_log(self, request_id: int, error: str, epochs: Iterable[int] = ()) -> None:
        data = agent_pb2.LogData(request_id=request_id, end=True, error=error, epochs=epochs)
        await self._write(agent_pb2.FromAgent(log=data))

    # --- commands beside jobs ---------------------------------------------------------------------------------------

    async def _errand_wanted(self, request: agent_pb2.Exec) -> None:
        number = request.request_id
        if number in self._logs or number in self._errands:
            await self._end_errand(number, RefusedError("asked twice"))
            return
        window = self._windows[number] = _Window(request.window_bytes)
        task = self._errands[number] = asyncio.create_task(self._send_errand(request, window))
        task.add_done_callback(lambda _: self._forget_errand(number))

    def _forget_errand(self, number: int) -> None:
        del self._errands[number], self._windows[number]

    async def _send_errand(self, request: agent_pb2.Exec, window: _Window) -> None:
        number = request.request_id
        try:
            async with asyncio.timeout(request.limit_s + UNREAD_S):
                end = await self._through_errand(request, window)
        except RefusedError as refused:
            await self._end_errand(number, refused)
        except TimeoutError:
            await self._end_errand(
                number, End(signal=signal.SIGKILL, why="nobody took what it said", is_late=True)
            )
        else:
            await self._end_errand(number, end)

    async def _through_errand(self, request: agent_pb2.Exec, window: _Window) -> End:
        if not self._is_obeyed:
            raise RefusedError(
                f"{self.config.name} has obeyed a controller of a later term", Kind.UNAVAILABLE
            )
        key = Key(JobId(request.job_id), request.epoch)
        async with self.side.errands.run(key, request.command, request.limit_s) as running:
            async with contextlib.aclosing(running.said()) as said:
                async for is_error, data in said:
                    await window.room(len(data))
                    some = agent_pb2.ExecData(request_id=request.request_id, data=data, is_error=is_error)
                    await self._write(agent_pb2.FromAgent(exec=some))
            return await running.ended()

    async def _end_errand(self, number: int, how: End | RefusedError) -> None:
        data = agent_pb2.ExecData(request_id=number)
        if isinstance(how, RefusedError):
            data.error, data.error_kind = str(how), how.kind.value
        else:
            data.end.CopyFrom(
                common_pb2.ExecEnd(code=how.code, signal=how.signal, why=how.why, is_late=how.is_late)
            )
        await self._write(agent_pb2.FromAgent(exec=data))

    # --- what the doctor says ---------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def _send_doctors(self, request: agent_pb2.Doctor) -> None:
        async with self._doctor:
            text = await checkup.told(self.config)
        said = agent_pb2.DoctorSaid(request_id=request.request_id, text=text)
        await self._write(agent_pb2.FromAgent(doctor=said))
