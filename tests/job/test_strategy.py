"""What a script is told of its parallelism strategy."""

import pytest

import hs_job
from hs_job.layout import Strategy


def test_without_an_agent_it_is_the_scripts_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HS_STRATEGY", raising=False)
    assert hs_job.strategy(dp=4) == Strategy(dp=4)
    assert hs_job.strategy(pp=2, layers=[3, 5]) == Strategy(pp=2, layers=(3, 5))


@pytest.mark.parametrize(
    ("told", "read"),
    [
        ("dp=4", Strategy(dp=4)),
        ("dp=2,tp=2,pp=2", Strategy(2, 2, 2)),
        ("pp=2,layers=10+14", Strategy(pp=2, layers=(10, 14))),
    ],
)
def test_it_is_what_the_scheduler_chose(monkeypatch: pytest.MonkeyPatch, told: str, read: Strategy) -> None:
    monkeypatch.setenv("HS_STRATEGY", told)
    assert hs_job.strategy(dp=8) == read


@pytest.mark.parametrize("told", ["4", "dp=0", "xp=2", "dp=x", "pp=2,layers=1+"])
def test_what_is_none_is_an_error_that_shows_it(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv("HS_STRATEGY", told)
    with pytest.raises(ValueError, match="HS_STRATEGY is"):
        hs_job.strategy()


@pytest.mark.parametrize("degree", [0, -2, 1.5, "4", True, 10**30])
def test_a_degree_that_is_none_is_refused(degree: object) -> None:
    with pytest.raises(ValueError, match=r"hs_job\.strategy: tp is .*; expected a whole number from 1 to 10"):
        hs_job.strategy(dp=4, tp=degree)


def test_more_mini_batches_than_any_job_has_are_no_end_of_its_portion() -> None:
    """A count above what stands for no portion held the script for ever."""
    with pytest.raises(
        ValueError, match=r"hs_job\.step: n is 1000000000000000000000; expected a whole number from 1 to 10"
    ):
        hs_job.step(10**21)
