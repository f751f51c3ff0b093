"""What the tests train: prints one line `step loss` (repr) per step and a digest of the final weights. Not a test."""

import argparse
import atexit
import hashlib
import multiprocessing
import os
import random
import warnings

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--samples", type=int, default=160)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--optimizer", choices=["adam", "momentum"], default="adam")
parser.add_argument("--handed", choices=["no", "epoch", "plain"], default="no")
parser.add_argument("--ddp", action="store_true")
parser.add_argument("--fsdp", action="store_true", help="with --ddp: parameters are sharded over the ranks")
parser.add_argument("--slices", action="store_true", help="with --ddp: layers are spread over the ranks")
parser.add_argument(
    "--zero", action="store_true", help="with --ddp: the optimizer's state is spread over the ranks"
)
parser.add_argument("--own-generator", action="store_true")
parser.add_argument("--evaluate", action="store_true", help="after each epoch, on what was trained on")
args = parser.parse_args()

multiprocessing.set_start_method("fork")  # not by Python 3.14 unless it is told: others import this file anew
torch.set_num_threads(1)
torch.manual_seed(3)
random.seed(4)
np.random.seed(5)  # noqa: NPY002 - the global generator is what scripts use
rank = 0
if args.ddp:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(3 + rank)


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # whole lines, whoever else writes


class Noisy(Dataset):
    """Draws from every generator there is, as augmentation does."""

    def __init__(self, n: int) -> None:
        g = torch.Generator().manual_seed(11)
        self.x = torch.randn(n, 16, generator=g)
        self.y = (self.x[:, :4].sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int):
        noise = 0.01 * torch.randn(16) + 0.01 * random.random() + 0.01 * float(np.random.rand())  # noqa: NPY002
        return self.x[i] + noise, self.y[i]


data = Noisy(args.samples)
sampler = torch.utils.data.DistributedSampler(data, seed=9) if args.ddp else None
generator = torch.Generator().manual_seed(21) if args.own_generator else None
loader = DataLoader(
    data,
    batch_size=8,
    shuffle=sampler is None,
    sampler=sampler,
    num_workers=args.workers,
    generator=generator,
)
model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 2))
if args.fsdp:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in (model[0], model[4], model):
        fully_shard(layer, mesh=mesh)
elif args.slices:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    warnings.filterwarnings("ignore", "DTensor random operators may not")  # so torch before 2.6, on the CPU
    torch.manual_seed(3)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
elif args.ddp:
    model = nn.parallel.DistributedDataParallel(model)
if args.zero:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
elif args.optimizer == "adam":
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1, 2, 3], gamma=0.5)

first = 0
state = None
if args.handed != "no":
    import hs_job

    state = hs_job.state(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    if args.handed == "epoch":
        first = state.epoch
step = state.step if state is not None else 0
for epoch in range(first, args.epochs):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        say(f"{rank}:{step} {loss.item()!r}")
    scheduler.step()
    if args.evaluate:
        model.eval()
        with torch.no_grad():
            right = sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)
        model.train()
        say(f"{rank}:{step} right {right}")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(local(tensor).numpy().tobytes())
for entry in (optimizer.optim if args.zero else optimizer).state_dict()["state"].values():
    for value in entry.values():
        if torch.is_tensor(value):
            digest.update(local(value).numpy().tobytes())
say(f"{rank}:weights {digest.hexdigest()} lr {scheduler.get_last_lr()!r}")
if args.ddp:
    # Gloo's threads now and then outlive the interpreter, and abort it as it goes down, also where their group has been destroyed: so it does not.
    del model, loss, x, y
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    atexit._run_exitfuncs()
    os._exit(0)
