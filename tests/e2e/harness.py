"""A whole cluster of real processes: `hsctl up` in a folder of its own, emulated GPUs, real jobs."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import datetime
from fcntl import LOCK_EX, flock
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

import pytest

from hs_client import Client, program
from hs_proto.v1.controller_pb2 import JobView
from tests.lean import LEAN

T = TypeVar("T")

UP: dict[Path, Callable[..., str]] = {}  # folders of the clusters that are up now, and hsctl for each
LAST_LINES = 60
AS_LEAN = ("-e", f"PYTHONPATH={LEAN['PYTHONPATH']}")
"""LEAN as hsctl submit takes it."""
TOGETHER = Path()  # a folder that all workers of a run share (conftest.py)
MOST_STEPS = 1_200  # of scripts/learn.py, in any test that asks what they would have been alone


def tell(state: Path, ask: Callable[..., str]) -> str:
    """What the cluster says of its servers and jobs, and the end of each daemon's log."""
    said = []
    for words in (["nodes"], ["queue", "--all", "--json"], ["events"]):
        try:
            said.append(ask(*words))
        except Exception as error:  # it is told why a test failed, and must not fail for a reason of its own
            said.append(f"{words}: {error}")
    for log in sorted(state.glob("*.log")):
        said += [f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-LAST_LINES:]]
    return "\n".join(said)


def until(look: Callable[[], T | None], what: str, within_s: float = 180.0) -> T:
    """The first true answer of `look`; fails, naming what was awaited, when there is none in time."""
    begun = time.monotonic()
    while True:
        got = look()
        if got:
            return got
        waited = time.monotonic() - begun
        if waited > within_s:
            pytest.fail(f"not within {within_s:g} s: {what}")
        time.sleep(
            min(0.05 + waited / 20, 0.15)
        )  # each look costs a call, and what is waited for the same cores


