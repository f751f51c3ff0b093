"""In which order GPU models are thought of for a class: by what was measured, and what is to be expected of the others."""

from hs_core.mechanism.estimates import Estimates

MODELS = ("V100", "P100", "K80")
OF_ANOTHER = {("other", "V100"): 30.0, ("other", "P100"): 20.0, ("other", "K80"): 10.0}


def test_a_model_on_which_others_are_faster_goes_before_the_slow_one_that_it_was_measured_on() -> None:
    """Else whoever was measured on old GPUs stays there while new ones idle."""
    rates = {**OF_ANOTHER, ("mine", "K80"): 4.0}
    assert Estimates(rates, MODELS).fastest("mine", MODELS) == ("V100", "P100", "K80")
    assert Estimates(rates, MODELS).fastest("mine", ("P100", "K80")) == ("P100", "K80")


def test_a_newer_model_of_which_nothing_is_known_goes_before_the_one_that_it_was_measured_on() -> None:
    """Else nobody would ever know, where each class was measured on one model only."""
    of_one_each = {("mine", "K80"): 4.0, ("other", "V100"): 30.0}
    assert Estimates(of_one_each, MODELS).fastest("mine", MODELS) == MODELS
    assert Estimates(of_one_each, MODELS).fastest("other", MODELS) == MODELS
    assert Estimates({("mine", "P100"): 4.0}, MODELS).fastest("mine", MODELS) == MODELS


def test_equals_that_were_measured_go_before_those_that_were_not() -> None:
    alike = {("other", "V100"): 10.0, ("other", "K80"): 10.0, ("mine", "K80"): 4.0}
    assert Estimates(alike, ("V100", "K80")).fastest("mine", ("V100", "K80")) == ("K80", "V100")


def test_models_are_compared_by_classes_that_ran_on_both_whatever_lies_between() -> None:
    rates = {("other", "V100"): 40.0, ("other", "K80"): 10.0, ("mine", "K80"): 4.0}
    asked = Estimates(rates, MODELS)
    assert asked.speeds("mine")[0] == 16.0
    assert asked.fastest("mine", MODELS) == ("V100", "P100", "K80")
    chained = {**rates, ("third", "P100"): 3.0, ("third", "K80"): 1.0}
    assert Estimates(chained, MODELS).speeds("mine") == (16.0, 12.0, 4.0)


def test_a_class_that_was_measured_nowhere_goes_where_others_are_faster_and_else_as_they_come() -> None:
    slow_new = {("other", "V100"): 10.0, ("other", "P100"): 20.0, ("other", "K80"): 5.0}
    assert Estimates(slow_new, MODELS).fastest("mine", MODELS) == ("P100", "V100", "K80")
    assert Estimates({}, MODELS).fastest("mine", MODELS) == MODELS


def test_a_newer_model_is_a_little_faster_where_nothing_tells_and_only_there() -> None:
    """Programs see speeds, and have no order of models: at equal speeds they would leave jobs on old GPUs beside idle new ones."""
    v100, p100, k80 = Estimates({("mine", "K80"): 4.0}, MODELS).speeds("mine")
    assert k80 == 4.0
    assert 1.0 < v100 / p100 < 1.02
    assert 1.0 < p100 / k80 < 1.02
    alike = {("other", "V100"): 10.0, ("other", "P100"): 10.0, ("other", "K80"): 10.0, ("mine", "K80"): 4.0}
    assert Estimates(alike, MODELS).speeds("mine") == (4.0, 4.0, 4.0)


def test_where_it_was_measured_not_to_run_it_does_not_go() -> None:
    assert Estimates({**OF_ANOTHER, ("mine", "V100"): 0.0}, MODELS).fastest("mine", MODELS) == ("P100", "K80")
