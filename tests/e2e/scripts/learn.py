"""Trains a small model that hands over its state, alone or as a rank of torchrun, and writes each step to a file.

usage: learn.py FILE STEPS [STEP_S]   (a line a step in FILE.RANK: process, step, loss, clock)
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hs_job

path, steps, step_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
gang = int(os.environ.get("WORLD_SIZE", "1")) > 1
torch.set_num_threads(1)
torch.manual_seed(3)
rank = 0
if gang:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()

x = torch.randn(320, 8, generator=torch.Generator().manual_seed(11))
data = TensorDataset(x, (x[:, :3].sum(1) > 0).long())
sampler: DistributedSampler[object] | None = DistributedSampler(data, seed=9) if gang else None
loader = DataLoader(data, batch_size=8, shuffle=sampler is None, sampler=sampler, drop_last=True)
model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
if gang:
    model = nn.parallel.DistributedDataParallel(model)
torch.manual_seed(5 + rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
step = state.step
with Path(f"{path}.{rank}").open("a", buffering=1) as file:
    for epoch in range(state.epoch, -(-steps // len(loader))):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for batch, labels in loader:
            if step == steps:
                break
            loss = nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            file.write(f"{os.getpid()} {step} {loss.item()!r} {time.monotonic():.4f}\n")
            time.sleep(step_s)
if gang:
    distributed.barrier()
os._exit(0)  # gloo's threads may abort an interpreter that is going down
