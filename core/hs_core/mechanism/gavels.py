"""A policy of Gavel's kind from what allocates its time: as it is here, and as Gavel's own simulator has it."""

from dataclasses import dataclass, field, replace
from functools import partial

from hs_core.mechanism.fractions import Allocate, Style, decide
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.mechanism.profiling import profiled
from hs_core.policy import Needs, Policy


@dataclass(frozen=True, slots=True)
class Gavels:
    name: str
    allocate: Allocate
    style: Style = field(default_factory=Style)
    lengths: bool = False  # it goes by how long jobs are
    speeds: bool = True  # and by how fast: on each model it asks for performance measurements (OSDI'20, section 3, throughput estimator)

    def policy(self) -> Policy:
        made = once_a_round(self._made(self.style, work_conserving=True))
        return profiled(made) if self.speeds else made

    def compat(self, reset_s: float) -> Policy:
        """As in Gavel's simulator, with so long between two allocations at least."""
        return self._made(replace(self.style, compat=True, reset_s=reset_s), work_conserving=False)

    def _made(self, style: Style, *, work_conserving: bool) -> Policy:
        needs = Needs(
            every_quantum=True,
            work_conserving=work_conserving,
            lengths=self.lengths,
            sharing=style.packed,
        )
        return Policy(
            name=self.name, needs=needs, decide=partial(decide, allocate=self.allocate, style=style)
        )
