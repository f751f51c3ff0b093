"""Gavel's simulator in small, rounds of 360 s without any cost: for comparing our allocations with its published figures."""

import json
import math
from ast import literal_eval
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hs_core.dice import roll
from hs_core.mechanism.gavel.finish import Lives
from hs_core.mechanism.gavel.question import Allocation, Question, Sharing, isolated_speed
from hs_core.mechanism.rounds import Books, Staleness, pick, receive, reset, units_of

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
TYPES = ("v100", "p100", "k80")
ROUND_S = 360.0


@dataclass
class Job:
    id: int
    kind: int
    gang: int
    weight: float
    arrival_s: float
    left: float
    isolated_s: float = 0.0  # what the steps until the last solve would have taken alone
    left_then: float = 0.0
    isolated_then: float = math.inf  # steps/s at the last solve
    finish_s: float = -1.0


@dataclass
class Tables:
    keys: list[tuple[str, int]]
    speed: np.ndarray  # kinds x types
    beside: np.ndarray  # kinds x kinds x types

    @classmethod
    def read(cls, path: Path, types: tuple[str, ...] = TYPES) -> "Tables":
        tables = json.loads(path.read_text())
        keys = sorted({literal_eval(key) for key in tables[types[0]]})
        place = {key: at for at, key in enumerate(keys)}
        speed, beside = np.zeros((len(keys), len(types))), np.zeros((len(keys), len(keys), len(types)))
        for on, name in enumerate(types):
            for own, row in tables[name].items():
                for other, found in row.items():
                    if other == "null":
                        speed[place[literal_eval(own)], on] = found
                    elif literal_eval(other) in place:
                        beside[place[literal_eval(own)], place[literal_eval(other)], on] = found[0]
        return cls(keys, speed, beside)


def read_trace(path: Path, tables: Tables) -> list[Job]:
    jobs = []
    for number, line in enumerate(path.read_text().splitlines()):
        name, *_, steps, gang, weight, _, arrival = line.split("\t")
        kind = tables.keys.index((name, int(gang)))
        jobs.append(Job(number, kind, int(gang), float(weight), float(arrival), float(steps)))
    return jobs


Solve = Callable[[Question, Lives, list[int]], Allocation]  # the ids of the jobs


@dataclass
class Outcome:
    mean_jct_s: float
    makespan_s: float
    solves: int
    utilization: float
    lps: list[int] = field(default_factory=list)


def simulate(
    jobs: list[Job],
    tables: Tables,
    gpus: tuple[int, ...],
    solve: Solve,
    *,
    sharing: bool = False,
    shuffle: int | None = None,
    skip_zero: bool = False,
    least_s: float = 1_920.0,
) -> Outcome:
    """`shuffle`: a seed: types in another order each round, as Gavel's blind policies have them."""
    run = _Run(jobs, tables, gpus)
    rule, dice, order = (
        Staleness(least_s=least_s, zero_is_never=True),
        roll(shuffle or 0),
        list(range(len(gpus))),
    )
    solves, lps = 0, []
    while run.waiting or run.here:
        if not run.arrive():
            continue
        if rule.due(run.books, run.now_s - run.start_s, changed=run.changed, idle=run.is_idle):
            lps.append(run.allocate(solve, sharing=sharing))
            solves += 1
        types = list(order)
        if shuffle is not None:
            dice.shuffle(types)
        run.round(types, skip_zero=skip_zero)
    makespan_s = max(job.finish_s for job in jobs) - run.start_s
    mean_s = sum(job.finish_s - job.arrival_s for job in jobs) / len(jobs)
    return Outcome(mean_s, makespan_s, solves, run.used_gpu_s / (makespan_s * sum(gpus)), lps)


