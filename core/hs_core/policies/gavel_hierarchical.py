"""Gavel's hierarchical fairness (OSDI'20, 4.3): water-filling between users by their tickets, and between the jobs of each, all GPU models together."""

import numpy as np

from hs_core.mechanism.fractions import Case
from hs_core.mechanism.gavel.fair import Entity, hierarchical
from hs_core.mechanism.gavel.question import Allocation
from hs_core.mechanism.gavels import Gavels


def allocate(case: Case) -> Allocation:
    users = sorted({job.user for job in case.rows.jobs})
    entity = np.array([users.index(job.user) for job in case.rows.jobs], dtype=np.int64)
    tickets = np.bincount(entity, case.rows.tickets, len(users))
    return hierarchical(case.question, entity, [Entity(weight=float(weight)) for weight in tickets])


_THIS = Gavels("gavel-hierarchical", allocate)
GAVEL_HIERARCHICAL = _THIS.policy()
