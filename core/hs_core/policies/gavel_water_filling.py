"""Max-min fairness to the end (Gavel, OSDI'20, 4.3): when the least can rise no more, the next does."""

from hs_core.mechanism.fractions import Case
from hs_core.mechanism.gavel.fair import water_fill
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.gavels import Gavels


def allocate(case: Case) -> Allocation:
    return water_fill(case.question, method=case.method)


_THIS = Gavels("gavel-water-filling", allocate)
GAVEL_WATER_FILLING = _THIS.policy()
compat = _THIS.compat
