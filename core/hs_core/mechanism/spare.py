"""Idle GPUs of another model for jobs that wait (Gandiva_fair, 3.3, 3.5).

What a move to another pool is worth (`mechanism.worth`) goes by GPUs in all, as if a pool could be divided at will. Jobs are whole, and live somewhere: on
one server gangs that do not fit together take turns, while on those of another model GPUs idle in each other's turns, or all the time. Neither is seen in
the sum, so jobs waited beside idle GPUs: one of four GPUs in 249 of 250 quanta, beside a gang on all servers of its pool in which its user had no
share. So what a job gets where it is and what idles elsewhere is played ahead (`mechanism.played`), and it goes where it comes to more of its mini-batches.

It goes for what nobody there uses, and has more than that only as far as its user has a share of those GPUs; where it was others have more. Nor does it
go to and fro: it gains each time, and once it has a process its user's sum does not take it back to where it would have less (`Spare.worse_off`).
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import sub
from typing import NamedTuple

from hs_core.mechanism.changes import Cost
from hs_core.mechanism.floor import Shape, shape_of
from hs_core.mechanism.loads import Board
from hs_core.mechanism.mover import Mover
from hs_core.mechanism.placing import Home
from hs_core.mechanism.played import Played, played
from hs_core.model import Migrate, MoveReason
from hs_core.names import HostName, JobId, UserName
from hs_core.policy import JobFacts
from hs_core.words import listed

SLACK = 1e-9
SLOW = 0.5  # of its rate, what an older model is taken to give before anybody knows: in table 1 K80s give a sixth to four fifths of V100s

_Alike = tuple[Home, UserName, str, Shape]


class _Fill(NamedTuple):
    less: float  # GPUs' worth of the class's slowest model, negative: that the job gains
    cost: Cost
    to: Home
    job: JobFacts
    text: str


class Spare:
    """Of a decision, while jobs move."""

    def __init__(self, mover: Mover) -> None:
        self._mover, self._board, self._world = mover, mover.board, mover.world
        self._speeds, self._limits = mover.speeds, mover.limits
        self._weights = {model: _Weights(mover.board, model) for model in self._world.models}
        # As long as nobody moves:
        self._turns: dict[HostName, Played] = {}
        self._parts: dict[HostName, dict[JobId, float]] = {}
        self._idle: dict[str, Mapping[HostName, Played]] = {}

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
        for weights in self._weights.values():
            weights.pop(user, None)
        for known in (self._turns, self._parts, self._idle):
            known.clear()

    def worse_off(self, job: JobFacts, source: str, target: str) -> bool:
        """In the other pool it can expect less than it gets on its own servers, whatever its user's share of theirs is."""
        one, other = self._speeds.get(job.job_class, source), self._speeds.get(job.job_class, target)
        if one is None or other is None:
            return False
        then = other * self._board.part(job.user, target, job.gang)
        # Most could not be, however long they run here, which takes longer to find.
        return then < one * (1 - SLACK) and then < one * self.part(job) * (1 - SLACK)

    # --- what is played ---------------------------------------------------------------------------------------------

    def part(self, job: JobFacts) -> float:
        """Of the time that it runs where it lives: as long as on the server where it runs least."""
        return min([self._part_on(job, name) for name in self._world.homes[job.id]])

    def _part_on(self, job: JobFacts, name: HostName) -> float:
        parts = self._parts.get(name)
        if parts is None:
            ids = [other.id for other in self._there(name)]
            parts = self._parts[name] = dict(zip(ids, self._played(name).parts, strict=True))
        return parts.get(job.id, 0.0)

    def _played(self, name: HostName) -> Played:
        found = self._turns.get(name)
        if found is None:
            host = self._world.hosts[name]
            weights = self._weights[host.model]
            jobs = tuple([(job.per_node, weights[job.user]) for job in self._there(name)])
            found = self._turns[name] = played(host.gpus, jobs)
        return found

    def _there(self, name: HostName) -> list[JobFacts]:
        here, parts = self._world.at.get(name), self._world.parts.get(name)
        return [*(here.jobs if here is not None else ()), *(parts.jobs if parts is not None else ())]

    # --- who could go where -----------------------------------------------------------------------------------------

    def _fills(self) -> Iterator[_Fill]:
        for source in self._world.models:
            for jobs in self._alike(source):
                yield from self._of(jobs, source)

    def _idle_in(self, model: str) -> Mapping[HostName, Played]:
        """Servers on which GPUs idle; of very many those with the most that nobody asks for."""
        found = self._idle.get(model)
        if found is None:
            there = self._world.floor.servers[model]
            room = list(map(sub, there.gpus.tolist(), self._world.asked_in(model)))
            some = [at for at, takes in enumerate(there.accepts.tolist()) if takes]
            if len(some) > self._limits.servers_seen:
                some = [at for at in some if room[at] > 0]
                some = sorted(some, key=lambda at: (-room[at], at))[: self._limits.servers_tried]
            turns = [
                (name, played(room[at], ()) if room[at] >= 0 else self._played(name))
                for at, name in zip(some, map(there.names.__getitem__, some), strict=True)
            ]
            found = self._idle[model] = {name: turn for name, turn in turns if turn.idle(1) > 0}
        return found

    def _alike(self, model: str) -> list[list[JobFacts]]:
        """Jobs of crowded servers, together those for which everything is the same; of very many servers those on which most is asked for."""
        there = self._world.floor.servers[model]
        over = list(map(sub, self._world.asked_in(model), there.gpus.tolist()))
        crowded = [at for at, more in enumerate(over) if more > 0]
        if len(crowded) > self._limits.servers_seen:
            crowded = sorted(crowded, key=lambda at: (-over[at], at))[: self._limits.servers_tried]
        found: dict[_Alike, dict[JobId, JobFacts]] = {}
        for at in crowded:
            for job in self._there(there.names[at]):
                home = self._world.where(job)
                found.setdefault((home, job.user, job.job_class, shape_of(job)), {})[job.id] = job
        return [list(jobs.values()) for jobs in found.values()]

    def _of(self, jobs: Sequence[JobFacts], source: str) -> Iterator[_Fill]:
        """Of one of these, which are alike, to each other model."""
        one = jobs[0]
        now: float | None = None
        for target in self._world.usable(one):
            if target == source:
                continue
            here, there, least = self._rates(one, source, target)
            now = self.part(one) if now is None else now
            enough = (1.0 + self._limits.spare_gain) * here * now + SLACK
            # Most would gain too little if they ran all the time, which is sooner known than where there is room.
            if there <= enough:
                continue
            to, then = self._room(one, target)
            if not to or then < least or there * then <= enough:
                continue
            goes = min(filter(self._may_go, jobs), key=self._mover.cost_of, default=None)
            if goes is not None:
                gain = round((there * then - here * now) * one.gang, 9)
                text = f"where it is it runs in {now:.0%} of the quanta, and GPUs of {listed(to)} that it can have idle in {then:.0%}"
                yield _Fill(-gain, self._mover.cost_of(goes), to, goes, text)

    def _may_go(self, job: JobFacts) -> bool:
        return not (job.started and job.migrate is not Migrate.AUTO) and self._mover.may_go(job)

    def _room(self, job: JobFacts, model: str) -> tuple[Home, float]:
        """Servers of that model where it would run most, those with the least room first, and for how much of the time. A gang over several servers only where nobody asks for the GPUs: what idles on one of them now and then does not when it does on another."""
        turns = self._idle_in(model)
        if len(turns) < job.nodes:
            return (), 0.0
        fits = self._world.floor.names_fitting(job, model)
        order = sorted(
            [(-turn.idle(job.per_node), len(turn.free), name) for name, turn in turns.items() if name in fits]
        )
        some = order[: job.nodes]
        if len(some) < job.nodes or some[-1][0] >= 0.0 or (job.nodes > 1 and some[-1][0] > -1.0):
            return (), 0.0
        return tuple([name for _, _, name in some]), -some[-1][0]

    def _rates(self, job: JobFacts, source: str, target: str) -> tuple[float, float, float]:
        """Here, there, and the least part of the time that it has to run there: where its class was not measured it goes only to run all of it, and as one of its kind (as `Worth` has it); what is older may be slow."""
        here, there = self._speeds.get(job.job_class, source), self._speeds.get(job.job_class, target)
        if here is not None and there is not None:
            return here, there, 0.0
        scouted = here is not None and self._world.kind_gpus.get((job.user, job.job_class, target), 0) > 0
        models = self._world.models
        hoped = 1.0 if models.index(target) < models.index(source) else SLOW
        return 1.0, 0.0 if scouted else hoped, 1.0


class _Weights(dict[UserName, float]):
    """What is due to users on a model's GPUs, per GPU that they ask for; to two digits: who comes and goes changes it for everybody a little, and no turns worth playing again."""

    def __init__(self, board: Board, model: str) -> None:
        super().__init__()
        self._board, self._model = board, model

    def __missing__(self, user: UserName) -> float:
        weight = self[user] = float(f"{self._board.due(user, self._model):.1e}")
        return weight
