"""What jobs weigh once nobody lacks anything (`mechanism.lags`): of a change of homes, what lasts.

Lags come and go: whoever is short where it lives becomes heavier there until it is short no more. So of several ways to live that are as good, each
has its time, and nobody is short for long. A way in which more is lost than that one gains helps it for some quanta,
and is left again at the next lag: jobs would go to and fro for as long as they live.
"""

from collections.abc import Iterable, Mapping, Sequence

from hs_core.mechanism.loads import Board, Pool
from hs_core.mechanism.squares import Squares, Step
from hs_core.names import UserName


class Lasting:
    """Of the servers of a pool."""

    def __init__(self, board: Board, pool: Pool) -> None:
        due: Mapping[UserName, float] = {user: board.due(user, pool.model) for user in pool.per_gpu}
        gpus = board.world.gpus
        mean = pool.mean(sum([gpus[user, pool.model] * weight for user, weight in due.items()]))
        self._alike = due == pool.per_gpu  # nobody lacks anything
        self._squares = Squares(board.world, pool, due, mean)

    def allows(self, steps: Sequence[Step], squares: float, *, gangs_shared: bool) -> bool:
        """What is lost is no more than these squares, which are gained now. Where servers share gangs nobody waits for a fuller one by it: jobs that went to and fro would take others along."""
        if self._alike:
            return True
        return self._squares.apart(steps) <= squares and not (gangs_shared and not self.harmless(steps))

    def lasts(self, steps: Sequence[Step], least: float) -> bool:
        """So many squares are saved for good, server by server."""
        return self._squares.apart(steps) <= -least

    def saved(self, steps: Sequence[Step]) -> float:
        """Squares that are saved for good where servers share gangs and somebody waits."""
        return -self._squares.waited(steps)

    def moved(self, servers: Iterable[int]) -> None:
        """As `Squares` has it."""
        self._squares.moved(servers)

    def harmless(self, steps: Sequence[Step]) -> bool:
        """Nothing is lost, as servers share gangs."""
        return self._alike or round(self._squares.waited(steps), 9) <= 0.0
