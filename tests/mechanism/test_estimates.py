"""In which order GPU models are thought of for a class: by what was measured, and what is to be expected of the others."""

from hs_core.mechanism.estimates import Estimates

MODELS = ("V100", "P100", "K80")
OF_ANOTHER = {("other", "V100"): 30.0, ("other", "P100"): 20.0, ("other", "K80"): 10.0}


def test_a_model_on_which_others_are_faster_goes_before_the_slow_one_that_it_was_measured_on() -> None:
    """Else whoever was measured on old GPUs stays there while new ones idle."""
    rates = {**OF_ANOTHER, ("mine", "K80"): 4.0}
    assert Estimates(rates, MODELS).fastest("mine", MODELS) == ("V100", "P100", "K80")
    assert Estimates(rates, MODELS).fastest("mine", ("P100", "K80")) == ("P100", "K80")


def test_where_nothing_is_to_be_expected_the_measured_one_goes_first() -> None:
    assert Estimates({("mine", "K80"): 4.0}, MODELS).fastest("mine", MODELS) == ("K80", "V100", "P100")


def test_a_class_that_was_measured_nowhere_goes_where_others_are_faster_and_else_as_they_come() -> None:
    slow_new = {("other", "V100"): 10.0, ("other", "P100"): 20.0, ("other", "K80"): 5.0}
    assert Estimates(slow_new, MODELS).fastest("mine", MODELS) == ("P100", "V100", "K80")
    assert Estimates({}, MODELS).fastest("mine", MODELS) == MODELS


def test_where_it_was_measured_not_to_run_it_does_not_go() -> None:
    assert Estimates({**OF_ANOTHER, ("mine", "V100"): 0.0}, MODELS).fastest("mine", MODELS) == ("P100", "K80")
