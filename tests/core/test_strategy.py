"""Parallelism strategies as text: one way to write each, and what is none is refused in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_core.errors import RefusedError
from hs_core.strategy import Strategy, another, class_as, obstacle, parse

DEGREE = st.integers(1, 64)
STRATEGIES = st.builds(Strategy, DEGREE, DEGREE, DEGREE, st.lists(DEGREE, max_size=4).map(tuple))


@given(STRATEGIES)
def test_what_is_written_is_read_again(strategy: Strategy) -> None:
    assert parse(strategy.text) == strategy


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("dp=4", Strategy(4)),
        (" pp=2, tp=2 ", Strategy(1, 2, 2)),
        ("dp=1", Strategy()),
        ("pp=2,layers=10+14", Strategy(1, 1, 2, (10, 14))),
    ],
)
def test_degrees_that_are_left_out_are_one(text: str, read: Strategy) -> None:
    assert parse(text) == read


@pytest.mark.parametrize(
    "text", ["", "4", "dp", "dp=0", "dp=x", "dp=2,dp=2", "ep=2", "tp=-1", "pp=2,layers=", "dp=2;tp=2"]
)
def test_what_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(RefusedError, match=r"expected degrees like `dp=2,tp=2,pp=2`"):
        parse(text)


@pytest.mark.parametrize(
    ("texts", "gang", "why"),
    [
        (["dp=4", "tp=2,pp=2"], 4, ""),
        (["dp=4"], 8, "multiply to its 8 GPUs, not to 4"),
        (["pp=2,layers=1+2+3"], 2, "layers of 2 stages, not of 3"),
        (["dp=2", "dp=2"], 2, "each strategy once"),
    ],
)
def test_all_of_them_are_for_the_whole_gang(texts: list[str], gang: int, why: str) -> None:
    found = obstacle([parse(text) for text in texts], gang)
    assert why in found
    assert bool(found) == bool(why)


@given(st.text(max_size=20), STRATEGIES, STRATEGIES)
def test_each_strategy_of_a_class_has_rates_of_its_own(
    job_class: str, one: Strategy, other: Strategy
) -> None:
    assert another(class_as(job_class, one), other) == class_as(job_class, other)
    assert (class_as(job_class, one) == class_as(job_class, other)) == (one == other)
    assert class_as(job_class, None) == job_class
