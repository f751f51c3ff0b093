"""Of a thousand jobs that wait most are asked for nothing that the full servers on which they live tell."""

from collections import Counter
from dataclasses import replace

import pytest

from hs_core.mechanism.slots import Slots
from hs_core.names import HostName
from hs_core.policies import POLICIES
from hs_core.policy import JobFacts, Snapshot
from tests.policies.worlds import host, job, snapshot

MANY = 200
LIVES: dict[str, object] = {"started": True, "movable": True, "steps": 1e6, "job_class": "c"}


def crowd() -> Snapshot:
    """All live on one server, where one GPU is left over that none of them can use, and may not move to the idle one."""
    jobs = [
        job(at, gang=2, host=HostName("h"), **LIVES, attained_gpu_s=float(at)) for at in range(1, MANY + 1)
    ]
    rates = {("c", "V100"): 2.0, ("c", "K80"): 1.0}
    return snapshot([host("h", gpus=3), host("i", model="K80")], jobs, rates=rates, migrations_left=0)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often it was looked where a job could go."""
    found, pools_for = Counter[str](), Slots.pools_for

    def counted(self: Slots, job: JobFacts) -> tuple[str, ...]:
        found["pools_for"] += 1
        return pools_for(self, job)

    monkeypatch.setattr(Slots, "pools_for", counted)
    return found


@pytest.mark.parametrize("name", ["pal", "las", "tiresias", "srtf", "srsf"])
def test_who_is_tied_to_a_full_server_is_not_asked_where_it_could_go(name: str, looks: Counter[str]) -> None:
    verdict = POLICIES[name].decide(crowd(), {})
    assert [turn.gangs for turn in verdict.plan.turns.values()] == [(1,), ()]
    assert looks["pools_for"] <= 10


def test_who_waits_within_a_round_beside_gpus_that_it_cannot_use_is_not_asked_either(
    looks: Counter[str],
) -> None:
    policy, asked = POLICIES["gavel-makespan"], crowd()
    memory = policy.decide(asked, {}).memory
    looks.clear()
    verdict = policy.decide(replace(asked, now_s=asked.now_s + 1), memory)
    assert sum(len(turn.gangs) for turn in verdict.plan.turns.values()) == 1
    assert looks["pools_for"] <= 10
