"""Jobs go to the pool in which their user's sum of effective rates grows by most (Gandiva_fair, 3.5)."""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from typing import Any

from hs_core.mechanism import offers
from hs_core.mechanism.census import Kind
from hs_core.mechanism.mover import Mover
from hs_core.mechanism.spare import Spare
from hs_core.mechanism.worth import SCOUTS, SLACK, Offer, Worth
from hs_core.model import Migrate, MoveReason
from hs_core.names import UserName
from hs_core.newest import Own
from hs_core.policy import JobFacts

FEW_KINDS = 128  # up to so many, it is not worth it to find the offers of all at once
# Those of a world in which nobody has moved yet, and what they go by. Nothing comes of it but time.
_offered = Own[list[tuple[tuple[Any, ...], list[Offer]]]](list)


def change_pools(mover: Mover) -> None:
    """The largest gain over all (user, class, from, to) first."""
    if len(mover.world.models) > 1 and not mover.spent:
        BetterPools(mover).settle()


class BetterPools:
    """Of one decision, in which `mover` makes its moves."""

    def __init__(self, mover: Mover) -> None:
        self.mover = mover
        self.board, self.world, self.speeds, self.limits = (
            mover.board,
            mover.world,
            mover.speeds,
            mover.limits,
        )
        self._worth, self._spare = Worth(mover.board, mover.speeds), Spare(mover)
        self._ready: dict[tuple[Kind, bool], list[JobFacts]] = {}  # by whether jobs with a process may go

    def settle(self) -> None:
        mover, worth = self.mover, self._worth
        heap = self.all_offers()
        heapify(heap)
        while heap and (mover.moves_started or mover.some_wait) and not mover.spent:
            offer = heappop(heap)
            if heap and heap[0] == offer:  # made again since, as others of its kind went elsewhere
                continue
            _, user, job_class, source, target = offer
            able = self._able((user, job_class, source), target)
            if (first := next(able, None)) is None:
                continue
            gain = self._gain(first, source, target)
            if gain is None:
                continue
            if heap and -gain > heap[0][0] + SLACK / 1e3:  # it was worth more before others moved
                heappush(heap, (-gain, user, job_class, source, target))
                continue
            # What it gets where it is takes longer to find: of those that are next alone.
            job = self._not_worse_off(chain([first], able), source, target)
            if job is None or (job.gang != first.gang and self._gain(job, source, target) is None):
                continue
            to = self.board.find(job, target)
            if not to:
                continue
            mover.move(job, to, MoveReason.POOL, worth.explain(job, source, target))
            worth.forget(user)
            self._spare.forget(user)
            for offer in self._offers(user, job_class, source):
                heappush(heap, offer)

    def all_offers(self) -> list[Offer]:
        """Found anew only where something that they go by is another than when they were found last."""
        world, mover = self.world, self.mover
        if world.new or mover.done:  # jobs have found homes, or others, in this decision
            return self._find_offers()
        goes_by: tuple[Any, ...] = (
            *(world.floor, self.speeds, self.limits.pool_gain, self.limits.fairer, mover.held),
            *(self.board.entitled, world.gpus, world.kind_gpus),
            {kind: band.first.gang for kind, band in world.kinds.items() if band},
        )
        offered = _offered()
        if not offered or offered[0][0] != goes_by:
            # Copies of what the world has: that is about to change.
            kept = (*goes_by[:5], *map(dict, goes_by[5:]))
            offered[:] = [(kept, self._find_offers())]
        return list(offered[0][1])

    def _find_offers(self) -> list[Offer]:
        if len(self.world.kind_gpus) > FEW_KINDS:
            return offers.find(self.board, self.speeds, self.limits.pool_gain, self.limits.fairer)
        return list(self._one_by_one())

    def _one_by_one(self) -> Iterator[Offer]:
        by_user: dict[UserName, list[tuple[str, str]]] = {}
        for (user, job_class, model), gpus in self.world.kind_gpus.items():
            if gpus > 0:
                by_user.setdefault(user, []).append((job_class, model))
        for user in sorted(by_user):
            if self._worth.content(user):
                continue
            for job_class, source in sorted(by_user[user]):
                yield from self._offers(user, job_class, source)

    def _offers(self, user: UserName, job_class: str, source: str) -> Iterator[Offer]:
        jobs = self.world.kinds.get((user, job_class, source))
        if not jobs:
            return
        for target in self._worth.targets(user, job_class, source):
            if (gain := self._gain(jobs.first, source, target)) is not None:
                yield -gain, user, job_class, source, target

    def _gain(self, job: JobFacts, source: str, target: str) -> float | None:
        """What the user's sum grows by, if that is worth a move. One that only the job gains by, much, comes after all others."""
        if self.mover.held and self.speeds.measured(job.job_class, (source, target)):
            return None
        now, then, gain = self._worth.gain(job, source, target)
        if gain > self.limits.pool_gain * job.gang * now + SLACK:
            return gain
        if gain > -SLACK and then > self.limits.fairer * now + SLACK:
            return SLACK * (then - now)
        return SCOUTS if self._worth.scouts(job, source, target) else None

    def _able(self, kind: Kind, target: str) -> Iterator[JobFacts]:
        """Of those that could go there the cheapest, of which only so many are looked at closely."""
        usable, may_go = self.world.usable, self.mover.may_go
        able = (job for job in self._who_could(kind) if target in usable(job) and may_go(job))
        return islice(able, self.limits.servers_tried)

    def _not_worse_off(self, jobs: Iterable[JobFacts], source: str, target: str) -> JobFacts | None:
        """The first without a process, or that is not worse off by it."""
        for job in jobs:
            if not (job.started and self._spare.worse_off(job, source, target)):
                return job
        return None

    def _who_could(self, kind: Kind) -> list[JobFacts]:
        """Go to another pool, cheapest first. Found once: those of a kind that may go become fewer as jobs move, never more."""
        mover = self.mover
        key = kind, mover.moves_started
        ready = self._ready.get(key)
        if ready is None:
            kin = self.world.kinds.get(kind)
            jobs = () if kin is None else kin.jobs if mover.moves_started else kin.waiting
            ready = [
                job
                for job in jobs
                if mover.may_go(job) and not (job.started and job.migrate is not Migrate.AUTO)
            ]
            ready.sort(key=mover.cost_of)
            self._ready[key] = ready
        return ready