class _Run:
    def __init__(self, jobs: list[Job], tables: Tables, gpus: tuple[int, ...]) -> None:
        self._tables = tables
        self._gpus = np.array(gpus)
        self.waiting = sorted(jobs, key=lambda job: job.arrival_s)
        self.start_s = self.now_s = self.waiting[0].arrival_s
        self.here: list[Job] = []
        self.books: Books | None = None
        self.changed = False  # somebody has come or gone since the last allocation
        self.used_gpu_s = 0.0
        self._ran: list[Job] = []  # in the last round

    @property
    def is_idle(self) -> bool:
        return not self._ran and not self.waiting

    def arrive(self) -> bool:
        """False: there is nobody, and it is the time now at which somebody comes."""
        while self.waiting and self.waiting[0].arrival_s <= self.now_s:
            self.here.append(self.waiting.pop(0))
            self.here[-1].left_then = self.here[-1].left
            self.changed = True
        if not self.here:
            self.now_s = self.waiting[0].arrival_s
        return bool(self.here)

    def allocate(self, solve: Solve, *, sharing: bool) -> int:
        """The number of LPs that it took."""
        here, tables = self.here, self._tables
        kind = np.array([job.kind for job in here])
        question = Question(
            speed=tables.speed[kind],
            gang=np.array([job.gang for job in here]),
            gpus=self._gpus,
            weight=np.array([job.weight for job in here]),
            sharing=Sharing(kind=kind, speed=tables.beside) if sharing else None,
        )
        alone = isolated_speed(question)
        for job, isolated in zip(here, alone, strict=True):
            job.isolated_s += (job.left_then - job.left) / job.isolated_then
            job.left_then, job.isolated_then = job.left, isolated
        left = np.array([job.left for job in here])
        lives = Lives(
            age_s=self.now_s - np.array([job.arrival_s for job in here]),
            steps_left=left,
            alone_s=np.array([job.isolated_s for job in here]) + left / alone,
        )
        found = solve(question, lives, [job.id for job in here])
        units = units_of([job.id for job in here], found.pairs)
        rows = np.concatenate([found.alone, found.paired.reshape(-1, len(self._gpus))])
        self.books = reset(self.books, units, rows, self.now_s - self.start_s)
        self.changed = False
        return found.lps

    def round(self, types: list[int], *, skip_zero: bool) -> None:
        books = self.books
        assert books is not None
        known = {job.id: job for job in self.here}
        gang = np.array([next((known[i].gang for i in unit if i in known), 0) for unit in books.units])
        speeds = {
            at: self._speeds([known[i].kind for i in unit])
            for at, unit in enumerate(books.units)
            if all(i in known for i in unit)
        }
        able = np.zeros(books.fraction.shape, bool)
        for at, own in speeds.items():
            able[at] = np.min(own, axis=0) > 0
        chosen = pick(books, gang, able, self._gpus, types=types, skip_zero=skip_zero)
        self._ran, times, length_s = [], [], 0.0
        for at, on in zip(chosen.unit, chosen.on, strict=True):
            unit = [known[i] for i in books.units[at]]
            took_s = max(self._train(job, speed[on]) for job, speed in zip(unit, speeds[at], strict=True))
            self._ran += unit
            self.used_gpu_s += took_s * gang[at]
            times.append((books.units[at], on, took_s))
            length_s = max(length_s, took_s)
        self.books = receive(books, times)
        # Where nobody runs: until something arrives, or the next allocation.
        self.now_s += length_s if self._ran else ROUND_S
        self.changed = self.changed or any(job.finish_s >= 0 for job in self.here)
        self.here = [job for job in self.here if job.finish_s < 0]

    def _speeds(self, kinds: list[int]) -> list[np.ndarray]:
        """Of one job, or of each of two that share, on every type."""
        if len(kinds) == 1:
            return [self._tables.speed[kinds[0]]]
        return [self._tables.beside[kinds[0], kinds[1]], self._tables.beside[kinds[1], kinds[0]]]

    def _train(self, job: Job, steps_per_s: float) -> float:
        """Seconds of this round."""
        steps = min(job.left, math.floor(steps_per_s * ROUND_S))
        took_s = ROUND_S if steps < job.left else steps / steps_per_s
        job.left -= steps
        if job.left <= 0:
            job.finish_s = self.now_s + took_s
        return took_s
