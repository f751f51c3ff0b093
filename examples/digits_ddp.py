"""Trains a small network on handwritten digits on several GPUs (or CPU processes), started by torchrun, and can be moved.

Ends with one line of JSON: accuracy, digest of the weights, steps.
"""

import argparse
import contextlib
import hashlib
import json
import os

import torch
from digits_data import load_digits
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hs_job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=0, help="end after so many, 0: after the epochs")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    on_gpus = torch.cuda.is_available()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if on_gpus else "cpu"
    if on_gpus:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if on_gpus else "gloo")
    rank = distributed.get_rank()
    x, y = (torch.as_tensor(each) for each in load_digits())
    x = x.float() / 16
    train = TensorDataset(x[:1500], y[:1500])
    test_x, test_y = x[1500:].to(device), y[1500:].to(device)

    sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
    batch_size = max(1, args.batch_size // distributed.get_world_size())
    loader = DataLoader(train, batch_size=batch_size, sampler=sampler, drop_last=True)
    model = nn.Sequential(
        nn.Linear(64, args.hidden),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(args.hidden, args.hidden),
        nn.ReLU(),
        nn.Linear(args.hidden, 10),
    ).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(args.seed + rank)  # other dropout on each rank
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    epochs = -(-args.steps // len(loader)) if args.steps else args.epochs
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)

    state = hs_job.state(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    step = state.step
    for epoch in range(state.epoch, epochs):
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            if args.steps and step == args.steps:
                break
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        scheduler.step()
        if rank == 0 and epoch % 10 == 0:
            print(f"epoch {epoch} step {step}", flush=True)

    model.eval()
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    digest = hashlib.sha256(
        b"".join(t.cpu().numpy().tobytes() for t in model.state_dict().values())
    ).hexdigest()
    if rank == 0:
        print(json.dumps({"accuracy": round(accuracy, 4), "digest": digest, "steps": step}), flush=True)

    # The result is out. From here on two things may go wrong with gloo that are no failure of the training: a rank that leaves
    # the barrier first closes its connections on the others, and gloo's threads may abort an interpreter that is going down.
    with contextlib.suppress(RuntimeError):
        distributed.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
