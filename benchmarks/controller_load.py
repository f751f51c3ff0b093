"""A real `hs-controller` on one core under the load of a large cluster.

1,000 agents at a report a second, and 100 submits a second. Goals: at most 85 % of that core, a submit acknowledged
durably within 100 ms (p99), at most 400 MB.

The agents are played by one process on the other cores. Each takes what is wanted of it, starts it, reports its
counters every second, and ends a job after a while, so that jobs come and go.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from daemon import cpu_s, rss_mib, start

from hs_proto.v1 import agent_pb2, agent_pb2_grpc, common_pb2, controller_pb2_grpc
from hs_proto.v1 import controller_pb2 as pb

MODELS = ("V100", "P100", "K80")
GPUS = 4
CHANNELS = 50  # agents of this process share connections; on the wire each has a stream of its own
LOOK_EVERY_S = 3.0
LOOK = [
    *(("/api/Info", "{}"), ("/api/Shares", '{"window_s": 3600}'), ("/api/ListNodes", "{}")),
    *(
        ("/api/ListJobs", '{"limit": 300, "totals": true}'),
        ("/api/ListTrades", "{}"),
        ("/api/Events", '{"tail": 30}'),
    ),
    ("/history", None),
]
LIMIT_CPU, LIMIT_P99_S, LIMIT_MIB = 0.85, 0.100, 400 * 1e6 / 2**20


@dataclass
class Played:
    """A job on a played agent."""

    epoch: int
    life_s: float
    gpus: list[str]
    began_s: float = field(default_factory=time.monotonic)

    def report(self, job: int) -> common_pb2.JobReport:
        ran_s = time.monotonic() - self.began_s
        over = ran_s > self.life_s
        report = common_pb2.JobReport(
            job_id=job,
            epoch=self.epoch,
            phase="exited" if over else "running",
            gpus=self.gpus,
            step=int(ran_s * 10),
            steps_per_s=10.0,
            gpu_s=ran_s * len(self.gpus),
            run_s=ran_s,
            sliceable=True,
            checkpoint_step=-1,
            checkpoint_generation=-1,
        )
        if over:
            report.exit.CopyFrom(common_pb2.Exit(code=0))
        return report


class Agent:
    def __init__(self, number: int, channel: grpc.aio.Channel, life_s: float, dice: random.Random) -> None:
        self.name = f"v{number}"
        self.gpus = [
            common_pb2.Gpu(
                id=f"GPU-{number}-{i}", index=i, model=MODELS[number % 3], memory_bytes=16 << 30, healthy=True
            )
            for i in range(GPUS)
        ]
        self.jobs: dict[int, Played] = {}
        self._life_s, self._dice = life_s, dice
        self._call = agent_pb2_grpc.AgentLinkStub(channel).Connect()

    async def run(self) -> None:
        hello = agent_pb2.Hello(host=self.name, boot_id="b", version="load", gpus=self.gpus)
        await self._call.write(agent_pb2.FromAgent(hello=hello))
        reading = asyncio.create_task(self._read())
        try:
            await asyncio.sleep(self._dice.random())
            while not reading.done():
                began_s = time.monotonic()
                report = agent_pb2.Report(jobs=[one.report(job) for job, one in self.jobs.items()])
                await self._call.write(agent_pb2.FromAgent(report=report))
                await asyncio.sleep(max(0.0, began_s + 1.0 - time.monotonic()))
        finally:
            reading.cancel()
            self._call.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self) -> None:
        async for message in self._call:
            if message.WhichOneof("body") != "wanted":
                continue
            wanted = {one.job_id: one for one in message.wanted.jobs}
            self.jobs = {job: one for job, one in self.jobs.items() if job in wanted}
            for job, one in wanted.items():
                if job not in self.jobs or self.jobs[job].epoch != one.epoch:
                    gpus = [gpu.id for gpu in self.gpus[: one.spec.gpus]]
                    self.jobs[job] = Played(one.epoch, self._life_s * (0.5 + self._dice.random()), gpus)


async def submit(stub: "controller_pb2_grpc.HeteroShareAsyncStub", number: int) -> float:
    spec = common_pb2.JobSpec(
        name=f"train-{number}",
        command=["python", "train.py", "--lr", str(number)],
        gpus=1,
        workdir="/home/ann",
    )
    began_s = time.perf_counter()
    request = pb.SubmitRequest(key=f"{os.getpid()}-{number}", as_user=f"user{number % 100}", jobs=[spec])
    await stub.Submit(request)
    return time.perf_counter() - began_s


async def lag(late_s: list[float]) -> None:
    """How late this process itself is, as submits are late by it too."""
    while True:
        due_s = time.perf_counter() + 0.01
        await asyncio.sleep(0.01)
        late_s.append(time.perf_counter() - due_s)


class Http:
    """The controller's port for HTTP, asked as its administrator; how long that took, and how much came."""

    def __init__(self, folder: Path) -> None:
        self._token = (folder / "state" / "admin.token").read_text(encoding="ascii").strip()
        said = map(json.loads, (folder / "log").read_text(encoding="utf-8").splitlines())
        self._address = next(line["address"] for line in said if line.get("for") == "http")
        self.took_s: list[float] = []
        self.most_bytes = 0

    def _get(self, path: str, body: str | None) -> int:
        headers = {"authorization": f"Bearer {self._token}", "content-type": "application/json"}
        data = None if body is None else body.encode()
        request = urllib.request.Request(f"http://{self._address}{path}", headers=headers, data=data)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return len(answer.read())

    async def ask(self, *asked: tuple[str, str | None]) -> None:
        """At once; (path, body)."""
        began_s = time.perf_counter()
        sizes = await asyncio.gather(*(asyncio.to_thread(self._get, *one) for one in asked))
        self.took_s.append(time.perf_counter() - began_s)
        self.most_bytes = max(self.most_bytes, sum(sizes))

    async def scrape(self, every_s: float) -> None:
        """As Prometheus does."""
        while True:
            began_s = time.perf_counter()
            await self.ask(("/metrics", None))
            await asyncio.sleep(max(0.0, began_s + every_s - time.perf_counter()))

    async def look(self) -> None:
        """As the page does that somebody has open."""
        while True:
            began_s = time.perf_counter()
            await self.ask(*LOOK)
            took_s = time.perf_counter() - began_s
            await asyncio.sleep(max(LOOK_EVERY_S, 10 * took_s))

    @property
    def text(self) -> str:
        return f"{len(self.took_s)} times, {statistics.median(self.took_s) * 1e3:.0f} ms (median), {self.most_bytes / 1e6:.1f} MB at most"


