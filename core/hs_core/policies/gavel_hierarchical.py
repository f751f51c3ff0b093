"""Gavel's hierarchical fairness (OSDI'20, 4.3): water-filling between users by their tickets, and between the jobs of each, all GPU models together."""

from functools import partial

import numpy as np

from hs_core.mechanism.fractions import Case, Style, decide
from hs_core.mechanism.gavel.fair import Entity, hierarchical
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.once_a_round import once_a_round
from hs_core.policy import Needs, Policy


def allocate(case: Case) -> Allocation:
    users = sorted({job.user for job in case.rows.jobs})
    entity = np.array([users.index(job.user) for job in case.rows.jobs], dtype=np.int64)
    tickets = np.bincount(entity, case.rows.tickets, len(users))
    return hierarchical(case.question, entity, [Entity(weight=float(weight)) for weight in tickets])


GAVEL_HIERARCHICAL = once_a_round(
    Policy(
        name="gavel-hierarchical",
        needs=Needs(every_quantum=True),
        decide=partial(decide, allocate=allocate, style=Style()),
    )
)
