"""Stride of one server: jobs that begin in the middle of a quantum."""

from fractions import Fraction

from hs_core.mechanism.stride import StrideQueue


def test_a_job_that_begins_to_compete_is_owed_only_its_credit_and_the_others_stay_where_they_are_to_one_another() -> (
    None
):
    queue: StrideQueue[int] = StrideQueue()
    for job in (1, 2, 3):
        queue.add(job, 1, Fraction(1, 3), (job,), kin=job)
    for _ in range(7):
        queue.charge([1], able=[1, 2])
    before = queue.passes()
    assert before[3] < 0
    queue.begin(3)
    after = queue.passes()
    assert after[3] == 0
    assert {job: after[job] for job in (1, 2)} == {job: before[job] for job in (1, 2)}
    left = queue.begin(3, Fraction(1, 2))
    moved = {job: now - after[job] for job, now in queue.passes().items()}
    assert moved == {1: Fraction(1, 6), 2: Fraction(1, 6), 3: Fraction(-1, 3)}, (
        "over three jobs, not over two"
    )
    assert left == Fraction(1, 3)


def test_jobs_that_begin_together_in_a_quantum_do_not_run_together_ever_after() -> None:
    queue: StrideQueue[int] = StrideQueue()
    users = {"a": (1, 1, range(16)), "b": (2, 1, range(16, 30)), "c": (1, 2, range(30, 47))}  # gang, tickets
    for user, (gang, tickets, jobs) in users.items():
        for job in jobs:
            queue.add(job, gang, Fraction(tickets, len(jobs)), (job,), kin=user)
    absent = set(range(4, 47))
    queue.charge(range(4), absent=absent)
    credit = 4 / Fraction(4, 16) * Fraction(9, 10)  # four have all GPUs of the quantum that has just begun
    for job in sorted(absent):
        credit = queue.begin(job, credit, absent)
        absent.remove(job)
    assert credit == 4 / Fraction(4) * Fraction(9, 10)
    ran = [queue.pick(4) for _ in range(120)]
    for gang, tickets, jobs in users.values():
        for at in range(100):
            got = gang * sum(job in jobs for quantum in ran[at : at + 20] for job in quantum)
            assert abs(got - 20 * tickets) <= 4


def test_a_job_that_begins_keeps_its_distance_from_those_of_its_kind() -> None:
    queue: StrideQueue[int] = StrideQueue()
    for job in (1, 2):
        queue.add(job, 1, Fraction(1, 2), (job,), kin="user")
    queue.charge([1], absent=[2])
    queue.begin(2, absent=[2])
    assert queue.passes()[2] - queue.passes()[1] in (1, -1), "half a stride of two"


def test_what_absent_jobs_miss_is_nobodys_debt() -> None:
    queue: StrideQueue[int] = StrideQueue()
    for job in (1, 2):
        queue.add(job, 1, Fraction(1, 2), (job,), kin=job)
    for _ in range(100):
        queue.charge([1], absent=[2])
    queue.begin(2)
    assert queue.passes() == {1: 0, 2: 0}
    ran = [queue.pick(1)[0] for _ in range(20)]
    assert ran.count(1) == ran.count(2) == 10


def test_jobs_of_one_kind_that_begin_one_after_the_other_are_equally_far_apart_at_nobody_elses_cost() -> None:
    queue: StrideQueue[int] = StrideQueue()
    for job in range(6):
        queue.add(job, 1, Fraction(1, 3), (job,), kin="user" if job < 5 else "other")
    absent = {1, 2, 3, 4}
    queue.charge([0], absent=absent)
    for job in (1, 2, 3, 4):
        before = queue.passes()
        queue.begin(job, absent=absent)
        absent.remove(job)
        now = queue.passes()
        there = [other for other in range(5) if other not in absent]
        assert now[5] == before[5]
        assert sum(now[other] - before[other] for other in there if other != job) == 0
        at = sorted(now[other] / 3 % 1 for other in there)
        apart = {after - one for one, after in zip(at, [*at[1:], at[0] + 1], strict=True)}
        assert apart == {Fraction(1, len(there))}
