"""Homes that keep fewer servers waiting for one another, where these share gangs (Gandiva_fair, 3.3).

A gang over several servers waits for the fullest of them, and GPUs of the others idle meanwhile that nobody else there can use. Server by server loads may be as
even as they can be, and yet a job that goes from a full server to one which idles just as long anyway, or a gang that takes servers of one home in place of parts of two, gives GPUs
back to all that waited along. So here only that counts, by `Squares.waited`: how full the fullest is of those with which a server shares gangs. Often what is in the way has to go first: then
it goes at once to where it is least in the way.

It costs a checkpoint for each job, within the budget for moves, and must save so many squares, now and once nobody lacks anything. What others move for makes that measure no larger
(`mechanism.evening`, `mechanism.filling`), so in a world that stands still this comes to an end.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest

from hs_core.mechanism import nested
from hs_core.mechanism.gang_homes import GangHomes
from hs_core.mechanism.squares import Step
from hs_core.mechanism.timed import Timed
from hs_core.names import JobId
from hs_core.policy import JobFacts

IN_ITS_WAY = 2  # jobs that leave before one comes: with three no more was gained

Going = tuple[JobFacts, list[Step]]
"""Who goes, and from which server to which."""


One = tuple[JobFacts, float]
"""Who could go, and squares that it has to save."""


class Neighbours:
    """Of the servers of a pool that share gangs."""

    def __init__(self, timed: Timed, gang_homes: GangHomes) -> None:
        self._timed, self._gang_homes, self._squares = timed, gang_homes, timed.in_squares
        self._mover, self._pool = timed.mover, timed.pool
        self._found: dict[tuple[JobId, frozenset[int]], Sequence[frozenset[int]]] = {}  # homes
        self._reliefs: dict[JobId, float] = {}

    def best(self, waits: Sequence[int]) -> Sequence[Going]:
        """Asked once. Of the jobs on servers for which others wait the one with the best home, alone; else with those that are in its way. `waits`: servers on which jobs wait, the fullest first."""
        some = list(self._waited_for(waits))
        return (some and (self._alone(some) or self._with_others(some))) or ()

    # --- who ---------------------------------------------------------------------------------------------------------

    def _waited_for(self, waits: Sequence[int]) -> Iterator[One]:
        """Jobs without which others would wait less, on the servers for which most is waited."""
        limits, seen = self._mover.limits, set[object]()
        found = [(-self._kept(at), at) for at in waits[: limits.servers_seen]]
        for kept, at in sorted(found)[: limits.servers_tried]:
            if not kept:
                break
            urgent = self._timed.urgent(at)
            for job in (*self._timed.one_of_each(at), *self._gang_homes.one_of_each(at)):
                if job.id in seen or not self._mover.may_go(job, urgent=urgent):
                    continue
                seen.add(job.id)
                least = self._least([job])
                if self._relief(job) >= least:
                    yield job, least

    def _kept(self, at: int) -> float:
        """Squares by which others wait for it longer than their own jobs would, whose GPUs jobs of one node do not fill meanwhile."""
        timed, pool = self._timed, self._pool
        kept = 0.0
        for other in sorted(self._squares.waits_with(at)):
            if sum([width for width, _ in timed.weigh(other)]) < pool.gpus[other]:
                own = timed.load(other) if pool.asked[other] > pool.gpus[other] else 0.0
                kept += timed.width(other) * max(0.0, timed.load(at) ** 2 - own**2)
        return kept

    # --- where to ----------------------------------------------------------------------------------------------------

    def _alone(self, some: Iterable[One]) -> Sequence[Going]:
        best: tuple[float, object, list[Step], JobFacts] | None = None
        for job, least in some:
            for home in self._homes(job):
                steps = self._steps(job, home)
                if (saved := self._saved(steps)) < least:
                    continue
                found = (-saved, self._mover.cost_of(job), steps, job)
                if (best is None or found[:2] < best[:2]) and self._timed.saves_for_good(steps, least):
                    best = found
        return () if best is None else ((best[3], best[2]),)

    def _with_others(self, some: Iterable[One]) -> Sequence[Going]:
        """Of those by which most would be saved, were who is in their way gone."""
        found = sorted(self._in_its_way(some), key=lambda way: (-way[0], way[1].id, sorted(way[2])))
        best: tuple[float, object, Sequence[Going]] | None = None
        for most, job, home, others in found[: self._mover.limits.servers_tried]:
            if best is not None and most < -best[0]:
                break
            going = self._cleared(job, home, others)
            steps, least = [step for _, each in going for step in each], self._least([job, *others])
            if not going or (saved := self._saved(steps)) < least:
                continue
            way = (-saved, [self._mover.cost_of(one) for one, _ in going], going)
            if (best is None or way[:2] < best[:2]) and self._timed.saves_for_good(steps, least):
                best = way
        return () if best is None else best[2]

    def _in_its_way(
        self, some: Iterable[One]
    ) -> Iterator[tuple[float, JobFacts, frozenset[int], list[JobFacts]]]:
        """Squares that are saved at most, who goes, where, and who has to go from there first, the largest first."""
        for job, _ in some:
            for home in self._homes(job):
                steps = self._steps(job, home)
                there = {
                    other.id: other
                    for _, _, at in steps
                    for other in (*self._timed.jobs(at), *self._timed.parts(at))
                    if other.id != job.id
                }
                others = sorted(there.values(), key=lambda other: (-other.gang, other.id))
                if not 0 < len(others) <= IN_ITS_WAY or not self._mover.affords([job, *others]):
                    continue
                most = round(-self._squares.without(others, steps), 9)
                if most >= self._least([job, *others]) and all(map(self._may_leave, others)):
                    yield most, job, home, others

    def _cleared(self, job: JobFacts, home: frozenset[int], others: Iterable[JobFacts]) -> Sequence[Going]:
        """It with these, each to where most is saved. Nobody, where one of them can be nowhere else."""
        steps = self._steps(job, home)
        going = [(job, steps)]
        for other in others:
            ways = [self._steps(other, to) for to in self._homes(other, home)]
            if not ways:
                return ()
            own = min(ways, key=lambda way: -self._saved([*steps, *way]))
            going.append((other, own))
            steps = [*steps, *own]
        return going

    def _may_leave(self, job: JobFacts) -> bool:
        if job.nodes > 1:
            return self._gang_homes.may_go(job, urgent=False)
        return self._mover.may_go(job)

    def _relief(self, job: JobFacts) -> float:
        """Squares that it can save, at most."""
        found = self._reliefs.get(job.id)
        if found is None:
            found = self._reliefs[job.id] = -self._squares.without([job])
        return found

    def _homes(self, job: JobFacts, but: frozenset[int] = frozenset()) -> Sequence[frozenset[int]]:
        """None with one of these servers."""
        found = self._found.get((job.id, but))
        if found is None:
            found = self._found[job.id, but] = self._find(job, but)
        return found

    def _find(self, job: JobFacts, but: frozenset[int]) -> Sequence[frozenset[int]]:
        """Others that it could have: the emptiest servers and, for one node, those that idle most; for several, homes within, around or apart from those of gangs in its way."""
        timed, pool, limits = self._timed, self._pool, self._mover.limits
        old = {pool.index[name] for name in self._mover.world.homes[job.id] if name in pool.index}
        load = [timed.load_without(at, job) if at in old else timed.load(at) for at in range(len(pool.names))]
        fits, accepts = timed.fits(job), timed.accepts
        free = [at for at in range(len(load)) if fits[at] and accepts[at] and at not in but]
        if job.nodes == 1:
            some = [at for at in free if at not in old]
            low = nsmallest(limits.servers_tried, some, key=lambda at: (load[at], at))
            idle = nsmallest(limits.servers_tried, some, key=lambda at: (-self._idle(at), load[at], at))
            return [frozenset((at,)) for at in dict.fromkeys([*low, *idle])]
        most = max(nested.LOOKED_AT, 8 * job.nodes)
        order = nsmallest(most, free, key=lambda at: (load[at], at))
        if len(order) < job.nodes:
            return ()
        homes = {frozenset(order[: job.nodes]), *nested.homes(order, job.nodes, pool.in_its_way(job, order))}
        homes.discard(frozenset(old))
        return nsmallest(limits.servers_tried, homes, key=lambda home: _emptiest(home, load))

    def _idle(self, at: int) -> float:
        """How much longer than for its own jobs it waits for others."""
        load = self._timed.load
        return max(map(load, self._squares.waits_with(at))) - load(at)

    # --- what for ----------------------------------------------------------------------------------------------------

    def _steps(self, job: JobFacts, home: frozenset[int]) -> list[Step]:
        old = [self._pool.index[name] for name in self._mover.world.homes[job.id]]
        left, taken = [at for at in old if at not in home], sorted(home.difference(old))
        return [(job, one, other) for one, other in zip(left, taken, strict=True)]

    def _saved(self, steps: Sequence[Step]) -> float:
        return round(-self._squares.waited(steps), 9)

    def _least(self, jobs: Sequence[JobFacts]) -> float:
        weight = self._pool.per_gpu
        return self._timed.least(sum([job.gang * weight.get(job.user, 0.0) for job in jobs]))


def _emptiest(home: Iterable[int], load: Sequence[float]) -> tuple[float, float, list[int]]:
    order = sorted(home)
    loads = [load[at] for at in order]
    return max(loads), sum(loads), order
