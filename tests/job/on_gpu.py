"""What the tests and the benchmark train on a real GPU: a line `step loss` (repr) per step, in the end a digest of the weights. Not a test.

With --times FILE the lines go there, with the clock's time. On a machine without a GPU it trains on the CPU.
"""

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--pause", type=float, default=0.0, help="seconds between two steps")
parser.add_argument("--amp", action="store_true", help="float16, losses scaled")
parser.add_argument("--compile", default="", metavar="MODE")
parser.add_argument(
    "--graph", action="store_true", help="forward and backward are replayed from a CUDA graph"
)
parser.add_argument("--fused", action="store_true")
parser.add_argument("--handed", action="store_true")
parser.add_argument("--ddp", action="store_true")
parser.add_argument("--times", default="", metavar="FILE")
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
cuda = device == "cuda"


def say(line: str) -> None:
    if args.times:
        with Path(args.times).open("a") as file:
            file.write(f"{line} {time.time():.4f}\n")
    else:
        os.write(1, f"{line}\n".encode())


torch.use_deterministic_algorithms(True)
torch.manual_seed(1)
if args.ddp:
    torch.distributed.init_process_group("nccl" if cuda else "gloo")
drawn = torch.Generator().manual_seed(3)
data = TensorDataset(torch.randn(4096, 256, generator=drawn), torch.randint(0, 10, (4096,), generator=drawn))
loader = DataLoader(
    data, batch_size=args.batch, shuffle=True, num_workers=args.workers, pin_memory=cuda, drop_last=True
)
with torch.device(device):  # a large model is not drawn on the CPU first
    hidden = [
        part
        for _ in range(args.layers)
        for part in (nn.Linear(args.width, args.width), nn.ReLU(), nn.Dropout(0.1))
    ]
    model = nn.Sequential(nn.Linear(256, args.width), nn.ReLU(), *hidden, nn.Linear(args.width, 10))
if args.ddp:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=args.fused and cuda)
scaler = torch.amp.GradScaler(device, enabled=args.amp)
forward = torch.compile(model, mode=args.compile) if args.compile else model
state = None
if args.handed:
    import hs_job

    state = hs_job.state(model=model, optimizer=optimizer, scaler=scaler, loader=loader)


def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.autocast(device, enabled=args.amp, dtype=torch.float16 if cuda else torch.bfloat16):
        return nn.functional.cross_entropy(forward(x), y)


class Graphed:
    """Forward and backward of one batch, captured once."""

    def __init__(self) -> None:
        self.x = torch.zeros(args.batch, 256, device=device)
        self.y = torch.zeros(args.batch, dtype=torch.long, device=device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                optimizer.zero_grad()
                losses(self.x, self.y).backward()
        torch.cuda.current_stream().wait_stream(side)
        optimizer.zero_grad()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = losses(self.x, self.y)
            self.loss.backward()

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        optimizer.step()
        return self.loss


def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = losses(x, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss


train = Graphed().step if args.graph and cuda else plain
step = state.step if state is not None else 0
while step < args.steps:
    for x, y in loader:
        loss = train(x.to(device, non_blocking=True), y.to(device, non_blocking=True))
        step += 1
        say(f"{step} {loss.item()!r}")
        time.sleep(args.pause)
        if step >= args.steps:
            break
digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(tensor.cpu().numpy().tobytes())
say(f"weights {digest.hexdigest()}")
sys.stdout.flush()
os._exit(0)  # communicators' threads may abort an interpreter that is going down
