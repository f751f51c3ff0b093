"""Who leaves its servers for others (Gandiva_fair, 3.3, 3.5): drains, better pools, idle GPUs beside gangs, unequal loads.

Nothing moves to and fro: a job stays for its cool-down; a move to another pool makes its user's sum of effective rates grow, one within
a pool makes idle GPUs fewer or, with no more of them, loads more equal. In a world that stands still all three come to an end.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from hs_core.mechanism.loads import Board, Pool
from hs_core.mechanism.place import pool_for
from hs_core.mechanism.placing import Home, takes_new
from hs_core.mechanism.rates import Speeds
from hs_core.mechanism.world import At, Kind, shape_of
from hs_core.model import HostName, JobId, Migrate, MoveReason, UserName
from hs_core.policy import JobFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What keeps moves few."""

    started_a_quantum: int = 8  # moves of jobs that have a process; drains besides
    waiting_a_quantum: int = 64  # of jobs that have none: they cost nothing but words
    cool_down_quanta: float = 15.0  # since a job was placed or last moved
    pool_gain: float = 0.1  # of a job's effective rate now, that its user's sum must grow by
    load_gap: float = 0.15  # of the pool's mean load, between two servers
    idle_gpus: float = 0.5  # GPUs that would no longer idle, for a move that packs
    packed_load: float = 1.5  # times the pool's mean: packing makes no server fuller than that
    servers_tried: int = 8  # most and least loaded ones, when a pair is looked for


@dataclass(frozen=True, slots=True)
class Moved:
    job: JobFacts
    to: Home
    reason: MoveReason
    text: str


