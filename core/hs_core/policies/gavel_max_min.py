"""Gavel's max-min fairness over GPU models (OSDI'20, 4.1; its `max_min_fairness_perf`): the least normalized throughput per ticket is as large as can be."""

from functools import partial

from hs_core.mechanism.fractions import Case, Style, decide
from hs_core.mechanism.gavel.fair import max_min
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.policy import Needs, Policy


def allocate(case: Case) -> Allocation:
    return max_min(case.question, method=case.method)


GAVEL_MAX_MIN = once_a_round(
    Policy(
        name="gavel-max-min",
        needs=Needs(every_quantum=True),
        decide=partial(decide, allocate=allocate, style=Style()),
    )
)


def compat(reset_s: float) -> Policy:
    """As in Gavel's simulator, with so long between two allocations at least."""
    return Policy(
        name="gavel-max-min",
        needs=Needs(every_quantum=True, work_conserving=False),
        decide=partial(decide, allocate=allocate, style=Style(compat=True, reset_s=reset_s)),
    )
