"""Tesserae's second step on a round that is handed out (3.2, Algorithm 4): who waits joins who was placed, on its GPUs, where both together get more done.

Which kinds of jobs join which is a matching of largest weight (`tesserae.pack`); within a kind pairs that are together stay together, then
those that live on one server meet. Who cannot leave its home is matched with those there; where the budget of moves does not last for all,
those that are left over are matched again.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from hs_core.mechanism.placing import Home, fits, takes_new
from hs_core.mechanism.sharing import UNMEASURED
from hs_core.mechanism.slots import Slots
from hs_core.mechanism.tesserae.pack import Side, pack
from hs_core.mechanism.tesserae.strategies import Choice, Pair, best_pair
from hs_core.names import HostName, JobId
from hs_core.policy import HostFacts, JobFacts, Snapshot


@dataclass(frozen=True, slots=True)
class _Kind:
    """Jobs that are alike to the matching."""

    job_class: str
    gang: int
    nodes: int
    memory_bytes: int
    stands: tuple[object, ...]  # what its choice of strategies depends on
    of: tuple[object, ...]
    """Placed: GPU models and their memory, which of its servers bar somebody; waiting: models and memory that it asks for, servers that bar it."""
    goes: tuple[str, ...]  # waiting: models to which it could go
    home: Home
    """Of a waiting job for which it is another thing to join somebody there, and of who was placed there; else ()."""


Choices = Callable[[JobFacts, str], Sequence[Choice]]
"""Strategies that a job could have on GPUs of a model."""


def as_they_are(job: JobFacts, _model: str) -> tuple[Choice, ...]:
    """Nobody chooses among strategies."""
    return (Choice(job.strategy, job.job_class),)


class Packer:
    def __init__(self, snapshot: Snapshot, slots: Slots, choices: Choices = as_they_are) -> None:
        self._snapshot = snapshot
        self._slots = slots
        self._choices = choices
        self._hosts: Mapping[HostName, HostFacts] = {host.name: host for host in snapshot.hosts}
        self._models = tuple(dict.fromkeys(host.model for host in snapshot.hosts))
        self._barring = frozenset[HostName]().union(*{job.barred for job in snapshot.jobs})
        self._promised = 0  # restarts of jobs that were joined, in the budget of moves
        self.joined: dict[JobId, Pair] = {}  # by guest: strategies that both are to have

    def pack(self, order: Sequence[JobFacts], before: Mapping[JobId, JobId]) -> dict[JobId, JobId]:
        """`order`: of priority; `before`: pairs of the round before, guest → partner. The pairs of this one."""
        pairs: dict[JobId, JobId] = {}
        jobs = {job.id: job for job in order}
        for guest, partner in sorted(before.items()):
            for one, other in ((guest, partner), (partner, guest)):
                if one in jobs and other in jobs and self._waits(jobs[one]) and self._placed(jobs[other]):
                    self._join(jobs[one], jobs[other], pairs)
        while True:
            placed = [job for job in order if self._placed(job)]
            waiting = [job for job in order if self._waits(job)]
            found = self._matched(placed, waiting)
            joined = [self._join(guest_job, partner_job, pairs) for guest_job, partner_job in found]
            if all(joined) or not any(joined):
                return pairs

    def join(self, pairs: Mapping[JobId, JobId]) -> None:
        """These guests beside these partners, where a partner has GPUs; others wait."""
        jobs = {job.id: job for job in self._snapshot.jobs}
        made: dict[JobId, JobId] = {}
        for guest, partner in sorted(pairs.items()):
            if self._waits(jobs[guest]) and self._placed(jobs[partner]):
                self._join(jobs[guest], jobs[partner], made, least=0.0)

    # --- who could ------------------------------------------------------------------------------------------------

    def _placed(self, job: JobFacts) -> bool:
        """It has its GPUs for itself."""
        home = self._slots.home(job)
        return self._slots.has_turn(job) and all(
            takes_new(self._hosts[name]) and self._slots.lends(job, name) == job.per_node for name in home
        )

    def _waits(self, job: JobFacts) -> bool:
        able = job.sliceable and (job.movable or not job.started)
        return able and not self._slots.runs(job) and self._slots.reachable(job)

    def pair(
        self, placed: JobFacts, waiting: JobFacts, host: HostFacts, *, leaves: bool = False
    ) -> Pair | None:
        """With the best strategies for both that the budget of moves allows; None: they do not fit. `leaves`: who waits moves there."""
        memory, left = host.gpu_memory_bytes, self._slots.moves_left - self._promised

        def slowed(one: str, other: str) -> tuple[float, float] | None:
            as_these = replace(placed, job_class=one), replace(waiting, job_class=other)
            return ratios(self._snapshot, *as_these, host.model, memory)

        def may_be(one: Choice, other: Choice) -> bool:
            moves = self._restarts(placed, one) + (leaves or self._restarts(waiting, other))
            return not moves or moves <= left

        model = host.model
        return best_pair(self._choices(placed, model), self._choices(waiting, model), slowed, may_be)

    def _restarts(self, job: JobFacts, choice: Choice) -> bool:
        """For that choice alone: who moves is started anew all the same."""
        return choice.restarts and job.started and not self._slots.moves(job)

    def _leaves(self, guest: JobFacts, home: Home) -> bool:
        """A process of its own, for these servers."""
        return guest.started and self._slots.home(guest) not in ((), home)

    def _could(self, guest: JobFacts, partner: JobFacts) -> Pair | None:
        """As they would be on the partner's servers, on that where it is least worth it; None: they cannot."""
        if (guest.gang, guest.nodes) != (partner.gang, partner.nodes):
            return None
        slots, home = self._slots, self._slots.home(partner)
        hosts = [self._hosts[name] for name in home]
        if not all(fits(guest, host) for host in hosts):
            return None
        if slots.home(guest) not in ((), home) and not all(slots.may_go(guest, host) for host in hosts):
            return None
        leaves = self._leaves(guest, home)
        found = [self.pair(partner, guest, host, leaves=leaves) for host in hosts]
        return min(found, key=lambda pair: pair.weight if pair else 0.0)

    def _join(
        self, guest: JobFacts, partner: JobFacts, pairs: dict[JobId, JobId], least: float = 1.0
    ) -> bool:
        """If it can be there, and their weight is above `least`."""
        home, pair = self._slots.home(partner), self._could(guest, partner)
        if pair is None or pair.weight <= least:
            return False
        stays = not self._leaves(guest, home)
        promised = self._restarts(partner, pair.placed) + (stays and self._restarts(guest, pair.waiting))
        text = f"in this round it shares the GPUs of job {partner.id} on {', '.join(home)}"
        if not self._slots.share(guest, {name: {partner.id: guest.per_node} for name in home}, text):
            return False
        self._promised += promised
        self.joined[guest.id] = pair
        pairs[guest.id] = partner.id
        return True

    # --- the matching ---------------------------------------------------------------------------------------------

    def _matched(
        self, placed: Sequence[JobFacts], waiting: Sequence[JobFacts]
    ) -> list[tuple[JobFacts, JobFacts]]:
        """(who waits, who was placed)"""
        if not placed or not waiting:
            return []
        tied = {job.id for job in waiting if self._is_tied(job)}
        homes = {self._slots.home(job) for job in waiting if job.id in tied}
        rows, row_of = _numbered([self._placed_kind(job, homes) for job in placed])
        columns, column_of = _numbered([self._waiting_kind(job, tied) for job in waiting])
        weights = np.zeros((len(rows), len(columns)))
        for row, at in enumerate(rows):
            for column, to in enumerate(columns):
                if (pair := self._could(waiting[to], placed[at])) is not None:
                    weights[row, column] = pair.weight
        found = pack(
            Side(np.array(row_of), np.array([job.gang for job in placed])),
            Side(np.array(column_of), np.array([job.gang for job in waiting])),
            weights,
        )
        cells = defaultdict(lambda: ([], []))  # type: ignore[var-annotated]  # by pair of kinds
        for at, to in zip(found.placed.tolist(), found.pending.tolist(), strict=True):
            cell = cells[row_of[at], column_of[to]]
            cell[0].append(placed[at])
            cell[1].append(waiting[to])
        return [pair for partners, joining in cells.values() for pair in self._neighbours(partners, joining)]

    def _is_tied(self, job: JobFacts) -> bool:
        """It is another thing for it to join somebody where it lives than elsewhere: there it may go at all, or with what is left of the budget."""
        home = self._slots.home(job)
        if not home:
            return False
        # Both are started anew at most: two moves are enough for any pair.
        is_short = job.started and self._slots.moves_left - self._promised < 2
        return is_short or not self._slots.ways(job, self._models)

    def _placed_kind(self, job: JobFacts, homes: Container[Home]) -> _Kind:
        home = self._slots.home(job)
        hosts = {(self._hosts[name].model, self._hosts[name].gpu_memory_bytes) for name in home}
        of = (*sorted(hosts), *sorted(self._barring.intersection(home)))
        here = home if home in homes else ()
        return _Kind(job.job_class, job.gang, job.nodes, job.memory_bytes, self._stands(job), of, (), here)

    def _waiting_kind(self, job: JobFacts, tied: Container[JobId]) -> _Kind:
        of = (job.gpu_types, job.gpu_memory_bytes, job.barred)
        goes = self._slots.ways(job, self._models)
        here = self._slots.home(job) if job.id in tied else ()
        return _Kind(job.job_class, job.gang, job.nodes, job.memory_at(1), self._stands(job), of, goes, here)

    def _stands(self, job: JobFacts) -> tuple[object, ...]:
        if not job.strategies:
            return ()
        slots = self._slots
        return (job.strategies, job.started, slots.moves(job), slots.may_restart(job), job.steps_left)

    def _neighbours(
        self, partners: Sequence[JobFacts], joining: Sequence[JobFacts]
    ) -> list[tuple[JobFacts, JobFacts]]:
        """Equal to the matching: those that live where a partner does meet it, the others as they come."""
        left = {job.id: job for job in partners}
        pairs, others = [], []
        for job in joining:
            home = self._slots.home(job)
            beside = next((p for p in left.values() if home and self._slots.home(p) == home), None)
            if beside is None:
                others.append(job)
            else:
                pairs.append((job, left.pop(beside.id)))
        return [*pairs, *zip(others, left.values(), strict=True)]


def ratios(
    snapshot: Snapshot, one: JobFacts, other: JobFacts, model: str, gpu_bytes: int
) -> tuple[float, float] | None:
    """How many times as long each takes beside the other; None: they don't fit on a GPU, as far as is known."""
    known = snapshot.interference
    first = known.get((one.job_class, other.job_class, model))
    second = known.get((other.job_class, one.job_class, model))
    if one.memory_bytes and other.memory_bytes:
        if one.memory_at(1) + other.memory_at(1) > gpu_bytes:
            return None
    elif first is None or second is None:
        return None
    if inf in (first, second):
        return None
    return first or UNMEASURED, second or UNMEASURED


def _numbered(kinds: Sequence[_Kind]) -> tuple[list[int], list[int]]:
    """Where the first of each kind is; and for each job the number of its kind."""
    numbers: dict[_Kind, int] = {}
    first: list[int] = []
    of = []
    for at, kind in enumerate(kinds):
        number = numbers.setdefault(kind, len(first))
        if number == len(first):
            first.append(at)
        of.append(number)
    return first, of
