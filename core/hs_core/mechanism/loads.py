"""ticketLoadPerGPU of every server (Gandiva_fair, eq 2), and where a job adds least to it (Algorithm 2).

Loads are floats: they only say which server is better, and are compared to nine digits so that equal ones are equal.
Departure: tickets count for a load up to one per GPU. A user who has few jobs in a pool for its share there could not use more, and its
server looked full to everybody else.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, compress
from operator import add, gt

import numpy as np
from numpy.typing import NDArray

from hs_core.lazy import lazy
from hs_core.mechanism import nested
from hs_core.mechanism.band import NOBODY, NUMBERS
from hs_core.mechanism.floor import Servers, shape_of
from hs_core.mechanism.level import Level
from hs_core.mechanism.placing import Home
from hs_core.mechanism.time_load import may_idle, time_load, weighed
from hs_core.mechanism.world import At, World
from hs_core.names import HostName, UserName
from hs_core.newest import Newest
from hs_core.policy import JobFacts

Ints = NDArray[np.int64]

DIGITS = 9
SHORT = 1 << 16
FEW = 1_024  # jobs: up to so many are gone through for each user


@dataclass(frozen=True, slots=True)
class _Asked:
    """Who lives where in a pool, and asks for how many GPUs: server by server, in the order of jobs' ids."""

    there: Servers
    gangs: list[tuple[int, ...]]  # of jobs with one node
    parts: list[tuple[int, ...]]  # of jobs with several
    owners: list[tuple[int, ...]]  # of those, then of these: their users, as `band` numbers them
    rolls: list[Ints] = field(compare=False)  # of those once more, as `Band.roll` has them


class _Rows:
    """Jobs and parts of jobs in a pool as rows, and what follows from that alone. A value."""

    def __init__(self, asked: _Asked) -> None:
        # Server by server in the order of jobs' ids: floats do not add up the same otherwise.
        width, size = asked.there.gpus, len(asked.there.names)
        counts = np.fromiter(map(len, chain(asked.gangs, asked.parts)), dtype=np.int64)
        self.servers: Ints = np.repeat(np.arange(len(counts)) % max(1, size), counts)
        self.gpus, self.of = np.concatenate(
            [
                *(roll[1:] for roll in asked.rolls),
                [_flat(asked.parts), _flat(asked.owners[len(asked.gangs) :])],
            ],
            axis=1,
        )
        self.asked: Ints = np.bincount(self.servers, weights=self.gpus, minlength=size).astype(np.int64)
        self.fits = self.asked <= width  # all at once
        self.big = 2 * self.gpus > width[self.servers]
        small = ~self.big
        self.big_on, self.small_on = self.servers[self.big], self.servers[small]
        self.small = small
        self._width, self._single = width, sum(map(len, asked.gangs))
        widths = map(add, asked.gangs, asked.parts) if asked.parts else asked.gangs
        gaps = map(may_idle, widths, width.tolist())
        self.odd = set(compress(range(size), gaps))

    @lazy
    def _by_user(self) -> tuple[Ints, Ints]:
        """Rows, user by user, and where each one's begin."""
        users = self.of.max(initial=-1) + 1
        # Of short numbers it is found in a pass over them.
        order = np.argsort(self.of.astype(np.uint16) if users <= SHORT else self.of, kind="stable")
        return order, np.searchsorted(self.of[order], np.arange(users + 1))

    @lazy
    def room(self) -> list[int]:
        """GPUs that idle on a server while its small jobs of one node have their turn beside none of its gangs."""
        width, few = self._width, self.small[: self._single]
        asked = self.gpus[: self._single][few], self.servers[: self._single][few]
        fill = np.bincount(asked[1], weights=asked[0], minlength=width.size).astype(np.int64)
        gang = np.bincount(self.big_on, minlength=width.size) > 0
        found: list[int] = np.where(gang & (fill > 0) & (fill < width), width - fill, 0).tolist()
        return found

    def of_user(self, user: UserName) -> Ints:
        at = NUMBERS[user]
        if self.of.size <= FEW:
            mine: Ints = (self.of == at).nonzero()[0]
            return mine
        order, spans = self._by_user
        return order[spans[at] : spans[at + 1]] if at + 1 < len(spans) else order[:0]


def _flat(numbers: Iterable[Iterable[int]]) -> Ints:
    return np.fromiter(chain.from_iterable(numbers), dtype=np.int64)


