"""A server loses GPUs that a job there needs: every policy, in a cluster of two servers."""

import pytest

from hs_core.cluster import Settings
from hs_core.cluster.harness import World
from hs_core.names import JobId
from hs_core.policies import POLICIES, find

STAYS = {"fifo", "lottery", "gang-lottery", "sjf-bsbf", "sjf-ffs"}
"""Under these a job keeps its home, but for a server that is to be empty."""

BEFORE = """
    host n1 V100:4
    user ann
    submit ann goes gpus=2 steps=1000
    @1
    report n1 1:0=running step=5 gpu_s=5 can_checkpoint={able}
    @21
    tick
    drain-gpus n1 0 1 2
    tick
    host n2 V100:4
    @41
    tick
"""
NEWCOMERS = """
    submit ann small gpus=1 steps=100
    user bob
    submit bob other gpus=2 steps=50
    tick
    @61
    tick
    @81
    tick
"""


def world(name: str, script: str) -> World:
    one = World(find(name), Settings(quantum_s=20.0, settle_s=0.0))
    for line in filter(None, map(str.strip, script.splitlines())):
        one.do(line)
        one.machine.check()
    return one


@pytest.mark.parametrize("name", sorted(POLICIES.keys() - STAYS))
def test_a_job_that_can_leaves_for_a_server_with_gpus_enough_that_comes(name: str) -> None:
    job = world(name, BEFORE.format(able="yes")).machine.find(JobId(1))
    assert job is not None
    assert job.move is not None
    assert job.move.to == ("n2",)


@pytest.mark.parametrize("able", ["yes", "no"])
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_who_waits_for_repair_is_in_nobodys_way(name: str, able: str) -> None:
    one = world(name, BEFORE.format(able=able) + NEWCOMERS)
    rows = [one.machine.find(JobId(new)) for new in (2, 3)]
    assert all(row is not None and row.hosts for row in rows), "each has a server"
