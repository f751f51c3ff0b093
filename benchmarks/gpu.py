"""A real GPU: how fast its memory is swapped, what the hook costs, and what is lost between two turns of real jobs. Skipped where there is none.

python benchmarks/gpu.py [--sizes GB …] [--quantum S] [--seconds S]
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "job")]

from job_stub import StubAgent  # noqa: E402

from hs_core.events import JobReady  # noqa: E402
from hs_job.swap import Swapper  # noqa: E402
from tests.e2e.harness import temporary  # noqa: E402

GB = 10**9
TRAIN = str(ROOT / "tests" / "job" / "on_gpu.py")
ONE_WAY = "CUBLAS_WORKSPACE_CONFIG=:4096:8"
ALONE = 1.5  # a step that takes so many times the median, or more, had somebody else's turn in between

STEPS = """
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
steps, width = int(sys.argv[1]), int(sys.argv[2])
loader = DataLoader(TensorDataset(torch.zeros(steps, 1)), batch_size=1)
model = torch.nn.Linear(width, width, bias=False, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
x = torch.randn(width, width, device="cuda")
for n, _ in enumerate(loader):
    if n == steps // 5:
        torch.cuda.synchronize()
        began, first = time.monotonic(), n
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
torch.cuda.synchronize()
print((time.monotonic() - began) / (n + 1 - first), flush=True)
"""


def seconds(do: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.monotonic()
    do()
    torch.cuda.synchronize()
    return time.monotonic() - began


def swap(size: float) -> None:
    count = int(size * GB) // 64 // 4
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(count, device="cuda")) for _ in range(64)])
    swapper = Swapper(torch, lambda: [optimizer], lambda: None)

    def back_again() -> None:
        swapper.back(print)

    first_s = seconds(swapper.out)
    moved = swapper.parked_bytes
    out, back = [], [seconds(back_again)]
    for _ in range(5):
        out.append(seconds(swapper.out))
        back.append(seconds(back_again))
    part = moved // 4
    device = torch.empty(part, dtype=torch.uint8, device="cuda")
    began = time.monotonic()
    host = torch.empty(part, dtype=torch.uint8, pin_memory=True)
    allocates_s = 4 * (time.monotonic() - began)
    bare_out = 4 * min(seconds(lambda: host.copy_(device, non_blocking=True)) for _ in range(5))
    bare_back = 4 * min(seconds(lambda: device.copy_(host, non_blocking=True)) for _ in range(5))
    rate = moved / GB
    print(
        f"{rate:5.1f} GB  out {statistics.median(out) * 1e3:6.0f} ms ({rate / statistics.median(out):.1f} GB/s, bare {rate / bare_out:.1f})  "
        f"back {statistics.median(back) * 1e3:6.0f} ms ({rate / statistics.median(back):.1f} GB/s, bare {rate / bare_back:.1f})  "
        f"first out, with host memory to be had, {first_s * 1e3:.0f} ms (cudaHostAlloc alone {allocates_s * 1e3:.0f} ms)"
    )


def hook(pairs: int, steps: int, width: int) -> None:
    with tempfile.TemporaryDirectory() as folder, StubAgent(Path(folder)) as agent:
        script = Path(folder) / "steps.py"
        script.write_text(STEPS)

        def run(hooked: bool) -> float:
            since = agent.seen()
            job = agent.run(
                str(script), str(steps), str(width), env={} if hooked else {"HS_HOOK": "0"}, fresh=True
            )
            if hooked:
                agent.wait(JobReady, since)
                agent.resume()
            output, errors = job.communicate()
            if job.returncode:
                raise SystemExit(errors)
            return float(output)

        took: dict[bool, list[float]] = {True: [], False: []}
        for pair in range(pairs):
            for hooked in (True, False) if pair % 2 else (False, True):
                took[hooked].append(run(hooked))
        plain = statistics.median(took[False])
        added = statistics.median(a - b for a, b in zip(took[True], took[False], strict=True))
        print(
            f"a step of {plain * 1e3:.2f} ms: hooked adds {added * 1e6:.1f} us = {added / plain:.3%} (limit 1 %)"
        )


def in_turns(part: float, quantum_s: float, for_s: float) -> None:
    """Two users' jobs that each take `part` of the GPU."""
    width = 8192
    layers = max(1, int(part * torch.cuda.mem_get_info()[1] / (width * width * 16)))
    with tempfile.TemporaryDirectory() as folder, temporary(
        "--devices", "nvml", "--quantum", str(quantum_s), "--user", "ann", "--user", "bob"
    ) as cluster:  # fmt: skip
        words = ("--width", str(width), "--layers", str(layers), "--steps", "1000000", "--times")
        jobs = {
            user: cluster.submit(
                "-e",
                "PATH",
                "-e",
                ONE_WAY,
                "--",
                sys.executable,
                TRAIN,
                *words,
                f"{folder}/{user}",
                user=user,
            )
            for user in ("ann", "bob")
        }
        files = {user: Path(folder) / user for user in jobs}
        while not all(file.exists() for file in files.values()):
            time.sleep(0.2)
        time.sleep(2 * quantum_s + for_s)
        views: dict[str, Any] = {user: cluster.json("show", str(job)) for user, job in jobs.items()}
        steps = sorted(
            (float(line.split()[2]), user)
            for user, file in files.items()
            for line in file.read_text().splitlines()[:-1]
        )
        tiers = {line.rsplit("(", 1)[1].split(")")[0] for line in suspended(cluster.state / "agent.log")}
    since = steps[-1][0] - for_s  # the first turns build models, and nobody knows how large they are
    steps = [step for step in steps if step[0] >= since]
    gaps = [(after - before, one != other) for (before, one), (after, other) in pairwise(steps)]
    step_s = statistics.median(gap for gap, switched in gaps if not switched)
    lost = [gap - step_s for gap, switched in gaps if switched]
    share = {user: sum(who == user for _, who in steps) / len(steps) for user in jobs}
    memory = views["ann"]["gpu_memory_bytes"] / GB
    print(
        f"two jobs of {memory:.1f} GB each, quantum {quantum_s:g} s, between turns: {', '.join(sorted(tiers))}; steps of {step_s * 1e3:.0f} ms; "
        f"{len(lost)} switches, each loses p50 {statistics.median(lost) * 1e3:.0f} ms, most {max(lost) * 1e3:.0f} ms: "
        f"{statistics.median(lost) / 60:.2%} of a quantum of 60 s; steps {share['ann']:.1%} and {share['bob']:.1%}"
    )


def suspended(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if '"event": "suspended"' in line]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1.0, 4.0, 16.0])
    parser.add_argument("--quantum", type=float, default=6.0)
    parser.add_argument("--seconds", type=float, default=48.0)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: no CUDA device, or a torch without CUDA", file=sys.stderr)
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("device memory to the host and back, 64 tensors; bare: one copy from and to torch's pinned memory")
    for size in args.sizes:
        swap(size)
        torch.cuda.empty_cache()
    hook(3, 2000, 4096)
    for part in (0.25, 0.6):
        in_turns(part, args.quantum, args.seconds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
