"""POP (SOSP'21) over Gavel's max-min fairness: jobs are dealt to random sub-clusters with a k-th of each GPU model, each solved by itself, and joined.

What it saves is time to decide; what it costs is a little of the optimum. Sub-clusters are dealt anew at each allocation.
"""

from hs_core import dice
from hs_core.mechanism.fractions import Case
from hs_core.mechanism.gavel.fair import max_min
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.gavels import Gavels
from hs_core.mechanism.pop import deal, pop

PARTS = 4
LEAST_JOBS = 4  # for each part; with fewer jobs the whole is solved, which takes no time


def allocate(case: Case) -> Allocation:
    question = case.question
    parts = min(PARTS, len(question.gang) // LEAST_JOBS) or 1
    where = deal(question.gang, parts, dice.roll(case.seed, "pop", len(question.gang)))
    return pop(question, where, parts, lambda part, _jobs: max_min(part, method=case.method))


_THIS = Gavels("pop", allocate)
POP = _THIS.policy()
compat = _THIS.compat
