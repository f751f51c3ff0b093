"""Max-min fairness that takes all GPU models for equal (Gavel's `max_min_fairness`): what its comparison calls heterogeneity-agnostic LAS.

The program has many optima: who cannot tell types apart has no reason to prefer one, so each job's time is divided as the GPUs it can use are.
An interior-point solver, which Gavel uses, comes out near that.
"""

from functools import partial

import numpy as np

from hs_core.mechanism.fractions import Case, Style, decide
from hs_core.mechanism.gavel.fair import max_min
from hs_core.mechanism.gavel.question import Allocation
from hs_core.policy import Needs, Policy


def allocate(case: Case) -> Allocation:
    question = case.question.blind()
    found = max_min(question)
    gpus = np.where(question.can, question.gpus, 0)
    part = np.divide(gpus, np.maximum(1, gpus.sum(axis=1, keepdims=True)))
    return Allocation(alone=found.time()[:, None] * part, value=found.value, lps=found.lps)


GAVEL_MAX_MIN_BLIND = Policy(
    name="gavel-max-min-blind",
    needs=Needs(every_quantum=True),
    decide=partial(decide, allocate=allocate, style=Style(shuffled=True)),
)
COMPAT = Policy(
    name="gavel-max-min-blind",
    needs=Needs(every_quantum=True, work_conserving=False),
    decide=partial(decide, allocate=allocate, style=Style(shuffled=True, compat=True)),
)
