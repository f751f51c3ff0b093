"""Rounds between two allocations of time, without a decision: the same allocation is made true further, by what units have received since.

Everything that a decision looks up about who could run where stays as it was found; only homes, what was received and who has ended are kept up.
The policy is asked again when a new allocation is due, and where anything is less plain than that: a job that cannot be
suspended or moved, one on its way, a budget of moves that might not suffice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hs_core import dice
from hs_core.mechanism.floor import Floor
from hs_core.mechanism.gang_turns import GangTurns
from hs_core.mechanism.later import Later
from hs_core.mechanism.placing import Home, runs_at
from hs_core.mechanism.rounds import Books, Round, Staleness, pick, with_received
from hs_core.mechanism.rows import Rows
from hs_core.mechanism.weights import Weights, weigh_parts
from hs_core.model import Migrate
from hs_core.names import JobId
from hs_core.policy import Had, JobFacts, JobsNow, Memory, Onward

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def is_plain(jobs: Sequence[JobFacts], floor: Floor) -> bool:
    """Nothing but a round's choice decides where these are from round to round."""
    if floor.away or floor.drained:
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
class Decided:
    """A round as the policy has decided it."""

    table: Rows
    floor: Floor
    models: Mapping[JobId, Sequence[str]]  # on which each could run, the fastest first
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

    def __init__(self, decided: Decided, memory: Memory) -> None:
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

    def __init__(self, decided: Decided, chosen: Sequence[Any]) -> None:
        self._decided = decided
        table, floor = decided.table, decided.floor
        self._jobs = jobs = table.jobs
        self._ids: Ints = np.array([job.id for job in jobs], dtype=np.int64)
        self._place = {job.id: at for at, job in enumerate(jobs)}
        self._here = np.ones(len(jobs), dtype=np.bool_)
        self._job_of = [
            self._place.get(JobId(unit[0]), -1) for unit in decided.books.units
        ]  # -1: it has ended
        self._of: Ints = np.array(self._job_of, dtype=np.int64)
        self._gang: Ints = np.where(self._of >= 0, table.gang[self._of], 1)  # of units
        self._able = decided.able
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
        self._models = [[on[model] for model in decided.models[job.id]] for job in jobs]
        homes = [decided.homes.get(job.id, ()) for job in jobs]
        self._home = [tuple([self._row[name] for name in home]) for home in homes]
        self._names: dict[tuple[int, ...], Home] = {}
        self._fitting: dict[tuple[int, int], list[int]] = {}
        self._weights: Weights | None = None

    def play(self, quantum: int, jobs: JobsNow) -> Onward | None:
        """The next round; None, and all is as it was, where it takes a decision."""
        here, gone = self._here, [self._place[job] for job in jobs.gone if job in self._place]
        if gone:
            here = here.copy()
            here[gone] = False
        running = jobs.running(self._ids) & here
        if not running.any() or jobs.migrations_left < len(self._ids):
            return None
        if gone:
            self._here, self._weights = here, None
            self._able = self._able & here[self._of][:, None]
        attained = jobs.attained_gpu_s(self._ids)
        self._books = self._receive(attained)
        self._attained = attained
        decided = self._decided
        types = None
        if decided.shuffled:
            types = list(range(len(decided.table.models)))
            dice.roll(decided.seed, quantum).shuffle(types)
        self._round = pick(
            self._books, self._gang, self._able, decided.table.gpus, types=types, skip_zero=decided.skip_zero
        )
        return self._hand_out(running.tolist())

    def _receive(self, attained: Floats) -> Books:
        """What those of the round that is over have had of it; who has ended says no more."""
        units, on = np.array([self._round.unit, self._round.on], dtype=np.int64)
        ran = self._of[units]
        seconds = np.maximum(0.0, (attained[ran] - self._attained[ran]) / self._gang[units])
        received = self._books.received_s.copy()
        received[units, on] += np.where(self._here[ran], seconds, 0.0)
        return with_received(self._books, received)

    def dump(self) -> dict[str, Any]:
        """What the policy would remember of it."""
        attained = self._attained.tolist()
        ran = [(self._job_of[unit], on) for unit, on in zip(self._round.unit, self._round.on, strict=True)]
        chosen = [[[self._jobs[job].id], on, [attained[job]]] for job, on in ran]
        return {"books": self._books.dump(), "chosen": sorted(chosen)}

    # --- GPUs (as `seats` hands them out) ---------------------------------------------------------------------------

    def _hand_out(self, running: Sequence[bool]) -> Onward:
        chosen = [(self._job_of[unit], on) for unit, on in zip(self._round.unit, self._round.on, strict=True)]
        claims, free = [0] * len(self._hosts), self._gpus.copy()
        line = []
        for job, on in chosen:
            home = self._home[job]
            stays = bool(home) and self._on[home[0]] == on
            if stays:
                for server in home:
                    claims[server] += self._per_node[job]
            line.append((self._size[job], not (stays and running[job]), not stays, job, on))
        line.sort()
        found: dict[int, tuple[int, ...]] = {}
        for _, _, leaves, job, on in line:
            home, gpus = self._home[job], self._per_node[job]
            if not leaves:
                for server in home:
                    claims[server] -= gpus
            there = home if not leaves and self._has_room(home, gpus, free) else ()
            there = there or self._least_disturbing(job, on, claims, free)
            if there:
                self._take(job, there, free, found)
        for job, _ in chosen if len(found) < len(chosen) else ():
            if job not in found and (there := self._anywhere(job, free)):
                self._take(job, there, free, found)
        return self._onward(found)

    def _has_room(self, home: tuple[int, ...], gpus: int, free: Sequence[int]) -> bool:
        if len(home) == 1:
            return free[home[0]] >= gpus
        return all(free[server] >= gpus for server in home)

    def _take(
        self, job: int, home: tuple[int, ...], free: list[int], found: dict[int, tuple[int, ...]]
    ) -> None:
        for server in home:
            free[server] -= self._per_node[job]
        found[job] = home

    def _anywhere(self, job: int, free: Sequence[int]) -> tuple[int, ...]:
        """For one that was promised GPUs which did not fit together: at home, or on the fastest that has room."""
        home = self._home[job]
        if (
            home
            and self._on[home[0]] in self._models[job]
            and self._has_room(home, self._per_node[job], free)
        ):
            return home
        nobody = [0] * len(self._hosts)
        return next(
            (there for on in self._models[job] if (there := self._least_disturbing(job, on, nobody, free))),
            (),
        )

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
        fitting = self._decided.floor.fitting(self._jobs[job], self._decided.table.models[on])
        able = self._fitting[job, on] = [self._row[host.name] for host in fitting]
        return able

    def _onward(self, found: Mapping[int, tuple[int, ...]]) -> Onward:
        jobs = self._jobs
        gangs: list[tuple[int, JobId, Home]] = []
        homes: dict[JobId, Home] = {}
        for job, home in found.items():
            named, before = self._named(home), self._home[job]
            gangs.append((min(home), jobs[job].id, named))
            if home != before:
                homes[jobs[job].id] = named
                self._home[job] = home
                if not before or self._on[home[0]] != self._on[before[0]]:
                    self._weights = None
        gangs.sort()
        turns = GangTurns([(job_id, named) for _, job_id, named in gangs], whole=self._hosts)
        weights = self._weigh()
        return Onward(
            turns=turns, tickets=Later(lambda: weights.tickets), homes=homes, entitled=weights.entitled
        )

    def _named(self, home: tuple[int, ...]) -> Home:
        found = self._names.get(home)
        if found is None:
            found = self._names[home] = tuple([self._hosts[server] for server in home])
        return found

    def _weigh(self) -> Weights:
        if self._weights is None:
            parts = []
            for job, home in compress(zip(self._jobs, self._home, strict=True), self._here):
                if home:
                    model = self._decided.table.models[self._on[home[0]]]
                    parts.append((job.id, job.user, model, job.gang))
            snapshot = self._decided.table.snapshot
            self._weights = weigh_parts(self._decided.floor.pools, parts, snapshot.tickets)
        return self._weights
