"""How fast a submit is acknowledged durably: a real `hs-controller` on one core, clients on the other.

Goal: p50 below 10 ms at 200 submits a second. Two parts: a steady 200 a second, then as many as go with 32 at once.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
from daemon import cpu_s, rss_mib, start

from hs_proto.v1 import common_pb2, controller_pb2_grpc
from hs_proto.v1 import controller_pb2 as pb

RATE, STEADY_S = 200, 8.0
AT_ONCE, BURST = 32, 3000


async def submit(stub: "controller_pb2_grpc.HeteroShareAsyncStub", number: int) -> float:
    spec = common_pb2.JobSpec(
        name=f"train-{number}",
        command=["python", "train.py", "--lr", "0.1", "--epochs", "90"],
        gpus=1,
        workdir="/home/ann/project",
        env={"WANDB_MODE": "offline", "OMP_NUM_THREADS": "4"},
    )
    began_s = time.perf_counter()
    await stub.Submit(pb.SubmitRequest(key=f"{os.getpid()}-{number}", jobs=[spec]))
    return time.perf_counter() - began_s


async def steady(stub: "controller_pb2_grpc.HeteroShareAsyncStub") -> list[float]:
    """Open loop: the next one is sent when it is due, whatever became of the one before."""
    began_s = time.perf_counter()
    tasks = []
    for number in range(int(RATE * STEADY_S)):
        await asyncio.sleep(max(0.0, began_s + number / RATE - time.perf_counter()))
        tasks.append(asyncio.create_task(submit(stub, number)))
    return list(await asyncio.gather(*tasks))


async def burst(stub: "controller_pb2_grpc.HeteroShareAsyncStub") -> tuple[list[float], float]:
    numbers = iter(range(1_000_000, 1_000_000 + BURST))
    took: list[float] = []

    async def one_after_another() -> None:
        for number in numbers:
            took.append(await submit(stub, number))  # noqa: PERF401 — many share the list

    began_s = time.perf_counter()
    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
    return took, time.perf_counter() - began_s


def line(name: str, took: list[float]) -> str:
    cuts = statistics.quantiles(took, n=100)
    return f"{name:<34} p50 {cuts[49] * 1e3:6.2f} ms   p99 {cuts[98] * 1e3:6.2f} ms   max {max(took) * 1e3:6.1f} ms"


async def measure(folder: Path, pid: int) -> None:
    async with grpc.aio.insecure_channel(f"unix:{folder}/c.sock") as channel:
        stub = controller_pb2_grpc.HeteroShareStub(channel)
        for number in range(100):
            await submit(stub, 2_000_000 + number)
        before_s, began_s = cpu_s(pid), time.perf_counter()
        took = await steady(stub)
        share = (cpu_s(pid) - before_s) / (time.perf_counter() - began_s)
        print(line(f"{RATE} submits/s, one job each", took), f"  controller {share:.0%} of one core")
        took, seconds = await burst(stub)
        print(line(f"{AT_ONCE} at once, as fast as they go", took), f"  {BURST / seconds:.0f} submits/s")
        print(f"{'memory with ' + str(len(took) + 1700) + ' jobs':<34} {rss_mib(pid):.0f} MiB")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="hs-submit-") as name:
        folder = Path(name)
        process = start(folder)
        try:
            asyncio.run(measure(folder, process.pid))
        finally:
            process.terminate()
            process.wait(20)
        began_s = time.perf_counter()
        process = start_again(folder)
        print(f"{'start again with those jobs':<34} {time.perf_counter() - began_s:.2f} s until it serves")
        process.terminate()
        return process.wait(20)


def start_again(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "notify").unlink()
    return start(folder)


if __name__ == "__main__":
    sys.exit(main())
