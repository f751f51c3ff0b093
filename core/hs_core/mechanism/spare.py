"""Idle GPUs of another model for jobs that wait (Gandiva_fair, 3.3, 3.5).

What a move to another pool is worth (`mechanism.worth`) goes by GPUs in all, as if a pool could be divided at will. Jobs are whole, and live somewhere: on
one server gangs that do not fit together take turns, while on those of another model GPUs idle in each other's turns, or all the time. Neither is seen in
the sum, so jobs waited beside idle GPUs: one of four GPUs in 249 of 250 quanta, beside a gang on all servers of its pool in which its user had no
share. So what a job gets where it is and what idles elsewhere is played ahead (`mechanism.played`), and it goes where it comes to more of its mini-batches.

It goes for what nobody there uses, and has more than that only as far as its user has a share of those GPUs; where it was others have more. Nor does it
go to and fro: it gains each time, and once it has a process its user's sum does not take it back to where it would have less (`Spare.worse_off`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hs_core.mechanism.floor import Shape, shape_of
from hs_core.mechanism.placing import Home
from hs_core.mechanism.played import Played, played
from hs_core.mechanism.time_load import weighed
from hs_core.mechanism.world import At
from hs_core.model import Migrate, MoveReason
from hs_core.names import HostName, JobId, UserName
from hs_core.policy import JobFacts
from hs_core.words import listed

if TYPE_CHECKING:
    from hs_core.mechanism.evening import Cost
    from hs_core.mechanism.moves import Mover

SLACK = 1e-9
SLOW = 0.5  # of its rate, what an older model is taken to give before anybody knows: in table 1 K80s give a sixth to four fifths of V100s

_Alike = tuple[Home, UserName, str, Shape]


class _Fill(NamedTuple):
    less: float  # GPUs' worth of the class's slowest model, negative: that the job gains
    cost: "Cost"
    to: Home
    job: JobFacts
    text: str


class Spare:
    """Of a decision, while jobs move."""

    def __init__(self, mover: "Mover") -> None:
        self._mover, self._board, self._world = mover, mover.board, mover.world
        self._speeds, self._limits = mover.speeds, mover.limits
        self._weights: dict[At, float] = {}  # tickets per GPU, as long as no job of the user moves

    def fill(self) -> None:
        """Round by round, in each the moves that gain most first, and of each server one: what it is like then is looked at in the next."""
        mover = self._mover
        while len(self._world.models) > 1 and (fills := sorted(self._fills())):
            touched: set[HostName] = set()
            for best in fills:
                there = {*best.to, *self._world.homes[best.job.id]}
                if mover.spent:
                    return
                if touched.isdisjoint(there) and self._may_go(best.job):
                    touched |= there
                    mover.move(best.job, best.to, MoveReason.POOL, best.text)
                    self.forget(best.job.user)
            if not touched:
                return

    def forget(self, user: UserName) -> None:
        """A job of that user has moved."""
        for model in self._world.models:
            self._weights.pop((user, model), None)

    def worse_off(self, job: JobFacts, source: str, target: str) -> bool:
        """In the other pool it can expect less than it gets on its own servers, whatever its user's share of theirs is."""
        one, other = self._speeds.get(job.job_class, source), self._speeds.get(job.job_class, target)
        if one is None or other is None:
            return False
        then = other * self._board.part(job.user, target, job.gang)
        return then < one * self._part(job) * (1 - SLACK)

    # --- what is played ---------------------------------------------------------------------------------------------

    def _part(self, job: JobFacts) -> float:
        """Of the time that it runs where it lives: as long as on the server where it runs least."""
        return min([self._part_on(job, name) for name in self._world.homes[job.id]])

    def _part_on(self, job: JobFacts, name: HostName) -> float:
        ids: list[JobId] = [other.id for other in self._there(name)]
        return self._played(name).parts[ids.index(job.id)] if job.id in ids else 0.0

    def _played(self, name: HostName) -> Played:
        host, there = self._world.hosts[name], self._there(name)
        users = {job.user for job in there}
        return played(host.gpus, weighed(there, {user: self._weight((user, host.model)) for user in users}))

    def _weight(self, at: At) -> float:
        weight = self._weights.get(at)
        if weight is None:
            weight = self._weights[at] = _coarse(self._board.due(*at))
        return weight

    def _there(self, name: HostName) -> list[JobFacts]:
        here, parts = self._world.at.get(name), self._world.parts.get(name)
        return [*(here.jobs if here is not None else ()), *(parts.jobs if parts is not None else ())]

    # --- who could go where -----------------------------------------------------------------------------------------

    def _fills(self) -> Iterator[_Fill]:
        sources = [model for model in self._world.models if self._board.crowded(model)]
        idle = (
            {model: turns for model in self._world.models if (turns := self._idle(model))} if sources else {}
        )
        for source in sources:
            if idle.keys() - {source}:
                for jobs in self._alike(source):
                    yield from self._of(jobs, source, idle)

    def _idle(self, model: str) -> Mapping[HostName, Played]:
        """Servers on which GPUs idle; of very many those with the most that nobody asks for."""
        pool = self._board.pool(model)
        room, accepts = (pool.gpus - pool.asked).tolist(), pool.accepts.tolist()
        some = [at for at, takes in enumerate(accepts) if takes]
        if len(some) > self._limits.servers_seen:
            some = [at for at in some if room[at] > 0]
            some = sorted(some, key=lambda at: (-room[at], at))[: self._limits.servers_tried]
        turns = {pool.names[at]: self._played(pool.names[at]) for at in some}
        return {name: turn for name, turn in turns.items() if turn.idle(1) > 0}

    def _alike(self, model: str) -> list[list[JobFacts]]:
        """Jobs of crowded servers, together those for which everything is the same; of very many servers those on which most is asked for."""
        pool = self._board.pool(model)
        over = (pool.asked - pool.gpus).tolist()
        crowded = [at for at, more in enumerate(over) if more > 0]
        if len(crowded) > self._limits.servers_seen:
            crowded = sorted(crowded, key=lambda at: (-over[at], at))[: self._limits.servers_tried]
        found: dict[_Alike, dict[JobId, JobFacts]] = {}
        for at in crowded:
            for job in self._there(pool.names[at]):
                home = self._world.where(job)
                found.setdefault((home, job.user, job.job_class, shape_of(job)), {})[job.id] = job
        return [list(jobs.values()) for jobs in found.values()]

    def _of(
        self, jobs: Sequence[JobFacts], source: str, idle: Mapping[str, Mapping[HostName, Played]]
    ) -> Iterator[_Fill]:
        """Of one of these, which are alike, to each other model."""
        one = jobs[0]
        now: float | None = None
        for target in self._world.usable(one):
            to, then = self._room(one, target, idle.get(target, {})) if target != source else ((), 0.0)
            if not to:
                continue
            now = self._part(one) if now is None else now
            here, there = self._rates(one, source, target, certain=then >= 1.0)
            if there * then <= (1.0 + self._limits.spare_gain) * here * now + SLACK:
                continue
            goes = min(filter(self._may_go, jobs), key=self._mover.cost_of, default=None)
            if goes is not None:
                gain = round((there * then - here * now) * one.gang, 9)
                text = f"where it is it runs in {now:.0%} of the quanta, and GPUs of {listed(to)} that it can have idle in {then:.0%}"
                yield _Fill(-gain, self._mover.cost_of(goes), to, goes, text)

    def _may_go(self, job: JobFacts) -> bool:
        return not (job.started and job.migrate is not Migrate.AUTO) and self._mover.may_go(job)

    def _room(self, job: JobFacts, model: str, turns: Mapping[HostName, Played]) -> tuple[Home, float]:
        """Servers of that model where it would run most, those with the least room first, and for how much of the time. A gang over several servers only where nobody asks for the GPUs: what idles on one of them now and then does not when it does on another."""
        fits = [host.name for host in self._world.floor.fitting(job, model) if host.name in turns]
        order = sorted([(-turns[name].idle(job.per_node), len(turns[name].free), name) for name in fits])
        some = order[: job.nodes]
        if len(some) < job.nodes or some[-1][0] >= 0.0 or (job.nodes > 1 and some[-1][0] > -1.0):
            return (), 0.0
        return tuple([name for _, _, name in some]), -some[-1][0]

    def _rates(self, job: JobFacts, source: str, target: str, *, certain: bool) -> tuple[float, float]:
        """Where its class was not measured it goes only to run all the time, and as one of its kind (as `Worth` has it); what is older may be slow."""
        here, there = self._speeds.get(job.job_class, source), self._speeds.get(job.job_class, target)
        if here is not None and there is not None:
            return here, there
        scouted = here is not None and self._world.kind_gpus.get((job.user, job.job_class, target), 0) > 0
        models = self._world.models
        hoped = 1.0 if models.index(target) < models.index(source) else SLOW
        return 1.0, hoped if certain and not scouted else 0.0


def _coarse(weight: float) -> float:
    """To two digits: who comes and goes changes what is due to everybody a little, and no turns worth playing again."""
    return float(f"{weight:.1e}")
