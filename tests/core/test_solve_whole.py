"""Whole programs, assignments and matchings behind the one door."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core import solve
from hs_core.errors import BrokenError


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_a_whole_program_is_solved_as_by_trying_all(seed: int, columns: int, rows: int) -> None:
    dice = np.random.default_rng(seed)
    costs, matrix, limits = (
        dice.integers(-5, 6, columns),
        dice.integers(-3, 4, (rows, columns)),
        dice.integers(-2, 6, rows),
    )
    points = [np.array(point) for point in itertools.product(range(3), repeat=columns)]
    values = [int(costs @ point) for point in points if (matrix @ point <= limits).all()]
    if not values:
        with pytest.raises(solve.InfeasibleError):
            solve.ip(costs, a_ub=matrix.astype(float), b_ub=limits, upper=2)
        return
    found = solve.ip(costs, a_ub=matrix.astype(float), b_ub=limits, upper=2)
    assert found is not None
    assert found.proved
    assert (found.value, found.bound) == (min(values), min(values))
    assert (matrix @ found.x <= limits).all()


def test_a_gap_ends_the_search_with_a_bound_that_holds() -> None:
    dice = np.random.default_rng(0)
    costs, sizes = -dice.integers(1, 100, 60), dice.integers(1, 100, 60)
    whole = solve.ip(costs, a_ub=sizes[None].astype(float), b_ub=[1000])
    early = solve.ip(costs, a_ub=sizes[None].astype(float), b_ub=[1000], gap=0.2)
    assert whole is not None
    assert early is not None
    assert early.bound <= whole.value <= early.value
    assert early.value - early.bound <= 0.2 * abs(early.value) + 1


def test_what_is_not_whole_is_refused() -> None:
    with pytest.raises(BrokenError, match="costs has values that are not whole"):
        solve.ip([0.5])
    with pytest.raises(BrokenError, match=r"a_ub is 1 by 2; expected 1 rows \(b_ub\) by 1 columns"):
        solve.ip([1], a_ub=np.ones((1, 2)), b_ub=[1])


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_a_sparse_matching_gains_what_the_dense_assignment_does(seed: int, rows: int, columns: int) -> None:
    dice = np.random.default_rng(seed)
    gains = np.where(dice.random((rows, columns)) < 0.4, dice.integers(1, 9, (rows, columns)), 0).astype(
        float
    )
    row, col = np.nonzero(gains)
    left, right = solve.match(solve.Entries(row, col, gains[row, col], gains.shape))
    assert len(set(left.tolist())) == len(left)
    assert len(set(right.tolist())) == len(right)
    assert (gains[left, right] > 0).all()
    dense = gains[solve.assign(gains, most=True)].sum()
    assert gains[left, right].sum() == dense


def test_a_gain_of_nothing_is_no_pair() -> None:
    with pytest.raises(BrokenError, match="gains has values of 0 or less"):
        solve.match(solve.Entries(np.array([0]), np.array([0]), np.array([0.0]), (1, 1)))
    with pytest.raises(BrokenError, match="not numbers"):
        solve.assign(np.array([[np.nan]]))
