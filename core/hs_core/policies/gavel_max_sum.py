"""Gavel's sum of throughputs, not normalized (OSDI'20, 4.2; `max_sum_throughput_perf`): jobs with quick steps first, and others may starve."""

from functools import partial

from hs_core.mechanism.fractions import Case, Style, decide
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.gavel.sums import max_sum
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.policy import Needs, Policy


def allocate(case: Case) -> Allocation:
    return max_sum(case.question, method=case.method)


GAVEL_MAX_SUM = once_a_round(
    Policy(
        name="gavel-max-sum",
        needs=Needs(every_quantum=True),
        decide=partial(decide, allocate=allocate, style=Style()),
    )
)


def compat(reset_s: float) -> Policy:
    """As in Gavel's simulator, with so long between two allocations at least."""
    return Policy(
        name="gavel-max-sum",
        needs=Needs(every_quantum=True, work_conserving=False),
        decide=partial(decide, allocate=allocate, style=Style(compat=True, reset_s=reset_s)),
    )
