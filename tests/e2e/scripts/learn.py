"""Trains a small model that hands over its state, alone or as a rank of torchrun, and writes each step to a file.

It takes its steps by hand: torch's optimizers load its compiler first, which takes as long as torch itself, and what is hooked in them is
tests/job's matter.

usage: learn.py FILE STEPS [STEP_S]   (a line a step in FILE.RANK: process, step, loss, clock; without STEP_S once FILE.hurry is there)

With SHORT_AT in its environment it says once, in that step, that its GPU has no memory left.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn

import hs_job

path, steps, step_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
hurry, short = Path(f"{path}.hurry"), Path(f"{path}.short")
short_at = int(os.environ.get("SHORT_AT", "0"))
torch.set_num_threads(1)
torch.manual_seed(3)
rank, world = 0, int(os.environ.get("WORLD_SIZE", "1"))
if world > 1:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()

x = torch.randn(320, 8, generator=torch.Generator().manual_seed(11))
y = (x[:, :3].sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
torch.manual_seed(5 + rank)  # each rank draws batches and drops out for itself
state = hs_job.state(model=model)
with Path(f"{path}.{rank}").open("a", buffering=1) as file:
    for step in range(state.step + 1, steps + 1):
        batch = torch.randint(len(x), (8,))
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        if step == short_at and not short.exists():
            short.touch()
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 12.00 GiB. GPU 0 has 16.00 GiB"
            )
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weights in model.parameters():
                if world > 1:
                    distributed.all_reduce(weights.grad)
                weights.sub_(0.1 / world * weights.grad)
        file.write(f"{os.getpid()} {step} {loss.item()!r} {time.monotonic():.4f}\n")
        if step_s and not hurry.exists():
            time.sleep(step_s)
        hs_job.step()
if world > 1:
    distributed.barrier()
os._exit(0)  # gloo's threads may abort an interpreter that is going down
