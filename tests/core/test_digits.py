"""Whole numbers as people type them."""

import pytest

from hs_core.digits import whole


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("7", 7), ("100", 100), ("007", 7), ("0" * 5000 + "9", 9)]
)
def test_ascii_digits_up_to_the_most_are_a_number(text: str, number: int) -> None:
    assert whole(text, 100) == number


@pytest.mark.parametrize(
    "text",
    ["", "101", "9" * 5000, "-1", "+1", "1.0", "1e2", " 1", "1_0", "²", "٣", "x"],
    ids=lambda text: repr(text[:9]),
)
def test_all_else_is_none(text: str) -> None:
    assert whole(text, 100) is None
