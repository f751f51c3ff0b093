"""A real GPU: how fast its memory is swapped, what the hook costs, and what is lost between two turns of real jobs.

Skipped where there is none.

python benchmarks/gpu.py [--sizes GB …] [--quantum S] [--part memory|turns]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "job")]

from hook import overhead  # noqa: E402
from job_stub import StubAgent  # noqa: E402

from hs_job.swap import Swapper  # noqa: E402
from tests.e2e.harness import temporary  # noqa: E402

GB = 10**9
TRAIN = str(ROOT / "tests" / "job" / "on_gpu.py")
ONE_WAY = "CUBLAS_WORKSPACE_CONFIG=:4096:8"
WIDTH = 8192
FIRST, COUNTED = 3, 4  # switches: the first are not counted
WITHIN_S = 150.0

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
        plain, added = overhead(agent, str(script), pairs, str(steps), str(width))
        print(
            f"a step of {plain * 1e3:.2f} ms: hooked adds {added * 1e6:.1f} us = {added / plain:.3%} (limit 1 %)"
        )


def in_turns(size: float, declared: str, quantum_s: float) -> None:
    """Two users' jobs of `size` GB that say so (or more, so that they do not fit together): what is lost between two turns."""
    layers = max(1, int(size * GB / (WIDTH * WIDTH * 16)))  # parameters, gradients, two averages, in float32
    with tempfile.TemporaryDirectory() as folder, temporary(
        "--devices", "nvml", "--quantum", str(quantum_s), "--user", "ann", "--user", "bob"
    ) as cluster:  # fmt: skip
        words = ("--width", str(WIDTH), "--layers", str(layers), "--steps", "1000000", "--times")
        files = {user: Path(folder) / user for user in ("ann", "bob")}
        given = ("-e", "PATH", "-e", ONE_WAY, "--gpu-mem", declared)
        jobs = [
            cluster.submit(*given, "--", sys.executable, TRAIN, *words, str(file), user=user)
            for user, file in files.items()
        ]
        deadline = time.monotonic() + WITHIN_S
        while len(turns(files)) < FIRST + COUNTED + 1:
            if time.monotonic() > deadline:
                raise SystemExit(cluster.hsctl("events").stdout)
            time.sleep(0.5)
        # Between the first turns host memory is had, and classes are measured.
        counted = turns(files)[FIRST : FIRST + COUNTED + 1]
        memory = cluster.json("show", str(jobs[0]))["gpu_memory_bytes"] / GB
        tiers = {
            line.rsplit("(", 1)[1].split(")")[0]
            for line in (cluster.state / "agent.log").read_text().splitlines()
            if '"event": "suspended"' in line
        }
    step_s = statistics.median(b - a for turn in counted for a, b in pairwise(turn))
    lost = [after[0] - before[-1] - step_s for before, after in pairwise(counted)]
    print(
        f"two jobs of {memory:.1f} GB, {', '.join(sorted(tiers))} between turns, steps of {step_s * 1e3:.0f} ms: {len(lost)} switches, each loses "
        f"p50 {statistics.median(lost) * 1e3:.0f} ms, most {max(lost) * 1e3:.0f} ms: {statistics.median(lost) / 60:.2%} of a quantum of 60 s (limit 1 %)"
    )


def turns(files: dict[str, Path]) -> list[list[float]]:
    """When the steps of each turn ended, whoever had it."""
    steps = sorted(
        (float(line.split()[2]), user)
        for user, file in files.items()
        if file.exists()
        for line in file.read_text().split("\n")[:-1]
    )
    return [[at for at, _ in turn] for _, turn in groupby(steps, key=lambda step: step[1])]


def measure(sizes: list[float]) -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("device memory to the host and back, 64 tensors; bare: one copy from and to torch's pinned memory")
    for size in sizes:
        swap(size)
        torch.cuda.empty_cache()
    hook(3, 2000, 4096)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1.0, 4.0, 16.0], metavar="GB")
    parser.add_argument("--quantum", type=float, default=1.0, metavar="S")
    parser.add_argument("--part", choices=["memory", "turns"])
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: no CUDA device, or a torch without CUDA", file=sys.stderr)
        return 0
    if args.part == "memory":
        measure(args.sizes)
        return 0
    if args.part is None:
        # In a process of its own: one that computes on a GPU and is no job's is a stranger there, and nobody has a turn.
        sizes = map(str, args.sizes)
        subprocess.run([sys.executable, __file__, "--part", "memory", "--sizes", *sizes], check=True)
    in_turns(16.0, "20G", args.quantum)
    in_turns(16.0, "45G", args.quantum)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
