"""Rates that hostile jobs report: the recent median, and nothing that is no rate."""

import json
from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_core.dice import roll
from hs_core.forms import Shape
from hs_core.profile import FASTEST, KEEP, SETTLE_S, SLOWEST, Profile, Rate, RateSample


def sample(
    rate: float, at: float = 0.0, model: str = "V100", of: str = "vae", since: float = 60.0
) -> RateSample:
    return RateSample(job_class=of, model=model, steps_per_s=rate, now_s=at, since_resume_s=since)


def test_the_median_is_of_the_most_recent_samples() -> None:
    profile = Profile()
    for at in range(10 * KEEP):
        profile.add(sample(1.0, at))
    for at in range(KEEP):
        profile.add(sample(3.0, 1_000.0 + at))
    rate = profile.rate("vae", "V100")
    assert rate is not None
    assert (rate.steps_per_s, rate.samples, rate.newest_s) == (3.0, KEEP, 1_000.0 + KEEP - 1)


def test_a_few_samples_that_are_far_off_change_nothing() -> None:
    profile = Profile()
    for at in range(KEEP):
        profile.add(sample(2.0 if at % 3 else 1e300, at))
    assert profile.rates("vae")["V100"].steps_per_s == 2.0


def test_reports_that_come_soon_after_one_another_are_one_sample_once_there_are_enough() -> None:
    """Two jobs of a class that are not equally fast have turns of a minute, and report every second: the newest reports are those of one of them."""
    profile = Profile(every_s=30.0)
    for at in range(KEEP * 30):
        profile.add(sample(2.0, at))
    for at in range(60):
        profile.add(sample(1.0, 500.0 + at))
    assert profile.rates("vae")["V100"].steps_per_s == 2.0
    for at in range(KEEP * 30 // 2):
        profile.add(sample(1.0, 600.0 + at))
    assert profile.rates("vae")["V100"].steps_per_s == 1.0, "a change that lasts is soon followed"


def test_a_sample_of_several_reports_is_their_median_and_survives_json() -> None:
    profile = Profile(keep=1, every_s=30.0)
    for at, rate in enumerate((1.0, 3.0, 1e300, 3.0, 2.0)):
        profile.add(sample(rate, at))
    for each in (profile, Profile.load(json.loads(json.dumps(profile.dump())), keep=1)):
        rate = each.rates("vae")["V100"]
        assert (rate.steps_per_s, rate.samples, rate.newest_s) == (3.0, 1, 4.0)


def test_how_far_a_rate_may_be_off_is_known_by_how_much_samples_differ() -> None:
    def found(seed: int) -> Rate:
        profile, dice = Profile(), roll(seed)
        for at in range(KEEP):
            profile.add(sample(dice.gauss(1.0, 0.1), at))
        return profile.rates("vae")["V100"]

    rates = [found(seed) for seed in range(400)]
    near = sum(abs(rate.steps_per_s - 1.0) <= rate.within for rate in rates)
    assert near >= 0.95 * len(rates)
    assert max(rate.within for rate in rates) < 0.2


def test_samples_that_are_alike_leave_no_doubt_whatever_a_few_others_say() -> None:
    profile = Profile()
    for at in range(KEEP):
        profile.add(sample(2.0 if at % 6 else 1e300, at))
    assert profile.rates("vae")["V100"].within == 0


def test_the_first_seconds_after_a_resume_are_left_out() -> None:
    profile = Profile()
    assert not profile.add(sample(1.0, since=SETTLE_S - 0.1))
    assert profile.add(sample(2.0, since=SETTLE_S))
    assert profile.rates("vae")["V100"].steps_per_s == 2.0


@pytest.mark.parametrize("rate", [nan, inf, -inf, 0.0, -3.0])
def test_what_is_no_rate_is_ignored(rate: float) -> None:
    profile = Profile()
    assert not profile.add(sample(rate))
    assert profile.rate("vae", "V100") is None


@pytest.mark.parametrize(("told", "kept"), [(1e308, FASTEST), (1e-300, SLOWEST)])
def test_an_absurd_rate_is_clamped(told: float, kept: float) -> None:
    profile = Profile()
    assert profile.add(sample(told))
    assert profile.rates("vae")["V100"].steps_per_s == kept


def test_a_speedup_needs_samples_of_both_models() -> None:
    profile = Profile()
    profile.add(sample(5.0, model="V100"))
    assert profile.speedup("vae", "V100", "K80") is None
    profile.add(sample(2.0, model="K80"))
    assert profile.speedup("vae", "V100", "K80") == 2.5


@given(st.lists(st.floats(), max_size=50))
def test_the_rate_stays_plausible_whatever_is_reported(rates: list[float]) -> None:
    profile = Profile()
    for rate in rates:
        profile.add(sample(rate))
    found = profile.rate("vae", "V100")
    assert found is None or SLOWEST * 0.999 <= found.steps_per_s <= FASTEST * 1.001


def test_a_dump_survives_json() -> None:
    profile = Profile()
    profile.add(sample(5.0, at=3.0))
    profile.add(sample(7.0, at=4.0, model="K80"))
    again = Profile.load(json.loads(json.dumps(profile.dump())))
    assert again.rates("vae") == profile.rates("vae")
    again.forget("vae")
    assert again.rates("vae") == {}


def test_rates_of_shapes_are_kept_apart_from_the_declared_one_and_survive_json() -> None:
    profile = Profile()
    small, large = Shape(gpus=1, per_gpu=32), Shape(gpus=4, per_gpu=32, parts=2)
    for shape, rate in ((None, 1.0), (small, 2.0), (large, 4.0)):
        told = RateSample(
            job_class="c", model="V100", steps_per_s=rate, now_s=0.0, since_resume_s=60.0, shape=shape
        )
        assert profile.add(told)
    again = Profile.load(json.loads(json.dumps(profile.dump())))
    for each in (profile, again):
        assert {model: rate.steps_per_s for model, rate in each.rates("c").items()} == {"V100": 1.0}
        found = {shape: rate.steps_per_s for shape, rate in each.shapes("c", "V100").items()}
        assert found == {small: 2.0, large: 4.0}
    profile.forget("c")
    assert profile.shapes("c", "V100") == {}


def test_what_was_measured_beside_a_class_is_forgotten_with_either_of_them() -> None:
    profile = Profile()
    for of, beside in (("vae", "gan"), ("vae", "lm"), ("gan", "vae")):
        profile.add(replace(sample(5.0, of=of), beside=beside))
    again = Profile.load(json.loads(json.dumps(profile.dump())))
    assert set(again.beside("vae", "V100")) == {"gan", "lm"}
    again.forget("gan")
    assert set(again.beside("vae", "V100")) == {"lm"}
    assert again._kinds.keys() == {("vae", "V100")}, "classes are made up by users"
    assert again.beside("gan", "V100") == {}
