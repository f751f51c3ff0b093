"""Who leaves a server that is drained: under policies that suspend nobody where there is room elsewhere, else it stays; whatever budget of moves is left."""

import pytest

from hs_core.model import MoveReason
from hs_core.names import HostName, JobId
from hs_core.plan import check
from hs_core.policies import POLICIES
from hs_core.policy import JobFacts, Policy, Snapshot, Verdict

from .worlds import GIB, homes_of, host, job, snapshot  # noqa: TID252 — tests are no package on the path

SUSPENDS_NOBODY = [policy for policy in POLICIES.values() if not policy.needs.preemptive]
H, I = HostName("h"), HostName("i")  # noqa: E741 — as servers are called here


def runs(at: int, gang: int, at_home: HostName) -> JobFacts:
    facts = {"steps": 1e5, "job_class": "c", "memory_bytes": GIB, "gpu_memory_bytes": GIB, "movable": True}
    return job(at, f"u{at}", gang, host=at_home, started=True, running=True, **facts)


def decided(policy: Policy, *jobs: JobFacts, budget: int = 9) -> tuple[Snapshot, Verdict]:
    hosts = [host("h", accepts=False), host("i")]
    asked = snapshot(hosts, list(jobs), rates={("c", "V100"): 1.0}, migrations_left=budget)
    verdict = policy.decide(asked, {})
    check(asked, verdict.plan, policy.needs)
    return asked, verdict


@pytest.mark.parametrize("policy", SUSPENDS_NOBODY, ids=lambda policy: policy.name)
def test_who_runs_on_a_drained_server_goes_where_there_is_room(policy: Policy) -> None:
    _, verdict = decided(policy, runs(1, 2, H), runs(2, 2, I))
    assert homes_of(verdict) == {1: "i", 2: "i"}
    assert verdict.plan.moves[JobId(1)][0] is MoveReason.DRAIN


@pytest.mark.parametrize("policy", SUSPENDS_NOBODY, ids=lambda policy: policy.name)
def test_who_leaves_a_drained_server_takes_no_gpus_of_those_who_run(policy: Policy) -> None:
    """It came before them, and would be the first to choose."""
    asked, verdict = decided(policy, runs(1, 2, H), runs(2, 3, I))
    assert homes_of(verdict) == {1: "h", 2: "i"}
    assert {job for turn in verdict.plan.turns.values() for job in turn.gangs} == asked.running


@pytest.mark.parametrize("policy", POLICIES.values(), ids=lambda policy: policy.name)
def test_who_leaves_a_drained_server_needs_no_budget(policy: Policy) -> None:
    """An administrator's word, with a deadline perhaps, after which jobs are ended: what evens out shares may have used it up."""
    _, verdict = decided(policy, runs(1, 2, H), runs(2, 1, H), budget=0)
    assert homes_of(verdict) == {1: "i", 2: "i"}
    assert {reason for reason, _ in verdict.plan.moves.values()} == {MoveReason.DRAIN}
