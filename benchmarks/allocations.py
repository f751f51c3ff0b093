"""Gavel's allocations and AlloX's matching: CPU time, and how much the classes, the columns by kinds and the flow gain.

Goals:

- max-min by class: at least 200 times as fast as the whole program, and equal to 1e-6;
- packed, 2,048 jobs on 256 GPUs: within 1.6 s;
- finish-time fairness: at most 6 programs;
- AlloX: at least 50 times as fast as the assignment at 400 jobs; 4,000 x 1,000 within 0.3 s.

Speeds are drawn: 100 kinds of jobs on three types, each about twice as fast as the next, give or take.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np

from hs_core.mechanism.allox import allox
from hs_core.mechanism.gavel.fair import max_min, water_fill
from hs_core.mechanism.gavel.finish import Lives, finish_time_fair
from hs_core.mechanism.gavel.question import Question, Sharing, isolated_speed
from hs_core.mechanism.gavel.sums import max_sum
from hs_core.solve import Method, assign

KINDS = 100


def took(what: Callable[[], object], times: int = 3) -> float:
    """Median of the CPU time in seconds."""
    found = []
    for _ in range(times):
        start = time.process_time()
        what()
        found.append(time.process_time() - start)
    return statistics.median(found)


def question(jobs: int, gpus: int, *, sharing: bool = False) -> Question:
    dice = np.random.default_rng(1)
    speed = (
        dice.uniform(1, 50, KINDS)[:, None] * np.array([4.0, 2.0, 1.0]) * dice.uniform(0.5, 1.5, (KINDS, 3))
    )
    gang = np.ones(KINDS, int) if sharing else dice.choice([1, 2, 4, 8], KINDS, p=[0.6, 0.3, 0.09, 0.01])
    of = dice.integers(0, KINDS, jobs)
    beside = speed[:, None, :] * dice.uniform(0.3, 1.0, (KINDS, KINDS, 3))
    each = gpus // 3
    return Question(
        speed=speed[of],
        gang=gang[of],
        gpus=np.array([gpus - 2 * each, each, each]),
        sharing=Sharing(kind=of, speed=beside) if sharing else None,
    )


def max_min_by_class() -> None:
    asked = question(4_096, 1_024)
    by_class = took(lambda: max_min(asked), 15)
    value = max_min(asked).value
    print(f"max-min, 4,096 jobs on 1,024 GPUs: by class {1e3 * by_class:7.2f} ms")
    for name, method, times in (
        ("simplex of GLOP", Method.GLOP, 3),
        ("simplex of HiGHS", Method.SIMPLEX, 1),
        ("interior point of HiGHS", Method.INTERIOR, 3),
    ):
        whole = took(lambda method=method: max_min(asked, by_class=False, method=method), times)
        off = abs(max_min(asked, by_class=False, method=method).value - value) / value
        print(
            f"    whole program, {name:24} {1e3 * whole:7.0f} ms, {whole / by_class:4.0f} times; values differ by {off:.0e}"
        )
    centre = took(lambda: max_min(asked, method=Method.CENTRE))
    print(f"    by class, centre of all optima       {1e3 * centre:9.2f} ms")


def shared() -> None:
    for jobs, gpus in ((512, 64), (1_024, 128), (2_048, 256)):
        asked = question(jobs, gpus, sharing=True)
        print(
            f"max-min packed, {jobs:5,} jobs on {gpus:3} GPUs: {1e3 * took(lambda asked=asked: max_min(asked)):7.1f} ms"
        )


def finish() -> None:
    for jobs in (1_024, 2_048):
        asked = question(jobs, jobs // 4)
        dice = np.random.default_rng(2)
        rest_s = 10 ** dice.uniform(2, 5, jobs)  # alone
        lives = Lives(
            age_s=rest_s * dice.uniform(0, 1, jobs),
            steps_left=rest_s * isolated_speed(asked),
            alone_s=rest_s * dice.uniform(1, 1.5, jobs),
        )
        lps = finish_time_fair(asked, lives).lps
        print(
            f"finish-time fairness, {jobs:5,} jobs: {took(lambda asked=asked, lives=lives: finish_time_fair(asked, lives)):5.2f} s, {lps} programs"
        )
    asked = question(1_024, 256)
    print(f"max sum, 1,024 jobs: {1e3 * took(lambda: max_sum(asked)):.1f} ms")
    print(
        f"water-filling, 1,024 jobs: {1e3 * took(lambda: water_fill(asked)):.1f} ms, {water_fill(asked).lps} programs"
    )


def matching() -> None:
    for jobs, devices, literal in ((400, (12, 12, 12), True), (4_000, (334, 333, 333), False)):
        dice = np.random.default_rng(3)
        left = 10 ** dice.uniform(2, 5, jobs)[:, None] * dice.uniform(1, 6, (jobs, 3))
        idle = [np.zeros(many) for many in devices]
        found = allox(left, idle)
        flow = took(lambda left=left, idle=idle: allox(left, idle), 7)
        print(
            f"AlloX, {jobs:5,} jobs on {sum(devices):5,} devices: {1e3 * flow:6.1f} ms; the bound is {abs(1 - found.bound_s / found.total_s):.0e} from it"
        )
        if literal:
            # A column for every position of every device, as Gavel's simulator has it.
            columns = [
                left[:, on] * k
                for k in range(1, jobs + 1)
                for on, many in enumerate(devices)
                for _ in range(many)
            ]
            costs = np.stack(columns, axis=1)
            whole = took(lambda costs=costs: assign(costs), 1)
            rows, chosen = assign(costs)
            off = abs(float(costs[rows, chosen].sum()) / found.total_s - 1)
            print(
                f"    assignment {1e3 * whole:6.0f} ms, {whole / flow:4.0f} times; totals differ by {off:.0e}"
            )


def main() -> None:
    max_min(question(64, 16))  # imports the solvers
    allox(np.ones((2, 1)), [np.zeros(1)])
    print("CPU time, median")
    max_min_by_class()
    shared()
    finish()
    matching()


if __name__ == "__main__":
    main()
