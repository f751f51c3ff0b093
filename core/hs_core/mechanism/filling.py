"""Idle GPUs for jobs that wait on another server (Gandiva_fair, 3.3), where `mechanism.evening` has no use for the move.

A gang and a job that is due all the time make up a server's `time_load` between them: who else lives there adds nothing to it, and it is no less when
they are gone. And a server that shares a gang is as full as the fullest of these, whoever leaves another one. The measure says nothing of what those
who go would gain, which is counted here: GPUs that nobody asks for, where whoever comes runs all the time and nobody waits for it; and in a pool whose
servers share gangs GPUs that are used instead of idle whenever no gang over several servers has its turn.
"""

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.changes import Cost, Swap
from hs_core.mechanism.floor import shape_of
from hs_core.mechanism.gang_homes import GangHomes
from hs_core.mechanism.timed import Timed
from hs_core.policy import JobFacts

Ints = NDArray[np.int64]


class Fill(NamedTuple):
    lost: float  # GPUs, negative: of those that idled, or that are due to the job
    cost: Cost
    target: int
    source: int
    job: JobFacts
    besides: tuple[Swap, ...] = ()  # of a gang that leaves several servers


class Filling:
    """Of the servers of a pool."""

    def __init__(self, timed: Timed, gang_homes: GangHomes) -> None:
        self._timed, self._gang_homes = timed, gang_homes
        self._mover, self._pool = timed.mover, timed.pool

    def best(self, waits: Sequence[int]) -> Fill | None:
        """From the first of these servers, on which jobs wait, that has somebody for the idle GPUs of another."""
        return self._unasked(waits) or (self._beside_gangs(waits) if self._timed.gangs_shared else None)

    # --- GPUs that nobody asks for ----------------------------------------------------------------------------------

    def _unasked(self, waits: Sequence[int]) -> Fill | None:
        """Where all run at once, also with who comes."""
        room = np.where(self._pool.accepts, self._pool.gpus - self._pool.asked, 0)
        if room.max() <= 0:
            return None
        for source in waits[: self._mover.limits.servers_seen]:
            if found := min(self._to_room(source, room), default=None):
                return found
        return None

    def _to_room(self, source: int, room: Ints) -> Iterator[Fill]:
        timed, limits, urgent = self._timed, self._mover.limits, self._timed.urgent(source)
        may_go = self._mover.may_go
        for job in (*timed.one_of_each(source), *self._gang_homes.one_of_each(source)):
            home = [self._pool.index[name] for name in self._mover.world.homes[job.id]]
            weight = self._pool.per_gpu.get(job.user, 0.0)
            load = max(map(timed.load, home))
            if (weight > 0 and weight >= (1.0 - limits.load_gap) * load) or not may_go(job, urgent=urgent):
                continue
            full = [at for at in home if self._pool.asked[at] > self._pool.gpus[at]]
            swaps = list(zip(full, self._rooms(job, home, room), strict=False))
            if len(swaps) == len(full) and timed.harmless([(job, left, taken) for left, taken in swaps]):
                (left, taken), *besides = swaps
                yield Fill(-weight * job.gang, self._mover.cost_of(job), taken, left, job, tuple(besides))

    def _rooms(self, job: JobFacts, home: Sequence[int], room: Ints) -> list[int]:
        """Servers that have room for one node of it, those with the least first: what is whole is left to gangs."""
        fits = (room >= job.per_node) & self._pool.fits(shape_of(job))
        fits[home] = False
        some = np.flatnonzero(fits)
        found: list[int] = some[np.argsort(room[some], kind="stable")].tolist()
        return found

    # --- GPUs that idle whenever no gang has its turn ---------------------------------------------------------------

    def _beside_gangs(self, waits: Sequence[int]) -> Fill | None:
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
        return int(self._pool.gpus[at]) - sum([width for width, _ in self._timed.weigh(at)])

    def _from(self, source: int, targets: Sequence[int]) -> Iterator[Fill]:
        timed, limits, asked = self._timed, self._mover.limits, -self._free(source)
        urgent = timed.urgent(source)
        for job in timed.one_of_each(source):
            if not self._mover.may_go(job, urgent=urgent):  # since it was found others have moved
                continue
            fits = timed.fits(job)
            for target in targets:
                if target == source or not fits[target] or self._free(target) < job.gang:
                    continue
                gains = min(job.gang, asked) * (1.0 - self._gangs(target))
                if gains <= limits.load_gap * job.gang:
                    continue
                if timed.harmless([(job, source, target)]):
                    yield Fill(-gains, self._mover.cost_of(job), target, source, job)

    def _gangs(self, at: int) -> float:
        """Of the time in which gangs over several servers have their turn there."""
        weight = self._pool.per_gpu
        return min(1.0, sum([weight.get(job.user, 0.0) for job in self._timed.parts(at)]))
