"""The least that users lack whatever homes their jobs have, against cases that can be worked out by hand."""

import pytest

from benchmarks.any_homes import Asked, least_lack


def test_nobody_lacks_anything_where_a_gang_and_those_who_fill_its_server_take_turns() -> None:
    assert least_lack(1, [Asked(4, 1, 2.0, 0.1), Asked(1, 4, 2.0, 0.2)]) == pytest.approx(0.0)
    assert least_lack(2, [Asked(1, 4, 4.0, 0.2), Asked(5, 1, 4.0, 0.2)]) == pytest.approx(0.0)


def test_two_that_never_fit_beside_one_another_lack_as_much_of_what_is_allowed() -> None:
    # Two GPUs for a part t of the time, three for the rest: (2 - 2 t) / 0.1 = (2 - 3 (1 - t)) / 0.15.
    assert least_lack(1, [Asked(1, 2, 2.0, 0.1), Asked(1, 3, 2.0, 0.15)]) == pytest.approx(20 / 3)


def test_narrow_jobs_that_do_not_fill_their_last_server_cost_gangs_a_part_of_it() -> None:
    # Six of one GPU fill a server and half of another, which gangs have for a part t: 2 t / 0.3 = (2 - 4 t) / 0.9.
    assert least_lack(6, [Asked(6, 1, 6.0, 0.3), Asked(10, 4, 18.0, 0.9)]) == pytest.approx(4 / 3)
