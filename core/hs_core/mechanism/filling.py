"""Idle GPUs for jobs that wait on another server, in a pool whose servers share gangs (Gandiva_fair, 3.3), where `mechanism.evening` has no use for the move.

A gang over several servers and a job that is due all the time make up a server's `time_load` between them: who else lives there adds nothing to it, and
it is no less when they are gone. The measure says nothing of what they would gain, which is counted here: GPUs that are used instead of idle whenever
no gang over several servers has its turn.
"""

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, NamedTuple

from hs_core.policy import JobFacts

if TYPE_CHECKING:
    from hs_core.mechanism.evening import Cost, Evening
    from hs_core.mechanism.loads import Pool
    from hs_core.mechanism.moves import Mover


class Fill(NamedTuple):
    lost: float  # GPUs, negative: of those that idled
    cost: "Cost"
    target: int
    source: int
    job: JobFacts


class Filling:
    """Of the servers of a pool."""

    def __init__(self, evening: "Evening", mover: "Mover", pool: "Pool") -> None:
        self._evening, self._mover, self._pool = evening, mover, pool

    def best(self, waits: Sequence[int]) -> Fill | None:
        """From the first of these servers, on which jobs wait, that has somebody for the idle GPUs of another."""
        targets = self._targets()
        if not targets:
            return None
        for source in self._sources(waits):
            if found := min(self._from(source, targets), default=None):
                return found
        return None

    def _sources(self, waits: Sequence[int]) -> list[int]:
        """The fullest on which jobs of one node wait for one another."""
        seen = waits[: self._mover.limits.servers_seen]
        return [at for at in seen if self._free(at) < 0][: self._mover.limits.servers_tried]

    def _targets(self) -> list[int]:
        """Those with the most GPUs that jobs of one node leave idle."""
        pool = self._pool
        free: list[int] = (pool.gpus - pool.asked).tolist()
        for name, parts in self._mover.world.parts.items():
            if name in pool.index:
                free[pool.index[name]] += sum(parts.per_node)
        accepts: list[bool] = pool.accepts.tolist()
        some = [(-left, at) for at, left in enumerate(free) if left > 0 and accepts[at]]
        return [at for _, at in nsmallest(self._mover.limits.servers_tried, some)]

    def _free(self, at: int) -> int:
        """GPUs that its jobs of one node leave idle; less than none: so many more do they ask for."""
        return int(self._pool.gpus[at]) - sum([width for width, _ in self._evening.weigh(at)])

    def _from(self, source: int, targets: Sequence[int]) -> Iterator[Fill]:
        evening, limits, asked = self._evening, self._mover.limits, -self._free(source)
        urgent = evening.urgent(source)
        for job in evening.one_of_each(source):
            if not self._mover.may_go(job, urgent=urgent):  # since it was found others have moved
                continue
            fits = evening.fits(job)
            for target in targets:
                if target == source or not fits[target] or self._free(target) < job.gang:
                    continue
                gains = min(job.gang, asked) * (1.0 - self._gangs(target))
                if gains <= limits.load_gap * job.gang:
                    continue
                if evening.harmless([(job, source, target)]):
                    yield Fill(-gains, self._mover.cost_of(job), target, source, job)

    def _gangs(self, at: int) -> float:
        """Of the time in which gangs over several servers have their turn there."""
        weight = self._pool.per_gpu
        return min(1.0, sum([weight.get(job.user, 0.0) for job in self._evening.parts(at)]))
