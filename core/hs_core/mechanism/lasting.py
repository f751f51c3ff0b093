"""What jobs weigh once nobody lacks anything (`mechanism.lags`): of a change of homes, what lasts.

Lags come and go: whoever is short where it lives becomes heavier there until it is short no more. So of several ways to live that are as good, each
has its time, and nobody is short for long. A way in which more is lost than that one gains helps it for some quanta,
and is left again at the next lag: jobs would go to and fro for as long as they live.
"""

from collections.abc import Mapping, Sequence

from hs_core.mechanism.coupled import Coupled, Step
from hs_core.mechanism.loads import Board, Pool
from hs_core.names import UserName


class Lasting:
    """Of the servers of a pool."""

    def __init__(self, board: Board, pool: Pool) -> None:
        due: Mapping[UserName, float] = {user: board.due(user, pool.model) for user in pool.per_gpu}
        self.alike = due == pool.per_gpu  # nobody lacks anything
        gpus = board.world.gpus
        mean = pool.mean(sum([gpus[user, pool.model] * weight for user, weight in due.items()]))
        self._coupled = Coupled(board.world, pool, due, mean)

    def squares(self, steps: Sequence[Step]) -> float:
        """More than before all of these, of the mean load's."""
        return self._coupled.squares(steps)
