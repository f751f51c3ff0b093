"""ticketLoadPerGPU of every server (Gandiva_fair, eq 2), and where a job adds least to it (Algorithm 2).

Loads are floats: they only say which server is better, and are compared to nine digits so that equal ones are equal.
Departure: tickets count for a load up to one per GPU. A user who has few jobs in a pool for its share there could not use more, and its
server looked full to everybody else.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.level import Level
from hs_core.mechanism.placing import Home, takes_new
from hs_core.mechanism.world import At, Shape, World, shape_of
from hs_core.model import HostName, UserName
from hs_core.policy import JobFacts

DIGITS = 9


class _Rows(NamedTuple):
    of: NDArray[np.int64]
    servers: NDArray[np.int64]
    gpus: NDArray[np.int64]


class _Lists(NamedTuple):
    users: list[UserName]
    of: list[int]
    servers: list[int]
    gpus: list[int]


class Pool:
    """The servers of one model, by name."""

    def __init__(self, world: World, model: str) -> None:
        hosts = [host for host in world.hosts.values() if host.model == model]
        self.model = model
        self.names: list[HostName] = [host.name for host in hosts]
        self.index = {name: at for at, name in enumerate(self.names)}
        self.gpus = np.array([host.gpus for host in hosts], dtype=np.int64)
        self.memory = np.array([host.gpu_memory_bytes for host in hosts], dtype=np.int64)
        self.accepts = np.array([takes_new(host) for host in hosts], dtype=bool)
        self.width = np.maximum(self.gpus, 1)
        self.tickets: NDArray[np.float64] = np.zeros(len(hosts), dtype=np.float64)
        self.asked: NDArray[np.int64] = np.zeros(len(hosts), dtype=np.int64)  # GPUs that jobs there ask for
        self.users: dict[UserName, dict[int, int]] = {}  # user → server → GPUs asked for
        self.per_gpu: dict[UserName, float] = {}
        self._fits: dict[Shape, NDArray[np.bool_]] = {}
        self._users: list[UserName] = []  # of `_rows`
        self._rows: _Rows | None = None  # jobs as they were before anything was put anywhere
        self._touched: set[int] = set()

    def fill(self, users: list[UserName], of: list[int], servers: list[int], gpus: list[int]) -> None:
        """Jobs and parts of jobs, all at once: whose, where, and how many GPUs."""
        rows = _Rows(*(np.array(numbers, dtype=np.int64) for numbers in (of, servers, gpus)))
        self._users, self._rows = users, rows
        if servers:
            size = len(self.names)
            self.tickets = np.bincount(servers, weights=rows.gpus * self._weights(), minlength=size).astype(
                np.float64
            )
            self.asked = np.bincount(servers, weights=rows.gpus, minlength=size).astype(np.int64)

    def _weights(self) -> NDArray[np.float64]:
        """Tickets per GPU, row by row."""
        assert self._rows is not None
        known = np.array([self.per_gpu.get(user, 0.0) for user in self._users], dtype=np.float64)
        weights: NDArray[np.float64] = known[self._rows.of]
        return weights

    def time_loads(self) -> tuple[NDArray[np.float64], list[int]]:
        """Of every server (see `mechanism.evening`); those for which it takes a closer look."""
        size = len(self.names)
        if self._rows is None or not self._rows.of.size:
            return np.zeros(size), list(range(size))
        servers, gpus = self._rows.servers, self._rows.gpus
        weights = self._weights()
        big = 2 * gpus > self.gpus[servers]
        gangs = np.bincount(servers[big], weights=weights[big], minlength=size)
        small = np.bincount(servers[~big], weights=(gpus * weights)[~big], minlength=size)
        most = np.zeros(size)
        np.maximum.at(most, servers[~big], weights[~big])
        asked = np.bincount(servers, weights=gpus, minlength=size)
        spread = np.bincount(servers, weights=gpus * weights, minlength=size)
        load = np.where(asked <= self.gpus, spread / self.width, gangs + np.maximum(small / self.width, most))
        beside = big & (gpus < self.gpus[servers])
        return load, sorted({*self._touched, *servers[beside].tolist()})

    def fits(self, shape: Shape) -> NDArray[np.bool_]:
        found = self._fits.get(shape)
        if found is None:
            found = (shape.per_node <= self.gpus) & (shape.memory_bytes <= self.memory) & self.accepts
            self._fits[shape] = found
        return found

    def load(self) -> NDArray[np.float64]:
        return np.round(self.tickets / self.width, DIGITS)

    def revalue(self, user: UserName, per_gpu: float) -> None:
        """The user's tickets per GPU here are others than before."""
        change = per_gpu - self.per_gpu.get(user, 0.0)
        self.per_gpu[user] = per_gpu
        mine = self.users.get(user)
        if change and mine:
            at = np.fromiter(mine.keys(), dtype=np.int64, count=len(mine))
            self.tickets[at] += change * np.fromiter(mine.values(), dtype=np.int64, count=len(mine))

    def put(self, user: UserName, at: int, gpus: int) -> None:
        """GPUs asked for on a server; negative: no longer."""
        self._touched.add(at)
        mine = self.users.setdefault(user, {})
        mine[at] = mine.get(at, 0) + gpus
        if not mine[at]:
            del mine[at]
        self.tickets[at] += gpus * self.per_gpu.get(user, 0.0)
        self.asked[at] += gpus

    def best(self, job: JobFacts, per_gpu: float) -> Home:
        """The servers with least load once the job is there; ties: the fullest that still fits, then by name."""
        fits = self.fits(shape_of(job))
        tickets = self.tickets
        mine, change = self.users.get(job.user), per_gpu - self.per_gpu.get(job.user, 0.0)
        if change and mine:
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
            some = some[np.lexsort((some, np.abs(left), left < 0, load[some]))]
        return tuple(self.names[at] for at in some[: job.nodes])