async def measure(folder: Path, pid: int, asked: argparse.Namespace) -> bool:
    agents, rate, seconds, life_s = asked.agents, asked.rate, asked.seconds, asked.life
    dice = random.Random(1)
    async with contextlib.AsyncExitStack() as stack:
        options = (("grpc.use_local_subchannel_pool", 1),)
        channels = [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(f"unix:{folder}/c.sock", options=options)
            )
            for _ in range(min(agents, CHANNELS) + 1)
        ]
        stub = controller_pb2_grpc.HeteroShareStub(channels.pop())
        for user in range(100):
            await stub.SetUser(pb.SetUserRequest(key=f"user{user}", name=f"user{user}", tickets=100))
        played = [Agent(number, channels[number % len(channels)], life_s, dice) for number in range(agents)]
        running = [asyncio.create_task(agent.run()) for agent in played]
        while len((await stub.ListNodes(pb.ListNodesRequest())).nodes) < agents:  # noqa: ASYNC110 — it rings no bell
            await asyncio.sleep(0.2)
        await asyncio.sleep(2)
        late_s: list[float] = []
        beside = [asyncio.create_task(lag(late_s))]
        scraping, pages = Http(folder), [Http(folder) for _ in range(asked.pages)]
        if asked.scrape:
            beside.append(asyncio.create_task(scraping.scrape(asked.scrape)))
        beside += [asyncio.create_task(page.look()) for page in pages]
        before_s, began_s = cpu_s(pid), time.perf_counter()
        tasks = []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began_s + number / rate - time.perf_counter()))
            tasks.append(asyncio.create_task(submit(stub, number)))
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        share = (cpu_s(pid) - before_s) / (time.perf_counter() - began_s)
        jobs = len((await stub.ListJobs(pb.ListJobsRequest(limit=5000))).jobs)
        policy = await stub.GetPolicy(pb.PolicyRequest())
        ended = [task for task in running if task.done()]
        assert not any(task.done() for task in beside), "who asks over HTTP has failed"
        running += beside
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    took = took_of(answers)
    refused = len(answers) - len(took)
    p99_s, memory = statistics.quantiles(took, n=100)[98], rss_mib(pid)
    print(f"{agents} agents at 1 report/s, {rate:g} submits/s, {seconds:g} s, {jobs} jobs live at its end")
    print(f"controller   {share:6.0%} of one core   (at most {LIMIT_CPU:.0%})")
    print(
        f"submit       p50 {statistics.median(took) * 1e3:.1f} ms, p99 {p99_s * 1e3:.1f} ms, max {max(took) * 1e3:.0f} ms"
        f"   (p99 at most {LIMIT_P99_S * 1e3:.0f} ms)"
    )
    a_minute = int(60 * rate)
    minutes = [took_of(answers[at : at + a_minute]) for at in range(0, len(answers), a_minute)]
    if len(minutes) > 1:
        p99s = ", ".join(f"{statistics.quantiles(some, n=100)[98] * 1e3:.0f}" for some in minutes)
        print(f"             p99 by the minute: {p99s} ms")
    print(
        f"of these the agents' own process was late by {statistics.quantiles(late_s, n=100)[98] * 1e3:.1f} ms (p99)"
    )
    if scraping.took_s:
        print(f"/metrics     {scraping.text}")
    for page in pages:
        print(f"a page       {page.text}")
    print(f"memory       {memory:6.0f} MiB   (at most {LIMIT_MIB:.0f})")
    print(
        f"last decision {policy.decision_s * 1e3:.0f} ms; agents that were cut off: {len(ended)}, submits refused: {refused}"
    )
    return share <= LIMIT_CPU and p99_s <= LIMIT_P99_S and memory <= LIMIT_MIB and not ended and not refused


def took_of(answers: Sequence[float | BaseException]) -> list[float]:
    """Of those that were answered."""
    return [answer for answer in answers if isinstance(answer, float)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=100.0, help="submits a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--life", type=float, default=20.0, help="seconds that a job runs, on average")
    parser.add_argument("--scrape", type=float, default=15.0, help="/metrics every so many seconds; 0: never")
    parser.add_argument("--pages", type=int, default=0, help="people who have the page open")
    parser.add_argument("--quantum", type=float, default=60.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hs-load-") as name:
        folder = Path(name)
        web = 'dev = true\nweb_listen = "127.0.0.1:0"\n'
        process = start(folder, f"{web}quantum_s = {asked.quantum}\n[limits]\nconnections_per_uid = 2000\n")
        try:
            well = asyncio.run(measure(folder, process.pid, asked))
        finally:
            process.terminate()
            process.wait(30)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
