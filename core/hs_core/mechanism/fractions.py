"""Policies of Gavel's kind (OSDI'20): an allocation says what part of the time each job should run on each GPU model, rounds make it true.

Between two allocations jobs are served by what they were promised over what they received (`rounds`). What was received is read off the
jobs' own GPU-seconds, so a move, a failure or an edge that came late is not taken for service.

Departures, outside `compat`: a newcomer, who has no fraction before the next allocation, may use GPUs that would idle; a rate measured
for the first time counts as a change, and one of which the allocation had only a guess makes it anew at the next edge; where nobody said how many steps there are, `rows` fills in.
Gangs stay whole on servers, so not all that Gavel's simulator would run find room: who could find none has no part in the time (`room`), and rounds are filled by the line.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hs_core import dice
from hs_core.mechanism.floor import floor
from hs_core.mechanism.gavel.question import Allocation, Question, Sharing, isolated_speed
from hs_core.mechanism.later import Later
from hs_core.mechanism.next_rounds import DecidedRound, NextRounds, is_plain
from hs_core.mechanism.packing import ratios
from hs_core.mechanism.room import Offered, Promised, offer, promised_in
from hs_core.mechanism.rounds import (
    CREDIT_S,
    RESET_S,
    Books,
    Line,
    Round,
    Staleness,
    Unit,
    receive,
    reset,
    units_of,
)
from hs_core.mechanism.rows import Rows
from hs_core.mechanism.seats import Seats
from hs_core.names import JobId
from hs_core.newest import Newest
from hs_core.policy import JobFacts, Memory, Snapshot, Verdict
from hs_core.solve import Method
from hs_core.words import about

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LEAST_PART = 0.005  # of the time: less is told as none
FOREVER_S = 1e12  # of what cannot run in the isolated share


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What an allocation is made of."""

    question: Question
    rows: Rows
    alone_s: Floats  # (J,) all of the job in the isolated share: what it would have taken so far, and what is left; empty but for `Style.lives`
    before: Floats  # (J, T) fractions of the allocation before; 0: it had none, or was not here
    compat: bool
    seed: int

    @property
    def method(self) -> Method | None:
        """Which of several optima: any, or as Gavel's interior-point solver the middle of them; of pairs that would be thousands, more than rounds could serve."""
        return Method.CENTRE if self.compat and self.question.sharing is None else None


