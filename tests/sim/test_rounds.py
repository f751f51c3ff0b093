"""Rounds with costs: a job that moves at an edge runs on its new GPUs as soon as it is there, not a round later."""

from hs_core.model import UserName
from hs_sim.cluster import parse_cluster
from hs_sim.model import Costs, Experiment, SimJob, Workload
from hs_sim.quanta import run_quanta


def test_a_move_costs_what_it_takes_and_not_the_rest_of_the_round() -> None:
    ann, bob = UserName("ann"), UserName("bob")
    fast = SimJob(id=1, user=ann, arrival_s=0.0, steps=4_000, job_class="c", gpus=2, state_bytes=10**9)
    slow = SimJob(id=2, user=bob, arrival_s=0.0, steps=6_000, job_class="c", gpus=2, state_bytes=10**9)
    done = run_quanta(
        Experiment(
            cluster=parse_cluster("v100:2,k80:2", 2),
            workload=Workload(
                name="two",
                jobs=(fast, slow),
                tickets={ann: 100.0, bob: 100.0},
                rates={("c", "V100"): 10.0, ("c", "K80"): 1.0},
            ),
            policy="srtf",
            quantum_s=300.0,
            costs=Costs(
                suspend_s=0.0,
                resume_s=0.0,
                start_s=10.0,
                checkpoint_bytes_per_s=1e8,
                network_bytes_per_s=5e7,
            ),
            rounds=True,
            known_rates=True,
        )
    )
    first, second = done.jobs
    assert first.ended_s == 10.0 + 400.0
    assert second.migrations == 1
    # At the edge at 600 s it leaves the K80, after 590 s of training there: written, sent, read, started.
    assert second.ended_s == 600.0 + (10.0 + 20.0 + 10.0 + 10.0) + (6_000 - 590) / 10.0