class Mover:
    def __init__(self, board: Board, speeds: Speeds, limits: Limits) -> None:
        self.board = board
        self.world = board.world
        self.speeds = speeds
        self.limits = limits
        self.done: list[Moved] = []
        self._moved: set[JobId] = set()
        self._budget = self.world.snapshot.migrations_left
        self._started_left = limits.started_a_quantum
        self._waiting_left = limits.waiting_a_quantum

    # --- what all have in common ------------------------------------------------------------------------------------

    def may_go(self, job: JobFacts) -> bool:
        """Without urgency."""
        if not job.movable or job.id in self._moved or job.id in self.world.effective:
            return False
        cool_down_s = self.limits.cool_down_quanta * self.world.snapshot.quantum_s
        if self.world.snapshot.now_s - job.settled_s < cool_down_s:
            return False
        if not job.started:
            return self._waiting_left > 0
        if job.migrate is Migrate.NEVER or not self._connected(job.hosts):
            return False
        return min(self._budget, self._started_left) > 0

    @property
    def spent(self) -> bool:
        return self._waiting_left <= 0 and min(self._budget, self._started_left) <= 0

    def _connected(self, home: Home) -> bool:
        return all(self.world.hosts[name].connected for name in home)

    def move(self, job: JobFacts, to: Home, reason: MoveReason, text: str) -> None:
        old = self.world.homes[job.id]
        if job.id in self.world.unable:
            self.world.unable.discard(job.id)
        else:
            self.board.remove(job, old)
        self.board.add(job, to)
        self.world.homes[job.id] = to
        self._moved.add(job.id)
        if job.started:
            self._budget -= 1
            if reason is not MoveReason.DRAIN:
                self._started_left -= 1
        else:
            self._waiting_left -= 1
        self.done.append(Moved(job, to, reason, text))

    # --- servers that should be empty, or can no longer run the job -------------------------------------------------

    def drain(self) -> None:
        """First, and outside the thresholds."""
        for job in self.world.leavers:
            if job.started and self._budget <= 0:
                return
            to = self._elsewhere(job)
            if to and to != job.hosts:
                leaves = next((name for name in job.hosts if not takes_new(self.world.hosts[name])), None)
                if leaves is not None:
                    text = f"{leaves} is drained; it goes to {', '.join(to)}"
                    self.move(job, to, MoveReason.DRAIN, text)
                elif (job.started and self._started_left > 0) or not job.started:
                    text = f"its server has too few GPUs in health; it goes to {', '.join(to)}"
                    self.move(job, to, MoveReason.BALANCE, text)

    def _elsewhere(self, job: JobFacts) -> Home:
        models = self.world.usable(job)
        own = self.world.model(job.hosts)
        if job.started and job.migrate is Migrate.SAME_TYPE:
            models = (own,) if own in models else ()
        if not models:
            return ()
        model = own if own in models else pool_for(self.board, self.speeds, job, models)
        comes = model != own or job.id in self.world.unable
        return self.board.find(job, model, comes=comes)

    # --- better pools -----------------------------------------------------------------------------------------------

    def change_pools(self) -> None:
        """The largest gain over all (user, class, from, to) first."""
        if len(self.world.pools) < 2 or self.spent:
            return
        worth = _Worth(self.board, self.speeds)
        by_user: dict[UserName, list[tuple[str, str]]] = {}
        for (user, job_class, model), gpus in self.world.kind_gpus.items():
            if gpus > 0:
                by_user.setdefault(user, []).append((job_class, model))
        heap: list[tuple[float, UserName, str, str, str]] = []
        for user in sorted(by_user):
            if worth.content(user):
                continue
            for job_class, source in sorted(by_user[user]):
                heap.extend(self._offers(worth, user, job_class, source))
        heapify(heap)
        while heap and not self.spent:
            _, user, job_class, source, target = heappop(heap)
            job = self._candidate((user, job_class, source), target)
            if job is None:
                continue
            gain = self._gain(worth, job, source, target)
            if gain is None:
                continue
            if heap and -gain > heap[0][0] + 1e-12:  # it was worth more before others moved
                heappush(heap, (-gain, user, job_class, source, target))
                continue
            to = self.board.find(job, target)
            if not to:
                continue
            self.move(job, to, MoveReason.POOL, worth.explain(job, source, target))
            worth.forget(user)
            for offer in self._offers(worth, user, job_class, source):
                heappush(heap, offer)

    def _offers(
        self, worth: "_Worth", user: UserName, job_class: str, source: str
    ) -> Iterator[tuple[float, UserName, str, str, str]]:
        jobs = self.world.kinds.get((user, job_class, source))
        if not jobs:
            return
        for target in worth.targets(user, job_class, source):
            if (gain := self._gain(worth, jobs[0], source, target)) is not None:
                yield -gain, user, job_class, source, target

    def _gain(self, worth: "_Worth", job: JobFacts, source: str, target: str) -> float | None:
        own, gain = worth.gain(job, source, target)
        return gain if gain is not None and gain > self.limits.pool_gain * job.gang * own + 1e-9 else None

    def _candidate(self, kind: Kind, target: str) -> JobFacts | None:
        """Cheapest first: without a process, not in its turn, the newest (the others have been at it longer)."""
        best: JobFacts | None = None
        for job in self.world.kinds.get(kind, ()):
            if not self.may_go(job) or (job.started and job.migrate is not Migrate.AUTO):
                continue
            if target in self.world.usable(job) and (best is None or _cost(job) < _cost(best)):
                best = job
        return best

    # --- within a pool ----------------------------------------------------------------------------------------------

    def pack_and_balance(self) -> None:
        for pool in self.board.pools.values():
            if len(pool.names) < 2 or self.spent:
                continue
            total = int(pool.gpus.sum())
            mean = float(pool.tickets.sum()) / total if total else 0.0
            if mean <= 0:
                continue
            self._repeat(self._pack, pool, mean)
            self._repeat(self._balance, pool, mean)

    def _repeat(self, step: Callable[[Pool, float], bool], pool: Pool, mean: float) -> None:
        for _ in range(self.limits.started_a_quantum + self.limits.waiting_a_quantum):
            if self.spent or not step(pool, mean):
                return

    def _jobs_at(self, name: HostName) -> list[JobFacts]:
        """Jobs of one node that live there."""
        return self.world.at[name]

    def _balance(self, pool: Pool, mean: float) -> bool:
        """One job from a more to a less loaded server, if jobs wait there; whether one moved."""
        load = pool.load()
        order = np.argsort(load, kind="stable")
        low = [int(at) for at in order if pool.accepts[at]][: self.limits.servers_tried]
        high = [int(at) for at in order[::-1] if pool.asked[at] > pool.gpus[at]][: self.limits.servers_tried]
        threshold = self.limits.load_gap * mean
        for source in high:
            jobs = [job for job in self._jobs_at(pool.names[source]) if self.may_go(job)]
            for target in low:
                gap = float(load[source] - load[target])
                if gap <= threshold:
                    break
                job = self._evening(pool, jobs, source, target, threshold)
                if job is not None:
                    text = (
                        f"{pool.names[source]} carries {load[source]:.2f} tickets per GPU and "
                        f"{pool.names[target]} {load[target]:.2f}"
                    )
                    self.move(job, (pool.names[target],), MoveReason.BALANCE, text)
                    return True
        return False

    def _evening(
        self, pool: Pool, jobs: Iterable[JobFacts], source: int, target: int, threshold: float
    ) -> JobFacts | None:
        """The job whose move makes the two most equal."""
        high, low = pool.tickets[source], pool.tickets[target]
        best: tuple[float, tuple[bool, bool, int, float, JobId], JobFacts] | None = None
        for job in jobs:
            if not pool.fits(shape_of(job))[target]:
                continue
            tickets = job.gang * pool.per_gpu.get(job.user, 0.0)
            worst = max((high - tickets) / pool.width[source], (low + tickets) / pool.width[target])
            if worst > high / pool.width[source] - threshold / 2:
                continue
            rank = (round(float(worst), 9), _cost(job), job)
            if (best is None or rank[:2] < best[:2]) and self._waste_change(
                pool, job, source, target
            ) <= 1e-9:
                best = rank
        return best[2] if best else None

    def _pack(self, pool: Pool, mean: float) -> bool:
        """One small job to where GPUs would idle beside a gang, or away from where they do; whether one moved."""
        wasteful = self._wasteful(pool)
        if not wasteful:
            return False
        load = pool.load()
        order = [int(at) for at in np.argsort(load, kind="stable")]
        tried = self.limits.servers_tried
        others = list(
            dict.fromkeys([*(at for _, at in wasteful[: 2 * tried]), *order[:tried], *order[-tried:]])
        )
        best: tuple[float, tuple[bool, bool, int, float, JobId], JobFacts, int] | None = None
        for _, at in wasteful[:tried]:
            for other in others:
                if other == at:
                    continue
                for source, target in ((at, other), (other, at)):
                    for job in self._small(pool, source, target, mean):
                        change = round(self._waste_change(pool, job, source, target), 9)
                        if change < -self.limits.idle_gpus and (
                            best is None or (change, _cost(job), target) < (best[0], best[1], best[3])
                        ):
                            best = (change, _cost(job), job, target)
        if best is None:
            return False
        change, _, job, target = best
        text = f"about {-change:.1f} fewer GPUs idle beside gangs once it is on {pool.names[target]}"
        self.move(job, (pool.names[target],), MoveReason.PACKING, text)
        return True

    def _small(self, pool: Pool, source: int, target: int, mean: float) -> Iterator[JobFacts]:
        """One of each kind that could go from one to the other."""
        if not pool.accepts[target]:
            return
        seen: set[tuple[int, UserName]] = set()
        for job in sorted(self._jobs_at(pool.names[source]), key=_cost):
            if (job.gang, job.user) in seen or 2 * job.gang > pool.gpus[source] or not self.may_go(job):
                continue
            seen.add((job.gang, job.user))
            after = (pool.tickets[target] + job.gang * pool.per_gpu.get(job.user, 0.0)) / pool.width[target]
            fits = pool.fits(shape_of(job))[target]
            if fits and after <= self.limits.packed_load * mean:
                yield job

    def _wasteful(self, pool: Pool) -> list[tuple[float, int]]:
        """(GPUs that idle while jobs wait, server), most first."""
        found = []
        for at in np.flatnonzero(pool.asked > pool.gpus):
            jobs = self._jobs_at(pool.names[at])
            ones = sum(1 for job in jobs if job.gang == 1)
            if ones < pool.gpus[at] and ones < len(jobs) and (idle := self._waste(pool, int(at), jobs)) > 0:
                found.append((idle, int(at)))
        return sorted(found, key=lambda pair: (-pair[0], pair[1]))

    def _waste_change(self, pool: Pool, job: JobFacts, source: int, target: int) -> float:
        there, here = self._jobs_at(pool.names[source]), self._jobs_at(pool.names[target])
        before = self._waste(pool, source, there) + self._waste(pool, target, here)
        left = [other for other in there if other.id != job.id]
        return self._waste(pool, source, left) + self._waste(pool, target, [*here, job]) - before

    def _waste(self, pool: Pool, at: int, jobs: list[JobFacts]) -> float:
        """About how many GPUs of a server idle on average while jobs wait for them.

        Of gangs larger than half of it only one runs at a time; beside it run small ones as far as they fit. Those gangs, and the
        small ones if they do not fit beside them, take turns by their tickets per GPU.
        """
        gpus = int(pool.gpus[at])
        if sum(job.gang for job in jobs) <= gpus:
            return 0.0
        big = [job for job in jobs if 2 * job.gang > gpus]
        small = [job for job in jobs if 2 * job.gang <= gpus]
        fill = sum(job.gang for job in small)
        if fill >= gpus or not big:
            return 0.0 if fill >= gpus else float(gpus - fill)
        turns = [
            (pool.per_gpu.get(job.user, 0.0), max(0, gpus - job.gang - _beside(small, gpus - job.gang)))
            for job in big
        ]
        alone = max((pool.per_gpu.get(job.user, 0.0) for job in small), default=0.0)
        crowded = any(fill > gpus - job.gang for job in big)
        if crowded:
            turns.append((alone, gpus - fill))
        total = sum(weight for weight, _ in turns)
        return sum(weight * idle for weight, idle in turns) / total if total > 0 else 0.0


