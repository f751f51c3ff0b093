"""A copy is what `dataclasses.replace` makes."""

from dataclasses import replace

import pytest

from hs_core.copier import copier
from hs_core.model import Host, Job, JobSpec, JobState
from hs_core.names import HostName, JobId, UserName

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