class Board:
    """All pools, while jobs are placed and moved."""

    def __init__(
        self,
        world: World,
        entitled: Mapping[At, Fraction],
        levels: dict[str, Level],
        factors: Mapping[At, Fraction],
    ) -> None:
        self.world = world
        self.entitled = {at: float(gpus) for at, gpus in entitled.items()}
        self._levels = levels
        self._factors = {at: float(factor) for at, factor in factors.items()}
        self.pools = {model: Pool(world, model) for model in world.models}
        for user, model in world.gpus:
            self.pools[model].per_gpu[user] = self.per_gpu(user, model)
        self._fill()

    def _fill(self) -> None:
        # In the order of jobs' ids, whatever the order of the snapshot: floats do not add up the same otherwise.
        homes, effective = self.world.homes, self.world.effective
        where: dict[str, _Lists] = {model: _Lists([], [], [], []) for model in self.pools}
        strays: list[tuple[UserName, HostName, int]] = []  # parts in another pool than their job's first
        for (user, _, model), jobs in self.world.kinds.items():
            pool, rows = self.pools[model], where[model]
            index, mine = pool.index, pool.users.setdefault(user, {})
            before = len(rows.servers)
            for job in jobs:
                count = job.per_node if job.nodes > 1 else job.gang
                for name in effective.get(job.id) or homes[job.id]:
                    at = index.get(name)
                    if at is None:
                        strays.append((user, name, count))
                        continue
                    mine[at] = mine.get(at, 0) + count
                    rows.servers.append(at)
                    rows.gpus.append(count)
            rows.of.extend([len(rows.users)] * (len(rows.servers) - before))
            rows.users.append(user)
        for model, rows in where.items():
            self.pools[model].fill(*rows)
        for user, name, count in strays:
            self._lay(user, name, count)

    def loads(self) -> dict[HostName, float]:
        return {
            name: float(load)
            for pool in self.pools.values()
            for name, load in zip(pool.names, pool.load(), strict=True)
        }

    def per_gpu(self, user: UserName, model: str, more: int = 0) -> float:
        """Tickets per GPU of the user there, at most 1 but for what it lacks, with so many more GPUs asked for."""
        at = (user, model)
        gpus = self.world.gpus.get(at, 0) + more
        return min(1.0, self.entitled.get(at, 0.0) / gpus) * self._factors.get(at, 1.0) if gpus > 0 else 0.0

    def part(self, user: UserName, model: str, more: int = 0) -> float:
        """Of the time that the user's jobs there can expect to run, with so many more GPUs asked for."""
        return self._levels[model].part(user, more)

    def find(self, job: JobFacts, model: str, *, comes: bool = True) -> Home:
        """The best home for it in the pool; `comes`: it is not in the pool yet."""
        return self.pools[model].best(job, self.per_gpu(job.user, model, job.gang if comes else 0))

    def add(self, job: JobFacts, home: Home) -> None:
        self.world.settle(job, home)
        self._put(job, home, 1)

    def remove(self, job: JobFacts, home: Home) -> None:
        self.world.unsettle(job, home)
        self._put(job, home, -1)

    def _put(self, job: JobFacts, home: Home, sign: int) -> None:
        model = self.world.model(home)
        pool = self.pools[model]
        pool.revalue(job.user, self.per_gpu(job.user, model))
        self._levels[model].ask(job.user, sign * job.gang)
        for name in home:
            self._lay(job.user, name, sign * job.per_node)

    def _lay(self, user: UserName, name: HostName, gpus: int) -> None:
        pool = self.pools[self.world.hosts[name].model]
        pool.put(user, pool.index[name], gpus)


def find_levels(world: World, shares: Mapping[At, Fraction]) -> dict[str, Level]:
    entitled: dict[str, dict[UserName, float]] = {model: {} for model in world.models}
    asked: dict[str, dict[UserName, int]] = {model: {} for model in world.models}
    for (user, model), share in shares.items():
        entitled[model][user] = float(share)
    for (user, model), gpus in world.gpus.items():
        asked[model][user] = gpus
    return {model: Level(gpus, entitled[model], asked[model]) for model, gpus in world.pools}