def _beside(small: Iterable[JobFacts], room: int) -> int:
    """GPUs that small jobs fill of those beside a gang, largest first."""
    filled = 0
    for gang in sorted((job.gang for job in small), reverse=True):
        if filled + gang <= room:
            filled += gang
    return filled


def _cost(job: JobFacts) -> tuple[bool, bool, int, float, JobId]:
    return job.started, job.running, job.gang, -job.arrival_s, job.id


class _Worth:
    """Effective rates: rate[g] · min(1, e[u, g] / demand[u, g]), in units of the class's slowest pool, and what a move adds to their sum.

    Pools on which a class was not measured are as fast as any for it; but of a class that was measured where it is, only one job
    goes where it was not, to find out.
    """

    def __init__(self, board: Board, speeds: Speeds) -> None:
        self._entitled = board.entitled
        self._world = board.world
        self._speeds = speeds
        self._sums: dict[At, float] = {}
        self._parts: dict[At, float] = {}

    def forget(self, user: UserName) -> None:
        """Its jobs live elsewhere now."""
        for model in self._world.models:
            self._sums.pop((user, model), None)
            self._parts.pop((user, model), None)

    def content(self, user: UserName) -> bool:
        """Every job of the user gets all it asks for on the newest pool."""
        newest, *older = self._world.models
        gpus = self._world.gpus
        return self._part(user, newest) >= 1 and not any(gpus.get((user, model), 0) for model in older)

    def targets(self, user: UserName, job_class: str, source: str) -> Iterator[str]:
        """Pools that the user has a share of, and where a job of the class might do no worse: a quick no for most."""
        one = self._speeds.get(job_class, source)
        part = self._part(user, source)
        for target in self._world.models:
            if target == source or self._entitled.get((user, target), 0.0) <= 0:
                continue
            other = self._speeds.get(job_class, target)
            if one is None or other is None:
                scouted = self._world.kind_gpus.get((user, job_class, target), 0) > 0
                if part < 1 and not (one is not None and scouted):
                    yield target
            elif other * self._part(user, target) >= one * part * (1 - 1e-9):
                yield target

    def gain(self, job: JobFacts, source: str, target: str) -> tuple[float, float | None]:
        """(the job's effective rate now, what the user's sum grows by if it moves); None: the job would be worse off."""
        user, gang = job.user, job.gang
        one, other, known = self._pair(job.job_class, source, target)
        before, after = self._part(user, source), self._part_with(user, target, gang)
        if other * after < one * before * (1 - 1e-9) or (not known and after < 1 - 1e-9):
            return one * before, None
        here, there = self._sum(user, source), self._sum(user, target)
        rest = here - gang * (self._speeds.get(job.job_class, source) or 1.0)
        more = there + gang * (self._speeds.get(job.job_class, target) or 1.0)
        was = here * before + there * self._part(user, target)
        will = rest * self._part_with(user, source, -gang) + more * after
        return one * before, will - was

    def explain(self, job: JobFacts, source: str, target: str) -> str:
        """Before the move."""
        one, other, known = self._pair(job.job_class, source, target)
        now, then = one * self._part(job.user, source), other * self._part_with(job.user, target, job.gang)
        if now <= 0:
            return f"{job.user} has no share of the {source} GPUs now, and has one of {target}"
        if not known:
            return f"{job.user} has GPUs of {target} to spare, and its jobs take turns on {source}"
        return (
            f"on {target} it gets {then / now:.2f} times what it gets on {source}, and {job.user} gains by it"
        )

    def _pair(self, job_class: str, source: str, target: str) -> tuple[float, float, bool]:
        one, other = self._speeds.get(job_class, source), self._speeds.get(job_class, target)
        return (1.0, 1.0, False) if one is None or other is None else (one, other, True)

    def _part(self, user: UserName, model: str) -> float:
        at = (user, model)
        found = self._parts.get(at)
        if found is None:
            found = self._parts[at] = self._part_with(user, model, 0)
        return found

    def _part_with(self, user: UserName, model: str, more: int) -> float:
        asked = self._world.gpus.get((user, model), 0) + more
        has = self._entitled.get((user, model), 0.0)
        return has / asked if asked > has else 1.0

    def _sum(self, user: UserName, model: str) -> float:
        """Speeds of the user's jobs there, times their GPUs, as if all ran."""
        at = (user, model)
        found = self._sums.get(at)
        if found is None:
            kinds, speed = self._world.kind_gpus, self._speeds.get
            found = self._sums[at] = sum(
                kinds.get((user, job_class, model), 0) * (speed(job_class, model) or 1.0)
                for job_class in self._world.classes(user)
            )
        return found


def settle_all(board: Board, speeds: Speeds, limits: Limits, *, calm: bool) -> list[Moved]:
    """All moves of one decision; `calm`: only what cannot wait for the next quantum."""
    mover = Mover(board, speeds, limits)
    mover.drain()
    if not calm:
        mover.change_pools()
        mover.pack_and_balance()
    return mover.done
