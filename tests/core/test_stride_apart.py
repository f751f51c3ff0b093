"""Stride of one server: jobs of one kind stay equally far apart, whoever of them comes and goes."""

import json
from collections.abc import Collection
from fractions import Fraction
from itertools import pairwise

import pytest

from hs_core.mechanism.stride import StrideQueue


def sweep(jobs: int, others: int = 1) -> StrideQueue[int]:
    """Of one user, beside a gang of four of another, of whose GPUs both are due half."""
    queue: StrideQueue[int] = StrideQueue()
    for job in range(jobs):
        queue.add(job, 1, Fraction(2, jobs), (0, job), kin="sweep")
    for job in range(others):
        queue.add(100 + job, 4, Fraction(2, others), (1, job), kin="gang")
    return queue


def distances(queue: StrideQueue[int], jobs: Collection[int], tickets: Fraction) -> set[Fraction]:
    """Between those next to one another on their stride."""
    stride = 1 / tickets
    phases = sorted(float(queue.passes()[job] / stride % 1) for job in jobs)
    around = [*phases, phases[0] + 1]
    return {Fraction(round((b - a) * 1e6), 10**6) for a, b in pairwise(around)}


def test_those_who_are_left_are_equally_far_apart_again_and_together_where_they_were() -> None:
    queue = sweep(8)
    for _ in range(9):
        queue.pick(4)
    for job in (1, 2, 5):
        queue.remove(job)
    left = [0, 3, 4, 6, 7]
    before = queue.passes()
    assert len(distances(queue, left, Fraction(1, 4))) > 1
    queue.space_out()
    after = queue.passes()
    assert distances(queue, left, Fraction(1, 4)) == {Fraction(1, 5)}
    assert float(sum(after[job] - before[job] for job in left)) == pytest.approx(0.0, abs=1e-9)
    assert after[100] == before[100]


def test_who_comes_with_what_it_carries_is_put_among_them_and_brings_it_all_the_same() -> None:
    queue = sweep(5)
    for _ in range(6):
        queue.pick(4)
    queue.add(9, 1, Fraction(2, 5), (0, 9), carry=Fraction(-2, 5), kin="sweep")
    before = queue.passes()
    queue.space_out()
    after = queue.passes()
    sweepers = [job for job in before if job < 100]
    assert distances(queue, sweepers, Fraction(2, 5)) == {Fraction(round(1e6 / 6), 10**6)}
    assert float(sum(after[job] - before[job] for job in sweepers)) == pytest.approx(0.0, abs=1e-9)


def test_what_one_of_them_owes_the_others_it_owes_still() -> None:
    queue = sweep(4)
    queue.charge([0], Fraction(10))
    queue.remove(3)
    queue.space_out()
    lags = queue.passes()
    assert all(8 < (lags[0] - lags[other]) * Fraction(1, 2) < 11 for other in (1, 2))


def test_who_has_not_begun_has_no_place_yet_and_is_put_among_them_once_it_has() -> None:
    queue = sweep(4)
    queue.space_out()
    queue.add(4, 1, Fraction(1, 2), (0, 4), kin="sweep")
    before = queue.passes()
    queue.space_out(absent={4})
    assert queue.passes() == before
    queue.space_out()
    assert distances(queue, range(5), Fraction(1, 2)) == {Fraction(1, 5)}


def test_an_agent_that_is_killed_between_a_departure_and_the_edge_does_the_same_after() -> None:
    queue = sweep(6)
    queue.pick(4)
    queue.remove(2)
    again: StrideQueue[int] = StrideQueue.load(json.loads(json.dumps(queue.dump())))
    for each in (queue, again):
        each.space_out()
    assert again.dump() == queue.dump()


def test_jobs_that_come_from_elsewhere_with_the_same_lag_do_not_run_together_ever_after() -> None:
    queue = sweep(0)
    for job in range(12):
        queue.add(job, 1, Fraction(1, 6), (0, job), carry=Fraction(0), kin="sweep")
    ran = [sum(job < 100 for job in queue.pick(4)) for _ in range(60)]
    assert all(abs(sum(ran[first : first + 3]) - 6) <= 4 for first in range(57)), ran


def test_cancelling_and_submitting_again_gains_a_sweep_nothing() -> None:
    """Whichever of its jobs it sends away: those that were served, those that were not."""
    for served in (True, False):
        queue: StrideQueue[int] = StrideQueue()
        for job in range(7):
            queue.add(job, 1, Fraction(1, 2), (0, job), kin=job)
        mine, name, got = list(range(100, 104)), 104, 0
        for job in mine:
            queue.add(job, 1, Fraction(1, 8), (1, job), kin="sweep")
        for _ in range(2_000):
            ran = queue.pick(4)
            got += sum(job in ran for job in mine)
            for job in [job for job in mine if (job in ran) == served]:
                mine.remove(job)
                queue.remove(job)
                mine.append(name)
                queue.add(name, 1, Fraction(1, 8), (1, name), kin="sweep")
                name += 1
        assert got / 2_000 <= 0.5 * 1.03
