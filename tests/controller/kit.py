"""A controller of one test: real journal, real doors, a policy as plain as can be, and an agent that follows a script."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from fractions import Fraction
from types import SimpleNamespace

import grpc
import pytest

from hs_controller.app import Controller
from hs_controller.config import Config
from hs_core.model import MoveReason
from hs_core.policy import Needs, Plan, Policy, Snapshot, Verdict
from hs_core.wanted import Turn
from hs_proto import dialect
from hs_proto.v1 import agent_pb2, agent_pb2_grpc, common_pb2, controller_pb2_grpc
from hs_proto.v1 import controller_pb2 as pb


def decide(snapshot: Snapshot, memory: dict) -> Verdict:
    """Every job lives on the first server that can hold it, until that is drained; all weigh the same."""
    hosts = [host for host in snapshot.hosts if host.connected and host.accepts]
    drained = {host.name for host in snapshot.hosts if host.connected and not host.accepts}
    homes = {
        job.id: job.hosts
        for job in snapshot.jobs
        if job.hosts and not (job.movable and hosts and drained & set(job.hosts))
    }
    for job in snapshot.jobs:
        fit = [host for host in hosts if host.gpus >= job.gang]
        if job.id not in homes and fit:
            homes[job.id] = (fit[0].name,)
    gpus = sum(host.gpus for host in snapshot.hosts)
    model = snapshot.hosts[0].model if snapshot.hosts else ""
    users = {job.user for job in snapshot.jobs}
    return Verdict(
        plan=Plan(
            homes=homes,
            turns={host.name: Turn() for host in snapshot.hosts},
            moves={
                job.id: (MoveReason.DRAIN, "its server is drained")
                for job in snapshot.jobs
                if job.hosts and homes.get(job.id) not in {None, job.hosts}
            },
            tickets={job: Fraction(100, len(homes)) for job in homes},
        ),
        memory={"rounds": memory.get("rounds", 0) + 1},
        entitled={(user, model): Fraction(gpus, len(users)) for user in users},
    )


PLAIN = Policy(name="plain", needs=Needs(every_quantum=True), decide=decide)


class FakeAgent:
    """An agent over the wire: says what the test says, remembers what it is told."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        name: str = "h1",
        gpus: int = 4,
        boot: str = "boot-1",
        *,
        peer: str = "",
        process: str = "",
    ) -> None:
        self.name = name
        self.dialect = dialect.of_agents()
        self.gpus = [
            common_pb2.Gpu(id=f"GPU-{name}-{i}", index=i, model="V100", memory_bytes=16 << 30, healthy=True)
            for i in range(gpus)
        ]
        self.boot, self.peer, self.process = boot, peer, process
        self.wanted: list[agent_pb2.Wanted] = []
        self.welcome: agent_pb2.Welcome | None = None
        self.told = [agent_pb2.Told()]  # when it is asked for that
        self.logs: dict[int, list[bytes]] = {}
        self.cancelled: set[int] = set()
        self.on_log: Callable[[agent_pb2.LogRequest], list[agent_pb2.LogData]] = lambda _request: []
        self.on_exec: Callable[[agent_pb2.Exec], list[agent_pb2.ExecData]] = lambda _request: []
        self.doctor: str | None = "ok    python"  # None: it says nothing
        self.on_taken: Callable[[agent_pb2.Taken], list[agent_pb2.LogData]] = lambda _taken: []
        self.error: grpc.aio.AioRpcError | None = None
        self.on_any: Callable[[agent_pb2.ToAgent], None] = lambda _message: None
        self._changed = asyncio.Condition()
        self._link = agent_pb2_grpc.AgentLinkStub(channel)
        self._call = self._link.Connect()
        self._reading: asyncio.Task[None] | None = None

    async def join(self, *parts: tuple[common_pb2.JobReport, ...]) -> "FakeAgent":
        """Until the controller wants something of it: what is asked meanwhile would come first. `parts`: jobs, by message."""
        hello = [agent_pb2.Hello(jobs=jobs, more=True) for jobs in parts or ((),)]
        hello[-1].more = False
        hello[0].MergeFrom(
            agent_pb2.Hello(
                host=self.name,
                boot_id=self.boot,
                process=self.process,
                version="t",
                dialect=self.dialect,
                gpus=self.gpus,
                peer=self.peer,
            )
        )
        while True:
            try:
                for part in hello:
                    await self._call.write(agent_pb2.FromAgent(hello=part))
                break
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.INTERNAL:
                    await self._call.read()  # refused before it could speak: this says by what
                    raise
                # Refused while it spoke: the library makes its own word of that, and the refusal is lost.
                self._call = self._link.Connect()
            except asyncio.InvalidStateError:
                await self._call.read()  # refused before it had said all
                raise
        self._reading = asyncio.create_task(self._read())
        await self.until(lambda: self.welcome is not None and bool(self.wanted))
        return self

    async def _read(self) -> None:
        try:
            async for message in self._call:
                self.on_any(message)
                match message.WhichOneof("body"):
                    case "welcome":
                        self.welcome = message.welcome
                        if self.welcome.unknown_from < self.welcome.unknown_until:
                            for told in self.told:
                                await self._answer(told=told)
                    case "wanted":
                        self.wanted.append(message.wanted)
                    case "log":
                        for data in self.on_log(message.log):
                            await self._answer(log=data)
                    case "exec":
                        for data in self.on_exec(message.exec):
                            await self._answer(exec=data)
                    case "doctor" if self.doctor is not None:
                        said = agent_pb2.DoctorSaid(request_id=message.doctor.request_id, text=self.doctor)
                        await self._answer(doctor=said)
                    case "taken":
                        for data in self.on_taken(message.taken):
                            await self._answer(log=data)
                    case "cancel":
                        self.cancelled.add(message.cancel.request_id)
                async with self._changed:
                    self._changed.notify_all()
        except grpc.aio.AioRpcError as error:
            self.error = error
            async with self._changed:
                self._changed.notify_all()

    async def _answer(self, **body: object) -> None:
        """What is being answered was read before the call's end, which is not to say that this is: the next read says what ended it."""
        with contextlib.suppress(asyncio.InvalidStateError):
            await self._call.write(agent_pb2.FromAgent(**body))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: condition() or self.error is not None)
        if self.error is not None and not condition():
            raise self.error

    def wants(self, job: int) -> agent_pb2.WantedJob | None:
        newest = self.wanted[-1].jobs if self.wanted else ()
        return next((one for one in newest if one.job_id == job), None)

    async def report(self, job: int, phase: str, *, epoch: int = 0, gpus: int = 1, **more: object) -> None:
        report = common_pb2.JobReport(
            job_id=job,
            epoch=epoch,
            phase=phase,
            gpus=[gpu.id for gpu in self.gpus[:gpus]],
            **{"sliceable": True, "checkpoint_step": -1, "checkpoint_generation": -1, **more},
        )
        await self._call.write(agent_pb2.FromAgent(report=agent_pb2.Report(jobs=[report])))

    async def has_memory(self, total_bytes: int, available_bytes: int) -> None:
        memory = agent_pb2.HostMemory(total_bytes=total_bytes, available_bytes=available_bytes)
        await self._call.write(agent_pb2.FromAgent(report=agent_pb2.Report(memory=memory)))

    async def has_troubles(self, *troubles: str) -> None:
        await self._call.write(agent_pb2.FromAgent(report=agent_pb2.Report(troubles=troubles)))

    async def has_heard(self, term: int, seq: int) -> None:
        report = agent_pb2.Report(heard_term=term, heard_seq=seq)
        await self._call.write(agent_pb2.FromAgent(report=report))

    async def leave(self) -> None:
        self._call.cancel()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)


