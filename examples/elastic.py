"""Trains on handwritten digits on as many GPUs (or CPU processes), and with the mini-batch, that the scheduler chose.

    hsctl submit --torchrun -G 1 --gpus-max 4 --batch 64 --batch-max 256 --batch-per-gpu-max 64 --noise-scale 500 -- python examples/elastic.py

Started by torchrun. Counts epochs, since mini-batches are not all of one size. Ends with one line of JSON: accuracy, steps,
processes and mini-batch at the end.
"""

import argparse
import contextlib
import json
import os
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hs_job

OWN_BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--step-s", type=float, default=0.0, help="wait so long after each step")
    parser.add_argument("--curve", type=Path, help="write a line of JSON a step to this file")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    on_gpus = torch.cuda.is_available()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if on_gpus else "cpu"
    if on_gpus:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if on_gpus else "gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    x, y = (torch.as_tensor(each) for each in load_digits(return_X_y=True))
    x = x.float() / 16
    train = TensorDataset(x[:1536], y[:1536])

    per_gpu, parts = hs_job.batch_per_gpu(max(1, OWN_BATCH // world)), hs_job.accumulation_steps()
    batch = per_gpu * world
    sampler = DistributedSampler(train, seed=0, drop_last=True)
    loader = DataLoader(train, batch_size=per_gpu, sampler=sampler, drop_last=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
    for group in optimizer.param_groups:
        group["lr"] = 0.05 * (batch / OWN_BATCH) ** 0.5  # larger mini-batches, larger steps

    step, loss = state.step, 0.0
    with contextlib.ExitStack() as stack:
        curve = stack.enter_context(args.curve.open("a", buffering=1)) if args.curve and rank == 0 else None
        for epoch in range(state.epoch, args.epochs):
            sampler.set_epoch(epoch)
            for images, labels in loader:
                optimizer.zero_grad()
                loss = 0.0
                for part, truth in zip(
                    images.to(device).chunk(parts), labels.to(device).chunk(parts), strict=True
                ):
                    weighted = nn.functional.cross_entropy(model(part), truth) * len(part) / len(images)
                    weighted.backward()
                    loss += weighted.item()
                optimizer.step()
                step += 1
                if curve:
                    told = {"epoch": epoch, "step": step, "loss": loss, "processes": world, "batch": batch}
                    curve.write(json.dumps(told) + "\n")
                time.sleep(args.step_s)

    with torch.no_grad():
        accuracy = (model(x[1536:].to(device)).argmax(1) == y[1536:].to(device)).float().mean().item()
    if rank == 0:
        ended = {"accuracy": round(accuracy, 4), "steps": step, "processes": world, "batch": batch}
        print(json.dumps(ended), flush=True)
    with contextlib.suppress(RuntimeError):
        distributed.barrier()  # as examples/digits_ddp.py says
    os._exit(0)


if __name__ == "__main__":
    main()
