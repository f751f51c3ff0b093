"""Whether training will come to a place where it can be saved, by how it came to them before."""

import pytest

from hs_job.places import Places


def been(*steps: int) -> Places:
    places = Places()
    for step in steps:
        places.came(step)
    return places


@pytest.mark.parametrize(
    ("steps", "now", "left_behind"),
    [
        ((), 20, True),
        ((0,), 1000, False),  # a batch is trained on for long, perhaps
        ((0, 0, 0), 20, True),  # all batches were fetched, and are gone through again and again
        ((0, 1, 2), 4, False),
        ((0, 1, 2), 5, True),
        ((0, 50, 100), 200, False),
        ((0, 50, 51), 151, False),
        ((0, 50, 51), 152, True),
    ],
)
def test_it_trains_on_for_much_longer_than_it_ever_has_without_coming_to_one(
    steps: tuple[int, ...], now: int, left_behind: bool
) -> None:
    assert been(*steps).are_left_behind(now) is left_behind
