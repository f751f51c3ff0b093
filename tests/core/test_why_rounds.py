"""Why a job waits under policies of rounds, in words: the policy's reason, when it decides again, and what keeps a job from GPUs until then."""

import pytest

from hs_core.cluster import Reason, Settings
from hs_core.cluster.harness import World
from hs_core.names import JobId
from hs_core.policies import POLICIES, find
from hs_core.policy import Profiling

SETTINGS = Settings(quantum_s=10.0, settle_s=0.0, profiling=Profiling(batches=0))


def world(policy: str) -> World:
    made = World(find(policy), SETTINGS)
    made.do("user alice")
    made.do("host n1 V100:4")
    return made


def full(policy: str) -> World:
    """Its server is a job's that cannot be suspended."""
    at = world(policy)
    at.do("submit alice a gpus=4 steps=100000")
    at.do("report n1 1:0=running step=5 sliceable=no note=no_step_hook:_runs_unsliced")
    return at


@pytest.mark.parametrize("policy", sorted(name for name, policy in POLICIES.items() if policy.needs.rounds))
def test_who_waits_is_told_its_policy_s_reason_and_when_the_next_round_begins(policy: str) -> None:
    at = full(policy)
    at.do("submit alice a gpus=4 steps=100000")
    at.do("@10")
    at.do("tick")
    reason, _, when = at.machine.why(JobId(2), 10.0).text.rpartition("; ")
    assert reason
    assert "round:" not in reason
    assert when == "the next round begins in about 10 s"
    at.do("@13")
    at.do("submit alice b gpus=4 steps=10")  # the policy is asked again, within the round
    why = at.machine.why(JobId(2), 13.0)
    assert (why.reason, why.text.startswith(reason)) == (Reason.WAITING_FOR_GPUS, True)
    assert "; the next round begins in about 7 s" in why.text
    assert "the next round begins in about 7 s" in at.machine.why(JobId(3), 13.0).text


@pytest.mark.parametrize("policy", ["fft", "las", "gavel-max-min", "tesserae-las"])
def test_within_a_round_who_came_in_it_is_told_what_keeps_it_from_gpus_until_its_end(policy: str) -> None:
    at = full(policy)
    at.do("@10")
    at.do("tick")
    at.do("@13")
    at.do("submit alice b gpus=4 steps=10")
    assert at.machine.why(JobId(2), 13.0).text == (
        "it waits: the next round begins in about 7 s; in this one nothing that it could take is idle"
    )


def test_what_keeps_a_job_from_any_turn_is_told_without_when_the_next_round_begins() -> None:
    at = world("las")
    at.do("submit alice a gpus=4 count=2")
    at.do("report n1 1:0=running step=5 can_checkpoint=yes")
    at.do("gpus n1 sick=1")
    for job in (1, 2):
        assert "next round" not in at.machine.why(JobId(job), 5.0).text


def test_which_gpus_are_idle_is_told_once_and_as_it_is_now_not_as_the_round_began() -> None:
    at = world("las")
    at.do("submit alice a gpus=4 count=2 migrate=never")
    at.do("report n1 1:0=running step=5 gpu_s=400 can_checkpoint=yes")
    at.do("@10")
    at.do("tick")
    at.do("report n1 1:0=held step=5 gpu_s=400 can_checkpoint=yes")
    at.do("report n1 2:0=running step=5 gpu_s=1 can_checkpoint=yes")
    at.do("host n2 V100:4")
    at.do("@20")
    at.do("tick")
    idle = "GPUs of n2 are idle, but it may not go to another server (migrate: never)"
    began = at.machine.why(JobId(1), 20.0).text
    assert began.endswith(f"; {idle}; the next round begins in about 10 s")
    at.do("@21")
    at.do("submit alice larger gpus=4 nodes=2")  # asked again, within the round
    assert at.machine.why(JobId(1), 21.0).text.count(idle) == 1
    at.do("submit alice b gpus=4")
    text = at.machine.why(JobId(1), 21.0).text
    assert at.machine.job(JobId(4)).host == "n2"
    assert "the next round begins in about 9 s; in this one the GPUs of its server are others'" in text
    assert "idle" not in text
