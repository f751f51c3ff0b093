"""Gavel's first in, first out (`fifo_perf`): in order of arrival each job takes the free GPU model where it is fastest, until one fits into none.

At each allocation anew, so a job may be moved to a faster model when somebody before it has ended.
"""

from hs_core.mechanism.fractions import Case, Style
from hs_core.mechanism.gavel.greedy import in_order
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.gavels import Gavels


def allocate(case: Case) -> Allocation:
    return in_order(case.question, range(len(case.rows.jobs)))  # they come by arrival


_THIS = Gavels("gavel-fifo", allocate, Style(skip_zero=True))
GAVEL_FIFO = _THIS.policy()
compat = _THIS.compat
