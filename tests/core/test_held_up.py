"""A job that cannot come up on its server: while that is so others have its turns."""

import pytest

from hs_core.cluster.harness import EVERYTHING, World
from hs_core.cluster.state import Settings
from hs_core.events.cluster import HostReported, QuantumEnded
from hs_core.names import HostName, JobId
from hs_core.policies import find
from hs_core.reports import CANNOT_FETCH, CANNOT_START, JobReport, Phase

N1 = HostName("n1")


def tells(here: World, now_s: float, *reports: JobReport) -> set[JobId]:
    """Whose turn it is at the next edge."""
    here.handle(HostReported(now_s=now_s, host=N1, reports=reports, heard=EVERYTHING))
    here.handle(QuantumEnded(now_s=now_s + 60.0))
    return set(here.wanted[N1].turn.gangs)


def first(phase: Phase, gpu_s: float) -> JobReport:
    return JobReport(
        job=JobId(1), epoch=0, phase=phase, gpu_s=gpu_s, run_s=gpu_s / 2, step=10, sliceable=True
    )


def second(note: str) -> JobReport:
    return JobReport(job=JobId(2), epoch=0, phase=Phase.WAITING, sliceable=True, note=note)


@pytest.mark.parametrize("why", [CANNOT_FETCH, CANNOT_START])
def test_who_cannot_come_up_leaves_its_turn_to_who_can_until_it_can(why: str) -> None:
    here = World(find("las"), Settings(settle_s=0.0))
    here.play("user ann 100\nuser bob 100\nhost n1 V100:2 boot=b1\nsubmit ann first gpus=2")
    for minute in (1.0, 2.0, 3.0):
        assert tells(here, 60 * minute, first(Phase.RUNNING, 120 * minute)) == {1}
    here.play("@241\nsubmit bob second gpus=2")
    held = first(Phase.HELD, 480.0)
    assert tells(here, 242.0, held) == {2}
    assert tells(here, 303.0, held, second(f"{why}: no room")) == {1}
    assert tells(here, 364.0, held, second("")) == {2}
