"""Stride of one server: who gets GPUs that nobody else could use."""

from collections import Counter
from fractions import Fraction

import pytest

from hs_core.mechanism.stride import StrideQueue


def beside_gangs(quanta: int) -> StrideQueue[str]:
    """Two gangs take turns, and a job of few tickets has the GPU that is left by either: far more than its tickets say."""
    queue: StrideQueue[str] = StrideQueue()
    for order, (job, gang, tickets) in enumerate(
        [("a", 3, Fraction(1)), ("b", 3, Fraction(1)), ("light", 1, Fraction(1, 10))]
    ):
        queue.add(job, gang, tickets, (order,), kin=job)
    for _ in range(quanta):
        assert "light" in queue.pick(4)
    return queue


@pytest.mark.parametrize("quanta", [0, 10, 1_000])
def test_a_newcomer_does_not_wait_for_what_others_got_that_nobody_else_could_use(quanta: int) -> None:
    queue = beside_gangs(quanta)
    queue.add("new", 3, Fraction(1), (9,), kin="new")
    ran = Counter(job for _ in range(30) for job in queue.pick(4))
    assert ran["new"] in (9, 10, 11)


@pytest.mark.parametrize("quanta", [10, 1_000])
@pytest.mark.parametrize(("tickets", "runs"), [(Fraction(2), 20), (Fraction(1, 2), 10)])
def test_other_tickets_are_worth_what_they_say_however_long_somebody_filled_gaps(
    quanta: int, tickets: Fraction, runs: int
) -> None:
    queue = beside_gangs(quanta)
    queue.set_tickets({"a": tickets})
    ran = Counter(job for _ in range(30) for job in queue.pick(4))
    assert abs(ran["a"] - runs) <= 2


def test_who_filled_gaps_has_its_turn_again_within_two_of_its_periods() -> None:
    queue = beside_gangs(1_000)
    queue.add("wide", 4, Fraction(8, 10), (9,), kin="wide")
    queue.remove("a")
    queue.remove("b")
    queue.set_tickets({"light": Fraction(1, 5)})
    ran = [queue.pick(4) for _ in range(100)]
    assert next(at for at, jobs in enumerate(ran) if "light" in jobs) <= 2 * 5
    assert sum("light" in jobs for jobs in ran[10:]) == pytest.approx(90 / 2, abs=3)


def test_a_roomy_server_leaves_nobody_in_debt_when_others_come() -> None:
    queue: StrideQueue[str] = StrideQueue()
    for order, (job, tickets) in enumerate([("heavy", 10), ("p", 1), ("q", 1), ("r", 1)]):
        queue.add(job, 1, Fraction(tickets), (order,), kin=job)
    for _ in range(1_000):  # a night in which all of them run all the time
        assert len(queue.pick(4)) == 4
    newcomers = [f"new{n}" for n in range(6)]
    for order, job in enumerate(newcomers, start=10):
        queue.add(job, 1, Fraction(1), (order,), kin=job)
    ran = [queue.pick(4) for _ in range(60)]
    for job in ("p", "q", "r"):
        assert next(at for at, jobs in enumerate(ran) if job in jobs) <= 2 * 3
    assert all("heavy" in jobs for jobs in ran)
    count = Counter(job for jobs in ran for job in jobs)
    assert all(abs(count[job] - 20) <= 2 for job in ("p", "q", "r", *newcomers))


def test_who_fills_gpus_is_not_put_before_who_waits_as_it_does_for_the_sake_of_who_has_few_tickets() -> None:
    """Two jobs of a user with next to no tickets come with what they were owed elsewhere, hours of theirs: beside them a small job fills a GPU, and a gang waits."""
    queue: StrideQueue[str] = StrideQueue()
    for job, gang in (("light", 2), ("lighter", 1)):
        queue.add(job, gang, Fraction(gang, 2000), (job,), Fraction(-1))
    for job, gang in (("fills", 1), ("gang", 4)):
        queue.add(job, gang, Fraction(gang), (job,))
    assert set(queue.pick(4)) == {"light", "lighter", "fills"}
    ran = Counter(job for _ in range(100) for job in queue.pick(4))
    assert abs(ran["gang"] - ran["fills"]) <= 1
    assert ran["gang"] >= 49
