"""The urn: exact weights, and nothing but them."""

from bisect import bisect_right
from collections import Counter
from fractions import Fraction
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_core.dice import roll
from hs_core.mechanism.lottery import Urn

weights_st = st.lists(st.fractions(Fraction(1, 9), Fraction(9), max_denominator=9), min_size=1, max_size=8)


def test_draws_follow_the_weights() -> None:
    urn, dice = Urn([Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)]), roll(7)
    drawn = Counter(urn.draw(dice) for _ in range(12_000))
    # Five standard deviations of the largest: sqrt(12000 / 4) * 5.
    for lot, weight in enumerate((6_000, 4_000, 2_000)):
        assert drawn[lot] == pytest.approx(weight, abs=274)


@given(weights_st, st.integers(0, 99), st.fractions(Fraction(1, 50), Fraction(50), max_denominator=50))
def test_a_common_factor_changes_no_draw(weights: list[Fraction], seed: int, by: Fraction) -> None:
    left, right = Urn(weights), Urn([weight * by for weight in weights])
    one, other = roll(seed), roll(seed)
    assert [left.draw(one) for _ in range(20)] == [right.draw(other) for _ in range(20)]


@given(weights_st, st.integers(0, 99))
def test_without_replacement_every_lot_comes_once(weights: list[Fraction], seed: int) -> None:
    urn, dice, drawn = Urn(weights), roll(seed), []
    while urn:
        drawn.append(urn.draw(dice))
        urn.take_out(drawn[-1])
    assert sorted(drawn) == list(range(len(weights)))


def test_an_empty_urn_is_empty() -> None:
    assert not Urn([])


@given(weights_st, st.integers(0, 99))
def test_a_lot_is_drawn_by_where_the_die_falls_among_the_sums_of_those_left(
    weights: list[Fraction], seed: int
) -> None:
    urn, dice, other = Urn(weights), roll(seed), roll(seed)
    unit = Urn(weights)._weights.copy()
    while urn:
        sums = list(accumulate(unit))
        drawn = urn.draw(dice)
        assert drawn == bisect_right(sums, other.randrange(sums[-1]))
        urn.take_out(drawn)
        unit[drawn] = 0


def test_as_one_of_thousands_is_taken_out_few_sums_change() -> None:
    class Counted(list[int]):
        changed = 0

        def __setitem__(self, at: Any, value: Any) -> None:
            self.changed += 1
            super().__setitem__(at, value)

    urn, dice = Urn([Fraction(1)] * 2_000), roll(1)
    urn._sums = counted = Counted(urn._sums)
    while urn:
        urn.take_out(urn.draw(dice))
    assert 0 < counted.changed <= 2_000 * 11
