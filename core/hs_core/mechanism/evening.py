"""Jobs on the right servers of a pool: loads alike, and no GPU idle beside a gang (Gandiva_fair, 3.3: balance and packing).

Both are one measure, a server's `time_load`. Each move makes the sum of its squares over the GPUs of the pool less, so neither balance nor
packing undoes what the other did. Servers that nobody waits on are left alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from hs_core.mechanism.changes import Change
from hs_core.mechanism.filling import Filling
from hs_core.mechanism.gang_homes import GangHomes
from hs_core.mechanism.groups import TOGETHER, Groups
from hs_core.mechanism.loads import Pool
from hs_core.mechanism.mover import Mover
from hs_core.mechanism.neighbours import Going, Neighbours
from hs_core.mechanism.time_load import Weighed
from hs_core.mechanism.timed import Timed, without
from hs_core.model import MoveReason
from hs_core.policy import JobFacts

SLACK = 1e-9


class _Going(NamedTuple):
    job: JobFacts
    one: Weighed
    fits: Sequence[bool]  # by server
    saved: float  # squares, times GPUs
    least: float  # that a move has to save


def even_out(mover: Mover, pool: Pool) -> None:
    if len(pool.names) < 2:
        return
    mean = pool.mean(float(pool.tickets.sum()))
    if mean <= 0:
        return
    evening = Evening(mover, pool, mean)
    for _ in range(mover.limits.started_a_quantum + mover.limits.waiting_a_quantum):
        changes = () if mover.spent else evening.best()
        if not changes:
            return
        evening.make(changes)


class Evening:
    def __init__(self, mover: Mover, pool: Pool, mean: float) -> None:
        self._mover, self._pool, self._mean = mover, pool, mean
        self._limits = mover.limits
        self._timed = Timed(mover, pool, mean)
        self._groups = Groups(self._timed)
        # By server, until somebody comes or goes there:
        self._gangs: dict[int, bool] = {}
        self._narrows: dict[int, int] = {}

    def make(self, changes: Sequence[Change]) -> None:
        names, load = self._pool.names, self._timed.loads()
        for change in changes:
            at, to = change.source, change.target
            if change.frees:
                reason, text = MoveReason.PACKING, f"GPUs idle while gangs wait for {names[at]}"
            elif change.packs or load[to] >= load[at]:
                reason, text = MoveReason.PACKING, f"GPUs idle {self._which(change)} that it can have"
            else:
                reason = MoveReason.BALANCE
                text = f"{names[at]} carries {load[at]:.2f} tickets per GPU and {names[to]} {load[to]:.2f}"
            old = self._mover.world.homes[change.job.id]
            for_which = {names[left]: names[taken] for left, taken in ((at, to), *change.besides)}
            new = tuple([for_which.get(name, name) for name in old])
            self._mover.move(change.job, new, reason, text)
            touched = sorted({self._pool.index[name] for name in (*old, *new)})
            self._timed.moved(touched)
            for server in touched:
                self._gangs.pop(server, None)
                self._narrows.pop(server, None)

    def _which(self, change: Change) -> str:
        pool, at = self._pool, change.target
        unasked = int(pool.gpus[at] - pool.asked[at]) >= change.job.per_node
        return f"on {pool.names[at]}" if unasked else f"beside gangs on {pool.names[at]}"

    def best(self) -> Sequence[Change]:
        """The best move away from the fullest server that has a good one; else as many as fill the GPUs beside a gang; and so on."""
        return next((changes for changes in self._ideas() if changes), ())

    def _ideas(self) -> Iterator[Sequence[Change]]:
        pool, tried, load = self._pool, self._limits.servers_tried, self._timed.loads()
        order = sorted(range(len(load)), key=load.__getitem__)
        low = [at for at in order if self._timed.accepts[at]][:tried]
        crowded = (pool.asked > pool.gpus).tolist()
        waits = [at for at in reversed(order) if crowded[at]]
        roomy = list(islice((at for at in waits if self._timed.accepts[at] and self._room(at)), tried))
        sources, targets = self._sources(waits), list(dict.fromkeys([*low, *roomy]))
        for source in sources:
            yield self._best_of(source, targets, self._timed.movable(source))
        for target in low:
            if self._has_gang(target):
                yield self._groups.fill(target, sources)
        some = list(dict.fromkeys([*roomy, *low]))
        for target in some:
            if self._narrow(target):
                yield self._groups.vacate(target, some, waits)
        for source in sources:
            yield self._best_of(source, targets, self._timed.spared(source))
        for source in sources[:TOGETHER]:
            yield self._groups.several(source, targets)
        idle = (pool.asked < pool.gpus).tolist()
        for target in low:
            if idle[target]:
                yield self._groups.widen(target, some, waits)
        gang_homes = GangHomes(self._timed, targets)
        for source in self._with_parts(waits):
            if home := gang_homes.best(source):
                (left, taken), *besides = home.swaps
                yield (Change(home.squares, home.cost, taken, left, home.job, besides=tuple(besides)),)
        if fill := Filling(self._timed, gang_homes).best(waits):
            yield (
                Change(0.0, fill.cost, fill.target, fill.source, fill.job, packs=True, besides=fill.besides),
            )
        if self._timed.gangs_shared:
            neighbours = Neighbours(self._timed, gang_homes)
            yield list(map(self._freeing, neighbours.best(waits)))

    def _freeing(self, going: Going) -> Change:
        job, ((_, left, taken), *besides) = going
        others = tuple([(one, other) for _, one, other in besides])
        return Change(0.0, self._mover.cost_of(job), taken, left, job, frees=True, besides=others)

    def _with_parts(self, waits: Sequence[int]) -> list[int]:
        """The fullest servers that have parts of gangs."""
        if not self._mover.world.parts:
            return []
        seen = [at for at in waits[: self._limits.servers_seen] if self._timed.parts(at)]
        return seen[: self._limits.servers_tried]

    def _sources(self, waits: Sequence[int]) -> list[int]:
        """The fullest servers, and the fullest of those with small jobs that may go."""
        tried = self._limits.servers_tried
        small: list[int] = []
        for at in waits[: self._limits.servers_seen]:
            if len(small) == tried:
                break
            if any(2 * job.gang <= self._timed.gpus[at] for job in self._timed.movable(at)):
                small.append(at)
        return list(dict.fromkeys([*waits[:tried], *small]))

    def _has_gang(self, at: int) -> bool:
        found = self._gangs.get(at)
        if found is None:
            widest = max(
                chain(self._timed.band(at).widths, [job.per_node for job in self._timed.parts(at)]), default=0
            )
            found = self._gangs[at] = 2 * widest > self._timed.gpus[at]
        return found

    def _room(self, at: int) -> int:
        """GPUs that idle while small jobs have their turn beside none of its gangs."""
        room = self._pool.room(at)
        if room is None:
            room = self._narrow(at) if self._has_gang(at) else 0
        return room

    def _narrow(self, at: int) -> int:
        """GPUs that its small jobs leave over, if there are any of these."""
        found = self._narrows.get(at)
        if found is None:
            gpus = self._timed.gpus[at]
            fill = sum([width for width in self._timed.band(at).gangs if 2 * width <= gpus])
            found = self._narrows[at] = gpus - fill if 0 < fill < gpus else 0
        return found

    def _best_of(self, source: int, targets: Iterable[int], jobs: Iterable[JobFacts]) -> Sequence[Change]:
        """One, or none."""
        going = list(self._going(source, jobs))
        if not going:
            return ()
        best: Change | None = None
        for target in targets:
            if target != source and self._timed.accepts[target]:
                for change in self._changes(going, source, target):
                    if best is not None and not change < best:
                        continue
                    if self._timed.holds(change.squares, self._timed.least_for([change]), [change.step]):
                        best = change
        return () if best is None else (best,)

    def _going(self, source: int, jobs: Iterable[JobFacts]) -> Iterator[_Going]:
        """Those of these that the server would be so much better off without."""
        pool, mean = self._pool, self._mean
        there, own, urgent = self._timed.weigh(source), self._timed.jobs(source), self._timed.urgent(source)
        load, width, may_go = self._timed.load(source), self._timed.width(source), self._mover.may_go
        for job in jobs:
            if not may_go(job, urgent=urgent):
                continue
            after = self._timed.time_of(source, without(there, own, job))
            saved = (load**2 - after**2) * width
            tickets = job.gang * pool.per_gpu.get(job.user, 0.0)
            least = self._timed.least(tickets)
            if saved > least * mean**2:
                yield _Going(job, self._timed.one(job), self._timed.fits(job), saved, least)

    def _changes(self, going: Sequence[_Going], source: int, target: int) -> Iterator[Change]:
        unit, width = self._mean**2, self._timed.width(target)
        before = self._timed.load(target) ** 2
        known = self._timed.with_one(target)
        for job, one, fits, saved, least in going:
            if not fits[target]:
                continue
            then = known.get(one)
            if then is None:
                # Many are too much for it however well they fit beside those who are there.
                at_least = self._timed.least_with(target, one)
                if (at_least**2 - before) * width - saved > (SLACK - least) * unit:
                    continue
                then = self._timed.time_with(target, one)
            squares = ((then**2 - before) * width - saved) / unit
            if squares <= -least:
                yield Change(round(squares, 9), self._mover.cost_of(job), target, source, job)
