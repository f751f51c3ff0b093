"""A move within a pool that is thought of, and what it comes to."""

from typing import NamedTuple

from hs_core.mechanism.squares import Step
from hs_core.names import JobId
from hs_core.policy import JobFacts

Cost = tuple[bool, bool, int, float, JobId]  # as `Mover.cost_of` says
Swap = tuple[int, int]
"""A server that a gang leaves, and the one that it takes for it."""


class Change(NamedTuple):
    squares: float  # more than before; the best is the most negative
    cost: Cost
    target: int
    source: int
    job: JobFacts
    packs: bool = False  # with others, onto GPUs that idle beside gangs
    frees: bool = False  # servers that wait along with the one that it leaves
    besides: tuple[Swap, ...] = ()  # of a gang that leaves several servers

    @property
    def step(self) -> Step:
        return self.job, self.source, self.target
