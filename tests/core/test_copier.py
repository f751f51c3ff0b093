"""What is made, or copied, the quick way is what the class itself, or `dataclasses.replace`, makes."""

from dataclasses import FrozenInstanceError, replace

import pytest

from hs_core.copier import copier, maker
from hs_core.model import Host, Job, JobSpec, JobState
from hs_core.names import HostName, JobId, UserName
from hs_core.reports import JobReport, Phase

ROW = Job(id=JobId(7), user=UserName("ann"), spec=JobSpec(name="train", command=("true",)), arrival_s=3.0)


def test_a_copy_is_equal_to_what_replace_makes_and_the_old_one_stays_as_it_was() -> None:
    changes = {"state": JobState.RUNNING, "hosts": (HostName("n1"),), "first_run_s": 4.0}
    before = replace(ROW)
    new = copier(Job)(ROW, **changes)
    assert new == replace(ROW, **changes)
    assert before == ROW


def test_a_copy_cannot_be_changed_either() -> None:
    with pytest.raises(AttributeError):
        copier(Job)(ROW).epoch = 3  # type: ignore[misc]


def test_a_field_that_is_not_there_cannot_be_set() -> None:
    with pytest.raises(KeyError, match="epok"):
        copier(Host)(Host(name=HostName("n1"), boot_id="b", gpus=()), epok=3)


def test_what_is_made_is_what_the_class_makes() -> None:
    made = maker(JobReport)(job=JobId(7), epoch=1, phase=Phase.HELD, step=3)
    said = JobReport(job=JobId(7), epoch=1, phase=Phase.HELD, step=3)
    assert type(made) is JobReport
    assert (made, hash(made), repr(made)) == (said, hash(said), repr(said))


def test_what_is_made_cannot_be_changed_either() -> None:
    made = maker(JobReport)(job=JobId(7), epoch=1, phase=Phase.HELD)
    with pytest.raises(FrozenInstanceError):
        made.step = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        maker(JobReport)(job=JobId(7), epoch=1)  # type: ignore[call-arg]


def test_each_that_is_made_has_defaults_of_its_own() -> None:
    one, other = (maker(Job)(id=JobId(n), user=ROW.user, spec=ROW.spec, arrival_s=0.0) for n in (1, 2))
    assert one.reports == {}
    assert one.reports is not other.reports
