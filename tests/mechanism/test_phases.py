"""Where jobs of one kind are on their stride."""

from fractions import Fraction

import hypothesis.strategies as st
from hypothesis import given

from hs_core.mechanism.phases import come

ONE = Fraction(1)
circle = st.integers(0, 99).map(lambda part: Fraction(part, 100))


@given(st.lists(circle, min_size=2, max_size=9))
def test_who_comes_finds_all_equally_far_from_one_another_and_the_others_where_they_were_on_average(phases):
    *shifts, came = come(phases, ONE)
    assert sum(shifts) == 0
    now = sorted([*[(at + by) % 1 for at, by in zip(phases, shifts, strict=True)], came % 1])
    apart = {after - before for before, after in zip(now, [*now[1:], now[0] + 1], strict=True)}
    assert apart == {ONE / len(now)}


@given(st.lists(circle, min_size=2, max_size=9))
def test_nobody_overtakes_another_by_it(phases):
    *shifts, _ = come(phases, ONE)
    order = sorted(range(len(phases)), key=phases.__getitem__)
    now = [phases[at] + shifts[at] for at in order]
    assert now == sorted(now)
    assert now[-1] - now[0] < 1
