"""Quanta a quantum that the jobs of a server need, and the GPUs that they leave idle in each other's turns."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_core.mechanism.time_load import Least, Weighed, left_over, may_idle, occupied, time_load, weighed
from hs_core.names import JobId, UserName
from hs_core.policy import JobFacts


def jobs(*widths: int, user: str = "u") -> list[JobFacts]:
    return [
        JobFacts(id=JobId(n), user=UserName(user), gang=width, arrival_s=0.0)
        for n, width in enumerate(widths, start=1)
    ]


def load(gpus: int, *widths: int, weight: float) -> float:
    return time_load(gpus, weighed(jobs(*widths), {UserName("u"): weight}))


def test_jobs_that_fill_the_server_need_their_tickets_per_gpu() -> None:
    assert load(4, 1, 1, 1, 1, 2, 2, weight=0.5) == pytest.approx(8 * 0.5 / 4)


def test_jobs_that_all_run_at_once_need_no_more_than_their_tickets_per_gpu() -> None:
    assert load(4, 1, weight=0.8) == pytest.approx(0.2)
    assert load(4, 1, 2, weight=0.8) == pytest.approx(0.6)


def test_a_job_that_lacks_much_cannot_run_more_than_all_the_time() -> None:
    lacks, others = jobs(1, user="lacks"), jobs(1, 1, 1, 1)
    weights = {UserName("lacks"): 1.5, UserName("u"): 0.5}
    # All together need 3.5 GPUs of 4, and the one its own for the rest of the time, too.
    assert time_load(4, weighed([*lacks, *others], weights)) == pytest.approx(3.5 / 4 + (1 - 3.5 / 4) / 4)


def test_a_gang_waits_for_the_small_job_that_needs_most_and_small_ones_do_not() -> None:
    small = ((1, 0.9), (1, 0.2), (1, 0.2))
    assert time_load(2, ((2, 0.5), *small)) == pytest.approx(0.5 + 0.9)
    assert time_load(2, small) == pytest.approx(0.65 + 0.25 / 2)


def test_gangs_of_more_than_half_run_one_after_the_other() -> None:
    assert load(4, 4, 3, weight=0.5) == pytest.approx(1.0)


def test_small_jobs_that_fit_beside_a_gang_need_no_time_of_their_own() -> None:
    assert load(8, 6, 2, 1, 1, weight=0.5) < load(8, 8, 2, 1, 1, weight=0.5)


def test_one_narrow_job_among_wider_ones_keeps_the_gpu_that_nobody_can_have_in_its_turn() -> None:
    assert occupied((1, 2, 2, 2), 4) == {1: 2.0, 2: 2.0}
    assert occupied((1, 1, 2, 2), 4) == {1: 1.0, 2: 2.0}
    assert load(4, 1, 2, 2, 2, weight=0.5) == pytest.approx((2 + 6) * 0.5 / 4)


def test_jobs_whose_width_does_not_divide_the_server_share_what_is_left_over() -> None:
    assert occupied((3, 3, 3), 8) == {3: 4.0}


def test_three_narrow_jobs_leave_a_gpu_idle_only_while_all_three_run() -> None:
    assert left_over([(1, 0.8)] * 3 + [(2, 0.4)] * 3, 4) == pytest.approx(0.8**3)
    assert left_over([(1, 0.8)] * 2 + [(2, 0.4)] * 3, 4) == 0.0
    assert left_over([(1, 0.8)] * 5 + [(2, 0.4)] * 3, 4) == 0.0


def test_wider_jobs_that_do_not_fit_beside_the_narrow_ones_leave_more() -> None:
    """On eight GPUs: two jobs with one GPU and one with two leave room for one with four; of one with one GPU a GPU is left over, whoever runs beside it."""
    assert left_over([(1, 0.5), (1, 0.5), (2, 0.5), (4, 0.5), (4, 0.5)], 8) == 0.0
    assert left_over([(1, 0.5), (2, 0.5), (4, 0.5), (4, 0.5)], 8) == pytest.approx((0.5 - 0.25) * 1 + 0.25)


def literal(gpus: int, there: Weighed) -> float:
    """As it is defined, whatever jobs there are."""
    big = [one for one in there if 2 * one[0] > gpus]
    small = [one for one in there if 2 * one[0] <= gpus]
    widths = tuple(sorted((width for width, _ in small), reverse=True))
    if sum(width for width, _ in there) <= gpus:
        return sum(width * weight for width, weight in (*big, *small)) / gpus
    takes = occupied(widths, gpus)
    alone = max(
        sum(takes[width] * weight for width, weight in small) / gpus,
        (sum(width * weight for width, weight in small) + left_over(small, gpus)) / gpus,
    )
    if big:
        alone = max(alone, max((min(1.0, weight) for _, weight in small), default=0.0))
    else:
        alone += sum(width * max(0.0, min(1.0, weight) - alone) for width, weight in small) / gpus
    for width, weight in big if small else ():
        room = gpus - width
        for other in widths:
            room -= other if other <= room else 0
        alone -= weight * min(1.0, (gpus - width - room) / min(sum(widths), gpus))
    return sum(weight for _, weight in big) + max(0.0, alone)


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.lists(st.tuples(st.sampled_from([1, 1, 2, 3, 4, 8]), st.floats(0.0, 2.0)), max_size=9),
)
def test_jobs_that_are_alike_are_weighed_as_all_others(gpus: int, there: list[tuple[int, float]]) -> None:
    fitting = tuple((width, weight) for width, weight in there if width <= gpus)
    assert time_load(gpus, fitting) == pytest.approx(literal(gpus, fitting), abs=1e-12)


WIDTHS = st.lists(st.integers(1, 4), min_size=1, max_size=8)


def filled(widths: list[int], room: int) -> int:
    """The most that some of them fill, by trying all."""
    sums = (
        sum(w for w, take in zip(widths, takes, strict=True) if take)
        for takes in product((0, 1), repeat=len(widths))
    )
    return max(total for total in sums if total <= room)


@given(WIDTHS)
def test_a_job_keeps_more_than_its_gpus_just_where_the_others_cannot_fill_the_rest(widths: list[int]) -> None:
    takes = occupied(tuple(widths), 8)
    for at, width in enumerate(widths):
        rest = 8 - width
        others = widths[:at] + widths[at + 1 :]
        wastes = sum(widths) > 8 and filled(others, rest) < rest
        assert (takes[width] > width) == wastes
        assert width <= takes[width] <= 8


@given(WIDTHS, st.floats(0.05, 1.0))
def test_servers_that_are_said_to_leave_none_have_loads_of_their_tickets_alone(
    widths: list[int], weight: float
) -> None:
    if sum(widths) > 8 and not may_idle(tuple(widths), 8):
        assert load(8, *widths, weight=weight) == pytest.approx(max(weight, sum(widths) * weight / 8))


@given(
    st.lists(st.tuples(st.integers(1, 8), st.floats(0.01, 2.0)), min_size=1, max_size=8),
    st.sampled_from([1, 2, 4, 5, 8]),
)
def test_no_load_is_less_than_the_least_that_its_jobs_allow(jobs: list[tuple[int, float]], gpus: int) -> None:
    there: Weighed = tuple((min(width, gpus), weight) for width, weight in jobs)
    *others, one = there
    assert time_load(gpus, there) >= Least(gpus, tuple(others)).beside(*one) - 1e-12
    assert time_load(gpus, (one, *others)) >= Least(gpus, tuple(others)).beside(*one) - 1e-12


def test_small_jobs_need_a_server_of_gangs_for_as_long_as_the_heaviest_of_them() -> None:
    gangs = Least(4, ((4, 0.5), (4, 0.25), (1, 0.1)))
    assert gangs.beside(1, 0.75) == pytest.approx(1.5) == load_of(4, (4, 0.5), (4, 0.25), (1, 0.1), (1, 0.75))
    assert gangs.beside(4, 0.5) == pytest.approx(1.35) == load_of(4, (4, 0.5), (4, 0.25), (1, 0.1), (4, 0.5))


def load_of(gpus: int, *jobs: tuple[int, float]) -> float:
    return time_load(gpus, jobs)
