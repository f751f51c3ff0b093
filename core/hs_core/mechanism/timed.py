"""The servers of a pool as those see them who even out loads (`mechanism.evening`): how long the jobs of each need it, who could leave it, and what a change saves.

What was found of a server is kept until somebody comes or goes there.
"""

from collections.abc import Sequence

from hs_core.mechanism.band import Band
from hs_core.mechanism.changes import Change
from hs_core.mechanism.floor import Shape, shape_of
from hs_core.mechanism.lasting import Lasting
from hs_core.mechanism.loads import Pool
from hs_core.mechanism.mover import Mover
from hs_core.mechanism.squares import Squares, Step
from hs_core.mechanism.time_load import Least, Weighed, time_load, weighed
from hs_core.names import UserName
from hs_core.policy import JobFacts


class Timed:
    def __init__(self, mover: Mover, pool: Pool, mean: float) -> None:
        """`mean`: time that the pool's jobs need, over its GPUs."""
        self.mover, self.pool, self.mean, self.limits = mover, pool, mean, mover.limits
        self.gangs_shared = any(name in pool.index for name in mover.world.parts)
        self.in_squares = Squares(mover.world, pool, pool.per_gpu, mean)
        self.accepts: list[bool] = pool.accepts.tolist()
        self.gpus: list[int] = pool.gpus.tolist()
        self._lasting: Lasting | None = None  # until somebody asks
        self._fits: dict[Shape, list[bool]] = {}
        # By server, until somebody comes or goes there: its jobs and its parts of gangs. What jobs weigh stays, as none changes its pool.
        self._weighed: dict[int, tuple[Weighed, Weighed]] = {}
        self._with: dict[
            int, dict[Weighed, float]
        ] = {}  # by server and by what may come: jobs of one kind are as good as one another
        self._least_of: dict[int, Least] = {}
        self._kinds: dict[int, list[JobFacts]] = {}
        self._lighter: dict[int, list[JobFacts]] = {}
        self._width: list[int] = pool.width.tolist()
        self._load = self._times()
        self._least = min(self._load)

    def moved(self, touched: Sequence[int]) -> None:
        """Jobs have come to these servers or left them."""
        self.in_squares.moved(touched)
        if self._lasting is not None:
            self._lasting.moved(touched)
        for at in touched:
            for known in (self._weighed, self._with, self._least_of, self._kinds, self._lighter):
                known.pop(at, None)
            self._load[at] = self._time_of(at)
        self._least = min(self._load)

    # --- who is there -----------------------------------------------------------------------------------------------

    def band(self, at: int) -> Band:
        """Jobs of one node that live there."""
        return self.mover.world.at[self.pool.names[at]]

    def jobs(self, at: int) -> list[JobFacts]:
        return self.band(at).jobs

    def parts(self, at: int) -> Sequence[JobFacts]:
        """Of gangs over several servers."""
        found = self.mover.world.parts.get(self.pool.names[at])
        return () if found is None else found.jobs

    def weigh(self, at: int) -> Weighed:
        """Its jobs of one node, in the order of `jobs`."""
        return self._there(at)[0]

    def _there(self, at: int) -> tuple[Weighed, Weighed]:
        found = self._weighed.get(at)
        if found is None:
            weigh = self.pool.per_gpu
            found = self._weighed[at] = weighed(self.jobs(at), weigh), weighed(self.parts(at), weigh)
        return found

    def one(self, job: JobFacts) -> Weighed:
        """One node's part of it."""
        return weighed((job,), self.pool.per_gpu)

    # --- for how long -----------------------------------------------------------------------------------------------

    def _times(self) -> list[float]:
        """`time_of` all servers; one by one only where jobs come and went, or fit beside a gang."""
        loads, odd = self.pool.time_loads()
        load: list[float] = loads.tolist()
        for at in odd:
            load[at] = self._time_of(at)
        return load

    def load(self, at: int) -> float:
        return self._load[at]

    def loads(self) -> list[float]:
        """By server."""
        return [*self._load]

    def width(self, at: int) -> int:
        return self._width[at]

    def time_of(self, at: int, jobs: Weighed) -> float:
        """Of the server with those jobs of one node on it."""
        return time_load(self.gpus[at], jobs + self._there(at)[1])

    def time_with(self, at: int, one: Weighed) -> float:
        """Of the server with one job more."""
        known = self._with.setdefault(at, {})
        found = known.get(one)
        if found is None:
            here, parts = self._there(at)
            found = known[one] = time_load(self.gpus[at], here + one + parts)
        return found

    def with_one(self, at: int) -> dict[Weighed, float]:
        """What is known of `time_with` there."""
        return self._with.setdefault(at, {})

    def least_with(self, at: int, one: Weighed) -> float:
        """`time_with` is no less, which takes longer to find."""
        found = self._least_of.get(at)
        if found is None:
            here, parts = self._there(at)
            found = self._least_of[at] = Least(self.gpus[at], here + parts)
        ((width, weight),) = one
        return found.beside(width, weight)

    def _time_of(self, at: int) -> float:
        here, parts = self._there(at)
        return time_load(self.gpus[at], here + parts)

    def load_without(self, at: int, job: JobFacts) -> float:
        """Of the server without that job, or its part there."""
        if job.nodes > 1:
            return self.time_without(at, job)
        return self.time_of(at, without(self.weigh(at), self.jobs(at), job))

    def time_without(self, at: int, gang: JobFacts) -> float:
        """Of the server without its part of a gang."""
        rest = without(self._there(at)[1], self.parts(at), gang)
        return time_load(self.gpus[at], self.weigh(at) + rest)

    def squares(self, at: int, load: float) -> float:
        """More than before, with that load: of the mean one's."""
        return (load**2 - self._load[at] ** 2) * self._width[at] / self.mean**2

    # --- who could leave, and where to ------------------------------------------------------------------------------

    def urgent(self, at: int) -> bool:
        """So unequal that its jobs need not stay for long."""
        return self.load(at) - self._least > self.limits.urgent_gap * self.mean

    def one_of_each(self, at: int) -> list[JobFacts]:
        """One of each kind that could go, the cheapest."""
        if at not in self._kinds:
            found: dict[tuple[int, UserName], JobFacts] = {}
            jobs, urgent = self.jobs(at), self.urgent(at)
            cost_of, may_go = self.mover.cost_of, self.mover.may_go
            for job in jobs if self.mover.moves_started else [job for job in jobs if not job.started]:
                key = (job.gang, job.user)
                if (key not in found or cost_of(job) < cost_of(found[key])) and may_go(job, urgent=urgent):
                    found[key] = job
            self._kinds[at] = list(found.values())
        return self._kinds[at]

    def movable(self, at: int) -> list[JobFacts]:
        """Of those that could go: a small job that should run all the time is the last, for a move costs it most, and elsewhere it is in the way as much."""
        if at not in self._lighter:
            found, weight, gpus = self.one_of_each(at), self.pool.per_gpu, self.gpus[at]
            lighter = [job for job in found if 2 * job.gang > gpus or weight.get(job.user, 0.0) < 1.0]
            spared = any(2 * job.gang <= gpus for job in lighter)
            self._lighter[at] = lighter if spared else found
        return self._lighter[at]

    def spared(self, at: int) -> list[JobFacts]:
        """Of those that could go the ones that are not `movable`."""
        found, lighter = self.one_of_each(at), self.movable(at)
        seen = {job.id for job in lighter}
        return [job for job in found if job.id not in seen]

    def fits(self, job: JobFacts) -> list[bool]:
        """On which servers."""
        shape = shape_of(job)
        found = self._fits.get(shape)
        if found is None:
            found = self._fits[shape] = self.pool.fits(shape).tolist()
        return found

    def may(self, job: JobFacts, target: int) -> bool:
        return self.accepts[target] and self.fits(job)[target] and self.mover.may_go(job)

    # --- what a change saves ----------------------------------------------------------------------------------------

    @property
    def _lasts(self) -> Lasting:
        if self._lasting is None:
            self._lasting = Lasting(self.mover.board, self.pool)
        return self._lasting

    def least(self, tickets: float) -> float:
        """Squares that a move of so many tickets has to save."""
        return max(self.limits.gain_gpus, 2.0 * self.limits.load_gap * tickets / self.mean)

    def least_for(self, changes: Sequence[Change]) -> float:
        """Squares that all of these have to save."""
        return self.least(sum([one.job.gang * self.pool.per_gpu.get(one.job.user, 0.0) for one in changes]))

    def holds(self, squares: float, least: float, steps: Sequence[Step]) -> bool:
        """What is saved server by server is `least` or more also where these share gangs, and is not lost again once nobody lacks anything any more."""
        if self.gangs_shared and round(self.in_squares.waited(steps), 9) > -least:
            return False
        return self._lasts.allows(steps, -squares, gangs_shared=self.gangs_shared)

    def saves_for_good(self, steps: Sequence[Step], least: float) -> bool:
        """Those that share gangs wait less by so many squares also once nobody lacks anything."""
        return self._lasts.saved(steps) >= least

    def lasts(self, changes: Sequence[Change]) -> bool:
        """They save what they have to also once nobody lacks anything."""
        return self._lasts.lasts([change.step for change in changes], self.least_for(changes))

    def harmless(self, steps: Sequence[Step]) -> bool:
        """No server on which somebody waits, and none with which it shares gangs, is fuller by it, now or later."""
        return round(self.in_squares.waited(steps), 9) <= 0.0 and self._lasts.harmless(steps)


def without(weighed: Weighed, jobs: Sequence[JobFacts], job: JobFacts) -> Weighed:
    """`weighed`: of those jobs, of which it is one."""
    at = [other.id for other in jobs].index(job.id)
    return weighed[:at] + weighed[at + 1 :]
