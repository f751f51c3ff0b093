"""Gavel's makespan policy (OSDI'20, 4.2; its `min_total_duration_perf`): all jobs that are here end as early as can be."""

from functools import partial

from hs_core.mechanism.fractions import Case, Style, decide
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.gavel.sums import least_makespan
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.policy import Needs, Policy


def allocate(case: Case) -> Allocation:
    return least_makespan(case.question, case.rows.steps_left, method=case.method)


GAVEL_MAKESPAN = once_a_round(
    Policy(
        name="gavel-makespan",
        needs=Needs(every_quantum=True, lengths=True),
        decide=partial(decide, allocate=allocate, style=Style()),
    )
)


def compat(reset_s: float) -> Policy:
    """As in Gavel's simulator, with so long between two allocations at least."""
    return Policy(
        name="gavel-makespan",
        needs=Needs(every_quantum=True, work_conserving=False, lengths=True),
        decide=partial(decide, allocate=allocate, style=Style(compat=True, reset_s=reset_s)),
    )
