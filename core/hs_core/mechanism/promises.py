"""GPUs of a round, promised pool by pool: who runs on which GPU model. On which servers is found afterwards."""

from collections import Counter
from collections.abc import Iterable

from hs_core.mechanism.choices import Choices
from hs_core.mechanism.floor import floor
from hs_core.mechanism.placing import Home, takes_new
from hs_core.mechanism.precedence import Chosen
from hs_core.mechanism.slots import Slots
from hs_core.names import HostName, JobId
from hs_core.policy import JobFacts, Snapshot


class Promises:
    """A promise counts GPUs on drained servers too, as many as those ask for who are there: only they can have them."""

    def __init__(self, snapshot: Snapshot, slots: Slots, choices: Choices) -> None:
        there = floor(snapshot.hosts)
        self._hosts = there.hosts
        self._choices = choices
        self._free = dict.fromkeys(there.models, 0)
        stays = _asked_where_closed(snapshot, slots)
        for name, host in there.hosts.items():
            if host.connected:
                free = slots.free(name)
                self._free[host.model] += free if takes_new(host) else min(free, stays[name])
        self._chosen: dict[JobId, tuple[JobFacts, str]] = {}
        self._served = set[JobId]()  # chosen in an order that holds from pool to pool
        self.moves_left = slots.moves_left

    @property
    def chosen(self) -> Chosen:
        return self._chosen

    def free(self, model: str) -> int:
        """GPUs of the pool that are promised to nobody yet."""
        return self._free[model]

    def make(self, job: JobFacts, model: str, slots: Slots) -> bool:
        """Promise the job its gang of that pool; False if too few are left or it can't go there."""
        if (
            job.id in self._chosen
            or self._free[model] < job.gang
            or model not in self._choices.of(job, slots)
        ):
            return False
        if job.started and slots.model_of(job) != model and not slots.should_leave(job):
            if self.moves_left <= 0:
                return False
            self.moves_left -= 1
        self._free[model] -= job.gang
        self._chosen[job.id] = (job, model)
        return True

    def serve(self, order: Iterable[JobFacts], slots: Slots) -> None:
        """Each its fastest pool with room, in that order, as long as there is any."""
        for job in order:
            if self._most() <= 0:
                return
            self.make_any(job, slots)

    def make_any(self, job: JobFacts, slots: Slots) -> bool:
        """Of its fastest pool with room; False if it fits nowhere."""
        if not self._may_find_some(job, slots) or not any(
            self.make(job, model, slots) for model in self._choices.of(job, slots)
        ):
            return False
        self._served.add(job.id)
        return True

    def _may_find_some(self, job: JobFacts, slots: Slots) -> bool:
        """As far as numbers of GPUs tell: of a thousand jobs that wait most need no other look."""
        if self.moves_left <= 0 and job.started and not slots.should_leave(job):
            return self._free.get(slots.model_of(job), 0) >= job.gang
        return self._most() >= job.gang

    def _most(self) -> int:
        """GPUs of the pool that has most of those that are promised to nobody yet."""
        return max(self._free.values(), default=0)

    def take_back(self, job: JobFacts, model: str) -> None:
        del self._chosen[job.id]
        self._free[model] += job.gang

    def give(self, home: Home, per_node: int) -> None:
        """These have been handed out already, so many on each server."""
        for name in home:  # of several models, where another policy gave it these
            self._free[self._hosts[name].model] -= per_node

    def able(self, job: JobFacts, model: str, slots: Slots) -> tuple[str, ...]:
        """Where it comes before who was chosen later: on what it was promised, and if all were served in turn, on all others."""
        return (model, *self._choices.of(job, slots)) if job.id in self._served else (model,)


def _asked_where_closed(snapshot: Snapshot, slots: Slots) -> Counter[HostName]:
    """GPUs that those ask for who live on servers that take no new jobs: nobody else can have any there."""
    asked = Counter[HostName]()
    for job in snapshot.jobs if floor(snapshot.hosts).closed else ():
        if not slots.runs(job):
            for name in slots.home(job):
                asked[name] += job.per_node
    return asked
