"""Gavel's shortest job first (OSDI'20, 4.2): the sum of throughputs over their largest possible, each weighted by how many jobs have more time left.

Departure: Gavel says only that the shortest job should end as early as it can. In the form of its FIFO, with jobs in the order of time left
on their fastest GPUs instead of arrival, the program serves the others too.
"""

from dataclasses import replace

import numpy as np

from hs_core.mechanism.fractions import Case
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.gavel.sums import max_sum
from hs_core.mechanism.gavels import Gavels


def allocate(case: Case) -> Allocation:
    question = case.question
    best = question.speed.max(axis=1, initial=0.0)
    order = np.argsort(case.rows.steps_left / best, kind="stable")
    worth = np.empty(len(order))
    worth[order] = np.arange(len(order), 0, -1)
    return max_sum(replace(question, speed=question.speed * (worth / best)[:, None]))


_THIS = Gavels("gavel-sjf", allocate, lengths=True)
GAVEL_SJF = _THIS.policy()