def alive(pid: int) -> bool:
    """Not gone and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass(frozen=True, slots=True)
class Step:
    """A line of scripts/learn.py."""

    process: int
    step: int
    loss: str
    at_s: float


def learned(path: Path, rank: int = 0) -> list[Step]:
    """What a job (or one rank of it) has trained so far, in the order of its doing. A line that is being written is left out."""
    file = Path(f"{path}.{rank}")
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    rows = [line.split() for line in lines]
    return [Step(int(process), int(step), loss, float(at_s)) for process, step, loss, at_s in rows]


def learning(scripts: Path, path: Path, steps: int, step_s: float) -> list[str]:
    return [sys.executable, str(scripts / "learn.py"), str(path), str(steps), str(step_s)]


def learn(scripts: Path, path: Path, steps: int, step_s: float) -> list[str]:
    return [*AS_LEAN, "--", *learning(scripts, path, steps, step_s)]


def alone(words: Sequence[str], ranks: int = 1) -> None:
    """A script without any cluster, with so many ranks of it where it is more than one. Nobody launches them: torchrun computes for as long as a rank does before it trains."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HS_")}
    runtime = Path(__file__).resolve().parents[2] / "client"
    environment = kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{runtime}:{LEAN['PYTHONPATH']}"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
    with ExitStack() as stack:
        processes = []
        for rank in range(ranks):
            gang = world | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
            process = subprocess.Popen(
                [sys.executable, *words], env=environment | gang, stdout=subprocess.DEVNULL
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.wait(300) == 0


@cache
def _learned_alone(scripts: Path, ranks: int) -> list[list[Step]]:
    folder = TOGETHER / f"alone-{ranks}"
    with Path(f"{folder}.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not folder.exists():
            made = Path(tempfile.mkdtemp(dir=TOGETHER))
            alone([str(scripts / "learn.py"), str(made / "alone"), str(MOST_STEPS)], ranks)
            made.rename(folder)
    return [learned(folder / "alone", rank) for rank in range(ranks)]


def uninterrupted(scripts: Path, steps: int, ranks: int = 1) -> list[list[Step]]:
    """The same training without any cluster, rank by rank: the beginning of one that is as long as any, which is run once for all workers."""
    assert steps <= MOST_STEPS
    return [rows[:steps] for rows in _learned_alone(scripts, ranks)]


def incarnations(steps: Sequence[Step]) -> list[list[Step]]:
    """Split where another process took over."""
    found: list[list[Step]] = []
    for before, step in pairwise([None, *steps]):
        assert step is not None
        if before is None or before.process != step.process:
            found.append([])
        found[-1].append(step)
    return found


class Ran(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Cluster:
    """One embedded cluster. Its daemons' process ids come from the folder that `up` names."""

    def __init__(self, state: Path, *flags: str) -> None:
        self.state = state
        self.flags = flags
        # Nothing of HeteroShare's own: an `HS_CONTROLLER` there is somebody's cluster.
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HS_")}
        self.environment = kept | {"HS_STATE": str(state), "OMP_NUM_THREADS": "1"}

    def hsctl(self, *words: str, code: int | None = 0) -> Ran:
        """As typed in the folder beside the state, but in this process: an interpreter's start is not what is tested."""
        streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
        with ExitStack() as stack:
            stack.enter_context(patch.dict(os.environ, self.environment, clear=True))
            stack.enter_context(chdir(self.state.parent))
            stack.enter_context(redirect_stdout(streams[0]))
            stack.enter_context(redirect_stderr(streams[1]))
            returncode = program.run(words)
        stdout, stderr = (stream.buffer.getvalue().decode() for stream in streams)
        if code is not None:
            assert returncode == code, f"hsctl {' '.join(words)}: {returncode}\n{stdout}\n{stderr}"
        return Ran(returncode, stdout, stderr)

    def process(self, *words: str) -> subprocess.CompletedProcess[str]:
        """hsctl as a process of its own."""
        return subprocess.run(
            [sys.executable, "-m", "hs_client", *words], env=self.environment, capture_output=True, text=True,
            timeout=300, check=False, cwd=self.state.parent,
        )  # fmt: skip

    def json(self, *words: str) -> Any:
        return json.loads(self.hsctl(*words, "--json").stdout)

    def up(self) -> None:
        done = self.process("up", "--state", str(self.state), *self.flags)
        assert done.returncode == 0, done.stderr

    def down(self) -> None:
        self.hsctl("down", "--state", str(self.state), code=None)

    def client(self) -> Client:
        return Client(f"unix:{self.socket()}")

    def socket(self) -> str:
        return str(self.cluster_file()["socket"])

    def cluster_file(self) -> dict[str, Any]:
        return dict(json.loads((self.state / "cluster.json").read_text()))

    def pid(self, daemon: str) -> int:
        return int(self.cluster_file()["daemons"][daemon]["pid"])

    def kill(self, daemon: str) -> None:
        """kill -9 of a daemon, seen gone."""
        pid = self.pid(daemon)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), f"{daemon} is gone")

    def is_up(self, server: str) -> bool:
        return any(node["state"] == "up" for node in self.json("nodes") if node["name"] == server)

    def stops(self, agent: str, job: int) -> list[tuple[int, float]]:
        """Step and time of each suspend, as the agent has logged it."""
        lines = [
            json.loads(line)
            for line in (self.state / f"{agent}.log").read_text().splitlines()
            if line.startswith("{")
        ]
        found = [
            (int(line["text"].split("step ")[1].split()[0]), datetime.fromisoformat(line["timestamp"]).timestamp())
            for line in lines
            if line.get("event") == "suspended" and line.get("job") == job
        ]  # fmt: skip
        # Let go and stopped again before it went on, it stands where it stood.
        return [stop for at, stop in enumerate(found) if at == 0 or stop[0] != found[at - 1][0]]

    def submit(self, *words: str, user: str = "") -> int:
        as_user = ("--user", user) if user else ()
        return int(self.hsctl(*as_user, "submit", "--parsable", *words).stdout)

    def view(self, job: int) -> JobView:
        with self.client() as client:
            return client.job(job).view

    def views(self) -> dict[int, JobView]:
        with self.client() as client:
            return {view.id: view for view in client.jobs(ended=True)}

    def until_state(self, job: int, *states: str, within_s: float = 180.0) -> JobView:
        return until(
            lambda: v if (v := self.view(job)).state in states else None, f"job {job} is {states}", within_s
        )


@contextmanager
def temporary(*flags: str) -> Iterator[Cluster]:
    """In a folder that is not there any more afterwards, as its jobs are not."""
    with tempfile.TemporaryDirectory(prefix="hs-e2e-") as folder:
        cluster = Cluster(Path(folder) / "state", "--devices", "emulated", *flags)
        try:
            cluster.up()
            UP[cluster.state] = lambda *words: cluster.hsctl(*words).stdout
            yield cluster
        finally:
            UP.pop(cluster.state, None)
            cluster.down()
