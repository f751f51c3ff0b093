"""Every method of `solve.lp` finds the same value, proves it with prices, and says why there is none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.errors import BrokenError
from hs_core.solve import Entries, InfeasibleError, Method, UnboundedError, lp

METHODS = list(Method)


@pytest.mark.parametrize("method", METHODS)
def test_a_small_program_has_its_known_answer_and_prices(method: Method) -> None:
    # max 3x + 2y, x + y <= 4, x + 3y <= 6, x <= 3
    found = lp([-3, -2], a_ub=np.array([[1.0, 1], [1, 3]]), b_ub=[4, 6], upper=[3, np.inf], method=method)
    assert found.x == pytest.approx([3, 1], abs=1e-6)
    assert found.value == pytest.approx(-11)
    # Three limits meet there, so prices are not unique; all of them add up to the value.
    over = np.clip([3, 2] - found.prices @ [[1, 1], [1, 3]], 0, None)
    assert found.prices @ [4, 6] + 3 * over[0] == pytest.approx(11)


def test_the_centre_gives_equals_equal_parts_where_a_corner_would_choose() -> None:
    found = lp([-1, -1, -1], a_ub=np.ones((1, 3)), b_ub=[3], upper=2.0, method=Method.CENTRE)
    assert found.x == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("method", METHODS)
def test_equalities_hold(method: Method) -> None:
    found = lp([1, 2], a_eq=np.array([[1.0, 1]]), b_eq=[3], method=method)
    assert found.x == pytest.approx([3, 0], abs=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_what_has_no_answer_is_told_apart(method: Method) -> None:
    with pytest.raises(InfeasibleError):
        lp([1], a_ub=np.array([[1.0], [-1]]), b_ub=[1, -2], method=method)
    with pytest.raises(UnboundedError):
        lp([-1.0, 0], a_ub=np.array([[0.0, 1]]), b_ub=[1], method=method)


def test_a_program_of_wrong_shape_or_without_numbers_is_named() -> None:
    with pytest.raises(BrokenError, match="a_ub is 1 by 2; expected 2 rows"):
        lp([1, 1], a_ub=np.ones((1, 2)), b_ub=[1, 1])
    with pytest.raises(BrokenError, match="not finite"):
        lp([np.nan], a_ub=np.ones((1, 1)), b_ub=[1])


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_all_methods_agree_and_their_prices_prove_the_value(seed: int) -> None:
    dice = np.random.default_rng(seed)
    rows, columns = dice.integers(1, 6, 2)
    matrix = dice.integers(0, 5, (rows, columns)).astype(float)
    row, col = np.nonzero(matrix)
    entries = Entries(row, col, matrix[row, col], matrix.shape)
    limits, worth = dice.integers(0, 9, rows).astype(float), dice.integers(-3, 9, columns).astype(float)
    values = []
    for method in METHODS:
        found = lp(-worth, a_ub=entries, b_ub=limits, upper=2.0, method=method)
        assert (matrix @ found.x <= limits + 1e-7).all()
        assert (found.prices >= -1e-9).all()
        # Weak duality is tight: what the prices don't cover is earned at the upper bounds.
        bound = limits @ found.prices + 2.0 * np.clip(worth - found.prices @ matrix, 0, None).sum()
        assert -found.value == pytest.approx(bound, abs=1e-6)
        values.append(found.value)
    assert values == pytest.approx([values[0]] * len(METHODS), abs=1e-6)
