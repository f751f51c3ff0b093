"""Gavel's first in, first out (`fifo_perf`): in order of arrival each job takes the free GPU model where it is fastest, until one fits into none.

At each allocation anew, so a job may be moved to a faster model when somebody before it has ended.
"""

from functools import partial

from hs_core.mechanism.fractions import Case, Style, decide
from hs_core.mechanism.gavel.greedy import in_order
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.policy import Needs, Policy


def allocate(case: Case) -> Allocation:
    return in_order(case.question, range(len(case.rows.jobs)))  # they come by arrival


GAVEL_FIFO = once_a_round(
    Policy(
        name="gavel-fifo",
        needs=Needs(every_quantum=True),
        decide=partial(decide, allocate=allocate, style=Style(skip_zero=True)),
    )
)


def compat(reset_s: float) -> Policy:
    """As in Gavel's simulator, with so long between two allocations at least."""
    return Policy(
        name="gavel-fifo",
        needs=Needs(every_quantum=True, work_conserving=False),
        decide=partial(decide, allocate=allocate, style=Style(skip_zero=True, compat=True, reset_s=reset_s)),
    )
