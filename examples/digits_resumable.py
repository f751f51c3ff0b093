"""Trains a small network on handwritten digits and can be moved: its state is handed over with one call, hs_job.state.

Ends with one line of JSON: accuracy, digest of the weights, steps.
"""

import argparse
import hashlib
import json

import torch
from digits_data import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = (torch.as_tensor(each) for each in load_digits())
    x = x.float() / 16
    train = TensorDataset(x[:1500], y[:1500])
    test_x, test_y = x[1500:].to(device), y[1500:].to(device)

    loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = nn.Sequential(
        nn.Linear(64, args.hidden),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(args.hidden, args.hidden),
        nn.ReLU(),
        nn.Linear(args.hidden, 10),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    epochs = -(-args.steps // len(loader)) if args.steps else args.epochs
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)

    state = hs_job.state(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    step = state.step
    for epoch in range(state.epoch, epochs):
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
        if epoch % 10 == 0:
            print(f"epoch {epoch} step {step}", flush=True)

    model.eval()
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    digest = hashlib.sha256(
        b"".join(t.cpu().numpy().tobytes() for t in model.state_dict().values())
    ).hexdigest()
    print(json.dumps({"accuracy": round(accuracy, 4), "digest": digest, "steps": step}), flush=True)


if __name__ == "__main__":
    main()