def spec(name: str = "train", **more: object) -> common_pb2.JobSpec:
    return common_pb2.JobSpec(
        **{"name": name, "command": ["python", "train.py"], "gpus": 1, "workdir": "/tmp", **more}
    )


class Client:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = controller_pb2_grpc.HeteroShareStub(channel)

    async def submit(self, *specs: common_pb2.JobSpec, key: str = "", **more: object) -> list[int]:
        request = pb.SubmitRequest(key=key or uuid.uuid4().hex, jobs=specs or [spec()], **more)
        return list((await self.stub.Submit(request)).job_ids)

    async def view(self, job: int) -> pb.JobView:
        return (await self.stub.GetJob(pb.JobRequest(job_id=job))).view

    async def until(self, job: int, condition: Callable[[pb.JobView], bool]) -> pb.JobView:
        """Watches the job until it is so."""
        async with asyncio.timeout(60):
            call = self.stub.WatchJob(pb.JobRequest(job_id=job))
            async for view in call:
                if condition(view):
                    call.cancel()
                    return view
        raise AssertionError(f"job {job} ended and it never was so")


@contextlib.asynccontextmanager
async def channel_to(address: str) -> AsyncIterator[grpc.aio.Channel]:
    # A pool of its own: no test waits out the back-off of another one's connection.
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield channel


