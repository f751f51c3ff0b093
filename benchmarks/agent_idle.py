"""An idle agent: processor time and memory over ten seconds.

Once with a controller that wants nothing, and once with eight sleeping jobs. Goals: below 1 % of one core and below
80 MB.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc

from hs_core.model import JobSpec, SuspendMode
from hs_core.names import JobId, UserName
from hs_core.wanted import Turn, Wanted, WantedJob
from hs_proto import convert
from hs_proto.v1 import agent_pb2, agent_pb2_grpc

SECONDS = 10
JOBS = 8


class Controller(agent_pb2_grpc.AgentLinkServicer):
    def __init__(self) -> None:
        self.connected, self.all_run = asyncio.Event(), asyncio.Event()
        self.running: set[int] = set()
        self.outbox: asyncio.Queue[agent_pb2.ToAgent] = asyncio.Queue()

    async def Connect(self, request_iterator, context):  # noqa: N802, ARG002 — gRPC names it
        async def hear() -> None:
            async for message in request_iterator:
                reports = message.report.jobs if message.HasField("report") else ()
                self.running |= {report.job_id for report in reports if report.phase == "running"}
                if len(self.running) == JOBS:
                    self.all_run.set()

        hearing = asyncio.ensure_future(hear())
        yield agent_pb2.ToAgent(welcome=agent_pb2.Welcome(term=1, report_interval_s=1.0))
        self.connected.set()
        try:
            while True:
                yield await self.outbox.get()
        finally:
            hearing.cancel()


def used_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"process {pid} has no memory")


async def measure(pid: int, what: str) -> None:
    await asyncio.sleep(2)
    began_s, cpu_s = time.monotonic(), used_s(pid)
    await asyncio.sleep(SECONDS)
    percent = 100 * (used_s(pid) - cpu_s) / (time.monotonic() - began_s)
    print(f"{what:22} {percent:5.2f} % of one core   {rss_mb(pid):5.1f} MB resident")


def sleepers() -> Wanted:
    import pwd

    me = pwd.getpwuid(os.geteuid()).pw_name
    jobs = tuple(
        WantedJob(
            job=JobId(number), epoch=1, user=UserName(me), run_as=me, job_class="sleep", tickets=1.0,
            spec=JobSpec(name="sleep", command=("/bin/sleep", "600"), suspend=SuspendMode.NONE),
        )
        for number in range(1, JOBS + 1)
    )  # fmt: skip
    return Wanted(term=1, seq=1, quantum_s=60.0, turn=Turn(), jobs=jobs)


async def main(folder: Path) -> None:
    (folder / "agent.toml").write_text(
        f'controller = "unix:{folder}/c.sock"\nstate_dir = "{folder}/state"\nrun_dir = "{folder}/run"\n'
        f'devices = "emulated"\nemulated = ["V100:{JOBS}"]\nallow_root = true\nmin_uid = 1\nkill_grace_s = 0.1\n'
    )
    server, controller = grpc.aio.server(), Controller()
    agent_pb2_grpc.add_AgentLinkServicer_to_server(controller, server)
    server.add_insecure_port(f"unix:{folder}/c.sock")
    await server.start()
    command = [sys.executable, "-m", "hs_agent", "--config", str(folder / "agent.toml"), "--end-jobs-on-stop"]
    agent = subprocess.Popen(command, stderr=subprocess.DEVNULL)  # noqa: ASYNC220 — takes a millisecond
    try:
        async with asyncio.timeout(30):
            await controller.connected.wait()
        await measure(agent.pid, "idle, connected")
        await controller.outbox.put(agent_pb2.ToAgent(wanted=convert.from_wanted(sleepers())))
        async with asyncio.timeout(30):
            await controller.all_run.wait()
        await measure(agent.pid, f"{JOBS} jobs, none switching")
        states = list((folder / "state/jobs").glob("*/shim.json"))
        import json

        shims = [rss_mb(json.loads(state.read_text())["shim"]["pid"]) for state in states]
        print(f"{'the shim of a job':22} {'':15}   {sum(shims) / len(shims):11.1f} MB resident")
    finally:
        agent.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(20)
        await server.stop(None)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="hsb", dir="/tmp") as place:
        Path(place).chmod(0o711)
        asyncio.run(main(Path(place)))
