"""A hand-made loop without a DataLoader: it counts with hs_job.step, and starts at hs_job.state(...).step.

Ends with one line of JSON: accuracy, digest of the weights, steps.
"""

import argparse
import hashlib
import json

import torch
from sklearn.datasets import load_digits
from torch import nn

import hs_job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    x, y = (torch.as_tensor(each) for each in load_digits(return_X_y=True))
    x = x.float() / 16
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    state = hs_job.state(model=model, optimizer=optimizer)
    for step in range(state.step, args.steps):
        rows = torch.randint(1500, (args.batch_size,))
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or hs_job.should_yield():
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        hs_job.step()

    with torch.no_grad():
        accuracy = (model(x[1500:]).argmax(1) == y[1500:]).float().mean().item()
    digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest()
    print(json.dumps({"accuracy": round(accuracy, 4), "digest": digest, "steps": args.steps}), flush=True)


if __name__ == "__main__":
    main()
