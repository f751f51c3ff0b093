"""Gavel's sum of throughputs, not normalized (OSDI'20, 4.2; `max_sum_throughput_perf`): jobs with quick steps first, and others may starve."""

from hs_core.mechanism.fractions import Case
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.gavel.sums import max_sum
from hs_core.mechanism.gavels import Gavels


def allocate(case: Case) -> Allocation:
    return max_sum(case.question, method=case.method)


_THIS = Gavels("gavel-max-sum", allocate)
GAVEL_MAX_SUM = _THIS.policy()
compat = _THIS.compat
