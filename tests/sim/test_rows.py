"""All servers' stride over arrays says what one server's exact stride says."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.mechanism.stride import StrideQueue
from hs_sim.quanta.rows import Rows

NOBODY = np.empty(0, dtype=np.int64)

jobs = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(1, 7)), min_size=1, max_size=9
)  # gang, tickets over


def fill(
    rows: Rows, queue: StrideQueue[int], row: int, wanted: list[tuple[int, int, int]], first: int
) -> None:
    for job, (gang, over, under) in enumerate(wanted, start=first):
        rows.add(job, row, gang, over / under, kin="user")
        rows.begin([job])
        queue.add(job, gang, Fraction(over, under), (job,), kin="user")


@settings(max_examples=60, deadline=None)
@given(st.lists(jobs, min_size=1, max_size=3), st.data())
def test_arrays_pick_the_jobs_that_the_exact_queue_picks(servers, data) -> None:
    rows = Rows(len(servers), 100)
    queues: list[StrideQueue[int]] = []
    free = np.full(len(servers), 4)
    for row, wanted in enumerate(servers):
        queues.append(StrideQueue())
        fill(rows, queues[row], row, wanted, row * 20)
    asks = {
        row * 20 + at: (gang, Fraction(over, under))
        for row, wanted in enumerate(servers)
        for at, (gang, over, under) in enumerate(wanted)
    }
    for _ in range(3):
        for _ in range(data.draw(st.integers(1, 25))):
            picked = sorted(rows.pick(free, NOBODY).tolist())
            gangs = [int(rows.gang[rows.row_of(job), rows.job[rows.row_of(job)] == job][0]) for job in picked]
            at = [rows.row_of(job) for job in picked]
            assert rows.handed.tolist() == np.bincount(at, gangs, minlength=len(servers)).tolist()
            assert picked == sorted(job for queue in queues for job in queue.pick(4))
        row = data.draw(st.integers(0, len(servers) - 1))
        members = queues[row].order()
        if members and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(members)))
            carried = queues[row].remove(gone)
            assert abs(rows.remove(gone) - float(carried)) < 1e-6
            if data.draw(st.booleans()):
                to, (gang, tickets) = data.draw(st.integers(0, len(servers) - 1)), asks[gone]
                rows.add(gone, to, gang, float(tickets), kin="user", carry=float(carried))
                rows.begin([gone])
                queues[to].add(gone, gang, tickets, (100, gone), carry=carried, kin="user")
        elif members:
            changed = data.draw(st.sampled_from(sorted(members)))
            tickets = Fraction(data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9)))
            asks[changed] = (asks[changed][0], tickets)
            queues[row].set_tickets({changed: tickets})
            rows.set_tickets(np.array([changed]), np.array([float(tickets)]))


def test_every_window_of_six_quanta_has_the_exact_shares() -> None:
    rows = Rows(1, 6)
    for job, gang in enumerate((1, 1, 2, 2, 4, 4)):
        rows.add(job, 0, gang, 2 / 3, kin=gang)
        rows.begin([job])
    for _ in range(20):
        window = np.zeros(6)
        for _ in range(6):
            window[rows.pick(np.array([4]), NOBODY)] += 1
        assert window.tolist() == [4, 4, 2, 2, 1, 1]


@pytest.mark.parametrize("part", [1e-9, 1e-10, 1e-11, 1e-13])
def test_who_has_a_billionth_of_the_tickets_or_less_has_one_turn_at_first(part: float) -> None:
    rows = Rows(1, 4)
    for job, tickets in enumerate((1.0, part, part, part)):
        rows.add(job, 0, 1, tickets, kin=tickets)
        rows.begin([job])
    had = np.zeros(4)
    for _ in range(400):
        had[rows.pick(np.array([1]), NOBODY)] += 1
    assert had.tolist() == [399, 1, 0, 0]


def test_who_leaves_and_comes_back_elsewhere_carries_its_place() -> None:
    rows = Rows(2, 4)
    for job in range(3):
        rows.add(job, 0, 1, 1.0, kin=job)
        rows.begin([job])
    rows.add(3, 1, 1, 1.0, kin=3)
    rows.begin([3])
    rows.pick(np.array([1, 1]), NOBODY)
    carried = rows.remove(0)
    assert 0 < carried <= 1
    rows.add(0, 1, 1, 1.0, kin=0, carry=carried)
    rows.begin([0])
    assert rows.pick(np.array([1, 1]), NOBODY).tolist().count(0) == 0


entrants = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(1, 3), st.booleans()), min_size=1, max_size=14
)  # row, gang, tickets, whether it carries a lag


@settings(max_examples=60, deadline=None)
@given(entrants, entrants, st.sampled_from([0.0, 0.25, 0.7]), st.integers(0, 5))
def test_many_who_begin_together_are_where_they_would_be_one_after_the_other(
    first, then, credit, quanta
) -> None:
    together, singly = Rows(3, 40), Rows(3, 40)
    for rows in (together, singly):
        for job, (row, gang, tickets, _) in enumerate(first):
            rows.add(job, row, gang, float(tickets), kin=tickets)
        rows.begin(range(len(first)))
        for _ in range(quanta):
            rows.pick(np.full(3, 4), NOBODY)
        for job, (row, gang, tickets, carries) in enumerate(then, start=20):
            rows.add(job, row, gang, float(tickets), kin=tickets, carry=-0.375 if carries else None)
    came = range(20, 20 + len(then))
    together.begin(came, credit)
    for job in came:
        singly.begin([job], credit)
    for _ in range(12):
        picks = [rows.pick(np.full(3, 4), NOBODY).tolist() for rows in (together, singly)]
        assert picks[0] == picks[1]


def test_who_fills_gpus_is_not_put_before_who_waits_as_it_does_for_the_sake_of_who_has_few_tickets() -> None:
    """As `StrideQueue`: two jobs with next to no tickets come with what they were owed elsewhere; beside them a small job fills a GPU, and a gang waits."""
    rows = Rows(1, 4)
    light, lighter, fills, gang = range(4)
    for job, (wants, tickets, carry) in enumerate(
        [(2, 1e-3, -1.0), (1, 5e-4, -1.0), (1, 1.0, None), (4, 4.0, None)]
    ):
        rows.add(job, 0, wants, tickets, kin=job, carry=carry)
    rows.begin(range(4))
    four, nobody = np.array([4], dtype=np.int64), np.empty(0, dtype=np.int64)
    assert set(rows.pick(four, nobody).tolist()) == {light, lighter, fills}
    ran = Counter(job for _ in range(100) for job in rows.pick(four, nobody).tolist())
    assert abs(ran[gang] - ran[fills]) <= 1
    assert ran[gang] >= 49


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2), st.integers(1, 6), st.integers(1, 7), st.integers(1, 7), st.sampled_from([1, 2, 4]))
def test_arrays_begin_jobs_amid_a_quantum_where_the_exact_queue_does(
    gang, first, then, tickets, parts
) -> None:
    rows, queue = Rows(1, 40), StrideQueue[int]()
    jobs = dict.fromkeys(range(first + then), (gang, tickets, "user")) | {30: (4, 3, "other")}
    absent = {*range(first, first + then)}
    for job, (wants, has, user) in jobs.items():
        rows.add(job, 0, wants, float(has), kin=user)
        if job not in absent:
            queue.add(job, wants, Fraction(has), (job,), kin=user)
    rows.begin([job for job in jobs if job not in absent])
    picked = rows.pick(np.full(1, 4), NOBODY).tolist()
    assert picked == queue.pick(4)
    rows.begin(sorted(absent), 1 / parts)
    credit = Fraction(int(rows.handed[0]), first * tickets + 3) / parts
    for job in sorted(absent):
        queue.add(job, gang, Fraction(tickets), (job,), kin="user")
        credit = queue.begin(job, credit, absent)
        absent.remove(job)
    for _ in range(60):
        assert sorted(rows.pick(np.full(1, 4), NOBODY).tolist()) == sorted(queue.pick(4))
