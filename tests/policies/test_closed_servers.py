"""A server that takes no new jobs is no GPU that anybody is entitled to, but for those that its own jobs ask for."""

from dataclasses import replace

import pytest

from hs_core.model import Migrate
from hs_core.names import HostName
from hs_core.policies import POLICIES
from hs_core.policy import HostFacts, JobFacts, Policy, Verdict

from .worlds import GIB, host, job, snapshot  # noqa: TID252 — tests are no package on the path

CLOSED = {
    "drained": host("i", accepts=False),
    "away": host("i", connected=False),
    "unable to start jobs": host("i", starts=False),
    "drained, the only one of its model": host("i", model="K80", accepts=False),
}
FEW = [1, 2]
MANY = list(range(3, 11))


def lives(at: int, user: str, where: str = "h", **facts: object) -> JobFacts:
    known = {"steps": 1e5, "job_class": "c", "memory_bytes": GIB, "gpu_memory_bytes": GIB, "movable": True}
    return job(at, user, 1, host=HostName(where), started=True, **(known | facts))


def decided(policy: Policy, *others: HostFacts, more: tuple[JobFacts, ...] = ()) -> Verdict:
    """Two jobs of A and eight of B on four GPUs."""
    jobs = [*(lives(at, "A") for at in FEW), *(lives(at, "B") for at in MANY), *more]
    asked = snapshot([host("h"), *others], jobs, rates={("c", "V100"): 1.0}, migrations_left=0)
    return policy.decide(asked, {})


@pytest.mark.parametrize("policy", POLICIES.values(), ids=lambda policy: policy.name)
@pytest.mark.parametrize("closed", CLOSED.values(), ids=list(CLOSED))
def test_gpus_that_nobody_can_have_give_nobody_a_claim_on_others(policy: Policy, closed: HostFacts) -> None:
    """Else who has many jobs is paid for them with the GPUs of those who have few."""
    with_it = decided(policy, closed)
    without = decided(policy)
    assert with_it.entitled == without.entitled
    assert with_it.plan.tickets == without.plan.tickets


@pytest.mark.parametrize("closed", CLOSED.values(), ids=list(CLOSED))
def test_those_of_the_jobs_that_live_there_count(closed: HostFacts) -> None:
    stays = lives(11, "B", "i", migrate=Migrate.NEVER)
    verdict = decided(POLICIES["gandiva-fair"], closed, more=(stays,))
    assert sum(verdict.entitled.values()) == 5
    assert verdict.entitled["A", "V100"] == 2
    of_few, of_many = (sum(verdict.plan.tickets[at] for at in some) for some in (FEW, MANY))
    assert float(4 * of_few / (of_few + of_many)) == pytest.approx(2, rel=0.01)  # of the four where they live


SAME_MODEL = {why: closed for why, closed in CLOSED.items() if closed.model == "V100"}


@pytest.mark.parametrize("name", ["gandiva-fair", "gavel-max-min"])
@pytest.mark.parametrize("closed", SAME_MODEL.values(), ids=list(SAME_MODEL))
def test_so_do_those_of_a_part_of_a_gang_that_lives_there(name: str, closed: HostFacts) -> None:
    gang = replace(lives(11, "B", migrate=Migrate.NEVER), gang=2, nodes=2, hosts=(HostName("h"), closed.name))
    verdict = decided(POLICIES[name], closed, more=(gang,))
    assert verdict.entitled == {("A", "V100"): 2, ("B", "V100"): 3}
