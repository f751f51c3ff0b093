"""Gavel's first in, first out (`fifo_perf`): in order of arrival each job takes the free GPU model where it is fastest; who fits nowhere is passed.

At each allocation anew, so a job may be moved to a faster model when somebody before it has ended.
"""

from functools import partial

import numpy as np

from hs_core.mechanism.fractions import Case, Style, decide
from hs_core.mechanism.gavel.question import Allocation
from hs_core.policy import Needs, Policy


def allocate(case: Case) -> Allocation:
    question = case.question
    free, can = question.gpus.copy(), question.can
    alone = np.zeros(question.speed.shape)
    for job, gang in enumerate(question.gang.tolist()):  # by arrival
        fits = can[job] & (free >= gang)
        if not fits.any():
            continue
        on = int(np.argmax(np.where(fits, question.speed[job], -1.0)))
        alone[job, on] = 1.0
        free[on] -= gang
    return Allocation(alone=alone)


GAVEL_FIFO = Policy(
    name="gavel-fifo",
    needs=Needs(every_quantum=True),
    decide=partial(decide, allocate=allocate, style=Style(skip_zero=True)),
)
COMPAT = Policy(
    name="gavel-fifo",
    needs=Needs(every_quantum=True, work_conserving=False),
    decide=partial(decide, allocate=allocate, style=Style(skip_zero=True, compat=True)),
)