_rows = defaultdict[str, Newest[_Asked, _Rows]](lambda: Newest(_Rows))
"""By model. From one decision to the next hardly anybody lives elsewhere."""


class Pool:
    """The servers of one model, by name."""

    def __init__(self, world: World, model: str) -> None:
        there = world.floor.servers[model]
        self.model = model
        self.names, self.index, self.gpus, self.width = there.names, there.index, there.gpus, there.width
        self.accepts, self.fits = there.accepts, there.fits
        self._world, self._hosts = world, world.hosts
        self._colds: dict[str, NDArray[np.bool_]] = {}  # by data set
        self.tickets: NDArray[np.float64] = np.zeros(len(self.names), dtype=np.float64)
        self.asked: NDArray[np.int64] = np.zeros(
            len(self.names), dtype=np.int64
        )  # GPUs that jobs there ask for
        self.per_gpu: dict[UserName, float] = {}
        self._there = there
        self._rows: _Rows | None = None  # jobs as they were before anything was put anywhere
        self._where: dict[
            UserName, dict[int, int]
        ] = {}  # user → server → GPUs asked for, of whom somebody asked
        self._touched: set[int] = set()

    def fill(self, world: World) -> None:
        """All jobs and parts of jobs, at once."""
        jobs = [world.at[name] for name in self.names]
        several = [world.parts.get(name, NOBODY) for name in self.names] if world.parts else []
        newest = _rows[self.model]
        asked = _Asked(
            there=self._there,
            gangs=[band.gangs for band in jobs],
            parts=[band.per_node for band in several],
            owners=[band.owners for band in chain(jobs, several)],
            rolls=[band.roll for band in jobs],
        )
        self._rows = rows = newest(asked)
        if rows.gpus.size:
            weights = rows.gpus * self._weights()
            size = len(self.names)
            self.tickets = np.bincount(rows.servers, weights=weights, minlength=size).astype(np.float64)
            self.asked = rows.asked.copy()

    def _mine(self, user: UserName) -> dict[int, int]:
        """Where the user's jobs are, and how many GPUs they ask for there."""
        found = self._where.get(user)
        if found is None:
            found = self._where[user] = {}
            if self._rows is not None:
                mine = self._rows.of_user(user)
                pairs = zip(self._rows.servers[mine].tolist(), self._rows.gpus[mine].tolist(), strict=True)
                for at, gpus in pairs:
                    found[at] = found.get(at, 0) + gpus
        return found

    def _weights(self) -> NDArray[np.float64]:
        """Tickets per GPU, row by row."""
        assert self._rows is not None
        users = list(map(NUMBERS.__getitem__, self.per_gpu))
        known = np.zeros(NUMBERS.end)
        known[users] = list(self.per_gpu.values())
        weights: NDArray[np.float64] = known[self._rows.of]
        return weights

    def time_loads(self) -> tuple[NDArray[np.float64], list[int]]:
        """Of every server (see `mechanism.time_load`); those for which it takes a closer look."""
        rows, size = self._rows, len(self.names)
        if rows is None or not rows.of.size:
            return np.zeros(size), list(range(size))
        weights = self._weights()
        shares = rows.gpus * weights
        gangs = np.bincount(rows.big_on, weights=weights[rows.big], minlength=size)
        small = np.bincount(rows.small_on, weights=shares[rows.small], minlength=size)
        need, wants, most = small / self.width, np.minimum(weights[rows.small], 1.0), np.zeros(size)
        np.maximum.at(most, rows.small_on, wants)
        more = rows.gpus[rows.small] * np.maximum(wants - need[rows.small_on], 0.0)
        own = need + np.bincount(rows.small_on, weights=more, minlength=size) / self.width
        waits = np.bincount(rows.big_on, minlength=size) > 0
        alone = np.where(waits, np.maximum(need, most), own)
        spread = np.bincount(rows.servers, weights=shares, minlength=size)
        load = np.where(rows.fits, spread / self.width, gangs + alone)
        return load, sorted(rows.odd | self._touched)

    def mean(self, tickets: float) -> float:
        """Of so many, for each GPU; 1 where jobs ask for fewer GPUs than there are."""
        total = int(self.gpus.sum())
        return tickets / total if self.asked.sum() >= total else 1.0

    def room(self, at: int) -> int | None:
        """As `_Rows` has it; None: jobs came to that server, or left it, since."""
        return None if self._rows is None or at in self._touched else self._rows.room[at]

    def revalue(self, user: UserName, per_gpu: float) -> None:
        """The user's tickets per GPU here are others than before."""
        change = per_gpu - self.per_gpu.get(user, 0.0)
        self.per_gpu[user] = per_gpu
        if change and (mine := self._mine(user)):
            at = np.fromiter(mine.keys(), dtype=np.int64, count=len(mine))
            self.tickets[at] += change * np.fromiter(mine.values(), dtype=np.int64, count=len(mine))

    def put(self, user: UserName, at: int, gpus: int) -> None:
        """GPUs asked for on a server; negative: no longer."""
        self._touched.add(at)
        mine = self._mine(user)
        mine[at] = mine.get(at, 0) + gpus
        if not mine[at]:
            del mine[at]
        self.tickets[at] += gpus * self.per_gpu.get(user, 0.0)
        self.asked[at] += gpus

    def best(self, job: JobFacts, per_gpu: float) -> Home:
        """The servers with least load once the job is there; ties: those where a gang's home crosses least (`nested`), where it still fits, that have its data, the fullest, then by name."""
        fits = self.fits(shape_of(job))
        tickets = self.tickets
        change = per_gpu - self.per_gpu.get(job.user, 0.0)
        if change and (mine := self._mine(job.user)):
            tickets = tickets.copy()
            at = np.fromiter(mine.keys(), dtype=np.int64, count=len(mine))
            tickets[at] += change * np.fromiter(mine.values(), dtype=np.int64, count=len(mine))
        load = np.round((tickets + job.per_node * per_gpu) / self.width, DIGITS)
        load[~fits] = np.inf
        if job.nodes == 1:
            least = load.min()
            some = np.flatnonzero(load == least) if least < np.inf else np.empty(0, dtype=np.int64)
        else:
            some = np.flatnonzero(fits)
        if len(some) < job.nodes:
            return ()
        if len(some) > 1:
            left = self.gpus[some] - self.asked[some] - job.per_node
            cold = self._cold(job.dataset)[some] if job.dataset else np.zeros(len(some), dtype=np.bool_)
            some = some[np.lexsort((some, np.abs(left), cold, left < 0, load[some]))]
        chosen = some.tolist()
        if len(some) > job.nodes > 1:
            chosen = self._nested(job, chosen, load[some])
        return tuple(self.names[at] for at in chosen[: job.nodes])

    def _nested(self, job: JobFacts, order: list[int], load: NDArray[np.float64]) -> list[int]:
        """Of these servers, the best first, `nodes` that are no fuller than the fullest of the first ones."""
        most = max(nested.LOOKED_AT, 8 * job.nodes)
        alike = order[: int(np.searchsorted(load, load[job.nodes - 1], side="right"))][:most]
        if len(alike) == job.nodes or not self._world.parts:
            return alike
        gangs = self.in_its_way(job, alike)
        return nested.choose(alike, job.nodes, gangs) if gangs else alike

    def in_its_way(self, job: JobFacts, servers: Iterable[int]) -> dict[frozenset[int], int]:
        """Homes of other gangs with a part on these servers beside which it cannot run, and GPUs that those who have each ask for."""
        gangs: dict[frozenset[int], int] = {}
        for other in {other.id: other for at in servers for other in self._too_wide_beside(job, at)}.values():
            home = frozenset([self.index[name] for name in self._world.where(other) if name in self.index])
            gangs[home] = gangs.get(home, 0) + other.gang
        return gangs

    def _too_wide_beside(self, job: JobFacts, at: int) -> list[JobFacts]:
        """Other gangs with a part there."""
        most = int(self.gpus[at]) - job.per_node
        return [
            other
            for other in self._world.parts.get(self.names[at], NOBODY).jobs
            if other.per_node > most and other.id != job.id
        ]

    def _cold(self, dataset: str) -> NDArray[np.bool_]:
        """Servers on which nobody has read that data yet."""
        found = self._colds.get(dataset)
        if found is None:
            cold = [dataset not in self._hosts[name].datasets for name in self.names]
            found = self._colds[dataset] = np.array(cold, dtype=np.bool_)
        return found


