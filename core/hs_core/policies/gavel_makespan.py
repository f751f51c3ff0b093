"""Gavel's makespan policy (OSDI'20, 4.2; its `min_total_duration_perf`): all jobs that are here end as early as can be."""

from hs_core.mechanism.fractions import Case
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.gavel.sums import least_makespan
from hs_core.mechanism.gavels import Gavels


def allocate(case: Case) -> Allocation:
    return least_makespan(case.question, case.rows.steps_left, method=case.method)


_THIS = Gavels("gavel-makespan", allocate, lengths=True)
GAVEL_MAKESPAN = _THIS.policy()
compat = _THIS.compat
