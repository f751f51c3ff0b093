"""How large a job's state is: both depths show policies the same, once the machines have written a checkpoint."""

from collections import defaultdict
from dataclasses import replace

import pytest

from hs_core.model import JobSpec
from hs_core.names import JobId, UserName
from hs_core.policies import find
from hs_core.policy import Memory, Policy, Snapshot, Verdict
from hs_sim.cluster import parse_cluster
from hs_sim.machines.gang import share_of
from hs_sim.machines.world import World
from hs_sim.model import Experiment, SimJob, Workload
from hs_sim.quanta import run_quanta

SIZES = {JobId(1): 10**9 + 1, JobId(2): 3 * 10**8 + 1, JobId(3): 0}
"""The second is of a gang over two servers, one of which has a byte more; the third has no state."""


def asked() -> Experiment:
    ann, bob = UserName("ann"), UserName("bob")
    first, second, third = (
        SimJob(id=at, user=user, arrival_s=0.0, steps=900, job_class="c", nodes=nodes, state_bytes=SIZES[at])
        for at, user, nodes in ((JobId(1), ann, 1), (JobId(2), bob, 2), (JobId(3), bob, 1))
    )
    return Experiment(
        cluster=parse_cluster("v100:4", 2),
        workload=Workload(
            name="three",
            jobs=(first, second, third),
            tickets={ann: 100.0, bob: 100.0},
            rates={("c", "V100"): 1.0},
        ),
        quantum_s=60.0,
        known_rates=True,
    )


def recording(shown: dict[JobId, list[int]]) -> Policy:
    inner = find("fft")

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        for job in snapshot.jobs:
            if job.state_bytes not in shown[job.id]:
                shown[job.id].append(job.state_bytes)
        return inner.decide(snapshot, memory)

    return replace(inner, decide=decide)


def saving(job: SimJob) -> JobSpec:
    return replace(job.spec(), checkpoint_interval_s=100.0)


def test_both_depths_show_policies_the_same() -> None:
    quanta: dict[JobId, list[int]] = defaultdict(list)
    machines: dict[JobId, list[int]] = defaultdict(list)
    run_quanta(asked(), policy=recording(quanta))
    World(asked(), policy=recording(machines), specs=saving).run()
    assert quanta == {job: [size] for job, size in SIZES.items()}
    assert {job: sizes[-1] for job, sizes in machines.items()} == SIZES
    assert {job: sizes[:-1] for job, sizes in machines.items() if sizes[:-1]} == {1: [0], 2: [0]}, (
        "until the first checkpoint"
    )


@pytest.mark.parametrize(("size", "nodes"), [(0, 3), (2, 3), (10**9 + 1, 2), (7, 1)])
def test_parts_of_a_checkpoint_are_all_of_it(size: int, nodes: int) -> None:
    parts = [share_of(size, nodes, rank) for rank in range(nodes)]
    assert sum(parts) == size
    assert max(parts) - min(parts) <= 1
