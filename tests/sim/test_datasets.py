"""Data sets, simulated: the first job on a server waits for its data, later ones do not, until others have pushed it out."""

from dataclasses import replace
from pathlib import Path

import pytest

from hs_core.errors import RefusedError
from hs_core.names import UserName
from hs_sim.export import dump_csv, dump_yaml
from hs_sim.files import load
from hs_sim.machines import run_machines
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, Result, SimJob, Workload
from hs_sim.quanta import run_quanta

GB = 10**9
COSTS = Costs(suspend_s=0.0, resume_s=0.0, start_s=1.0, network_bytes_per_s=GB)
depths = pytest.mark.parametrize("run", [run_quanta, run_machines])


def reads(at: int, dataset: str, arrival_s: float, **more: object) -> SimJob:
    """100 seconds of work on 50 GB of data."""
    made = SimJob(
        id=at,
        user=UserName("ann"),
        arrival_s=arrival_s,
        steps=100,
        job_class="c",
        dataset=dataset,
        dataset_bytes=50 * GB,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def asked(*jobs: SimJob, servers: int = 1, cache: int = 0, policy: str = "fifo") -> Experiment:
    load_ = Workload(name="data", jobs=jobs, tickets={UserName("ann"): 100.0}, rates={("c", "V100"): 1.0})
    pool = Pool(model="V100", servers=servers, gpus_per_server=1)
    cluster = ClusterSpec(pools=(pool,), dataset_cache_bytes=cache)
    return Experiment(
        cluster=cluster, workload=load_, policy=policy, costs=COSTS, known_rates=True, quantum_s=10.0
    )


def jcts(result: Result) -> list[float]:
    return [job.ended_s - job.arrival_s for job in result.jobs]


@depths
def test_the_first_on_a_server_waits_for_its_data_and_the_next_does_not(run) -> None:
    jobs = [
        reads(1, "A", 0.0),
        reads(2, "A", 300.0),
        reads(3, "B", 600.0),
        reads(4, "", 900.0, dataset_bytes=0),
    ]
    assert jcts(run(asked(*jobs))) == pytest.approx([151.0, 101.0, 151.0, 101.0], abs=3.0)


@depths
def test_a_small_cache_forgets(run) -> None:
    jobs = [reads(at, "AABA"[at - 1], 300.0 * (at - 1)) for at in range(1, 5)]
    assert jcts(run(asked(*jobs, cache=60 * GB))) == pytest.approx([151.0, 101.0, 151.0, 151.0], abs=3.0)
    assert jcts(run(asked(*jobs, cache=120 * GB))) == pytest.approx([151.0, 101.0, 151.0, 101.0], abs=3.0)


@depths
@pytest.mark.parametrize("policy", ["fifo", "gandiva-fair", "las"])
def test_of_two_free_servers_the_one_with_the_data_is_taken(run, policy: str) -> None:
    jobs = [reads(1, "A", 0.0), reads(2, "B", 20.0), reads(3, "B", 300.0), reads(4, "A", 320.0)]
    assert jcts(run(asked(*jobs, servers=2, policy=policy))) == pytest.approx(
        [151.0, 151.0, 101.0, 101.0], abs=12.0
    )


def test_files_carry_data_sets(tmp_path: Path) -> None:
    load_ = asked(reads(1, "A", 0.0), reads(2, "", 1.0, dataset_bytes=0)).workload
    for name, text in (("w.yaml", dump_yaml(load_)), ("w.csv", dump_csv(load_))):
        (tmp_path / name).write_text(text)
        read = load(tmp_path / name)
        assert [(job.dataset, job.dataset_bytes) for job in read.jobs] == [("A", 50 * GB), ("", 0)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ann,0,10,dcgan,d,-5", "w.csv:2: dataset_bytes: '-5'; expected a whole number of at least 0"),
        ("ann,0,10,dcgan,d,x", "w.csv:2: dataset_bytes: 'x'; expected a whole number"),
        ("ann,0,10,dcgan,,5", "w.csv:2: dataset_bytes: 5; expected a dataset to go with it"),
    ],
)
def test_bad_data_sets_are_named(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "w.csv").write_text(f"user,arrival_s,steps,job_class,dataset,dataset_bytes\n{line}\n")
    with pytest.raises(RefusedError) as caught:
        load(tmp_path / "w.csv")
    assert says in str(caught.value)
