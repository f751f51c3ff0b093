"""Gavel's finish-time fairness (OSDI'20, 4.2): the largest ratio of a job's time to completion to that in a cluster of its own is as small as can be."""

from functools import partial

from hs_core.mechanism.fractions import Case, Style, decide
from hs_core.mechanism.gavel.finish import Lives, finish_time_fair
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.policy import Needs, Policy


def allocate(case: Case) -> Allocation:
    return finish_time_fair(
        case.question,
        Lives(age_s=case.rows.age_s, steps_left=case.rows.steps_left, alone_s=case.alone_s),
        method=case.method,
    )


GAVEL_FTF = once_a_round(
    Policy(
        name="gavel-ftf",
        needs=Needs(every_quantum=True, lengths=True),
        decide=partial(decide, allocate=allocate, style=Style()),
    )
)


def compat(reset_s: float) -> Policy:
    """As in Gavel's simulator, with so long between two allocations at least."""
    return Policy(
        name="gavel-ftf",
        needs=Needs(every_quantum=True, work_conserving=False, lengths=True),
        decide=partial(decide, allocate=allocate, style=Style(compat=True, reset_s=reset_s)),
    )
