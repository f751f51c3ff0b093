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
    waiting = sorted(jobs, key=lambda job: job.arrival_s)
    start_s = now_s = waiting[0].arrival_s
    here: list[Job] = []
    books: Books | None = None
    changed, used, solves, lps = False, 0.0, 0, []
    counts = np.array(gpus)
    dice = roll(shuffle or 0)
    ran: list[Job] = []
    rule = Staleness(least_s=least_s, zero_is_never=True)
    while waiting or here:
        while waiting and waiting[0].arrival_s <= now_s:
            here.append(waiting.pop(0))
            here[-1].left_then = here[-1].left
            changed = True
        if not here:
            now_s = waiting[0].arrival_s
            continue
        idle = not ran and not waiting
        if rule.due(books, now_s - start_s, changed=changed, idle=idle):
            kind = np.array([job.kind for job in here])
            question = Question(
                speed=tables.speed[kind],
                gang=np.array([job.gang for job in here]),
                gpus=counts,
                weight=np.array([job.weight for job in here]),
                sharing=Sharing(kind=kind, speed=tables.beside) if sharing else None,
            )
            alone = isolated_speed(question)
            for job, isolated in zip(here, alone, strict=True):
                job.isolated_s += (job.left_then - job.left) / job.isolated_then
                job.left_then, job.isolated_then = job.left, isolated
            left = np.array([job.left for job in here])
            lives = Lives(
                age_s=now_s - np.array([job.arrival_s for job in here]),
                steps_left=left,
                alone_s=np.array([job.isolated_s for job in here]) + left / alone,
            )
            found = solve(question, lives, [job.id for job in here])
            lps.append(found.lps)
            units = units_of([job.id for job in here], found.pairs)
            rows = np.concatenate([found.alone, found.paired.reshape(-1, len(gpus))])
            books = reset(books, units, rows, now_s - start_s)
            changed, solves = False, solves + 1
        assert books is not None
        known = {job.id: job for job in here}
        gang = np.array([next((known[i].gang for i in unit if i in known), 0) for unit in books.units])
        able = np.zeros(books.fraction.shape, bool)
        speeds = {}
        for at, unit in enumerate(books.units):
            if all(i in known for i in unit):
                kinds = [known[i].kind for i in unit]
                own = (
                    [tables.speed[kinds[0]]]
                    if len(unit) == 1
                    else [tables.beside[kinds[0], kinds[1]], tables.beside[kinds[1], kinds[0]]]
                )
                speeds[at] = own
                able[at] = np.min(own, axis=0) > 0
        order = list(range(len(gpus)))
        if shuffle is not None:
            dice.shuffle(order)
        chosen = pick(books, gang, able, counts, types=order, skip_zero=skip_zero)
        ran, times, length_s = [], [], 0.0
        for at, on in zip(chosen.unit, chosen.on, strict=True):
            most_s = 0.0
            for i, speed in zip(books.units[at], speeds[at], strict=True):
                job = known[i]
                steps = min(job.left, math.floor(speed[on] * ROUND_S))
                took_s = ROUND_S if steps < job.left else steps / speed[on]
                job.left -= steps
                ran.append(job)
                if job.left <= 0:
                    job.finish_s = now_s + took_s
                most_s = max(most_s, took_s)
            used += most_s * gang[at]
            times.append((books.units[at], on, most_s))
            length_s = max(length_s, most_s)
        books = receive(books, times)
        if not ran:
            # Nothing to run until something arrives, or the next allocation.
            length_s = ROUND_S
        now_s += length_s
        done = [job for job in here if job.finish_s >= 0]
        changed = changed or bool(done)
        here = [job for job in here if job.finish_s < 0]
    makespan = max(job.finish_s for job in jobs) - start_s
    mean = sum(job.finish_s - job.arrival_s for job in jobs) / len(jobs)
    return Outcome(mean, makespan, solves, used / (makespan * sum(gpus)), lps)
