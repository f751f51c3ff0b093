"""Gavel's max-min fairness over GPU models (OSDI'20, 4.1; its `max_min_fairness_perf`): the least normalized throughput per ticket is as large as can be."""

from hs_core.mechanism.fractions import Case
from hs_core.mechanism.gavel.fair import max_min
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.gavels import Gavels


def allocate(case: Case) -> Allocation:
    return max_min(case.question, method=case.method)


_THIS = Gavels("gavel-max-min", allocate)
GAVEL_MAX_MIN = _THIS.policy()
compat = _THIS.compat