@contextlib.asynccontextmanager
async def started(config: Config, policy: Policy = PLAIN) -> AsyncIterator[SimpleNamespace]:
    """A controller in this process, with a client and the channel that both use."""
    controller = Controller(config, policy)
    await controller.start()
    try:
        async with channel_to(f"unix:{config.socket}") as channel:
            yield SimpleNamespace(
                controller=controller,
                loop=controller.loop,
                channel=channel,
                client=Client(channel),
                agent=lambda **more: FakeAgent(channel, **more),
            )
    finally:
        await controller.stop()
        controller._running.result()  # the loop came to a good end


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 — of state that rings no bell
            await asyncio.sleep(0.01)


def kind_of(error: grpc.aio.AioRpcError) -> str:
    return dict(error.trailing_metadata())["hs-kind"]


def refused(kind: str, code: grpc.StatusCode, *parts: str):
    """The call is refused so; every refusal carries its kind."""

    class Refused:
        async def __aenter__(self) -> None:
            return None

        async def __aexit__(self, _type, error, _trace) -> bool:
            assert isinstance(error, grpc.aio.AioRpcError), f"it was not refused: {error!r}"
            assert (kind_of(error), error.code()) == (kind, code), error.details()
            for part in parts:
                assert part in error.details()
            return True

    return Refused()


INVALID, NOT_FOUND, CONFLICT = (
    ("invalid", grpc.StatusCode.INVALID_ARGUMENT),
    ("not-found", grpc.StatusCode.NOT_FOUND),
    ("conflict", grpc.StatusCode.ABORTED),
)


class Sending:
    """An agent that sends each log as far as its reader has room for it."""

    def __init__(self, agent: FakeAgent, chunk: bytes, chunks: int) -> None:
        self.chunk, self.chunks = chunk, chunks
        self.sent: dict[int, int] = {}  # chunks
        self._room: dict[int, int] = {}
        agent.on_log, agent.on_taken = self._asked, self._taken

    def _asked(self, request: agent_pb2.LogRequest) -> list[agent_pb2.LogData]:
        self._room[request.request_id] = request.window_bytes
        self.sent[request.request_id] = 0
        return self._more(request.request_id)

    def _taken(self, taken: agent_pb2.Taken) -> list[agent_pb2.LogData]:
        self._room[taken.request_id] += taken.bytes
        return self._more(taken.request_id)

    def _more(self, request: int) -> list[agent_pb2.LogData]:
        more = min(self._room[request] // len(self.chunk), self.chunks - self.sent[request])
        self._room[request] -= more * len(self.chunk)
        self.sent[request] += more
        ends = self.sent[request] == self.chunks
        last = [agent_pb2.LogData(request_id=request, end=True)] if more and ends else []
        return [agent_pb2.LogData(request_id=request, data=self.chunk)] * more + last


async def audited(here: SimpleNamespace) -> list[tuple[str, str]]:
    """Each event's kind and by whom, oldest first."""
    call = here.client.stub.Events(pb.EventsRequest())
    return [(event.kind, event.data.get("by", "")) async for event in call]


def refused_as(error: pytest.ExceptionInfo[grpc.aio.AioRpcError], code: grpc.StatusCode, words: str) -> None:
    assert (error.value.code(), words in error.value.details()) == (code, True), error.value.details()
