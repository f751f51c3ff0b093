"""Gangs over several servers that take a part of each: processes are bound to GPUs, which the controller does not know of, and all the same none is lost by it."""

import pytest

from hs_core.names import UserName
from hs_sim.machines import run_machines
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, SimJob, Workload
from hs_sim.quanta import run_quanta

ENOUGH = 10**7  # steps, so that nobody ends
RATE = 10.0
HOUR_S = 3600.0


def shared(servers: int, gpus: int, *sizes: tuple[int, int]) -> Experiment:
    """A job of each user, of so many servers and GPUs on each."""
    users = [UserName(f"u{at}") for at in range(len(sizes))]
    jobs = tuple(
        SimJob(
            id=at + 1,
            user=users[at],
            arrival_s=3.0 * at,
            steps=ENOUGH,
            job_class="c",
            nodes=nodes,
            gpus=per_node,
            state_bytes=1 << 28,
        )
        for at, (nodes, per_node) in enumerate(sizes)
    )
    return Experiment(
        cluster=ClusterSpec(pools=(Pool(model="V100", servers=servers, gpus_per_server=gpus),)),
        workload=Workload(
            name="parts", jobs=jobs, tickets=dict.fromkeys(users, 100.0), rates={("c", "V100"): RATE}
        ),
        policy="gandiva-fair",
        costs=Costs(start_s=10.0),
        seed=1,
        until_s=2 * HOUR_S,
    )


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(shared(2, 4, *[(2, 2)] * 3), id="three-halves-of-two-servers"),
        pytest.param(
            shared(2, 4, (2, 1), (2, 2), (1, 2), (1, 1), (1, 1), (2, 2), (2, 1)),
            id="beside-jobs-that-servers-share-out-themselves",
        ),
        pytest.param(shared(3, 4, *[(2, 2)] * 5), id="five-gangs-of-two-of-three-servers"),
    ],
)
def test_machines_give_gangs_what_a_count_of_gpus_says_and_lose_no_turn_to_starts(asked: Experiment) -> None:
    counted, real = run_quanta(asked), run_machines(asked)
    for job, same in zip(real.jobs, counted.jobs, strict=True):
        gpu_s, counted_s = sum(job.gpu_s.values()), sum(same.gpu_s.values())
        due_s = asked.until_s * counted.samples[-1].entitled[job.user, "V100"]
        # What is beyond a share is what others leave, where that happens to be on the GPUs to which a job is bound.
        assert 0.9 * min(counted_s, due_s) <= gpu_s <= 1.1 * counted_s
        steps = sum(sample.steps_per_s.get(job.user, 0.0) for sample in real.samples) * asked.quantum_s
        assert steps == pytest.approx(gpu_s / job.gang * RATE, rel=0.03)
    used, could = (sum(sum(job.gpu_s.values()) for job in jobs) for jobs in (real.jobs, counted.jobs))
    assert used >= 0.95 * could
