"""Max-min fairness that takes all GPU models for equal (Gavel's `max_min_fairness`): what its comparison calls heterogeneity-agnostic LAS.

The program has many optima: who cannot tell types apart has no reason to prefer one, so the middle of them is taken.
"""

from functools import partial

from hs_core.mechanism.fractions import Case, Style, decide
from hs_core.mechanism.gavel.fair import max_min
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.policy import Needs, Policy
from hs_core.solve import Method


def allocate(case: Case) -> Allocation:
    return max_min(case.question.blind(everywhere=case.compat), method=Method.CENTRE)


GAVEL_MAX_MIN_BLIND = once_a_round(
    Policy(
        name="gavel-max-min-blind",
        needs=Needs(every_quantum=True),
        decide=partial(decide, allocate=allocate, style=Style(shuffled=True)),
    )
)


def compat(reset_s: float) -> Policy:
    """As in Gavel's simulator, with so long between two allocations at least."""
    return Policy(
        name="gavel-max-min-blind",
        needs=Needs(every_quantum=True, work_conserving=False),
        decide=partial(decide, allocate=allocate, style=Style(shuffled=True, compat=True, reset_s=reset_s)),
    )
