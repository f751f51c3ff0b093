"""Optimizers whose state is spread over the ranks (`torch.distributed.optim.ZeroRedundancyOptimizer`): each has an optimizer inside, of the parameters that are this rank's.

Its own state dict is of all ranks, who would have to gather it together; what is inside goes with the rank's part of the checkpoint, back to the same rank of as many.
"""
# Python 3.9 has no strict:
# ruff: noqa: B905

from __future__ import annotations

import sys
from typing import Any, Dict

from hs_job import wrapped
from hs_job.pack import PackError


def is_spread(optimizer: Any) -> bool:
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    return module is not None and isinstance(wrapped.optimizer(optimizer), module.ZeroRedundancyOptimizer)


def state_of(optimizer: Any, name: str, *, whole: bool) -> Dict[str, Any]:
    """`whole`: this rank's part is no use. Raises PackError."""
    if whole:
        raise PackError(
            f"{name} has its state spread over the ranks (ZeroRedundancyOptimizer): a job that may go on with other ranks, or in another strategy, has to hand over whole state dicts"
        )
    optimizer = wrapped.optimizer(optimizer)
    inside = getattr(optimizer, "optim", None)
    if not isinstance(inside, sys.modules["torch"].optim.Optimizer):
        raise PackError(
            f"{name} steps amid the backward pass (ZeroRedundancyOptimizer with overlap_with_ddp=True), and has no state dict: expected overlap_with_ddp=False"
        )
    groups = [_settings(group) for group in optimizer.param_groups]
    return {
        "ranks": optimizer.world_size,
        "rank": optimizer.rank,
        "groups": groups,
        "part": inside.state_dict(),
    }


def load(optimizer: Any, state: Dict[str, Any]) -> None:
    """Raises ValueError where it was another rank's, or of another number of ranks."""
    optimizer = wrapped.optimizer(optimizer)
    was, here = (state["rank"], state["ranks"]), (optimizer.rank, optimizer.world_size)
    if was != here:
        raise ValueError(
            f"the checkpoint holds the part of rank {was[0]} of {was[1]} of a ZeroRedundancyOptimizer; this is rank {here[0]} of {here[1]}"
        )
    optimizer.optim.load_state_dict(state["part"])
    for saved, *own in zip(state["groups"], optimizer.param_groups, optimizer.optim.param_groups):
        for group in own:
            group.update(saved)


def _settings(group: Dict[str, Any]) -> Dict[str, Any]:
    """Schedules change those of the optimizer outside; the one inside has them at its next step."""
    return {name: value for name, value in group.items() if name != "params"}
