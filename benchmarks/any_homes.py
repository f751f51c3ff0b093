"""The least that the worst user lacks over a long time, by the best homes and turns there are.

A mixed-integer program. Servers are alike, so what counts is how many servers there are of each kind. A kind says how
many jobs of each user live on a server, as far as these could run at once. Servers of a kind spend their time in sets
of jobs that fit together. A job runs where it lives and once at a time, so no more of a user's jobs run on a server
than live there.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

GPUS = 4  # of a server


class Asked(NamedTuple):
    """Of one user."""

    jobs: int
    gang: int
    due: float  # GPUs
    allowed: float  # that it may lack


def least_lack(servers: int, users: Sequence[Asked]) -> float:
    """Of the user that lacks most of what it may, in that: no homes and turns leave less."""
    kinds = list(product(*[_living(servers, user) for user in users]))
    sets = [(at, running) for at, kind in enumerate(kinds) for running in _at_once(kind, users)]
    # Columns: the lack, servers of each kind, time in each set. Rows: servers; jobs; GPUs of users; time of each kind.
    first, columns = 1 + len(kinds), 1 + len(kinds) + len(sets)
    table = lil_matrix((1 + 2 * len(users) + len(kinds), columns))
    table[0, 1:first] = 1.0
    for row, user in enumerate(users, start=1):
        few = user.jobs < servers * (GPUS // user.gang)  # else there is one wherever it could run
        table[row, 1:first] = [kind[row - 1] * few for kind in kinds]
        table[row + len(users), 0] = user.allowed
        table[row + len(users), first:] = [running[row - 1] * user.gang for _, running in sets]
    for column, (at, _) in enumerate(sets, start=first):
        table[1 + 2 * len(users) + at, column] = 1.0
    for at in range(len(kinds)):
        table[1 + 2 * len(users) + at, 1 + at] = -1.0
    dues = [user.due for user in users]
    most = [servers, *[user.jobs for user in users], *[np.inf] * len(users), *[0.0] * len(kinds)]
    none = [-np.inf] * (1 + len(users))
    found = milp(
        [1.0, *[0.0] * (columns - 1)],
        constraints=LinearConstraint(table.tocsr(), [*none, *dues, *[-np.inf] * len(kinds)], most),
        integrality=[0, *[1] * len(kinds), *[0] * len(sets)],
        bounds=Bounds(0.0, np.inf),
    )
    assert found.status == 0, found.message
    return float(found.mip_dual_bound)


def _living(servers: int, user: Asked) -> Sequence[int]:
    """How many of a user's jobs may live on a server; as many as fit at once where there are enough for all."""
    most = GPUS // user.gang
    return range(most + 1) if user.jobs < servers * most else (most,)


def _at_once(kind: Sequence[int], users: Sequence[Asked]) -> Iterator[tuple[int, ...]]:
    """Sets of those jobs that fit, beside which none of them does."""
    for running in product(*[range(count + 1) for count in kind]):
        left = GPUS - sum(count * user.gang for count, user in zip(running, users, strict=True))
        idle = [user.gang for count, most, user in zip(running, kind, users, strict=True) if count < most]
        if 0 <= left < min(idle, default=GPUS + 1):
            yield running
