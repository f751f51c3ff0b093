"""Gavel's finish-time fairness (OSDI'20, 4.2): the largest ratio of a job's time to completion to that in a cluster of its own is as small as can be."""

from hs_core.mechanism.fractions import Case
from hs_core.mechanism.gavel.finish import Lives, finish_time_fair
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.gavels import Gavels


def allocate(case: Case) -> Allocation:
    return finish_time_fair(
        case.question,
        Lives(age_s=case.rows.age_s, steps_left=case.rows.steps_left, alone_s=case.alone_s),
        method=case.method,
    )


_THIS = Gavels("gavel-ftf", allocate, lengths=True)
GAVEL_FTF = _THIS.policy()
compat = _THIS.compat
