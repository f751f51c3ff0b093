"""A policy that fails: jobs go on, everybody is told, and another one can be put in office."""

from dataclasses import dataclass, replace

import pytest

from hs_core.cluster.harness import World
from hs_core.cluster.state import Settings
from hs_core.errors import BrokenError
from hs_core.names import HostName, JobId
from hs_core.policies import find
from hs_core.policy import Memory, Snapshot, Verdict


@dataclass
class Faulty:
    """As fifo, until it is told to fail."""

    how: str = ""

    def decide(self, snapshot: Snapshot, memory: Memory) -> Verdict:
        if self.how == "raises":
            raise KeyError("a job")
        verdict = find("fifo").decide(snapshot, memory)
        if self.how == "says what must not be":
            homes = {job.id: (HostName("nowhere"),) for job in snapshot.jobs}
            return replace(verdict, plan=replace(verdict.plan, homes=homes))
        return verdict


def world(faulty: Faulty, *, outlives: bool = True) -> World:
    made = World(
        replace(find("fifo"), decide=faulty.decide), Settings(settle_s=0.0, outlives_policy=outlives)
    )
    made.play("user ann 100\nhost n1 V100:2 boot=b1")
    return made


@pytest.mark.parametrize("how", ["raises", "says what must not be"])
def test_jobs_go_on_and_are_submitted_while_the_policy_fails_and_have_homes_once_another_is_in_office(
    how: str,
) -> None:
    faulty = Faulty()
    here = world(faulty)
    here.play("submit ann first gpus=1\nreport n1 1:0=running gpu_s=1 step=10")
    faulty.how = how
    told = here.play("@10\nsubmit ann second gpus=1\n@70\ntick\n@130\ntick")
    assert told.count("policy-failed: the policy fifo failed: ") == 1, "once, however often it is asked"
    assert here.machine.failure.startswith("KeyError: 'a job' (" if how == "raises" else "BrokenError: ")
    assert here.machine.job(JobId(1)).hosts == ("n1",)
    assert here.wanted[HostName("n1")].jobs[0].job == 1
    assert here.machine.job(JobId(2)).hosts == ()
    assert "the policy fifo fails" in here.play("why 2")
    told = here.play("@140\npolicy las")
    assert here.machine.job(JobId(2)).hosts == ("n1",)
    assert here.machine.failure == ""


def test_that_the_policy_decides_again_is_told() -> None:
    faulty = Faulty("raises")
    here = world(faulty)
    here.play("submit ann first gpus=1")
    faulty.how = ""
    assert "policy-recovered: the policy fifo decides again" in here.play("@70\nsubmit ann second gpus=1")
    assert here.machine.job(JobId(1)).hosts == ("n1",)
    assert here.machine.failure == ""


def test_where_nobody_asks_for_that_a_fault_of_a_policy_ends_who_asked() -> None:
    """Simulations and tests are to find it."""
    faulty = Faulty("raises")
    with pytest.raises(KeyError):
        world(faulty, outlives=False).play("submit ann first gpus=1")
    with pytest.raises(BrokenError):
        world(Faulty("says what must not be"), outlives=False).play("submit ann first gpus=1")
