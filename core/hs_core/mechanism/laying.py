"""The servers of those whom a round's line has come to so far: found for all of them together, then for one after the other beside these."""

from collections.abc import Iterable

from hs_core.mechanism.floor import Shape, floor, shape_of
from hs_core.mechanism.placing import Home
from hs_core.mechanism.precedence import Precedence
from hs_core.mechanism.promises import Promises
from hs_core.mechanism.seating import Seating
from hs_core.mechanism.slots import Slots
from hs_core.names import JobId
from hs_core.policy import JobFacts, Snapshot


class Laying:
    def __init__(
        self,
        snapshot: Snapshot,
        slots: Slots,
        promises: Promises,
        *,
        seating: Seating,
        precedence: Precedence,
    ) -> None:
        """`slots`: as they are before anything is handed out."""
        self._floor = floor(snapshot.hosts)
        self._before = slots
        self.slots = slots
        self._promises = promises
        self._seating = seating
        self._precedence = precedence
        self.seated = set[JobId]()
        self._full: set[tuple[str, Shape, Home]] = set()  # jobs like these find none any more

    def lay(self, chosen: Iterable[tuple[JobFacts, str]]) -> frozenset[JobId]:
        """These and nobody else are promised GPUs, and given servers, the largest first: who of them found some. May be said again: then it is begun anew."""
        promises = self._promises
        self.slots, promises.moves_left = self._before.copy(), self._before.moves_left
        self._full.clear()
        for job, model in [*promises.chosen.values()]:
            promises.take_back(job, model)
        for job, model in chosen:
            promises.make(job, model, self.slots)
        self.seated = self._precedence.hand_out(self.slots, promises.chosen, {})
        for job, model in [entry for job_id, entry in promises.chosen.items() if job_id not in self.seated]:
            promises.take_back(job, model)
        return frozenset(self.seated)

    def add(self, job: JobFacts, model: str) -> bool:
        """Beside those that have been given servers; False if none of the pool has room left for it as these stand."""
        home = self.slots.home(job)
        is_free = self.slots.ways(job, (model,)) and all(name in self._floor.calm for name in home)
        like = model, shape_of(job), () if is_free else home
        moves_left = self._promises.moves_left
        if like in self._full or not self._promises.make(job, model, self.slots):
            return False
        if self._seating.seat(self.slots, job, (model,), {}):
            self.seated.add(job.id)
            return True
        self._full.add(like)
        self._promises.take_back(job, model)
        self._promises.moves_left = moves_left
        return False