class Board:
    """All pools, while jobs are placed and moved. A pool is filled when it is asked for first: many decisions ask for none."""

    def __init__(
        self,
        world: World,
        entitled: Mapping[At, float],
        levels: dict[str, Level],
        factors: Mapping[At, Fraction],
        mended: Mapping[At, float] | None = None,
    ) -> None:
        """`entitled`: where users have shares; `mended`: what these come to with amends made (`mechanism.amends`), by which jobs weigh. None: the same."""
        self.world = world
        self.entitled = entitled
        self._mended = entitled if mended is None else mended
        self._levels = levels
        self._factors = {at: float(factor) for at, factor in factors.items()}
        self._pools: dict[str, Pool] = {}

    def pools(self) -> list[Pool]:
        """Newest first."""
        return [self.pool(model) for model in self.world.models]

    def pool(self, model: str) -> Pool:
        found = self._pools.get(model)
        if found is None:
            found = self._pools[model] = Pool(self.world, model)
            found.per_gpu = {user: self.per_gpu(user, model) for user, at in self.world.gpus if at == model}
            found.fill(self.world)
        return found

    def crowded(self, model: str) -> bool:
        """Jobs on some server there ask for more GPUs than it has."""
        there = self.world.floor.servers[model]
        return any(map(gt, self.world.asked_in(model), there.gpus.tolist()))

    def time_load(self, name: HostName) -> float:
        """As `mechanism.time_load` has it, of one server."""
        host, at, parts = self.world.hosts[name], self.world.at.get(name), self.world.parts.get(name)
        there = [*(at.jobs if at is not None else ()), *(parts.jobs if parts is not None else ())]
        return time_load(host.gpus, weighed(there, self.pool(host.model).per_gpu))

    def per_gpu(self, user: UserName, model: str, more: int = 0) -> float:
        """Tickets per GPU of the user there, at most 1 but for what it lacks, with so many more GPUs asked for."""
        return self.due(user, model, more) * self._factors.get((user, model), 1.0)

    def due(self, user: UserName, model: str, more: int = 0) -> float:
        """The same without what it lacks."""
        at = (user, model)
        gpus = self.world.gpus.get(at, 0) + more
        return min(1.0, self._mended.get(at, 0.0) / gpus) if gpus > 0 else 0.0

    def part(self, user: UserName, model: str, more: int = 0) -> float:
        """Of the time that the user's jobs there can expect to run, with so many more GPUs asked for."""
        return self._levels[model].part(user, more)

    def level(self, model: str) -> Level:
        return self._levels[model]

    def find(self, job: JobFacts, model: str, *, comes: bool = True) -> Home:
        """The best home for it in the pool; `comes`: it is not in the pool yet."""
        return self.pool(model).best(job, self.per_gpu(job.user, model, job.gang if comes else 0))

    def add(self, job: JobFacts, home: Home) -> None:
        there = self._of(home)
        self.world.settle(job, home)
        self._put(job, home, there, 1)

    def remove(self, job: JobFacts, home: Home) -> None:
        there = self._of(home)
        self.world.unsettle(job, home)
        self._put(job, home, there, -1)

    def _of(self, home: Home) -> list[Pool]:
        """Of each of these servers the pool, filled with what is there before anything changes."""
        return [self.pool(self.world.hosts[name].model) for name in home]

    def _put(self, job: JobFacts, home: Home, there: Sequence[Pool], sign: int) -> None:
        model, pool = there[0].model, there[0]
        pool.revalue(job.user, self.per_gpu(job.user, model))
        self._levels[model].ask(job.user, sign * job.gang)
        for name, own in zip(home, there, strict=True):
            own.put(job.user, own.index[name], sign * job.per_node)


def find_levels(
    world: World, shares: Mapping[At, float], known: Mapping[str, Level] | None = None
) -> dict[str, Level]:
    """`known`: others, of which those go on being used that are the same."""
    entitled: dict[str, dict[UserName, float]] = {model: {} for model in world.models}
    asked: dict[str, dict[UserName, int]] = {model: {} for model in world.models}
    for (user, model), share in shares.items():
        entitled[model][user] = share
    for (user, model), gpus in world.gpus.items():
        asked[model][user] = gpus
    levels: dict[str, Level] = {}
    for model, gpus in world.pools:
        level = known.get(model) if known is not None else None
        if level is None or not level.is_of(gpus, entitled[model], asked[model]):
            level = Level(gpus, entitled[model], asked[model])
        levels[model] = level
    return levels
