"""Max-min fairness to the end (Gavel, OSDI'20, 4.3): when the least can rise no more, the next does."""

from functools import partial

from hs_core.mechanism.fractions import Case, Style, decide
from hs_core.mechanism.gavel.fair import water_fill
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.policy import Needs, Policy


def allocate(case: Case) -> Allocation:
    return water_fill(case.question, method=case.method)


GAVEL_WATER_FILLING = once_a_round(
    Policy(
        name="gavel-water-filling",
        needs=Needs(every_quantum=True),
        decide=partial(decide, allocate=allocate, style=Style()),
    )
)


def compat(reset_s: float) -> Policy:
    """As in Gavel's simulator, with so long between two allocations at least."""
    return Policy(
        name="gavel-water-filling",
        needs=Needs(every_quantum=True, work_conserving=False),
        decide=partial(decide, allocate=allocate, style=Style(compat=True, reset_s=reset_s)),
    )
