"""The gradient noise scale of a job that accumulates gradients, or trains on several ranks: from squared norms of gradients of two batch sizes.

McCandlish et al. (An Empirical Model of Large-Batch Training, 2018), appendix A.1: of batches of b and B examples, b < B, gradients have expected squared norms
|G|^2 + tr(S)/b and |G|^2 + tr(S)/B. Both unknowns follow from both norms; each is averaged over mini-batches by itself, and their ratio tr(S)/|G|^2 is the noise
scale, in examples. The small batch is the first part of a mini-batch on this rank, the large one the whole mini-batch of all ranks.
"""

from __future__ import annotations

import math
import os
import weakref
from typing import Any, Dict, List, Optional, Tuple

EVERY = 10  # mini-batches from one measurement to the next: a norm reads all gradients once
RECENT = 200  # measurements that the averages are over, about
_SAME = 0.01  # gradients that differ by more when the optimizer steps were clipped or scaled by the script
_SHARDED = ("FlatParameter", "DTensor")  # a rank has a part of these: its norm says nothing


class Estimate:
    """Of batches of `small` and `big` examples. Only arithmetic."""

    def __init__(self, small: float, big: float) -> None:
        if not 0 < small < big:
            raise ValueError(f"batches of {small} and {big} examples; expected 0 < the first < the second")
        self.samples = 0
        self._small, self._big = small, big
        self._gradient = 0.0  # |G|^2
        self._noise = 0.0  # tr(S)

    def add(self, small_squared: float, big_squared: float) -> None:
        """Squared norms of one mini-batch's gradients."""
        if not (math.isfinite(small_squared) and math.isfinite(big_squared)):
            return  # a loss that overflowed
        small, big = self._small, self._big
        gradient = (big * big_squared - small * small_squared) / (big - small)
        noise = (small_squared - big_squared) / (1 / small - 1 / big)
        self.samples += 1
        weight = max(1 / self.samples, 1 / RECENT)
        self._gradient += weight * (gradient - self._gradient)
        self._noise += weight * (noise - self._noise)

    @property
    def scale(self) -> Optional[float]:
        """In examples; None: as far as was measured there is nothing but noise."""
        return max(0.0, self._noise) / self._gradient if self._gradient > 0 else None


class Meter:
    """Hooks the gradients of an elastic job's optimizer. What it cannot tell it does not say."""

    def __init__(self, torch: Any, batch: int, parts: int) -> None:
        """`batch`: examples of a mini-batch on one rank, worked through in so many parts."""
        self._torch = torch
        self._batch, self._parts = batch, parts
        self.estimate: Optional[Estimate] = None
        self._optimizer: Optional["weakref.ref[Any]"] = None
        self._world = 1
        self._steps = 0
        self._on = False  # this mini-batch is measured
        self._seen: Dict[int, int] = {}  # times that each parameter's gradient has grown
        self._first: List[Any] = []  # squared norms after the first part …
        self._last: List[Any] = []  # … and after the last, before anything is done to them

    @property
    def told(self) -> Optional[Tuple[float, int]]:
        """Noise scale and measurements, if there is something to tell."""
        scale = self.estimate.scale if self.estimate is not None else None
        return None if self.estimate is None or scale is None else (scale, self.estimate.samples)

    def give_up(self) -> None:
        self.estimate, self._on, self._parts = None, False, 0

    def stepped(self, optimizer: Any, world: int) -> None:
        """An optimizer has done a step; gradients are still as it saw them."""
        if not self._parts:
            return
        if self._optimizer is None:
            self._watch(optimizer, world)
            return
        if self._optimizer() is not optimizer or world != self._world:
            self.give_up()  # which of several optimizers' gradients would it be of?
            return
        if self._on:
            self._measure(optimizer)
        self._steps += 1
        self._on = self._steps % EVERY == 0
        self._seen.clear()
        self._first.clear()
        self._last.clear()

    def _watch(self, optimizer: Any, world: int) -> None:
        self._optimizer, self._world = weakref.ref(optimizer), world
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        if world * self._parts < 2 or any(type(p).__name__ in _SHARDED for p in parameters):
            self.give_up()
            return
        self.estimate = Estimate(self._batch / self._parts, self._batch * world)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._accumulated)

    def _accumulated(self, parameter: Any) -> None:
        if not self._on:
            return
        times = self._seen[id(parameter)] = self._seen.get(id(parameter), 0) + 1
        if times == 1:
            self._first.append(self._squared(parameter))
        if times == self._parts and self._world == 1:
            self._last.append(self._squared(parameter))

    def _squared(self, parameter: Any) -> Any:
        gradient = parameter.grad.detach()
        if gradient.is_sparse:
            gradient = gradient.coalesce().values()
        return gradient.float().pow(2).sum()

    def _measure(self, optimizer: Any) -> None:
        if not self._seen or any(times != self._parts for times in self._seen.values()):
            return  # it was not worked through in these parts
        whole = [
            self._squared(p)
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None and id(p) in self._seen
        ]
        if len(whole) != len(self._first):
            return
        big = self._sum(whole)
        if self._world == 1 and abs(self._sum(self._last) - big) > _SAME * big:
            return
        assert self.estimate is not None
        # The script divides each part's loss by their number: the gradient of a part alone is so many times as large.
        self.estimate.add(self._parts**2 * self._sum(self._first), big)

    def _sum(self, squares: List[Any]) -> float:
        home = squares[0].device
        return float(self._torch.stack([square.to(home) for square in squares]).sum())


def meter(torch: Any) -> Optional[Meter]:
    """For an elastic job, which was told how its mini-batches are made; None: it is none, or nothing can be measured."""
    batch, parts = os.environ.get("HS_BATCH_PER_GPU", ""), os.environ.get("HS_ACCUMULATION_STEPS", "1")
    if not (batch.isdecimal() and parts.isdecimal() and int(batch) >= int(parts) >= 1):
        return None
    return Meter(torch, int(batch), int(parts))
