"""Real processes for the agent's tests: shims in folders of their own, ended by their identity when the test ends."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest

from hs_agent import cgroup, config, procs, shim
from hs_agent.config import CgroupUse
from hs_agent.folder import Folder, Key
from hs_core.model import JobSpec
from hs_core.names import JobId, UserName
from hs_core.reports import JobReport
from hs_core.wanted import Turn, Wanted, WantedJob
from hs_proto import convert, dialect
from hs_proto.v1 import agent_pb2, agent_pb2_grpc
from tests.agent.lending import Two
from tests.lean import LEAN

PYTHON = "/usr/bin/python3" if os.geteuid() == 0 and Path("/usr/bin/python3").exists() else sys.executable
"""One that other accounts may run too."""


NO_CGROUP = cgroup.JobCgroup(v2=None, v1={})


def wait_for(condition: Callable[[], Any], what: str, limit_s: float = 60.0) -> Any:
    """Poll until it holds; the value is handed back."""
    end_s = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < end_s, f"not within {limit_s:g} s: {what}"
        time.sleep(0.005)
    return value


@pytest.fixture(name="wait_for")
def _wait_for() -> Callable[..., Any]:
    return wait_for


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short path that every account may enter."""
    path = Path(tempfile.mkdtemp(prefix="hsa", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


class Started:
    """A shim and its job."""

    def __init__(self, folder: Folder, process: subprocess.Popen[bytes] | None) -> None:
        self.folder, self.process = folder, process

    def job(self) -> procs.Identity:
        def found() -> procs.Identity | None:
            state = self.folder.shim_state()
            return state.job if state else None

        return wait_for(found, "shim.json names the job")

    def wait(self, limit_s: float = 60.0) -> dict[str, Any]:
        if self.process is not None:
            assert self.process.wait(limit_s) == 0, (self.folder.path / "shim.err").read_text()
        else:
            wait_for((self.folder.path / "exit.json").exists, "exit.json", limit_s)
        return json.loads((self.folder.path / "exit.json").read_text())

    def log(self) -> str:
        return (self.folder.path / "log").read_text(errors="replace")

    def says(self, text: str) -> None:
        def said() -> bool:
            with contextlib.suppress(FileNotFoundError):  # not begun, or put aside just now
                return text in self.log()
            return False

        wait_for(said, f"{text!r} in the log")


def begin(process: subprocess.Popen[bytes]) -> None:
    """A new shim waits for this word."""
    assert process.stdin is not None
    with process.stdin as word:
        word.write(b"b")


class Shims:
    """Starts shims by hand, as the launcher would."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.groups = cgroup.Cgroups()
        self.started: list[Started] = []
        self.count = 0

    def use_cgroups(self) -> cgroup.Cgroups:
        self.groups = cgroup.probe(CgroupUse.AUTO, self.place)
        return self.groups

    def launch(self, *argv: str, **changes: Any) -> Folder:
        self.count += 1
        folder = Folder(self.place / f"{self.count}-1", Key(JobId(self.count), 1))
        folder.make()
        group = cgroup.create(self.groups, f"{self.count}-1", cpus=0, memory_bytes=0)
        launch = {
            "start": 1,
            "argv": list(argv),
            "env": {"PATH": "/usr/bin:/bin", "MARK": str(folder.path)},
            "identity": None,
            "workdir": "/",
            "output": "",
            "make_dirs": [],
            "log_limit": 1 << 20,
            "lease": False,
            "cgroup": group.for_shim(),
        }
        folder.write_launch(launch | changes)
        return folder

    def start(self, *argv: str, program: Sequence[str] = (shim.__file__,), **changes: Any) -> Started:
        """`program`: what is run as the shim."""
        folder = self.launch(*argv, **changes)
        with (folder.path / "shim.err").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", *program, str(folder.path)],
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
                env={},
            )
        begin(process)
        started = Started(folder, process)
        self.started.append(started)
        return started

    def python(self, code: str, **changes: Any) -> Started:
        return self.start(PYTHON, "-c", code, **changes)

    def left(self, started: Started) -> list[procs.Identity]:
        """Processes of this job that live, however they hid: the mark stays in their environment."""
        line = f"MARK={started.folder.path}".encode()
        return [who for who in procs.with_environment(line) if procs.alive(who)]

    def close(self) -> None:
        for started in self.started:
            state = started.folder.shim_state()
            for who in self.left(started):
                procs.send(who, signal.SIGKILL)
            if started.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    started.process.wait(10)
                if started.process.poll() is None:
                    started.process.kill()
                    started.process.wait()
            elif state is not None:
                procs.send(state.shim, signal.SIGKILL)
            cgroup.reopen(self.groups, started.folder.path.name).remove()
        for group in (self.groups.v2, *self.groups.v1.values()):
            if group is not None:
                with contextlib.suppress(OSError):
                    group.rmdir()


@pytest.fixture
def shims(place: Path) -> Iterator[Shims]:
    made = Shims(place)
    yield made
    made.close()


@pytest.fixture
def settings(place: Path) -> Callable[..., config.Config]:
    """An emulated agent's configuration in a place of its own."""

    def make(**changes: Any) -> config.Config:
        data: dict[str, Any] = {
            "controller": f"unix:{place}/c.sock",
            "name": "host-a",
            "state_dir": f"{place}/state",
            "run_dir": f"{place}/run",
            "devices": "emulated",
            "emulated": [{"model": "V100", "count": 4}],
            "allow_root": True,
            "kill_grace_s": 0.5,
            "report_interval_s": 0.1,
            "path": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        }
        return config.parse(data | changes)

    return make


class FakeController(agent_pb2_grpc.AgentLinkServicer):
    """The other end of an agent's stream, in a thread: what it heard, and what a test wants of the host."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.term, self.seq = 1, 0
        self.hellos: list[agent_pb2.Hello] = []
        self.reports: dict[int, JobReport] = {}
        self.history: list[JobReport] = []
        self.gpus: list[Any] = []
        self.logs: dict[int, list[agent_pb2.LogData]] = {}
        self.execs: dict[int, list[agent_pb2.ExecData]] = {}
        self.wanted: agent_pb2.Wanted | None = None
        self.metadata: dict[str, Any] = {}
        self.outbox: asyncio.Queue[agent_pb2.ToAgent] | None = None
        self.loop = asyncio.new_event_loop()
        self.server: grpc.aio.Server | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self.call(self._start())

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    async def _start(self) -> None:
        self.server = grpc.aio.server()
        agent_pb2_grpc.add_AgentLinkServicer_to_server(self, self.server)
        assert self.server.add_insecure_port(self.address)
        await self.server.start()

    async def _stop(self) -> None:
        if self.server is not None:
            await self.server.stop(None)
            self.server = None

    def stop(self) -> None:
        self.call(self._stop())

    def again(self) -> None:
        self.call(self._start())

    def close(self) -> None:
        self.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()

    async def Connect(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
        self.metadata = dict(context.invocation_metadata())
        outbox: asyncio.Queue[agent_pb2.ToAgent] = asyncio.Queue()
        await outbox.put(
            agent_pb2.ToAgent(
                welcome=agent_pb2.Welcome(term=self.term, report_interval_s=0.1, dialect=dialect.of_agents())
            )
        )
        if self.wanted is not None:
            await outbox.put(agent_pb2.ToAgent(wanted=self.wanted))
        self.outbox = outbox
        hearing = asyncio.ensure_future(self._hear(request_iterator))
        try:
            while True:
                yield await outbox.get()
        finally:
            hearing.cancel()

    async def _hear(self, messages: Any) -> None:
        async for message in messages:
            match message.WhichOneof("body"):
                case "hello":
                    self.hellos.append(message.hello)
                    self._take(message.hello.jobs)
                    self.gpus = list(message.hello.gpus)
                case "report":
                    self._take(message.report.jobs)
                    self.gpus = list(message.report.gpus) or self.gpus
                case "log":
                    self.logs.setdefault(message.log.request_id, []).append(message.log)
                case "exec":
                    self.execs.setdefault(message.exec.request_id, []).append(message.exec)

    def _take(self, reports: Any) -> None:
        for pb in reports:
            report = convert.to_report(pb)
            self.reports[report.job] = report
            self.history.append(report)

    def send(self, **body: Any) -> None:
        async def put() -> None:
            if self.outbox is not None:
                await self.outbox.put(agent_pb2.ToAgent(**body))

        self.call(put())

    def want(self, *jobs: WantedJob, quantum_s: float = 1.0, turn: Turn | None = None, **more: float) -> None:
        self.seq += 1
        wanted = Wanted(
            term=self.term, seq=self.seq, quantum_s=quantum_s, turn=turn or Turn(), jobs=jobs, **more
        )
        self.wanted = convert.from_wanted(wanted)
        self.send(wanted=self.wanted)

    def wait_report(
        self, job: int, condition: Callable[[JobReport], Any], what: str, limit_s: float = 60.0
    ) -> JobReport:
        def found() -> JobReport | None:
            report = self.reports.get(job)
            return report if report is not None and condition(report) else None

        try:
            return wait_for(found, what, limit_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; last report: {self.reports.get(job)}") from None

    def log_of(self, job: int, request: int = 1, tail_lines: int = -1, *, follow: bool = False) -> bytes:
        self.send(
            log=agent_pb2.LogRequest(
                request_id=request, job_id=job, tail_lines=tail_lines, follow=follow, window_bytes=1 << 30
            )
        )
        wait_for(lambda: any(data.end for data in self.logs.get(request, [])), "the log ends")
        assert not self.logs[request][-1].error, self.logs[request][-1].error
        assert all(len(data.data) <= 64 << 10 for data in self.logs[request])
        return b"".join(data.data for data in self.logs[request])

    def run_beside(
        self, job: int, *command: str, number: int = 100, limit_s: float = 60.0, window_bytes: int = 1 << 30
    ) -> None:
        asked = agent_pb2.Exec(
            request_id=number,
            job_id=job,
            epoch=1,
            command=command,
            limit_s=limit_s,
            window_bytes=window_bytes,
        )
        self.send(exec=asked)

    def said_beside(self, number: int = 100, *, errors: bool = False) -> bytes:
        return b"".join(data.data for data in self.execs.get(number, []) if data.is_error == errors)

    def end_beside(self, number: int = 100) -> agent_pb2.ExecData:
        def last() -> agent_pb2.ExecData | None:
            said = self.execs.get(number, [])
            return said[-1] if said and (said[-1].error or said[-1].HasField("end")) else None

        return wait_for(last, "the command has ended")

    def beside(self, job: int, *command: str, number: int = 100, **how: Any) -> agent_pb2.ExecData:
        """Its end."""
        self.run_beside(job, *command, number=number, **how)
        return self.end_beside(number)


@pytest.fixture
def controller(place: Path) -> Iterator[FakeController]:
    made = FakeController(f"unix:{place}/c.sock")
    yield made
    made.close()


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


class Daemon:
    """`hs-agent` in a process of its own."""

    def __init__(self, place: Path, **changes: Any) -> None:
        self.place = place
        self.config = place / "agent.toml"
        settings: dict[str, Any] = {
            "controller": f"unix:{place}/c.sock",
            "name": "host-a",
            "state_dir": f"{place}/state",
            "run_dir": f"{place}/run",
            "devices": "emulated",
            "emulated": ["V100:1"],
            "allow_root": os.geteuid() == 0,
            "min_uid": 1000,
            "kill_grace_s": 1.0,
            "report_interval_s": 0.1,
            "path": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        }
        settings |= changes
        self.config.write_text("".join(f"{key} = {toml(value)}\n" for key, value in settings.items()))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *flags: str) -> None:
        with (self.place / "agent.err").open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hs_agent", "--config", str(self.config), *flags],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(30)

    def said(self) -> str:
        return (self.place / "agent.err").read_text()

    def folders(self) -> list[Folder]:
        jobs = self.place / "state/jobs"
        found = [(path, path.name.split("-")) for path in jobs.iterdir()] if jobs.exists() else []
        return [Folder(path, Key(JobId(int(name[0])), int(name[1]))) for path, name in found]

    def close(self) -> None:
        states = [state for folder in self.folders() if (state := folder.shim_state())]
        for folder in self.folders():
            folder.control("term 0")
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for state in states:
            with contextlib.suppress(AssertionError):
                wait_for(lambda state=state: not procs.alive(state.shim), "the shim ends")
            procs.send(state.shim, signal.SIGKILL)
            if state.job is not None:
                procs.send(state.job, signal.SIGKILL)
        groups = cgroup.probe(CgroupUse.AUTO, self.place / "state")
        for group in (groups.v2, *groups.v1.values()):
            if group is not None:
                for below in group.glob("*/"):
                    with contextlib.suppress(OSError):
                        below.rmdir()
                with contextlib.suppress(OSError):
                    group.rmdir()


@pytest.fixture
def daemon(place: Path, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    made = Daemon(place, **getattr(request, "param", {}))
    yield made
    if (place / "agent.err").exists():
        sys.stdout.write(made.said())  # shown where the test failed
    made.close()


@pytest.fixture
def job(place: Path) -> Callable[..., WantedJob]:
    """A job of the account that runs the tests."""
    import pwd

    me = pwd.getpwuid(os.geteuid()).pw_name

    def make(
        number: int, *command: str, tickets: float = 100.0, epoch: int = 1, run_as: str = me, **changes: Any
    ) -> WantedJob:
        wanted = {
            name: changes.pop(name)
            for name in ("paused", "cancelled", "job_class", "restarts")
            if name in changes
        }
        changes.setdefault("workdir", str(place))
        spec = JobSpec(name=f"job{number}", command=command, **changes)
        return WantedJob(
            job=JobId(number),
            epoch=epoch,
            user=UserName("ada"),
            run_as=run_as,
            spec=spec,
            tickets=tickets,
            **{"job_class": f"ada/job{number}", **wanted},
        )

    return make


HANDED = """
import sys, torch, hs_job
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
for epoch in range(state.epoch, int(sys.argv[1])):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
print("weights", *(f"{w:.9f}" for w in model.weight.flatten().tolist()), flush=True)
"""


class Handed:
    """A script that hands its state over, 8 steps an epoch; its last line is its weights."""

    env: ClassVar = LEAN | {"OMP_NUM_THREADS": "1"}

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "handed.py").write_text(HANDED)

    def command(self, epochs: int) -> tuple[str, ...]:
        return sys.executable, str(self.place / "handed.py"), str(epochs)

    def weights_alone(self, epochs: int) -> str:
        """The last line of a run that nobody stops; an agent has been started here before."""
        env = os.environ | self.env | {"PYTHONPATH": f"{self.place}/state/inject:{LEAN['PYTHONPATH']}"}
        ran = subprocess.run(self.command(epochs), capture_output=True, text=True, check=True, env=env)
        return ran.stdout.splitlines()[-1]


@pytest.fixture
def handed(place: Path) -> Handed:
    return Handed(place)


@pytest.fixture
def two(settings, job, place: Path) -> Two:
    return Two(settings, job, place)
