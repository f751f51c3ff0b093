"""A small model that has trained for a step. Not a test."""

from typing import Any

import torch


def trained(kind: Any = torch.optim.Adam) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8, bias=False)
    )
    model[2].weight = model[0].weight  # tied
    optimizer = kind(model.parameters())
    data = torch.randn(16, 8)
    model(data).square().sum().backward()
    optimizer.step()
    return model, optimizer, data
