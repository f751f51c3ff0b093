"""What a server's jobs get and what idles, played ahead: as the stride does it."""

from fractions import Fraction
from random import Random

import pytest

from hs_core.mechanism.played import QUANTA, played
from hs_core.mechanism.stride import StrideQueue

NEAR = 3 / QUANTA  # turns: one at each end, and how the beginning fell


def test_where_all_run_at_once_what_is_left_idles_all_the_time() -> None:
    found = played(4, ((1, 0.1), (2, 0.7)))
    assert found.parts == [1.0, 1.0]
    assert [found.idle(gpus) for gpus in range(1, 5)] == [1.0, 0.0, 0.0, 0.0]


def test_jobs_of_several_sizes_get_what_their_tickets_say() -> None:
    """The paper's table 2."""
    a, b, c = (1, 4 / 6), (2, 4 / 12), (4, 4 / 24)
    found = played(4, (a, a, b, b, c, c))
    assert found.parts == pytest.approx([2 / 3, 2 / 3, 1 / 3, 1 / 3, 1 / 6, 1 / 6], abs=NEAR)
    assert found.idle(1) == 0.0


def test_gpus_idle_beside_a_narrow_job_that_takes_turns_with_a_wide_one() -> None:
    found = played(4, ((1, 0.5), (4, 0.5)))
    assert found.parts == pytest.approx([0.5, 0.5], abs=NEAR)
    assert [found.idle(gpus) for gpus in (1, 3, 4)] == pytest.approx([0.5, 0.5, 0.0], abs=NEAR)


def test_whoever_has_no_tickets_gets_what_nobody_else_could_use() -> None:
    assert played(4, ((1, 1.0), (4, 0.0))).parts == [1.0, 0.0]
    assert played(4, ((3, 1.0), (2, 0.5), (1, 0.0))).parts[2] == pytest.approx(1.0, abs=NEAR)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_the_stride_does(seed: int) -> None:
    dice = Random(seed)
    gpus = dice.choice((2, 4, 8))
    jobs = [
        (dice.choice([width for width in (1, 1, 2, 4, 8) if width <= gpus]), dice.randint(1, 16) / 16)
        for _ in range(dice.randint(2, 9))
    ]
    queue: StrideQueue[int] = StrideQueue()
    for at, (width, weight) in enumerate(jobs):
        queue.add(at, width, Fraction(weight) * width, (at,), kin=at)
    runs, free, quanta = [0] * len(jobs), [0] * (gpus + 1), 240
    for _ in range(quanta):
        picked = queue.pick(gpus)
        free[gpus - sum(jobs[at][0] for at in picked)] += 1
        for at in picked:
            runs[at] += 1
    found = played(gpus, tuple(jobs))
    assert found.parts == pytest.approx([ran / quanta for ran in runs], abs=NEAR)
    idle = [sum(free[few:]) / quanta for few in range(gpus + 1)]
    assert [found.idle(few) for few in range(gpus + 1)] == pytest.approx(idle, abs=NEAR)
