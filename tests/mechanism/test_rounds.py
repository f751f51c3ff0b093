"""Rounds: over time everybody gets its fraction, nobody runs twice, and books survive being written down."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.errors import BrokenError
from hs_core.mechanism.gavel.fair import max_min
from hs_core.mechanism.gavel.question import Question
from hs_core.mechanism.rounds import (
    Books,
    Line,
    Round,
    Staleness,
    pick,
    priorities,
    receive,
    reset,
    units_of,
    with_received,
)

SEEDS = st.integers(0, 2**32 - 1)
ROUND_S = 360.0


def start(fraction: list[list[float]], units: list[tuple[int, ...]] | None = None) -> Books:
    table = np.array(fraction, float)
    return reset(None, units or [(at,) for at in range(len(table))], table, 0.0, credit_s=0.0)


def test_what_has_not_run_comes_before_all_that_has_and_by_its_fraction() -> None:
    books = receive(start([[0.2], [0.5], [0.3]]), [((1,), 0, 100.0)])
    order = np.argsort(-priorities(books)[:, 0])
    assert order.tolist() == [2, 0, 1]


def test_priority_is_the_fraction_over_the_part_received() -> None:
    books = receive(start([[0.2], [0.8]]), [((0,), 0, 100.0), ((1,), 0, 300.0)])
    assert priorities(books)[:, 0] == pytest.approx([0.8, 0.8 / 0.75])


def test_a_round_fills_types_in_order_and_gangs_that_do_not_fit_are_passed_over() -> None:
    books = start([[0.9, 0.1], [0.8, 0.9], [0.1, 0.2]])
    gang, able = np.array([2, 2, 1]), np.ones((3, 2), bool)
    chosen = pick(books, gang, able, np.array([3, 2]))
    assert list(zip(chosen.unit, chosen.on, strict=True)) == [(0, 0), (2, 0), (1, 1)]
    # The other type first: unit 1 has the best claim there.
    turned = pick(books, gang, able, np.array([3, 2]), types=[1, 0])
    assert list(zip(turned.unit, turned.on, strict=True)) == [(1, 1), (0, 0), (2, 0)]


def test_those_that_are_kept_come_first_and_who_is_not_taken_is_passed_over() -> None:
    books = start([[0.9, 0.1], [0.8, 0.9], [0.1, 0.2], [0.5, 0.5]])
    line = Line(books, np.array([2, 2, 1, 1]), np.ones((4, 2), bool), np.array([3, 2]))
    asked: list[tuple[int, int]] = []

    def takes(unit: int, on: int) -> bool:
        asked.append((unit, on))
        return unit != 3

    chosen = line.pick(books, kept=Round(unit=(1,), on=(0,)), takes=takes)
    assert list(zip(chosen.unit, chosen.on, strict=True)) == [(1, 0), (2, 0), (0, 1)]
    assert asked == [(3, 0), (2, 0), (3, 1), (0, 1)], "whom there are GPUs for"


def test_left_over_gpus_go_to_units_without_a_claim_unless_told_otherwise() -> None:
    books = start([[1.0], [0.0]])
    gang, able, gpus = np.array([1, 1]), np.ones((2, 1), bool), np.array([2])
    assert pick(books, gang, able, gpus).unit == (0, 1)
    assert pick(books, gang, able, gpus, skip_zero=True).unit == (0,)
    assert pick(books, gang, np.array([[True], [False]]), gpus).unit == (0,)


def test_a_job_runs_once_alone_or_beside_one_other() -> None:
    books = start([[0.5], [0.5], [0.9]], [(7,), (8,), (7, 8)])
    chosen = pick(books, np.array([1, 1, 1]), np.ones((3, 1), bool), np.array([3]))
    assert chosen.unit == (2,)


def test_what_was_promised_and_not_given_is_owed_after_the_next_allocation() -> None:
    books = reset(None, [(1,), (2,)], np.array([[0.5], [0.5]]), 0.0)
    books = receive(books, [((1,), 0, 1_000.0)])
    books = reset(books, [(2,), (3,)], np.array([[0.5], [0.5]]), 1_000.0)
    assert books.deficit_s[:, 0] == pytest.approx([500, 0])
    assert books.received_s[:, 0] == pytest.approx([180, 180])
    # Owed more, and otherwise equal: it runs.
    assert pick(books, np.array([1, 1]), np.ones((2, 1), bool), np.array([1])).unit == (0,)


def test_an_allocation_is_asked_for_when_something_changed_and_not_too_often() -> None:
    books = reset(None, [(1,)], np.ones((1, 1)), 100.0)
    rule = Staleness()
    assert rule.due(None, 0.0, changed=False)
    assert not rule.due(books, 2_000.0, changed=True)
    assert rule.due(books, 2_020.0, changed=True)
    assert not rule.due(books, 9_999.0, changed=False)
    assert rule.due(books, 200.0, changed=True, idle=True)


def test_units_are_the_jobs_and_then_their_pairs() -> None:
    assert units_of([5, 6, 9], np.array([[0, 2]])) == ((5,), (6,), (9,), (5, 9))


def test_books_survive_being_written_down() -> None:
    books = receive(start([[0.2, 0.3], [0.5, 0.1]], [(4,), (4, 9)]), [((4, 9), 1, 7.0)])
    again = Books.load(json.loads(json.dumps(books.dump())), types=2)
    assert again.units == books.units
    assert again.received_s.tolist() == books.received_s.tolist()
    assert Books.load(start([[0.0] * 3][:0] or [[0.0] * 3]).dump(), types=3).fraction.shape == (1, 3)


def test_books_of_another_shape_are_refused() -> None:
    with pytest.raises(BrokenError, match="a row for each of 2 units"):
        reset(None, [(1,), (2,)], np.ones((1, 1)), 0.0)
    with pytest.raises(BrokenError, match="don't fit books of 1 units and 1 types"):
        pick(start([[1.0]]), np.array([1, 1]), np.ones((1, 1), bool), np.array([1]))


@given(SEEDS)
@settings(max_examples=60)
def test_no_gpu_is_promised_twice_and_no_job_runs_twice(seed: int) -> None:
    dice = np.random.default_rng(seed)
    jobs, types = int(dice.integers(1, 12)), int(dice.integers(1, 4))
    units = [(job,) for job in range(jobs)] + [(job, job + 1) for job in range(0, jobs - 1, 2)]
    books = start(dice.random((len(units), types)).tolist(), units)
    gang = np.array([1 + unit[0] // 2 % 3 for unit in units])
    able, gpus = dice.random((len(units), types)) < 0.8, dice.integers(0, 6, types)
    for _ in range(5):
        chosen = pick(books, gang, able, gpus)
        used = np.zeros(types)
        np.add.at(used, list(chosen.on), gang[list(chosen.unit)])
        assert (used <= gpus).all()
        running = [job for unit in chosen.unit for job in units[unit]]
        assert len(running) == len(set(running))
        assert able[list(chosen.unit), list(chosen.on)].all()
        # Nothing that fits was left out.
        for at, unit in enumerate(units):
            if not set(unit) & set(running):
                assert not (able[at] & (gang[at] <= gpus - used)).any()
        books = receive(
            books, [(units[at], on, ROUND_S) for at, on in zip(chosen.unit, chosen.on, strict=True)]
        )


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_over_many_rounds_of_one_type_all_get_the_time_they_were_promised(seed: int) -> None:
    """On one type; who is promised time on two may be placed on the first when the second would be its turn, as in Gavel."""
    dice = np.random.default_rng(seed)
    gpus = int(dice.integers(1, 5))
    jobs = gpus + int(dice.integers(1, 6))
    asked = Question(
        speed=np.ones((jobs, 1)),
        gang=np.ones(jobs, int),
        gpus=np.array([gpus]),
        weight=dice.choice([1.0, 2.0, 3.0], jobs),
    )
    promised = max_min(asked).alone
    books = reset(None, [(job,) for job in range(jobs)], promised, 0.0, credit_s=0.0)
    rounds = 200
    for _ in range(rounds):
        chosen = pick(books, asked.gang, asked.can, asked.gpus)
        assert len(chosen.unit) == gpus
        ran = [(books.units[at], on, ROUND_S) for at, on in zip(chosen.unit, chosen.on, strict=True)]
        books = receive(books, ran)
    got = books.received_s / (rounds * ROUND_S)
    assert (got >= promised - 2 * jobs / rounds).all()


@given(SEEDS)
def test_a_line_without_those_who_have_left_picks_as_one_made_without_them(seed: int) -> None:
    dice = np.random.default_rng(seed)
    units, types = int(dice.integers(1, 12)), int(dice.integers(1, 4))
    fraction = dice.choice([0.0, 0.25, 0.5, 1.0], (units, types))
    books = reset(None, [(at,) for at in range(units)], fraction, 0.0)
    received = dice.choice([180.0, 360.0, 540.0], (units, types))
    gang, able = dice.integers(1, 4, units), dice.random((units, types)) > 0.2
    gpus, left = dice.integers(0, 8, types), np.flatnonzero(dice.random(units) > 0.6)
    skip_zero = bool(dice.integers(2))
    line = Line(books, gang, able, gpus, skip_zero=skip_zero)
    line.leave(left.tolist())
    able[left] = False
    now = with_received(books, received)
    assert line.pick(now) == pick(now, gang, able, gpus, skip_zero=skip_zero)
