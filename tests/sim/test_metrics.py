"""What the numbers of a run mean, worked out by hand: the definitions that all comparisons use."""

from dataclasses import replace

import pytest

from hs_core.names import UserName
from hs_sim.cluster import parse_cluster
from hs_sim.metrics import summarize
from hs_sim.model import Experiment, JobOutcome, Result, Sample, SimJob, Workload

ANN, BOB, CEM = UserName("ann"), UserName("bob"), UserName("cem")
# A mini-batch takes half a second on a V100 and a second on a K80: 1.5 a second in the mean over the GPUs.
JOBS = (
    SimJob(id=1, user=ANN, arrival_s=100.0, steps=300, job_class="c"),
    SimJob(id=2, user=BOB, arrival_s=150.0, steps=50, job_class="c", gpus=4, nodes=2),
    SimJob(id=3, user=CEM, arrival_s=250.0, steps=100, job_class="c", gpu_types=("K80",)),
)
ENDS = {1: (110.0, 200.0), 2: (190.0, 250.0), 3: (250.0, 300.0)}  # first training, end
GPU_S = {1: {"V100": 90.0}, 2: {"V100": 200.0, "K80": 280.0}, 3: {"K80": 50.0}}


def a_result(*samples: Sample, ended_s: float = 300.0) -> Result:
    load = Workload(
        name="by hand",
        jobs=JOBS,
        tickets=dict.fromkeys((ANN, BOB, CEM), 100.0),
        rates={("c", "V100"): 2.0, ("c", "K80"): 1.0},
    )
    outcomes = tuple(
        JobOutcome(
            id=job.id, user=job.user, gang=job.gang, arrival_s=job.arrival_s, started_s=ENDS[job.id][0], ended_s=ENDS[job.id][1],
            steps=job.steps, steps_done=job.steps, gpu_s=GPU_S[job.id],
        )
        for job in JOBS
    )  # fmt: skip
    experiment = Experiment(cluster=parse_cluster("v100:4,k80:4"), workload=load)
    return Result(
        experiment=experiment, depth="quanta", jobs=outcomes, samples=samples, ended_s=ended_s, quanta=5, decisions=5
    )  # fmt: skip


def test_times_to_completion_are_from_arrivals_and_the_makespan_from_the_first_of_them() -> None:
    found = summarize(a_result())
    assert found.mean_jct_s == pytest.approx((100 + 100 + 50) / 3)
    assert found.makespan_s == 200.0
    assert found.longest_wait_s == 40.0
    assert found.utilization == pytest.approx((90 + 480 + 50) / (8 * 200))


def test_finish_time_fairness_is_over_the_time_on_a_fixed_part_of_the_cluster() -> None:
    """Of the first two jobs each is alone for half of its life, so that its part is 8 / 1.5 GPUs. That is all that the first can use, and two thirds of what the second does: it is
    as much slower. The third may use the K80s, and has them all."""
    found = summarize(a_result())
    ratios = 100 / (300 / 1.5), 100 / (50 / (1.5 * (8 / 1.5) / 8)), 50 / 100
    assert ratios == pytest.approx((0.5, 2.0, 0.5))
    assert (found.ftf_mean, found.ftf_max, found.ftf_above_1) == pytest.approx((1.0, 2.0, 1 / 3))


def test_unfair_is_what_users_lacked_over_all_their_pools_and_all_of_the_time() -> None:
    """Ann has a K80 where a V100 is due to her, and more later; Bob lacks a third of what is due, and no other's plenty makes that good."""
    due: dict[tuple[UserName, str], float] = {(ANN, "V100"): 1.0, (BOB, "K80"): 3.0}
    first = Sample(
        at_s=100.0, gpus={(ANN, "K80"): 1.0, (BOB, "K80"): 1.0}, entitled=due, steps_per_s={}
    )  # fmt: skip
    second = replace(first, at_s=200.0, gpus={(ANN, "V100"): 4.0, (BOB, "K80"): 3.0})
    assert summarize(a_result(first, second)).fair_share_error == pytest.approx((600 - 400) / (200 + 600))


def test_who_has_not_ended_counts_in_what_was_used_and_how_long_somebody_waited_and_in_nothing_else() -> None:
    whole = a_result(ended_s=500.0)
    first, second, last = whole.jobs
    waits = replace(last, started_s=None, ended_s=None, gpu_s={}, steps_done=0)
    found = summarize(replace(whole, jobs=(first, second, waits)))
    assert (found.finished, found.jobs, found.starved) == (2, 3, 1)
    assert found.makespan_s == 150.0
    assert found.longest_wait_s == 250.0
    assert found.utilization == pytest.approx((90 + 480) / (8 * 400))
    assert found.mean_jct_s == 100.0
