"""Trains on handwritten digits, each mini-batch in as many parts as the scheduler asks for.

With more parts it may share a GPU with a job that leaves it little memory:

    hsctl submit --steps 500 --gpu-mem 10G --gpu-mem-fixed 2G --accumulation 8 -- python examples/accumulate.py --steps 500

Ends with one line of JSON: parts, steps, last loss. The losses are those of whole mini-batches but for rounding.
"""

import argparse
import json
import time
from contextlib import ExitStack
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hs_job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--step-s", type=float, default=0.0, help="wait so long after each step")
    parser.add_argument("--curve", type=Path, help="write each step's loss to this file, a line a step")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = (torch.as_tensor(each) for each in load_digits(return_X_y=True))
    loader = DataLoader(
        TensorDataset(x.float() / 16, y), batch_size=args.batch_size, shuffle=True, drop_last=True
    )
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
    parts = hs_job.accumulation_steps()

    step, loss = state.step, 0.0
    with ExitStack() as stack:
        curve = stack.enter_context(args.curve.open("a", buffering=1)) if args.curve else None
        for _ in range(state.epoch, -(-args.steps // len(loader))):
            for images, labels in loader:
                if step == args.steps:
                    break
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
                    curve.write(f"{loss!r}\n")
                time.sleep(args.step_s)
    print(json.dumps({"parts": parts, "steps": step, "loss": round(loss, 4)}), flush=True)


if __name__ == "__main__":
    main()
