"""What is received is added up the same whether all places are looked at or only those that were touched, and over samples as over jobs."""

from math import fsum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_core.names import UserName
from hs_sim.cluster import parse_cluster
from hs_sim.generate import Recipe, generate
from hs_sim.model import Costs, Experiment, Noise, Result, SimJob, Workload
from hs_sim.quanta import run_quanta
from hs_sim.quanta.ledger import FewOfMany, Sums

PLACES = 40
AMOUNTS = st.floats(0.0, 1e6)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, PLACES - 1), AMOUNTS), min_size=1, max_size=12),
        min_size=1,
        max_size=6,
    ),
    st.tuples(st.integers(0, PLACES - 1), AMOUNTS),
)
def test_few_of_many_places_add_up_as_all_do(added, one) -> None:
    found = []
    for sums in (Sums(PLACES), FewOfMany(PLACES)):
        for some in added:
            places, amounts = zip(*some, strict=True)
            sums.add(np.array(places), np.array(amounts))
        sums.add_one(*one)
        places, amounts = sums.take()
        assert sums.take()[0] == [], "from then on there is nothing"
        found.append((places, amounts.tolist()))
    assert found[0] == found[1]


def gpu_s_of_samples(result: Result) -> float:
    times = [0.0, *(sample.at_s for sample in result.samples)]
    spans = zip(times, result.samples, strict=False)
    return fsum(gpus * (sample.at_s - began_s) for began_s, sample in spans for gpus in sample.gpus.values())


@pytest.mark.parametrize("policy", ["gandiva-fair", "las", "sjf-bsbf", "gavel-max-min", "tesserae-las"])
@pytest.mark.parametrize("seed", range(3))
def test_users_receive_what_their_jobs_receive(policy: str, seed: int) -> None:
    recipe = Recipe(jobs=60, users=4, jobs_per_hour=60.0, service_s=1_800.0, seed=seed)
    result = run_quanta(
        Experiment(cluster=parse_cluster("v100:8,k80:16"), workload=generate(recipe), policy=policy)
    )
    received = fsum(gpu_s for job in result.jobs for gpu_s in job.gpu_s.values())
    assert gpu_s_of_samples(result) == pytest.approx(received, rel=1e-9)


def test_who_comes_up_across_an_edge_takes_its_gpus_once() -> None:
    """The second comes shortly before an edge and is started on GPUs that idle; the third, shortly after it, has the GPU that is left."""
    arrivals = [0.0, 55.0, 58.0]
    ann = UserName("ann")
    jobs = tuple(
        SimJob(id=at, user=ann, arrival_s=arrival_s, steps=3_000, job_class="c")
        for at, arrival_s in enumerate(arrivals, start=1)
    )
    load = Workload(name="edge", jobs=jobs, tickets={ann: 100.0}, rates={("c", "V100"): 10.0})
    result = run_quanta(Experiment(cluster=parse_cluster("v100:4@4"), workload=load))
    (there,) = [sample for sample in result.samples if sample.at_s == 120.0]
    assert sum(there.gpus.values()) == pytest.approx(3.0, abs=0.01)
    assert gpu_s_of_samples(result) == pytest.approx(fsum(job.gpu_s["V100"] for job in result.jobs))


@pytest.mark.parametrize("suspend_s", [0.1, 20.0])
@pytest.mark.parametrize("policy", ["gandiva-fair", "las", "srtf"])
def test_in_no_sample_users_have_more_gpus_than_there_are(policy: str, suspend_s: float) -> None:
    """Whoever begins waits until those before it have stopped; one that is placed anew while it comes up leaves its GPUs."""
    cluster = parse_cluster("v100:8,p100:12,k80:20")
    recipe = Recipe(jobs=80, users=5, jobs_per_hour=30, service_s=2400.0, service_spread=1.0, seed=4)
    experiment = Experiment(
        cluster=cluster,
        workload=generate(recipe),
        policy=policy,
        seed=4,
        noise=Noise(rate_cv=0.1),
        costs=Costs(suspend_s=suspend_s, start_s=2.0),
        until_s=4 * 3600.0,
    )
    for sample in run_quanta(experiment).samples:
        for pool in cluster.pools:
            had = fsum(gpus for (_, model), gpus in sample.gpus.items() if model == pool.model)
            assert had <= pool.gpus * (1 + 1e-9), (sample.at_s, pool.model)
