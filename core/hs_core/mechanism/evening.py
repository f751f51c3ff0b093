"""Jobs on the right servers of a pool: loads alike, and no GPU idle beside a gang (Gandiva_fair, 3.3: balance and packing).

Both are one measure, a server's `time_load`. Each move makes the sum of its squares over the GPUs of the pool less, so neither balance nor
packing undoes what the other did. Servers that nobody waits on are left alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from hs_core.mechanism.band import Band
from hs_core.mechanism.filling import Filling
from hs_core.mechanism.floor import Shape, shape_of
from hs_core.mechanism.gang_homes import GangHomes, Swap
from hs_core.mechanism.lasting import Lasting
from hs_core.mechanism.loads import Pool
from hs_core.mechanism.neighbours import Going, Neighbours
from hs_core.mechanism.squares import Squares, Step
from hs_core.mechanism.time_load import Weighed, least_load, time_load, weighed
from hs_core.model import MoveReason
from hs_core.names import JobId, UserName
from hs_core.policy import JobFacts

if TYPE_CHECKING:
    from hs_core.mechanism.moves import Mover

SLACK = 1e-9
TOGETHER = 4  # jobs that are moved together, and servers from which
Cost = tuple[bool, bool, int, float, JobId]  # as `Mover.cost_of` says


class _Change(NamedTuple):
    squares: float  # more than before; the best is the most negative
    cost: Cost
    target: int
    source: int
    job: JobFacts
    packs: bool = False  # with others, onto GPUs that idle beside gangs
    frees: bool = False  # servers that wait along with the one that it leaves
    besides: tuple[Swap, ...] = ()  # of a gang that leaves several servers

    @property
    def step(self) -> Step:
        return self.job, self.source, self.target


class _Going(NamedTuple):
    job: JobFacts
    one: Weighed
    adds: float  # to `least_load`, times GPUs
    fits: Sequence[bool]  # by server
    saved: float  # squares, times GPUs
    least: float  # that a move has to save


def even_out(mover: "Mover", pool: Pool) -> None:
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
    def __init__(self, mover: "Mover", pool: Pool, mean: float) -> None:
        self._mover, self._pool, self._mean = mover, pool, mean
        self._limits = mover.limits
        self._squares = Squares(mover.world, pool, pool.per_gpu, mean)
        self._lasting = Lasting(mover.board, pool)
        self._gangs_shared = any(name in pool.index for name in mover.world.parts)
        self._gpus: list[int] = pool.gpus.tolist()
        self.accepts: list[bool] = pool.accepts.tolist()
        self._fits: dict[Shape, list[bool]] = {}
        # By server, until somebody comes or goes there: its jobs and its parts of gangs. What jobs weigh stays, as none changes its pool.
        self._weighed: dict[int, tuple[Weighed, Weighed]] = {}
        self._with: dict[
            int, dict[Weighed, float]
        ] = {}  # by server and by what may come: jobs of one kind are as good as one another
        self._at_least: dict[int, float] = {}  # `least_load` of those, times GPUs
        self._width: list[int] = pool.width.tolist()
        self._load = self._times()
        self._least = min(self._load)
        self._kinds: dict[int, list[JobFacts]] = {}
        self._lighter: dict[int, list[JobFacts]] = {}
        self._gangs: dict[int, bool] = {}
        self._narrows: dict[int, int] = {}

    def _band(self, at: int) -> Band:
        """Jobs of one node that live there."""
        return self._mover.world.at[self._pool.names[at]]

    def jobs(self, at: int) -> list[JobFacts]:
        return self._band(at).jobs

    def parts(self, at: int) -> Sequence[JobFacts]:
        """Of gangs over several servers."""
        found = self._mover.world.parts.get(self._pool.names[at])
        return () if found is None else found.jobs

    def _times(self) -> list[float]:
        """`time_of` all servers; one by one only where jobs come and went, or fit beside a gang."""
        loads, odd = self._pool.time_loads()
        load: list[float] = loads.tolist()
        for at in odd:
            load[at] = self._time_of(at)
        return load

    def weigh(self, at: int) -> Weighed:
        """Its jobs of one node, in the order of `jobs`."""
        return self._there(at)[0]

    def _there(self, at: int) -> tuple[Weighed, Weighed]:
        found = self._weighed.get(at)
        if found is None:
            weigh = self._pool.per_gpu
            found = self._weighed[at] = weighed(self.jobs(at), weigh), weighed(self.parts(at), weigh)
        return found

    def one(self, job: JobFacts) -> Weighed:
        """One node's part of it."""
        return weighed((job,), self._pool.per_gpu)

    def time_of(self, at: int, jobs: Weighed) -> float:
        """Of the server with those jobs of one node on it."""
        return time_load(self._gpus[at], jobs + self._there(at)[1])

    def time_with(self, at: int, one: Weighed) -> float:
        """Of the server with one job more."""
        known = self._with.setdefault(at, {})
        found = known.get(one)
        if found is None:
            here, parts = self._there(at)
            found = known[one] = time_load(self._gpus[at], here + one + parts)
        return found

    def _time_of(self, at: int) -> float:
        here, parts = self._there(at)
        return time_load(self._gpus[at], here + parts)

    def load_without(self, at: int, job: JobFacts) -> float:
        """Of the server without that job, or its part there."""
        if job.nodes > 1:
            return self.time_without(at, job)
        return self.time_of(at, without(self.weigh(at), self.jobs(at), job))

    def time_without(self, at: int, gang: JobFacts) -> float:
        """Of the server without its part of a gang."""
        rest = without(self._there(at)[1], self.parts(at), gang)
        return time_load(self._gpus[at], self.weigh(at) + rest)

    def squares(self, at: int, load: float) -> float:
        """More than before, with that load: of the mean one's."""
        return (load**2 - self._load[at] ** 2) * self._width[at] / self._mean**2

    def holds(self, squares: float, least: float, steps: Sequence[Step]) -> bool:
        """What is saved server by server is `least` or more also where these share gangs, and is not lost again once nobody lacks anything any more."""
        if self._gangs_shared and round(self._squares.waited(steps), 9) > -least:
            return False
        return self._lasting.allows(steps, -squares, gangs_shared=self._gangs_shared)

    def saves_for_good(self, steps: Sequence[Step], least: float) -> bool:
        """Those that share gangs wait less by so many squares also once nobody lacks anything."""
        return self._lasting.saved(steps) >= least

    def _least_for(self, changes: Sequence[_Change]) -> float:
        """Squares that all of these have to save."""
        return self.least(sum([one.job.gang * self._pool.per_gpu.get(one.job.user, 0.0) for one in changes]))

    def harmless(self, steps: Sequence[Step]) -> bool:
        """No server on which somebody waits, and none with which it shares gangs, is fuller by it, now or later."""
        return round(self._squares.waited(steps), 9) <= 0.0 and self._lasting.harmless(steps)

    def least(self, tickets: float) -> float:
        """Squares that a move of so many tickets has to save."""
        return max(self._limits.gain_gpus, 2.0 * self._limits.load_gap * tickets / self._mean)

    def fits(self, job: JobFacts) -> list[bool]:
        """On which servers."""
        shape = shape_of(job)
        found = self._fits.get(shape)
        if found is None:
            found = self._fits[shape] = self._pool.fits(shape).tolist()
        return found

    def load(self, at: int) -> float:
        return self._load[at]

    def width(self, at: int) -> int:
        return self._width[at]

    def make(self, changes: Sequence[_Change]) -> None:
        names, load = self._pool.names, [*self._load]
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
            self._squares.moved(touched)
            self._lasting.moved(touched)
            for server in touched:
                self._kinds.pop(server, None)
                self._lighter.pop(server, None)
                self._weighed.pop(server, None)
                self._with.pop(server, None)
                self._at_least.pop(server, None)
                self._gangs.pop(server, None)
                self._narrows.pop(server, None)
                self._load[server] = self._time_of(server)
            self._least = min(self._load)

    def _which(self, change: _Change) -> str:
        pool, at = self._pool, change.target
        unasked = int(pool.gpus[at] - pool.asked[at]) >= change.job.per_node
        return f"on {pool.names[at]}" if unasked else f"beside gangs on {pool.names[at]}"

    def best(self) -> Sequence[_Change]:
        """The best move away from the fullest server that has a good one; else as many as fill the GPUs beside a gang; and so on."""
        return next((changes for changes in self._ideas() if changes), ())

    def _ideas(self) -> Iterator[Sequence[_Change]]:
        pool, tried = self._pool, self._limits.servers_tried
        order = sorted(range(len(self._load)), key=self._load.__getitem__)
        low = [at for at in order if self.accepts[at]][:tried]
        crowded = (pool.asked > pool.gpus).tolist()
        waits = [at for at in reversed(order) if crowded[at]]
        roomy = list(islice((at for at in waits if self.accepts[at] and self._room(at)), tried))
        sources, targets = self._sources(waits), list(dict.fromkeys([*low, *roomy]))
        for source in sources:
            yield self._best_of(source, targets, self._movable(source))
        for target in low:
            if self._has_gang(target):
                yield self._fill(target, sources)
        some = list(dict.fromkeys([*roomy, *low]))
        for target in some:
            if self._narrow(target):
                yield self._vacate(target, some, waits)
        for source in sources:
            yield self._best_of(source, targets, self._spared(source))
        for source in sources[:TOGETHER]:
            yield self._several(source, targets)
        for target in low:
            yield self._widen(target, some, waits)
        # Made anew: were it kept, the two would hold one another, and with them a decision's whole world until somebody looks for garbage.
        gang_homes = GangHomes(self, self._mover, pool, targets)
        for source in self._with_parts(waits):
            if home := gang_homes.best(source):
                (left, taken), *besides = home.swaps
                yield (_Change(home.squares, home.cost, taken, left, home.job, besides=tuple(besides)),)
        if fill := Filling(self, self._mover, pool, gang_homes).best(waits, gangs_shared=self._gangs_shared):
            yield (
                _Change(0.0, fill.cost, fill.target, fill.source, fill.job, packs=True, besides=fill.besides),
            )
        if self._gangs_shared:
            neighbours = Neighbours(self, self._mover, pool, gang_homes, self._squares)
            yield list(map(self._freeing, neighbours.best(waits)))

    def _freeing(self, going: Going) -> _Change:
        job, ((_, left, taken), *besides) = going
        others = tuple([(one, other) for _, one, other in besides])
        return _Change(0.0, self._mover.cost_of(job), taken, left, job, frees=True, besides=others)

    def _with_parts(self, waits: Sequence[int]) -> list[int]:
        """The fullest servers that have parts of gangs."""
        if not self._mover.world.parts:
            return []
        seen = [at for at in waits[: self._limits.servers_seen] if self.parts(at)]
        return seen[: self._limits.servers_tried]

    def _sources(self, waits: Sequence[int]) -> list[int]:
        """The fullest servers, and the fullest of those with small jobs that may go."""
        tried = self._limits.servers_tried
        small: list[int] = []
        for at in waits[: self._limits.servers_seen]:
            if len(small) == tried:
                break
            if any(2 * job.gang <= self._gpus[at] for job in self._movable(at)):
                small.append(at)
        return list(dict.fromkeys([*waits[:tried], *small]))

    def _has_gang(self, at: int) -> bool:
        found = self._gangs.get(at)
        if found is None:
            widest = max(chain(self._band(at).widths, [job.per_node for job in self.parts(at)]), default=0)
            found = self._gangs[at] = 2 * widest > self._gpus[at]
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
            gpus = self._gpus[at]
            fill = sum([width for width in self._band(at).gangs if 2 * width <= gpus])
            found = self._narrows[at] = gpus - fill if 0 < fill < gpus else 0
        return found

    def _best_of(self, source: int, targets: Iterable[int], jobs: Iterable[JobFacts]) -> Sequence[_Change]:
        """One, or none."""
        going = list(self._going(source, jobs))
        if not going:
            return ()
        best: _Change | None = None
        for target in targets:
            if target != source and self.accepts[target]:
                for change in self._changes(going, source, target):
                    if best is not None and not change < best:
                        continue
                    if self.holds(change.squares, self._least_for([change]), [change.step]):
                        best = change
        return () if best is None else (best,)

    def _going(self, source: int, jobs: Iterable[JobFacts]) -> Iterator[_Going]:
        """Those of these that the server would be so much better off without."""
        pool, mean = self._pool, self._mean
        there, own, urgent = self.weigh(source), self.jobs(source), self.urgent(source)
        load, width, may_go = self._load[source], self._width[source], self._mover.may_go
        for job in jobs:
            if not may_go(job, urgent=urgent):
                continue
            after = self.time_of(source, without(there, own, job))
            saved = (load**2 - after**2) * width
            tickets = job.gang * pool.per_gpu.get(job.user, 0.0)
            least = self.least(tickets)
            if saved > least * mean**2:
                one = self.one(job)
                yield _Going(job, one, least_load(self._gpus[source], one), self.fits(job), saved, least)

    def _changes(self, going: Sequence[_Going], source: int, target: int) -> Iterator[_Change]:
        unit, width = self._mean**2, self._width[target]
        before = self._load[target] ** 2
        known = self._with.setdefault(target, {})
        there = self._at_least.get(target)
        if there is None:
            there = self._at_least[target] = sum([least_load(1, some) for some in self._there(target)])
        for job, one, adds, fits, saved, least in going:
            if not fits[target]:
                continue
            # Most are too much for it however well they fit beside those who are there, which takes longer to find.
            if (((there + adds) / width) ** 2 - before) * width - saved > (SLACK - least) * unit:
                continue
            then = known.get(one)
            if then is None:
                then = self.time_with(target, one)
            squares = ((then**2 - before) * width - saved) / unit
            if squares <= -least:
                yield _Change(round(squares, 9), self._mover.cost_of(job), target, source, job)

    def _fill(self, target: int, sources: Sequence[int]) -> Sequence[_Change]:
        """Small jobs for the GPUs beside a gang, all at once: one alone would keep the gang from as many. One of each server; before that, more of these as long as each saves enough, if it does so for good."""
        gpus = self._gpus[target]
        room = gpus - sum([width for width, _ in self.weigh(target) if 2 * width <= gpus])
        if room <= 0:
            return ()
        draft = _Draft(self, packs=True)
        others = [at for at in sources if at != target]
        for at in sorted(others, key=lambda at: (-self.load(at), at)):
            small = [job for job in self._movable(at) if job.gang <= room and 2 * job.gang <= gpus]
            for job in sorted(small, key=self._mover.cost_of):
                if self._may(job, target):
                    draft.put(job, at, target)
                    room -= job.gang
                    break
            if room == 0:
                break
        return (room and self._with_more(draft, target, room)) or self._worth(draft)

    def _with_more(self, few: "_Draft", target: int, room: int) -> Sequence[_Change]:
        """Its changes and, of each one's kind from the same server, others for so many GPUs."""
        draft = _Draft(self, packs=True)
        for change in few.changes:
            draft.put(change.job, change.source, target)
        for change in few.changes:
            at, kind = change.source, (change.job.gang, change.job.user)
            kin = [job for job in draft.jobs(at) if (job.gang, job.user) == kind and self._may(job, target)]
            least = self.least(change.job.gang * self._pool.per_gpu.get(change.job.user, 0.0)) * self._mean**2
            for job in sorted(kin, key=self._mover.cost_of)[: room // change.job.gang]:
                if draft.after(job, at, target) > draft.squares - least:
                    break
                draft.put(job, at, target)
                room -= job.gang
        changes = draft.changes
        if len(changes) == len(few.changes):
            return ()
        steps = [change.step for change in changes]
        return self._worth(draft) if self._lasting.lasts(steps, self._least_for(changes)) else ()

    def _vacate(self, target: int, some: Sequence[int], waits: Sequence[int]) -> Sequence[_Change]:
        """A server whose few small jobs leave GPUs idle: they go where they are least in the way, and gangs that wait elsewhere come instead."""
        gpus = self._gpus[target]
        here = [job for job in self.jobs(target) if 2 * job.gang <= gpus]
        return self._worth(self._replaced(target, here, gpus // 2 + 1, some, waits))

    def _widen(self, target: int, some: Sequence[int], waits: Sequence[int]) -> Sequence[_Change]:
        """A server on which nobody waits and some GPUs idle: its narrowest jobs go where they are least in the way, all or as few as will do, and wider ones that wait elsewhere come instead."""
        here = self.jobs(target)
        beside = sum([job.per_node for job in self.parts(target)])
        if not here or sum(self._band(target).gangs) + beside >= self._gpus[target]:
            return ()
        narrowest = min(job.gang for job in here)
        leave = [job for job in here if job.gang == narrowest]
        for few in dict.fromkeys([len(leave), *range(1, min(len(leave), TOGETHER))]):
            draft = self._replaced(target, leave[:few], narrowest + 1, some, waits, for_wider=True)
            if len(draft.changes) > few and (changes := self._worth(draft)):
                return changes
        return ()

    def _replaced(
        self,
        target: int,
        leave: Sequence[JobFacts],
        least: int,
        some: Sequence[int],
        waits: Sequence[int],
        *,
        for_wider: bool = False,
    ) -> "_Draft":
        """These by others of `least` GPUs or more; nobody, if one of them may not go, or nowhere can be. `for_wider`: or if there are no others."""
        draft, tried = _Draft(self, packs=True), self._limits.servers_tried
        if not all(self._mover.may_go(job) for job in leave):
            return draft
        others = [at for at in dict.fromkeys([*some, *waits[-tried:]]) if at != target]
        leavers = sorted(leave, key=lambda job: (-job.gang, job.id))
        homes = [[at for at in others if self.accepts[at] and fits[at]] for fits in map(self.fits, leavers)]
        if not all(homes):
            return draft
        wider = {
            at: [job for job in self._movable(at) if job.gang >= least and self._may(job, target)]
            for at in waits[:tried]
        }
        if for_wider and not any(wider.values()):
            return draft
        for job, there in zip(leavers, homes, strict=True):
            draft.put(job, target, min(zip(draft.afters(job, target, there), there, strict=True))[1])
        for at, jobs in wider.items():
            for job in sorted(jobs, key=self._mover.cost_of) if at != target else ():
                if draft.after(job, at, target) < draft.squares:
                    draft.put(job, at, target)
        return draft

    def _several(self, source: int, targets: Sequence[int]) -> Sequence[_Change]:
        """Small jobs where to be rid of one is no relief: those that need the server for longest, or the narrowest, for each leaves GPUs idle in its turn."""
        if self._load[source] <= (1.0 + self._limits.load_gap) * self._mean:
            return ()
        urgent, weight = self.urgent(source), self._pool.per_gpu
        small = [job for job in self.jobs(source) if 2 * job.gang <= self._gpus[source]]
        if len(small) < 2:
            return ()
        heaviest = max(weight.get(job.user, 0.0) for job in small)
        narrowest = min(job.gang for job in small)
        heavy = [job for job in small if weight.get(job.user, 0.0) == heaviest]
        narrow = [job for job in small if job.gang == narrowest]
        for group in (heavy, narrow) if heavy != narrow else (heavy,):
            if not 1 < len(group) <= TOGETHER or not all(
                self._mover.may_go(job, urgent=urgent) for job in group
            ):
                continue
            draft = _Draft(self)
            for job in sorted(group, key=self._mover.cost_of):
                fits = self.fits(job)
                homes = [at for at in targets if at != source and self.accepts[at] and fits[at]]
                if homes:
                    draft.put(job, source, min(zip(draft.afters(job, source, homes), homes, strict=True))[1])
            if changes := self._worth(draft):
                return changes
        return ()

    def cost_of(self, job: JobFacts) -> Cost:
        return self._mover.cost_of(job)

    def _may(self, job: JobFacts, target: int) -> bool:
        return self.accepts[target] and self.fits(job)[target] and self._mover.may_go(job)

    def _worth(self, draft: "_Draft") -> Sequence[_Change]:
        """Its changes, if they save enough for what they move."""
        changes = draft.changes
        if not changes:
            return ()
        squares, least = draft.squares / self._mean**2, self._least_for(changes)
        good = squares <= -least and self._mover.affords([change.job for change in changes])
        return changes if good and self.holds(squares, least, [change.step for change in changes]) else ()

    def _movable(self, at: int) -> list[JobFacts]:
        """Of those that could go: a small job that should run all the time is the last, for a move costs it most, and elsewhere it is in the way as much."""
        if at not in self._lighter:
            found, weight, gpus = self.one_of_each(at), self._pool.per_gpu, self._gpus[at]
            lighter = [job for job in found if 2 * job.gang > gpus or weight.get(job.user, 0.0) < 1.0]
            spared = any(2 * job.gang <= gpus for job in lighter)
            self._lighter[at] = lighter if spared else found
        return self._lighter[at]

    def _spared(self, at: int) -> list[JobFacts]:
        """Of those that could go the ones that are not `_movable`."""
        found, lighter = self.one_of_each(at), self._movable(at)
        seen = {job.id for job in lighter}
        return [job for job in found if job.id not in seen]

    def urgent(self, at: int) -> bool:
        """So unequal that its jobs need not stay for long."""
        return self.load(at) - self._least > self._limits.urgent_gap * self._mean

    def one_of_each(self, at: int) -> list[JobFacts]:
        """One of each kind that could go, the cheapest."""
        if at not in self._kinds:
            found: dict[tuple[int, UserName], JobFacts] = {}
            jobs, urgent = self.jobs(at), self.urgent(at)
            cost_of, may_go = self._mover.cost_of, self._mover.may_go
            for job in jobs if self._mover.moves_started else [job for job in jobs if not job.started]:
                key = (job.gang, job.user)
                if (key not in found or cost_of(job) < cost_of(found[key])) and may_go(job, urgent=urgent):
                    found[key] = job
            self._kinds[at] = list(found.values())
        return self._kinds[at]


def without(weighed: Weighed, jobs: Sequence[JobFacts], job: JobFacts) -> Weighed:
    """`weighed`: of those jobs, of which it is one."""
    at = [other.id for other in jobs].index(job.id)
    return weighed[:at] + weighed[at + 1 :]


class _Draft:
    """Several moves thought of together."""

    def __init__(self, evening: Evening, *, packs: bool = False) -> None:
        self._evening = evening
        self._packs = packs
        self._jobs: dict[int, list[JobFacts]] = {}
        self._weighed: dict[int, Weighed] = {}
        self._load: dict[int, float] = {}
        self._left: dict[tuple[JobId, int], float] = {}  # load without it, until the next is put somewhere
        self.changes: list[_Change] = []
        self.squares = 0.0  # times GPUs: more than before

    def put(self, job: JobFacts, source: int, target: int) -> None:
        one = self._one(job)
        (self.squares,) = self.afters(job, source, (target,))
        load = {source: self._left[job.id, source], target: self._time_with(target, one)}
        left, came = without(self.weigh(source), self.jobs(source), job), self.weigh(target) + one
        self._jobs[source] = [other for other in self.jobs(source) if other.id != job.id]
        self._jobs[target] = [*self.jobs(target), job]
        self._weighed[source], self._weighed[target] = left, came
        self._load |= load
        self._left.clear()
        self.changes.append(_Change(0.0, self._evening.cost_of(job), target, source, job, self._packs))

    def after(self, job: JobFacts, source: int, target: int) -> float:
        """What `squares` would be with it there."""
        return self.afters(job, source, (target,))[0]

    def afters(self, job: JobFacts, source: int, targets: Iterable[int]) -> list[float]:
        """The same, for each of these."""
        left = self._left.get((job.id, source))
        if left is None:
            rest = without(self.weigh(source), self.jobs(source), job)
            left = self._left[job.id, source] = self._evening.time_of(source, rest)
        one, less = self._one(job), self._more(source, left)
        return [self.squares + (less + self._more(at, self._time_with(at, one))) for at in targets]

    def _time_with(self, at: int, one: Weighed) -> float:
        if at in self._weighed:
            return self._evening.time_of(at, self._weighed[at] + one)
        return self._evening.time_with(at, one)

    def _more(self, at: int, load: float) -> float:
        """Squares of the server with that load."""
        return (load**2 - self.load(at) ** 2) * self._evening.width(at)

    def _one(self, job: JobFacts) -> Weighed:
        return self._evening.one(job)

    def jobs(self, at: int) -> list[JobFacts]:
        return self._jobs[at] if at in self._jobs else self._evening.jobs(at)

    def weigh(self, at: int) -> Weighed:
        """Its jobs of one node, in the order of `jobs`."""
        return self._weighed[at] if at in self._weighed else self._evening.weigh(at)

    def load(self, at: int) -> float:
        return self._load[at] if at in self._load else self._evening.load(at)
