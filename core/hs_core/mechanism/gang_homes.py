"""Other homes for gangs over several servers, within their pool (Gandiva_fair, 3.3).

A gang waits for the fullest of its servers, and the others wait with it. The paper does not say how those move. Here one takes other servers for those
that are too full, by the measure of `mechanism.evening`, and keeps the rest. It goes through one checkpoint of all its parts, so it leaves at once
all that are worth leaving.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hs_core.mechanism.changes import Cost, Swap
from hs_core.mechanism.placing import Home
from hs_core.mechanism.timed import Timed
from hs_core.names import JobId, UserName
from hs_core.policy import JobFacts

SLACK = 1e-9


class OtherHome(NamedTuple):
    squares: float  # as a change has them
    cost: Cost
    swaps: tuple[Swap, ...]
    job: JobFacts


class GangHomes:
    """Those that gangs could have, until somebody moves."""

    def __init__(self, timed: Timed, targets: Sequence[int]) -> None:
        """`targets`: servers that they could take."""
        self._timed, self._targets = timed, targets
        self._mover, self._pool = timed.mover, timed.pool
        self._found: dict[JobId, OtherHome | None] = {}

    def best(self, source: int) -> OtherHome | None:
        """Of one of the gangs with a part there."""
        homes = map(self._of, self.one_of_each(source))
        return min((home for home in homes if home is not None), default=None)

    def _of(self, job: JobFacts) -> OtherHome | None:
        """Looked for once, from whichever of its servers."""
        if job.id not in self._found:
            self._found[job.id] = self._for(job)
        return self._found[job.id]

    def one_of_each(self, at: int) -> list[JobFacts]:
        """Gangs with a part there that could go: one of each kind, the cheapest."""
        found: dict[tuple[UserName, int, Home], JobFacts] = {}
        urgent, homes, cost_of = self._timed.urgent(at), self._mover.world.homes, self._mover.cost_of
        for job in self._timed.parts(at):
            key = (job.user, job.per_node, homes[job.id])
            if (key not in found or cost_of(job) < cost_of(found[key])) and self.may_go(job, urgent=urgent):
                found[key] = job
        return list(found.values())

    def may_go(self, job: JobFacts, *, urgent: bool) -> bool:
        """Its home is of the pool, and nothing keeps jobs away from any server of it."""
        index, accepts = self._pool.index, self._pool.accepts
        stays = all(name in index and accepts[index[name]] for name in self._mover.world.homes[job.id])
        return stays and self._mover.may_go(job, urgent=urgent)

    def _for(self, job: JobFacts) -> OtherHome | None:
        swaps = self._swaps(job)
        if not swaps:
            return None
        squares = round(sum([more for more, _ in swaps]), 9)
        steps = [(job, left, taken) for _, (left, taken) in swaps]
        if not self._timed.holds(squares, self._least(job), steps):
            return None
        return OtherHome(squares, self._mover.cost_of(job), tuple([swap for _, swap in swaps]), job)

    def _swaps(self, job: JobFacts) -> list[tuple[float, Swap]]:
        """Squares and servers, the best first: what one server gains goes by nothing that happens to another."""
        timed, names = self._timed, self._mover.world.homes[job.id]
        home = [self._pool.index[name] for name in names]
        least = self._least(job)
        relief = [(timed.squares(at, timed.time_without(at, job)), at) for at in home]
        relief = sorted([(less, at) for less, at in relief if less <= -least])
        if not relief:
            return []
        one, fits = timed.one(job), timed.fits(job)
        most = -least - relief[0][0] + SLACK  # that would be saved nowhere again
        free = [
            at
            for at in self._targets
            if at not in home and fits[at] and timed.squares(at, timed.least_with(at, one)) <= most
        ]
        rooms = sorted([(timed.squares(at, timed.time_with(at, one)), at) for at in free])
        pairs = zip(relief, rooms, strict=False)
        return [(less + more, (at, to)) for (less, at), (more, to) in pairs if less + more <= -least]

    def _least(self, job: JobFacts) -> float:
        """Squares that each of the swaps has to save."""
        return self._timed.least(job.per_node * self._pool.per_gpu.get(job.user, 0.0))
