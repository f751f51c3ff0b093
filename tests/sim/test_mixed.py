"""Gangs over servers of several GPU models: as fast as the slowest, and charged on each."""

from collections.abc import Callable

import pytest

from hs_core.model import UserName
from hs_sim.cluster import parse_cluster
from hs_sim.machines import run_machines
from hs_sim.model import Costs, Experiment, Result, SimJob, Workload
from hs_sim.quanta import run_quanta

ANN = UserName("ann")
RATES = {("c", "V100"): 10.0, ("c", "K80"): 2.0}

depths = pytest.mark.parametrize("run", [run_quanta, run_machines])


def gang(policy: str, *, known: bool) -> Experiment:
    job = SimJob(id=1, user=ANN, arrival_s=0.0, steps=1_200, job_class="c", gpus=2, nodes=3)
    return Experiment(
        cluster=parse_cluster("v100:4,k80:2", 2),
        workload=Workload(name="gang", jobs=(job,), tickets={ANN: 100.0}, rates=RATES),
        policy=policy,
        costs=Costs(suspend_s=0.0, resume_s=0.0, start_s=0.0),
        known_rates=known,
    )


@depths
def test_a_gang_over_two_models_is_as_fast_as_the_slower_and_charged_on_both(
    run: Callable[[Experiment], Result],
) -> None:
    [job] = run(gang("hadar", known=False)).jobs
    assert job.ended_s is not None
    # Turns over several servers come one quantum ahead.
    assert 600.0 <= job.ended_s <= 600.0 + 2 * 60.0
    assert job.gpu_s == {"V100": pytest.approx(4 * 600.0), "K80": pytest.approx(2 * 600.0)}
