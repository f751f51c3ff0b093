"""Max-min fairness that takes all GPU models for equal (Gavel's `max_min_fairness`): what its comparison calls heterogeneity-agnostic LAS.

The program has many optima: who cannot tell types apart has no reason to prefer one, so the middle of them is taken.
"""

from hs_core.mechanism.fractions import Case, Style
from hs_core.mechanism.gavel.fair import max_min
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.gavels import Gavels
from hs_core.solve import Method


def allocate(case: Case) -> Allocation:
    return max_min(case.question.blind(everywhere=case.compat), method=Method.CENTRE)


_THIS = Gavels("gavel-max-min-blind", allocate, Style(shuffled=True), speeds=False)
GAVEL_MAX_MIN_BLIND = _THIS.policy()
compat = _THIS.compat
