"""How a job may run, and how it does: shapes of elastic jobs, over how many servers it is laid. Frozen facts."""

from dataclasses import dataclass, replace

from hs_core.strategy import Strategy
from hs_core.words import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """What a job allows that may be restarted on another number of GPUs. Batches are in examples."""

    gpus_min: int  # over all of its servers
    gpus_max: int
    batch: int  # of the user's own mini-batches
    batch_max: int  # of a mini-batch, at most
    batch_per_gpu_max: int  # that fit into a GPU at once
    noise_scale: float = (
        0.0  # gradient noise scale (McCandlish et al., 2018), examples; 0: not known; until it is measured
    )

    def on(self, gpus: int, nodes: int = 1) -> "Shape":
        """The user's own batch on so many GPUs, rounded up to what all have alike, in as few parts as fit."""
        parts = -(-self.batch // (gpus * self.batch_per_gpu_max))
        return Shape(gpus=gpus, per_gpu=-(-self.batch // (gpus * parts)), parts=parts, nodes=nodes)

    def allows(self, shape: "Shape") -> bool:
        """Between its limits; a batch may be rounded up to what all GPUs have alike."""
        if not (self.gpus_min <= shape.gpus <= self.gpus_max and shape.parts >= 1):
            return False
        if shape.nodes < 1 or shape.gpus % shape.nodes:
            return False
        if not (1 <= shape.per_gpu <= self.batch_per_gpu_max and self.batch <= shape.batch):
            return False
        return shape.batch <= self.batch_max or shape.gpus * shape.parts * (shape.per_gpu - 1) < self.batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How an elastic job runs, fixed for an epoch: mini-batches of `gpus * per_gpu * parts` examples."""

    gpus: int  # over all of its servers
    per_gpu: int  # examples on a GPU at once
    parts: int = 1  # in which each mini-batch is worked through, one after another
    nodes: int = 1  # servers, with as many GPUs on each

    @property
    def per_node(self) -> int:
        """GPUs on each server."""
        return self.gpus // self.nodes

    @property
    def batch(self) -> int:
        return self.gpus * self.per_gpu * self.parts

    def __str__(self) -> str:
        gpus = counted(self.gpus, "GPU")
        parts = "" if self.parts == 1 else f" in {self.parts} parts"
        gpus += "" if self.nodes == 1 else f" on {self.nodes} servers"
        return f"{gpus}, mini-batches of {self.batch} examples{parts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A job that may be laid over any number of servers, in equal parts: over so many. Its checkpoints are of as many parts, so it stays as long as it has any."""

    nodes: int
    strategy: Strategy | None = None  # that it has there; None: the first that it declared, if it did

    def __str__(self) -> str:
        where = "all GPUs on one server" if self.nodes == 1 else f"its GPUs on {self.nodes} servers"
        return where if self.strategy is None else f"{self.strategy}, {where}"


Form = Shape | Strategy | Spread
"""How a job runs, fixed for an epoch: the shape of an elastic one, one of the strategies that its script can do, or over how many servers it is laid."""


def strategy_of(form: Form | None) -> Strategy | None:
    """That was chosen; None: nobody chose one."""
    if isinstance(form, Spread):
        return form.strategy
    return form if isinstance(form, Strategy) else None


def in_strategy(form: Form | None, strategy: Strategy) -> Form:
    """The same number of servers, that strategy."""
    return replace(form, strategy=strategy) if isinstance(form, Spread) else strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScale:
    """Of a job's gradients, as measured."""

    examples: float
    samples: int  # mini-batches


ENOUGH_NOISE = 50
"""Measurements before a noise scale is believed: of one, the error is as large as what is measured."""