Allocate = Callable[[Case], Allocation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How rounds are filled."""

    shuffled: bool = (
        False  # types in another order each round (seeded): of policies that don't tell types apart
    )
    skip_zero: bool = False  # who has no claim gets nothing even where GPUs are left over
    compat: bool = (
        False  # as Gavel's simulator does it: newcomers wait for the next allocation beside idle GPUs
    )
    reset_s: float = RESET_S  # least time between two allocations
    packed: bool = False  # two jobs with gangs of one size may share GPUs
    lives: bool = False  # allocations go by how far jobs would be in a cluster of their own (`Case.alone_s`)


def decide(snapshot: Snapshot, memory: Memory, allocate: Allocate, style: Style) -> Verdict:
    seats = Seats(snapshot)
    # Who runs to be measured, or is on its way, has its part in the time all the same.
    promised = promised_in(snapshot, seats)
    offered = offer(snapshot, seats, promised)
    table = offered.table
    if not table.jobs:
        return seats.verdict(memory, offered.why, () if style.compat else None)
    staleness = Staleness(least_s=style.reset_s, zero_is_never=style.compat)
    agreed = _agreed(snapshot, memory, offered, style, _gpus_of(promised, snapshot, table))
    if agreed.books is None or staleness.due(
        agreed.books, snapshot.now_s, changed=agreed.changed, idle=agreed.idle
    ):
        agreed = _agree(snapshot, offered, agreed, allocate, style)
    books = agreed.books
    assert books is not None
    who = _Who(books.units, tuple([job.id for job in table.jobs]), frozenset(promised))
    able, line = _line(table, books, style, who)
    servers = _Servers(seats, table, books.units, _here(who))
    found_round = servers.fill(line, books, _types(snapshot, table, style))
    chosen = servers.chosen(found_round)
    if promised:
        chosen |= _on_their_way(snapshot, promised, table)
    now = _remember(table, agreed, books, chosen)
    mates = {JobId(unit[1]): JobId(unit[0]) for unit in chosen if len(unit) > 1} if style.packed else {}
    next_in_s = staleness.in_s(books, snapshot.now_s)
    why = Later(lambda: {**offered.why, **_why(table, books, next_in_s)})
    verdict = seats.verdict(now, why, () if style.compat else None, mates=mates)
    there = floor(snapshot.hosts)
    if not style.compat or style.packed or not (books.units and is_plain(snapshot.jobs, there)):
        return verdict
    decided = DecidedRound(
        table=table,
        floor=there,
        homes=verdict.plan.homes,
        books=books,
        able=able,
        round=found_round,
        staleness=staleness,
        changed=agreed.changed,
        shuffled=style.shuffled,
        skip_zero=style.skip_zero,
        seed=snapshot.seed,
    )
    return replace(verdict, sequel=NextRounds(decided, now))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Agreed:
    """The newest allocation, and what says whether it is still the right one."""

    books: Books | None  # None: there is none
    lives: Mapping[str, Any]  # how far each job would be alone
    asked: Any  # what it was made of
    gpus: Ints  # of each model, those on which jobs are measured among them
    signature: list[Any]  # what one would be made of now
    guessed: Mapping[str, int]
    idle: bool  # a new one may be made at once: nobody runs, or a guess has become knowledge

    @property
    def changed(self) -> bool:
        return bool(self.signature != self.asked)


def _agreed(snapshot: Snapshot, memory: Memory, offered: Offered, style: Style, promised: Ints) -> _Agreed:
    table = offered.table
    gpus = table.gpus + promised
    books, lives = _past(memory, table)
    guessed = memory.get("guessed", {})
    idle = not snapshot.running
    if style.compat:
        idle = idle and not snapshot.more_to_come  # it waits for the next allocation beside idle GPUs
    return _Agreed(
        books=books,
        lives=lives,
        asked=memory.get("asked"),
        signature=_signature(snapshot, offered, gpus, style),
        guessed=guessed,
        gpus=gpus,
        idle=idle or (not style.compat and _learnt(snapshot, table, guessed)),
    )


def _agree(
    snapshot: Snapshot, offered: Offered, before: _Agreed, allocate: Allocate, style: Style
) -> _Agreed:
    """Another allocation."""
    table, left_out = offered.table, offered.claims(before.gpus)
    question = Question(
        speed=table.speed,
        gang=table.gang,
        gpus=before.gpus,
        weight=table.tickets * len(table.jobs),
        sharing=sharing(snapshot, table) if style.packed else None,
    )
    lives, alone_s = _alone(table, question, before.lives) if style.lives else ({}, np.zeros(0))
    lives |= {name: before.lives[name] for job in offered.left_out if (name := str(job)) in before.lives}
    case = Case(
        question=question,
        rows=table,
        alone_s=alone_s,
        before=_before(before.books, table),
        compat=style.compat,
        seed=snapshot.seed,
    )
    found = allocate(case)
    credit_s = snapshot.quantum_s / 2 if style.compat else CREDIT_S
    units = units_of([int(job.id) for job in table.jobs], found.pairs)
    units += tuple([(int(job),) for job in offered.left_out])
    fraction = np.vstack([found.alone, found.paired.reshape(-1, len(table.models)), left_out])
    return replace(
        before,
        books=reset(before.books, units, fraction, snapshot.now_s, credit_s),
        lives=lives,
        asked=before.signature,
        guessed={} if style.compat else _guessed(snapshot, table),
    )


def _remember(table: Rows, agreed: _Agreed, books: Books, chosen: Mapping[Unit, int]) -> Memory:
    attained = {job.id: job.attained_gpu_s for job in table.jobs}
    return {
        "models": list(table.models),
        "books": books.dump(),
        "asked": agreed.asked,
        "guessed": agreed.guessed,
        "alone": agreed.lives,
        "chosen": [
            [list(unit), on, [attained[JobId(job)] for job in unit]] for unit, on in sorted(chosen.items())
        ],
    }


def sharing(snapshot: Snapshot, table: Rows) -> Sharing:
    """Speeds of pairs by kinds of jobs: of one class, gang, memory and speeds. Only gangs of one size over equally many servers share."""
    memory = {host.model: host.gpu_memory_bytes for host in reversed(snapshot.hosts)}
    for host in snapshot.hosts:
        memory[host.model] = min(memory[host.model], host.gpu_memory_bytes)
    numbers: dict[object, int] = {}
    first: list[int] = []
    kind = np.zeros(len(table.jobs), dtype=np.int64)
    for at, job in enumerate(table.jobs):
        key = (job.job_class, job.gang, job.nodes, job.memory_bytes, table.speed[at].tobytes())
        if key not in numbers:
            numbers[key] = len(first)
            first.append(at)
        kind[at] = numbers[key]
    speed = np.zeros((len(first), len(first), len(table.models)))
    for a, one in enumerate(first):
        for b, two in enumerate(first):
            job, other = table.jobs[one], table.jobs[two]
            if (job.gang, job.nodes) != (other.gang, other.nodes):
                continue
            for on, model in enumerate(table.models):
                both = table.speed[one, on] > 0 and table.speed[two, on] > 0
                found = ratios(snapshot, job, other, model, memory[model]) if both else None
                if found is not None:
                    speed[a, b, on] = table.speed[one, on] / found[0]
    return Sharing(kind=kind, speed=speed)


def _gpus_of(promised: Promised, snapshot: Snapshot, table: Rows) -> Ints:
    """(T,) those of jobs that have a part in the time."""
    found = np.zeros(len(table.models), dtype=np.int64)
    if promised:
        hosts, here = {host.name: host for host in snapshot.hosts}, {job.id for job in table.jobs}
        for job, (home, gpus) in promised.items():
            for name in home if job in here else ():
                if (host := hosts.get(name)) is not None and host.connected:
                    found[table.models.index(host.model)] += gpus
    return found


def _on_their_way(snapshot: Snapshot, promised: Promised, table: Rows) -> dict[Unit, int]:
    """On which of `models` they go on, so that what they have there in this round counts as received."""
    models = {host.name: host.model for host in snapshot.hosts}
    going = [job for job in table.jobs if job.id in promised and job.id not in snapshot.reserved]
    to = {job.id: models.get(promised[job.id][0][0]) for job in going}
    return {(job,): table.models.index(model) for job, model in to.items() if model is not None}


def _signature(snapshot: Snapshot, offered: Offered, gpus: NDArray[np.int64], style: Style) -> list[Any]:
    """Changes with whatever makes an allocation stale."""
    table, known = offered.table, 0
    if not style.compat:
        classes = {job.job_class for job in table.jobs}
        known = sum(name in classes for name, _ in snapshot.rates)
    return [[job.id for job in table.jobs], known, gpus.tolist(), list(table.models), *offered.cramped]


def _guessed(snapshot: Snapshot, table: Rows) -> dict[str, int]:
    """Classes whose speeds are not all known, and on how many models they are."""
    known = {
        name: sum((name, model) in snapshot.rates for model in table.models)
        for name in sorted({job.job_class for job in table.jobs})
    }
    return {name: models for name, models in known.items() if models < len(table.models)}


def _learnt(snapshot: Snapshot, table: Rows, guessed: Mapping[str, int]) -> bool:
    """Speeds of which the allocation had only guesses have become known."""
    if not guessed:
        return False
    now = _guessed(snapshot, table)
    here = {job.job_class for job in table.jobs}
    return any(now.get(name, len(table.models)) > models for name, models in guessed.items() if name in here)


def _past(memory: Memory, table: Rows) -> tuple[Books | None, Mapping[str, Any]]:
    """The books with what was received since, and how far each job would be alone."""
    if not memory or memory["models"] != list(table.models):
        return None, memory.get("alone", {})
    books = Books.load(memory["books"], len(table.models))
    jobs: dict[int, JobFacts] = {job.id: job for job in table.jobs}
    ran = []
    for unit, on, attained in memory["chosen"]:
        # Of GPUs that two share each is charged half: together they have what the pair received. Who ended says no more.
        gpu_s, here, gang = 0.0, 0, 1
        for job_id, then in zip(unit, attained, strict=True):
            if (job := jobs.get(job_id)) is not None:
                gpu_s += job.attained_gpu_s - then
                gang = gang if here else job.gang
                here += 1
        if here:
            ran.append((tuple(unit), on, max(0.0, gpu_s / gang * len(unit) / here)))
    return receive(books, ran), memory["alone"]


def _alone(
    table: Rows, question: Question, lives: Mapping[str, Any]
) -> tuple[dict[str, list[float]], Floats]:
    """Seconds that each job's steps so far would have taken in the isolated shares of the allocations since it came, with those left now."""
    speed = isolated_speed(question)
    kept: dict[str, list[float]] = {}
    for job, now in zip(table.jobs, speed.tolist(), strict=True):
        spent_s, done, then = lives.get(str(job.id), (0.0, 0.0, now))
        spent_s += max(0.0, job.steps_done - done) / then if then > 0 else 0.0
        kept[str(job.id)] = [spent_s, job.steps_done, now]
    spent_all = np.array([spent_s for spent_s, _, _ in kept.values()], dtype=float)
    left = np.divide(table.steps_left, speed, out=np.full(len(speed), FOREVER_S), where=speed > 0)
    return kept, spent_all + left


def _before(books: Books | None, table: Rows) -> Floats:
    found = np.zeros(table.speed.shape)
    if books is None:
        return found
    place = {unit: at for at, unit in enumerate(books.units)}
    for at, job in enumerate(table.jobs):
        if (unit := place.get((int(job.id),))) is not None:
            found[at] = books.fraction[unit]
    return found


def _line(table: Rows, books: Books, style: Style, who: "_Who") -> tuple[Bools, Line]:
    """Which units could run now on which of `models`, and who comes before whom."""
    here = _here(who)
    can = table.speed > 0
    able = can[here.first] & here.first_here
    if style.packed:
        able &= can[here.last] & here.last_here
    gang = np.where(here.first_here[:, 0], table.gang[here.first], 1)
    # What nobody claims is handed out afterwards, to each on the fastest model that has room.
    claims = style.skip_zero or not style.compat
    return able, Line(books, gang, able, table.gpus, skip_zero=claims)


def _types(snapshot: Snapshot, table: Rows, style: Style) -> list[int]:
    types = list(range(len(table.models)))
    if style.shuffled:
        dice.roll(snapshot.seed, snapshot.quantum).shuffle(types)
    return types


@dataclass(frozen=True, slots=True)
class _Servers:
    """Those of a round."""

    seats: Seats
    table: Rows
    units: tuple[Unit, ...]
    here: "_Here"

    def fill(self, line: Line, books: Books, types: Sequence[int]) -> Round:
        """Who runs: who comes up by numbers of GPUs. Where these turn out not to fit together on servers, as many of a model as do, the first in
        line; GPUs that the others leave are offered along the line, to each on servers that have room.
        """
        found = line.pick(books, types, takes=lambda at, on: self.seats.choose(*self._asks(at, on)))
        missed = self._missed(found)
        if not missed:
            return found
        kept = self._kept(found, missed)
        return line.pick(books, types, kept=kept, takes=lambda at, on: self.seats.add(*self._asks(at, on)))

    def _kept(self, found: Round, missed: frozenset[int]) -> Round:
        """Of a model where some missed the longest beginning of the line that fits together, by halving."""
        entries = list(zip(found.unit, found.on, strict=True))
        kept = []
        for pool in dict.fromkeys(found.on):
            there = [entry for entry in entries if entry[1] == pool]
            kept += there if missed.isdisjoint(at for at, _ in there) else there[: self._fitting(there)]
        missed = self._missed(_round(kept))  # few moves may be left for all of them
        return _round([entry for entry in kept if entry[0] not in missed])

    def _fitting(self, line: Sequence[tuple[int, int]]) -> int:
        """How many, where all do not."""
        return bisect_left(
            range(1, len(line)), True, key=lambda count: bool(self._missed(_round(line[:count])))
        )

    def _missed(self, found: Round) -> frozenset[int]:
        """Units that find no servers; the others have theirs."""
        entries = list(zip(found.unit, found.on, strict=True))
        seated = self.seats.lay(self._asks(at, on) for at, on in entries)
        return frozenset([at for at, on in entries if self._asks(at, on)[0].id not in seated])

    def _asks(self, at: int, on: int) -> tuple[JobFacts, str]:
        """Which job is to have the GPUs: of a pair the other joins it."""
        return self._members(at)[0], self.table.models[on]

    def _members(self, at: int) -> list[JobFacts]:
        if len(self.units[at]) == 1:
            return [self.table.jobs[self.here.places[at]]]
        jobs = [self.table.jobs[self.here.first[at]], self.table.jobs[self.here.last[at]]]
        return sorted(jobs, key=lambda job: (job.movable, job.id))

    def chosen(self, found: Round) -> dict[Unit, int]:
        """The round's promises: which of `models` for each unit that runs."""
        return {
            tuple([job.id for job in self._members(at)]): on
            for at, on in zip(found.unit, found.on, strict=True)
        }


def _round(entries: Sequence[tuple[int, int]]) -> Round:
    return Round(unit=tuple([at for at, _ in entries]), on=tuple([on for _, on in entries]))


class _Who(NamedTuple):
    units: tuple[Unit, ...]
    jobs: tuple[JobId, ...]  # of the table
    promised: frozenset[JobId]


@dataclass(frozen=True, slots=True)
class _Here:
    """The jobs of units by their places in the table; -1: gone, or it has its GPUs."""

    places: list[int]  # of the first job of each
    first: Ints
    last: Ints
    first_here: Bools  # U x 1
    last_here: Bools


def _find(who: _Who) -> _Here:
    place_of: dict[int, int] = {job: at for at, job in enumerate(who.jobs) if job not in who.promised}
    places = [place_of.get(unit[0], -1) for unit in who.units]
    first = np.array(places, dtype=np.int64)
    last = np.array([place_of.get(unit[-1], -1) for unit in who.units], dtype=np.int64)
    return _Here(places, first, last, (first >= 0)[:, None], (last >= 0)[:, None])


_here = Newest(_find)  # the same until somebody comes, goes or is given another part of the time


def _why(table: Rows, books: Books, next_in_s: float) -> dict[JobId, str]:
    """`next_in_s`: until another allocation may be made."""
    sums = books.fraction.sum(axis=1).tolist()
    parts: dict[int, float] = {}
    for unit, part in zip(books.units, sums, strict=True):
        for job_id in unit:
            parts[job_id] = parts.get(job_id, 0.0) + part
    said = {}
    for job in table.jobs:
        said[job.id] = _of_its_part(parts.get(int(job.id)), next_in_s)
    return said


def _of_its_part(part: float | None, next_in_s: float) -> str:
    """None: it has not been given one."""
    if part is None:
        when = f", in about {about(next_in_s)}," if next_in_s >= 1 else ""
        return f"it came after the last allocation of time and waits for the next{when} or for GPUs that idle"
    if part < LEAST_PART:
        soonest = f", and in about {about(next_in_s)} at the soonest" if next_in_s >= 1 else ""
        return f"others have all of the time until it is divided anew, once a job has come or ended{soonest}; it waits for GPUs that idle"
    return f"it is to run {100 * part:.0f} % of the time; others are further behind their part"
