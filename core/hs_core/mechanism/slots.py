"""The GPUs of one quantum, handed out job by job: what policies that decide every turn themselves are made of.

Who is leaving its home for another has its GPUs there, and nobody else gets them: what was decided about it is not decided again before it has come.
"""

from collections.abc import Container, Iterable, Mapping
from copy import copy
from dataclasses import replace
from functools import lru_cache

from hs_core.forms import Form, Spread, in_strategy
from hs_core.mechanism.floor import floor
from hs_core.mechanism.later import Later
from hs_core.mechanism.obstacles import Nowhere, Obstacles
from hs_core.mechanism.placing import (
    Home,
    best_fit,
    by_arrival,
    is_lost,
    room_needed,
    runs_at,
    settled_homes,
)
from hs_core.mechanism.weights import weigh
from hs_core.model import Migrate, MoveReason
from hs_core.names import HostName, JobId
from hs_core.policy import HostFacts, JobFacts, Memory, Plan, Snapshot, Verdict
from hs_core.strategy import Strategy
from hs_core.wanted import Guest, Turn

NEXT_ROUND = "it waits for the next round: in this one "


class Slots:
    """Homes and turns while they are being made. A home, once given, stays, but for servers that are drained."""

    def __init__(self, snapshot: Snapshot, guests: Container[JobId] = ()) -> None:
        """`guests`: jobs that share GPUs, which are not taken for themselves though they cannot be suspended."""
        self._snapshot = snapshot
        self._floor = floor(snapshot.hosts)
        self._hosts = self._floor.hosts
        self._homes = settled_homes(snapshot)
        self._free = {name: host.gpus for name, host in self._hosts.items()}
        self._most_left: int | None = None  # None: to be looked for again
        self._gangs: dict[HostName, list[JobId]] = {name: [] for name in self._hosts}
        self._full: set[tuple[object, ...]] = set()  # jobs like these find no room any more
        self.nowhere = Nowhere(snapshot.hosts)
        self._in_turn: set[JobId] = set()
        self._guests: dict[HostName, list[Guest]] = {}
        self._lent: dict[tuple[HostName, JobId], int] = {}
        self._bound: set[tuple[HostName, int]] = set()  # GPUs of who cannot leave them, in its turn
        self._moves: dict[JobId, tuple[MoveReason, str]] = {}
        self._shapes: dict[JobId, Form] = {}
        self._how: dict[JobId, str] = {}
        self._laid: dict[
            JobId, JobFacts
        ] = {}  # those that are laid over other numbers of servers than they ask for
        self._moves_left = snapshot.migrations_left
        self._going: set[JobId] = set()
        self._awaited: set[JobId] = set()  # for whom GPUs are reserved where they are not yet
        running = [job for job in snapshot.jobs if job.id in snapshot.running and job.id not in guests]
        # What cannot be suspended comes first. Nobody can tell a server that is away anything: what ran there goes on.
        out_of_reach = [job for job in running if not self.reachable(job)]
        stuck = [job for job in running if job.started and not job.sliceable]
        for job in [*sorted(out_of_reach, key=by_arrival), *sorted(stuck, key=by_arrival)]:
            self._take(job, self._homes.get(job.id, ()))
        for job in snapshot.jobs:
            if job.going is not None and self.reachable(job):  # else nothing comes of it meanwhile
                self._going.add(job.id)
                held = self._homes.get(job.id, ()) if self.has_turn(job) else ()
                there = tuple(name for name in job.going.hosts if name not in held)
                self.reserve(job, there, job.going.gpus)
        for job in sorted(snapshot.jobs, key=by_arrival) if snapshot.reserved else ():
            if (home := snapshot.reserved.get(job.id)) is not None:
                if job.started and job.hosts != home and not job.movable:
                    self.reserve(job, home)  # it is on its way there
                    continue
                why = f"its class is to be measured on {self._hosts[home[0]].model}"
                self._take(job, home, (MoveReason.PROFILE, why))

    @property
    def moves_left(self) -> int:
        """Of started jobs, that the budget allows beside those that are moved already, for profiling say."""
        return max(0, self._moves_left)

    def copy(self) -> "Slots":
        """As far as it has come; what is handed out from one does not touch the other."""
        made = copy(self)
        own = {name: list(gangs) for name, gangs in self._gangs.items()}
        vars(made).update(
            _homes=dict(self._homes),
            _free=dict(self._free),
            _moves=dict(self._moves),
            _gangs=own,
            _awaited=set(self._awaited),
            _in_turn=set(self._in_turn),
            _full=set(self._full),
            _guests={name: list(guests) for name, guests in self._guests.items()},
            _lent=dict(self._lent),
            _bound=set(self._bound),
            _shapes=dict(self._shapes),
            _how=dict(self._how),
            _laid=dict(self._laid),
        )
        return made

    @property
    def moved(self) -> int:
        """Started jobs that leave their servers."""
        return len(self._moves)

    def moves(self, job: JobFacts) -> bool:
        """It leaves its servers, or is started anew there."""
        return job.id in self._moves

    @property
    def gpus_left(self) -> int:
        return sum(self._free.values())

    def may_find_some(self, job: JobFacts) -> bool:
        """As far as its home tells, where it may not leave that, and the server with most GPUs left: of a thousand jobs that wait most need no other look."""
        if self._most_left is None:
            self._most_left = max(self._free.values(), default=0)
        per_node = job.per_node
        if (1 if job.spreads else per_node) > self._most_left:
            return False
        home = self._homes.get(job.id)
        if home is None or not job.started or self._free[home[0]] >= per_node:
            return True
        if self._moves_left <= 0 and not self._floor.drained:
            return False
        return self._may_move(home) and job.movable and job.migrate is not Migrate.NEVER

    def reachable(self, job: JobFacts) -> bool:
        """Not so if a server of its home is away, or it is held up there: it is neither offered GPUs nor in anybody's way."""
        home = self._homes.get(job.id)
        if home is None:
            return not is_lost(job, self._hosts)
        if job.held_up:
            return False
        return not self._floor.away or all(self._hosts[name].connected for name in home)

    def goes(self, job: JobFacts) -> bool:
        """It is leaving its home, and has its GPUs where it goes."""
        return job.id in self._going

    def runs(self, job: JobFacts) -> bool:
        """It has its GPUs, whatever else is decided."""
        return job.id in self._in_turn or job.id in self._going

    def has_turn(self, job: JobFacts) -> bool:
        """At its home."""
        return job.id in self._in_turn

    def runs_at(self, job: JobId, name: HostName) -> bool:
        """It has its turn, on that server."""
        return job in self._in_turn and name in self._homes[job]

    def has_home(self, job: JobFacts) -> bool:
        return job.id in self._homes

    def waits_for_repair(self, job: JobFacts) -> bool:
        """It has a home with too few GPUs in health."""
        home = self._homes.get(job.id)
        return home is not None and not runs_at(job, home, self._hosts)

    def fits_now(self, job: JobFacts) -> bool:
        return bool(self._where(job))

    def should_leave(self, job: JobFacts) -> bool:
        """A server of its home is drained, and the job can go: that is no matter of the budget."""
        home = self._homes.get(job.id)
        if home is None or not job.movable or self._drained_of(home) is None:
            return False
        return not job.started or job.migrate is not Migrate.NEVER

    def _drained_of(self, home: Home) -> HostName | None:
        """The first of these servers that is to be empty."""
        if not self._floor.drained:
            return None
        return next((name for name in home if not self._hosts[name].accepts), None)

    def _may_move(self, home: Home) -> bool:
        """Whether the budget has a move left for who is started there."""
        return self._moves_left > 0 or self._drained_of(home) is not None

    def _move(self, job: JobFacts, home: Home, to: Home, reason: tuple[MoveReason, str] | None) -> None:
        drained = self._drained_of(home)
        if drained is not None:
            self._moves[job.id] = (MoveReason.DRAIN, f"{drained} is drained; it goes to {', '.join(to)}")
            return
        assert reason is not None, "nothing else moves without a reason"
        self._moves[job.id] = reason
        self._moves_left -= 1

    def offer(self, job: JobFacts) -> bool:
        """Give the job its GPUs for this quantum, at home or wherever it fits best; False if there are none."""
        if self.runs(job):
            return True
        return self._take(job, self._where(job))

    def free(self, name: HostName) -> int:
        """GPUs of a server that are nobody's yet in this quantum."""
        return self._free[name]

    def home(self, job: JobFacts) -> Home:
        return self._homes.get(job.id, ())

    def model_of(self, job: JobFacts) -> str:
        """GPU model of its home; "" if it has none."""
        home = self._homes.get(job.id)
        return self._hosts[home[0]].model if home else ""

    def may_go(self, job: JobFacts, host: HostFacts) -> bool:
        """Whether it could leave its home, if it has one, for that server, as far as the job and the budget allow."""
        return bool(self.ways(job, (host.model,)))

    def may_leave(self, job: JobFacts) -> bool:
        """The same, for another server of the pool in which it lives."""
        home = self._homes.get(job.id)
        return home is None or bool(self._ways_from(home, job, (self._hosts[home[0]].model,)))

    def ways(self, job: JobFacts, models: tuple[str, ...]) -> tuple[str, ...]:
        """Those of these pools for whose servers it could leave its home, if it has one, as far as the job and the budget allow."""
        home = self._homes.get(job.id)
        return models if home is None else self._ways_from(home, job, models)

    def _ways_from(self, home: Home, job: JobFacts, models: tuple[str, ...]) -> tuple[str, ...]:
        if job.movable and not job.started:
            return models
        if not job.movable or job.migrate is Migrate.NEVER or not self._may_move(home):
            return ()
        if job.migrate is not Migrate.SAME_TYPE:
            return models
        there = {self._hosts[name].model for name in home}
        return tuple(model for model in models if {model} == there)

    def pools_for(self, job: JobFacts) -> tuple[str, ...]:
        """Where it could have GPUs in this quantum if it were alone, at home or wherever it may go, newest first; of one that is on its way, from where it goes."""
        if job.going is not None and self.goes(job) and (there := self._hosts.get(job.going.hosts[0])):
            free = job.migrate is Migrate.AUTO
            return self._floor.usable_from(job, there.model) if free else (there.model,)
        home = self._homes.get(job.id)
        if home is None:
            return self._floor.usable(job) if self.reachable(job) else ()
        if not self.reachable(job):
            return ()
        models, here = self._ways_from(home, job, self._floor.usable(job)), self._hosts[home[0]].model
        if here in models or not runs_at(job, home, self._hosts):
            return models
        return tuple(model for model in self._floor.models if model in models or model == here)

    def take(self, job: JobFacts, home: Home, why: str) -> bool:
        """These GPUs and no others; `why` it would leave its home. False if they aren't free."""
        return self._take(job, home, (MoveReason.ROUND, why))

    def start(self, job: JobFacts, model: str, why: str | None = None) -> bool:
        """Give a job GPUs of that model, where they fit it best; False if there are none. `why` a started one leaves its home, if it may."""
        allowed = not job.gpu_types or model in job.gpu_types
        reason = None if why is None else (MoveReason.ROUND, why)
        return allowed and self._take(job, self._fit(job, (model,)), reason)

    def rehome(self, job: JobFacts) -> bool:
        """Where it fits best, whatever home it was given: that costs nobody anything as long as it has no process. False if it has one, or nothing is free."""
        if job.started or not job.movable or not self.reachable(job):
            return False
        return self._take(job, best_fit(job, self._snapshot.hosts, self._free))

    def lends(self, job: JobFacts, name: HostName) -> int:
        """GPUs of a job in its turn there that no other shares yet; none of a guest's."""
        guest = any(guest.job == job.id for guest in self._guests.get(name, ()))
        alone = job.id in self._snapshot.reserved  # what is measured beside another says nothing of its class
        if guest or alone or not self.runs_at(job.id, name):
            return 0
        return job.per_node - self._lent.get((name, job.id), 0)

    def share(
        self, job: JobFacts, beside: Mapping[HostName, Mapping[JobId, int]], why: str | None = None
    ) -> bool:
        """The job's turn, on so many GPUs of each of these jobs, beside them; what it needs more is its own. False if that is not free.

        `beside`: its servers, by node rank; `why`: it would leave its home, if it may.
        """
        home = tuple(beside)
        own = {name: job.per_node - sum(beside[name].values()) for name in home}
        alone = any(partner in self._snapshot.reserved for gpus in beside.values() for partner in gpus)
        if alone or self.runs(job) or any(self._free[name] < own[name] for name in home):
            return False
        old = self._homes.get(job.id, home)
        if job.started and old != home:
            self._move(job, old, home, None if why is None else (MoveReason.ROUND, why))
        self._homes[job.id] = home
        self._in_turn.add(job.id)
        self._most_left = None
        for name, gpus in beside.items():
            self._free[name] -= own[name]
            self._gangs[name].append(job.id)
            for partner, count in gpus.items():
                self._lent[name, partner] = self._lent.get((name, partner), 0) + count
            if gpus:
                guest = Guest(job=job.id, beside=tuple(gpus), gpus=tuple(gpus.values()))
                self._guests.setdefault(name, []).append(guest)
        return True

    def may_restart(self, job: JobFacts) -> bool:
        """Whether a started job could go on from its checkpoint where it is, or leaves for elsewhere anyway."""
        able = job.movable or job.restartable
        return job.id in self._moves or (able and job.migrate is not Migrate.NEVER and self._moves_left > 0)

    def spread(self, job: JobFacts, home: Home, why: str) -> bool:
        """These servers, over which it may be laid; False if its part is not free on each."""
        laid = replace(job, nodes=len(home))
        if not self._take(laid, home):
            return False
        if laid.nodes != job.nodes:
            self._shapes[job.id] = Spread(nodes=laid.nodes)
            self._laid[job.id] = laid
        self._how[job.id] = why
        return True

    def say(self, job: JobFacts, how: str) -> None:
        """How it runs, if it does."""
        self._how[job.id] = how

    def lay(self, job: JobFacts, strategy: Strategy, why: str) -> None:
        """It has that strategy in this round, if it has GPUs; one that would have to be restarted and cannot keeps its own."""
        if strategy != job.strategy:
            if job.started and job.id not in self._moves:
                if not self.may_restart(job):
                    return
                self._moves[job.id] = (MoveReason.SHAPE, why)
                self._moves_left -= 1
            self._shapes[job.id] = in_strategy(self._shapes.get(job.id, job.shape), strategy)
        self._how[job.id] = f"as {strategy.text}: {why}"

    def reserve(self, job: JobFacts, home: Home, gpus: int | None = None) -> None:
        """For one that is on its way there, once: so many on each (None: its part) are nobody else's in this quantum."""
        if job.id in self._awaited:
            return
        self._awaited.add(job.id)
        self._most_left = None
        for name in home:
            if name in self._free:
                self._free[name] = max(0, self._free[name] - (job.per_node if gpus is None else gpus))

    def _where(self, job: JobFacts) -> Home:
        home = self._homes.get(job.id)
        if not self.reachable(job):
            return ()
        if home is None:
            return self._fit(job, job.gpu_types)
        if self.should_leave(job) and (elsewhere := self._elsewhere(job, home)):
            return elsewhere
        return home if self.has_room(job, home) else ()

    def has_room(self, job: JobFacts, home: Home) -> bool:
        """For its turn there, of what nobody has yet."""
        if self.outrun(job, home):
            return False
        if len(home) == 1:
            return self._free[home[0]] >= job.per_node
        return all(self._free[name] >= job.per_node for name in home)

    def outrun(self, job: JobFacts, home: Home) -> bool:
        """At its home it has no GPUs for itself, whatever is free there: its process cannot leave its GPUs, and another that cannot leave them either has its turn on them."""
        return not self._bound.isdisjoint(_bound_to(job, home))

    def _fit(self, job: JobFacts, types: tuple[str, ...]) -> Home:
        """On GPUs of these models; none: of any. Servers never get GPUs back: where one like it found none, it does not either."""
        like = room_needed(job, types)
        if like in self._full:
            return ()
        found = best_fit(replace(job, gpu_types=types), self._snapshot.hosts, self._free)
        if not found:
            self._full.add(like)
        return found

    def _elsewhere(self, job: JobFacts, home: Home) -> Home:
        pinned = job
        if job.started and job.migrate is Migrate.SAME_TYPE:
            if len({self._hosts[name].model for name in home}) > 1:
                return ()
            pinned = replace(job, gpu_types=(self._hosts[home[0]].model,))
        return best_fit(pinned, self._snapshot.hosts, self._free)

    def _take(self, job: JobFacts, home: Home, reason: tuple[MoveReason, str] | None = None) -> bool:
        if not home or self.runs(job) or not self.has_room(job, home):
            return False
        old = self._homes.get(job.id, home)
        if home != old and job.started:
            self._move(job, old, home, reason)
        self._homes[job.id] = home
        per_node = job.per_node
        self._most_left = None
        for name in home:
            self._free[name] -= per_node
            self._gangs[name].append(job.id)
        self._in_turn.add(job.id)
        self._bound.update(_bound_to(job, home))
        return True

    def verdict(
        self,
        memory: Memory,
        why: Mapping[JobId, str],
        *,
        mixed: bool = False,
        spreads: bool = False,
        stays: str = "",
        within_a_round: bool = False,
    ) -> Verdict:
        """`why` is completed for those that cannot run at all, or only elsewhere. `mixed`: servers may be of several models; `spreads`: and as many as jobs let them be.

        `stays`: why nobody who has started was moved, whatever is idle elsewhere; empty: some might have been. `within_a_round`: `why` says what keeps jobs
        from GPUs until its end only.
        """
        asked = self._snapshot
        if self._laid:
            asked = replace(asked, jobs=tuple(self._laid.get(job.id, job) for job in asked.jobs))
        weights = weigh(asked, self._homes)
        turns = {name: self._turn(name, gangs) for name, gangs in self._gangs.items()}
        found = Later(lambda: self._obstacles(mixed=mixed, spreads=spreads).whys(why, stays))
        waits = Later(lambda: {job: text for job, (text, by_policy) in found.items() if by_policy})
        before = NEXT_ROUND if within_a_round else ""
        return Verdict(
            plan=Plan(
                homes=self._homes,
                turns=turns,
                tickets=weights.tickets,
                moves=self._moves,
                shapes=self._shapes,
            ),
            memory=memory,
            why=Later(
                lambda: {
                    job: f"{before}{text}" if by_policy else text for job, (text, by_policy) in found.items()
                }
            ),
            waits=waits,
            within_a_round=within_a_round,
            how={job: text for job, text in self._how.items() if job in self._in_turn},
            entitled=weights.entitled,
        )

    def _obstacles(self, *, mixed: bool, spreads: bool) -> Obstacles:
        return Obstacles(self, self._snapshot, self._free, mixed=mixed, spreads=spreads)

    def _turn(self, name: HostName, gangs: list[JobId]) -> Turn:
        named = tuple(sorted(gangs))
        if name not in self._guests:
            return whole_turn(named)
        guests = sorted(self._guests[name], key=lambda guest: guest.job)
        return Turn(gangs=named, local=False, guests=tuple(guests))


def _bound_to(job: JobFacts, home: Home) -> Iterable[tuple[HostName, int]]:
    """GPUs there that its process cannot leave."""
    if not job.rooted or not job.gpus or home != job.hosts:
        return ()
    return [(name, gpu) for name, gpus in zip(home, job.gpus, strict=True) for gpu in gpus]


@lru_cache(maxsize=4096)
def whole_turn(gangs: tuple[JobId, ...]) -> Turn:
    """On GPUs of their own; on most servers the same from round to round."""
    return Turn(gangs=gangs, local=False)
