"""Rounds between two allocations of time, without a decision: the same allocation is made true further, by what units have received since.

Everything that a decision looks up about who could run where stays as it was found; only homes, what was received and who has ended are kept up.
The policy is asked again when a new allocation is due, and where anything is less plain than that: a job that cannot be
suspended or moved, one on its way, a budget of moves that might not suffice, a round whose jobs do not fit together on servers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hs_core import dice
from hs_core.mechanism.floor import Floor, Shape, shape_of
from hs_core.mechanism.gang_turns import GangTurns
from hs_core.mechanism.later import Later
from hs_core.mechanism.placing import Home, runs_at
from hs_core.mechanism.rounds import Books, Line, Round, Staleness, with_received
from hs_core.mechanism.rows import Rows
from hs_core.mechanism.weights import entitle_in, tickets_of
from hs_core.model import Migrate
from hs_core.names import JobId, UserName
from hs_core.policy import Had, JobFacts, JobsNow, Memory, Onward
from hs_core.shares import Entitled

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NOWHERE = -1


def is_plain(jobs: Sequence[JobFacts], floor: Floor) -> bool:
    """Nothing but a round's choice decides where these are from round to round."""
    if floor.closed:
        return False
    return all(
        job.sliceable
        and job.migrate is Migrate.AUTO
        and not job.dataset
        and (not job.hosts or (job.movable and runs_at(job, job.hosts, floor.hosts)))
        and (job.hosts or not job.started)
        for job in jobs
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedRound:
    """A round as the policy has decided it."""

    table: Rows
    floor: Floor
    homes: Mapping[JobId, Home]  # as planned
    books: Books  # a unit each job
    able: Bools  # U x T
    round: Round
    staleness: Staleness
    changed: bool  # jobs have come or gone since the allocation
    shuffled: bool
    skip_zero: bool
    seed: int


class NextRounds:
    """Of one decision. `memory`: what that decision remembered."""

    turnover = True

    def __init__(self, decided: DecidedRound, memory: Memory) -> None:
        self._decided = decided
        self._memory = memory
        self._changed = decided.changed
        self._rounds: _Rounds | None = None  # once one has passed

    def edge(self, quantum: int, now_s: float, had: Had) -> Onward | None:
        decided, jobs = self._decided, had.jobs
        if jobs is None or jobs.on_their_way:
            return None
        changed = self._changed or jobs.came or bool(jobs.gone)
        if decided.staleness.due(decided.books, now_s, changed=changed):
            return None
        if self._rounds is None:
            self._rounds = _Rounds(decided, self._memory["chosen"])
        onward = self._rounds.play(quantum, jobs)
        if onward is not None:
            self._changed = changed
        return onward

    def memory(self) -> Memory:
        return self._memory if self._rounds is None else {**self._memory, **self._rounds.dump()}


class _Rounds:
    """What is kept up from round to round. Jobs are known by their places in the table, which are by arrival; servers by theirs by name."""

    def __init__(self, decided: DecidedRound, chosen: Sequence[Any]) -> None:
        self._decided = decided
        table, floor = decided.table, decided.floor
        self._jobs = jobs = table.jobs
        self._ids: Ints = np.array([job.id for job in jobs], dtype=np.int64)
        self._place = {job.id: at for at, job in enumerate(jobs)}
        self._here = np.ones(len(jobs), dtype=np.bool_)
        self._left = False  # some of them have ended
        self._job_of = [
            self._place.get(JobId(unit[0]), -1) for unit in decided.books.units
        ]  # -1: it has ended
        self._of: Ints = np.array(self._job_of, dtype=np.int64)
        self._unit_of = {job: unit for unit, job in enumerate(self._job_of)}
        self._gang: Ints = np.where(self._of >= 0, table.gang[self._of], 1)  # of units
        self._line = Line(decided.books, self._gang, decided.able, table.gpus, skip_zero=decided.skip_zero)
        self._books = decided.books
        self._round = decided.round
        then: dict[int, float] = {
            job: gpu_s for unit, _, each in chosen for job, gpu_s in zip(unit, each, strict=True)
        }
        self._attained: Floats = np.array([then.get(job.id, 0.0) for job in jobs])  # when the round began
        self._per_node = [job.per_node for job in jobs]
        sizes = sorted({(-job.per_node, -job.gang) for job in jobs})
        rank = {size: at for at, size in enumerate(sizes)}
        self._size = [rank[-job.per_node, -job.gang] for job in jobs]  # the largest first
        self._hosts = list(floor.hosts)
        self._row = {name: at for at, name in enumerate(self._hosts)}
        self._gpus = [host.gpus for host in floor.hosts.values()]
        on = {model: at for at, model in enumerate(table.models)}
        self._on = [on[host.model] for host in floor.hosts.values()]
        homes = [decided.homes.get(job.id, ()) for job in jobs]
        self._home = [tuple([self._row[name] for name in home]) for home in homes]
        self._lives_on = [self._on[home[0]] if home else NOWHERE for home in self._home]
        self._names: dict[tuple[int, ...], Home] = {}
        self._at_home: dict[int, int] | None = None  # who runs on what, if all do so at home
        self._turns = GangTurns(())  # of these
        self._said: dict[int, tuple[int, JobId, tuple[JobId, Home]]] = {}
        self._fitting: dict[tuple[int, int], list[int]] = {}
        self._alike: dict[tuple[Shape, int], list[int]] = {}  # the same, by what decides it
        self._pools = floor.pools(lambda _: 0)  # all take new jobs
        self._shares: list[Entitled | None] = [None] * len(table.models)  # None: somebody has come or gone
        self._entitled: Entitled | None = None

    def play(self, quantum: int, jobs: JobsNow) -> Onward | None:
        """The next round; None, and what is remembered is as it was, where it takes a decision."""
        here, gone = self._here, [self._place[job] for job in jobs.gone if job in self._place]
        if gone:
            here = here.copy()
            here[gone] = False
        running = (jobs.running(self._ids) & here).tolist()
        if True not in running or jobs.migrations_left < len(self._ids):
            return None
        if gone:
            self._here, self._left = here, True
            self._line.leave([self._unit_of[job] for job in gone if job in self._unit_of])
            for job in gone:
                self._live(job, NOWHERE)
        attained = jobs.attained_gpu_s(self._ids)
        books = self._receive(attained)
        decided = self._decided
        types = None
        if decided.shuffled:
            types = list(range(len(decided.table.models)))
            dice.roll(decided.seed, quantum).shuffle(types)
        found = self._line.pick(books, types)
        onward = self._hand_out(found, running)
        if onward is not None:
            self._books, self._attained, self._round = books, attained, found
        return onward

    def _receive(self, attained: Floats) -> Books:
        """What those of the round that is over have had of it; who has ended says no more."""
        units, on = np.array(self._round.unit, dtype=np.int64), np.array(self._round.on, dtype=np.int64)
        ran = self._of[units]
        seconds = np.maximum(0.0, (attained[ran] - self._attained[ran]) / self._gang[units])
        if self._left:
            seconds = np.where(self._here[ran], seconds, 0.0)
        received = self._books.received_s.copy()
        received.reshape(-1)[units * received.shape[1] + on] += seconds
        return with_received(self._books, received)

    def dump(self) -> dict[str, Any]:
        """What the policy would remember of it."""
        attained = self._attained.tolist()
        ran = [(self._job_of[unit], on) for unit, on in zip(self._round.unit, self._round.on, strict=True)]
        chosen = [[[self._jobs[job].id], on, [attained[job]]] for job, on in ran]
        return {"books": self._books.dump(), "chosen": sorted(chosen)}

    # --- GPUs (as `seats` hands them out) ---------------------------------------------------------------------------

    def _hand_out(self, picked: Round, running: Sequence[bool]) -> Onward | None:
        """The largest first; of equal ones those who run at home, then who could, then by arrival. None: they do not fit together."""
        chosen = {self._job_of[unit]: on for unit, on in zip(picked.unit, picked.on, strict=True)}
        if chosen == self._at_home:
            return self._onward(None)
        claims, free = [0] * len(self._hosts), self._gpus.copy()
        lives_on, homes, per_node, sizes = self._lives_on, self._home, self._per_node, self._size
        line, count = [], len(homes)
        for job, on in chosen.items():
            stays = lives_on[job] == on
            if stays:
                for server in homes[job]:
                    claims[server] += per_node[job]
            moves_on = not (stays and running[job])
            line.append(((sizes[job] * 2 + moves_on) * 2 + (not stays)) * count + job)
        line.sort()
        found: dict[int, tuple[int, ...]] = {}
        for rank in line:
            job = rank % count
            on, home, gpus = chosen[job], homes[job], per_node[job]
            there: tuple[int, ...] = ()
            if lives_on[job] == on:
                for server in home:
                    claims[server] -= gpus
                there = home if self._has_room(home, gpus, free) else ()
            there = there or self._least_disturbing(job, on, claims, free)
            if not there:
                return None
            for server in there:
                free[server] -= per_node[job]
            found[job] = there
        onward = self._onward(found)
        self._at_home = chosen if all(lives_on[job] == on for job, on in chosen.items()) else None
        return onward

    def _has_room(self, home: tuple[int, ...], gpus: int, free: Sequence[int]) -> bool:
        if len(home) == 1:
            return free[home[0]] >= gpus
        return all(free[server] >= gpus for server in home)

    def _least_disturbing(
        self, job: int, on: int, claims: Sequence[int], free: Sequence[int]
    ) -> tuple[int, ...]:
        gpus, nodes = self._per_node[job], self._jobs[job].nodes
        found = []
        able = self._fitting.get((job, on))
        for server in self._fits(job, on) if able is None else able:
            left = free[server] - gpus
            if left >= 0:
                found.append((max(0, claims[server] - left), left, server))
        if len(found) < nodes:
            return ()
        if nodes == 1:
            return (min(found)[-1],)
        found.sort()
        return tuple([server for _, _, server in found[:nodes]])

    def _fits(self, job: int, on: int) -> list[int]:
        like = (shape_of(self._jobs[job]), on)
        able = self._alike.get(like)
        if able is None:
            fitting = self._decided.floor.fitting(self._jobs[job], self._decided.table.models[on])
            able = self._alike[like] = [self._row[host.name] for host in fitting]
        self._fitting[job, on] = able
        return able

    def _onward(self, found: Mapping[int, tuple[int, ...]] | None) -> Onward:
        """`found`: who runs where; None: as in the round before."""
        homes = self._rehome(found) if found is not None else {}
        entitled = self._entitle()
        on = self._lives_on.copy()
        tickets = Later(lambda: tickets_of(self._parts(on), entitled))
        return Onward(turns=self._turns, tickets=tickets, homes=homes, entitled=entitled)

    def _rehome(self, found: Mapping[int, tuple[int, ...]]) -> dict[JobId, Home]:
        """Whose home becomes another."""
        homes: dict[JobId, Home] = {}
        for job, home in found.items():
            if home != self._home[job]:
                self._home[job] = home
                self._live(job, self._on[home[0]])
                self._said.pop(job, None)
                homes[self._jobs[job].id] = self._named(home)
        said = self._said
        gangs = sorted([said[job] if job in said else self._say(job) for job in found])
        self._turns = GangTurns([gang for _, _, gang in gangs], whole=self._hosts)
        return homes

    def _live(self, job: int, on: int) -> None:
        """On that model from now on."""
        before = self._lives_on[job]
        if before == on:
            return
        self._lives_on[job], self._entitled = on, None
        for pool in (before, on):
            if pool != NOWHERE:
                self._shares[pool] = None

    def _say(self, job: int) -> tuple[int, JobId, tuple[JobId, Home]]:
        """Of its gang, in the order of turns."""
        home, job_id = self._home[job], self._jobs[job].id
        said = self._said[job] = min(home), job_id, (job_id, self._named(home))
        return said

    def _named(self, home: tuple[int, ...]) -> Home:
        found = self._names.get(home)
        if found is None:
            found = self._names[home] = tuple([self._hosts[server] for server in home])
        return found

    def _entitle(self) -> Entitled:
        """Only pools to which somebody has come, or from which somebody has gone, are looked at."""
        if self._entitled is None:
            tickets = self._decided.table.snapshot.tickets
            entitled: dict[tuple[UserName, str], Fraction] = {}
            for on, (model, gpus) in enumerate(self._pools):
                shares = self._shares[on]
                if shares is None:
                    shares = self._shares[on] = entitle_in(model, gpus, self._wanted(on), tickets)
                entitled.update(shares)
            self._entitled = entitled
        return self._entitled

    def _wanted(self, on: int) -> dict[UserName, int]:
        """GPUs that each user's jobs ask for there."""
        wanted: dict[UserName, int] = {}
        for job, lives_on in zip(self._jobs, self._lives_on, strict=True):
            if lives_on == on:
                wanted[job.user] = wanted.get(job.user, 0) + job.gang
        return wanted

    def _parts(self, lives_on: Sequence[int]) -> list[tuple[JobId, UserName, str, int]]:
        models = self._decided.table.models
        return [
            (job.id, job.user, models[on], job.gang)
            for job, on in zip(self._jobs, lives_on, strict=True)
            if on != NOWHERE
        ]
