"""Processes that cannot leave their GPUs: what a turn of theirs leaves of a server depends on which these are."""

from dataclasses import replace

import pytest

from hs_core.names import JobId
from hs_core.policies import POLICIES
from hs_core.policy import Policy, Verdict

from .worlds import having, host, job, snapshot  # noqa: TID252 — tests are no package on the path

# Others leave GPUs to servers' own strides, which know who is bound to what.
DECIDE = [policy for policy in POLICIES.values() if policy.name != "gandiva-fair"]
STAYS = {"host": "h", "started": True, "rooted": True}
ASKED = snapshot(
    [host("h", 2)],
    [job(1, "A", gpus=((0,),), **STAYS), job(2, "B", gpus=((0,),), **STAYS), job(3, "C")],
)


def in_turn(verdict: Verdict) -> set[JobId]:
    return {job for turn in verdict.plan.turns.values() for job in turn.gangs}


@pytest.mark.parametrize("policy", DECIDE, ids=lambda policy: policy.name)
def test_of_those_that_cannot_leave_one_gpu_one_has_a_turn_and_the_other_gpu_is_anothers(
    policy: Policy,
) -> None:
    for first in (ASKED, having(ASKED, [replace(one, running=one.id == 2) for one in ASKED.jobs])):
        ran = in_turn(policy.decide(first, {}))
        assert 3 in ran
        assert len(ran) == 2


@pytest.mark.parametrize("policy", DECIDE, ids=lambda policy: policy.name)
def test_those_on_gpus_of_their_own_and_those_that_can_leave_have_turns_together(policy: Policy) -> None:
    two = ASKED.jobs[:2]
    apart = having(ASKED, [replace(one, gpus=((one.id - 1,),)) for one in two])
    leave = having(ASKED, [replace(one, rooted=False, movable=True) for one in two])
    assert in_turn(policy.decide(apart, {})) == in_turn(policy.decide(leave, {})) == {1, 2}


def test_why_one_of_them_waits_is_said() -> None:
    why = POLICIES["sjf"].decide(ASKED, {}).why
    assert why[JobId(2)] == "its process cannot leave its GPUs on h, where another has its turn"
