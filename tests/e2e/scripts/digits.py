"""Learns handwritten digits, handing over its state, and writes how good it has become.

usage: digits.py FILE EPOCHS   (FILE: loss and accuracy on digits it has not seen, as JSON, at its end; FILE.PID: a line for each step)
"""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hs_job

path, epochs = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(3)
# What sklearn.datasets.load_digits reads, without the time that importing scikit-learn takes.
(sklearn,) = find_spec("sklearn").submodule_search_locations
table = torch.tensor(np.loadtxt(Path(sklearn) / "datasets/data/digits.csv.gz", delimiter=","))
table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
x, y = table[:, :-1].float() / 16, table[:, -1].long()
loader = DataLoader(TensorDataset(x[:1280], y[:1280]), batch_size=32, shuffle=True)
# Statistics over a hundred batches: over ten they alone make one seed's loss differ from another's by 2 %.
model = nn.Sequential(nn.BatchNorm1d(64, momentum=0.01), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.003)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.02, 1.0 - step / (40 * epochs)))
state = hs_job.state(model=model, optimizer=optimizer, scheduler=schedule, loader=loader)
step = state.step
with Path(f"{path}.{os.getpid()}").open("a", buffering=1) as file:
    for _ in range(state.epoch, epochs):
        for batch, truth in loader:
            loss = nn.functional.cross_entropy(model(batch), truth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            file.write(f"{step} {os.environ.get('HS_COPY', '0')} {loss.item()!r}\n")
model.eval()
with torch.no_grad():
    said = model(x[1280:])
found = {
    "loss": float(nn.functional.cross_entropy(said, y[1280:])),
    "right": float((said.argmax(1) == y[1280:]).float().mean()),
    "step": step,
    "rate": schedule.get_last_lr()[0],
    "scheduled": schedule.last_epoch,
}
Path(path).write_text(json.dumps(found))
