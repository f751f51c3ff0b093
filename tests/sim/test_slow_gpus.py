"""GPUs of one model that are not equally fast, simulated: what jobs take on them, in both depths, and what `pal` makes of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from hs_core.errors import RefusedError
from hs_core.model import Topology
from hs_core.names import UserName
from hs_sim.cluster import parse_cluster
from hs_sim.machines import run_machines
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, Result, SimJob, Workload
from hs_sim.quanta import run_quanta
from hs_sim.slowdowns import slowed

FREE = Costs(suspend_s=0.0, resume_s=0.0, start_s=0.0)
CLASSES = ("felt", "even")


def one(
    at: int, steps: int = 600, *, job_class: str = "felt", arrival_s: float = 0.0, **more: object
) -> SimJob:
    made = SimJob(id=at, user=UserName("ann"), arrival_s=arrival_s, steps=steps, job_class=job_class)
    return replace(made, **more)  # type: ignore[arg-type]


def asked(
    *jobs: SimJob, times: tuple[float, ...] = (2.0, 1.0), policy: str = "pal", costs: Costs = FREE
) -> Experiment:
    """GPUs of one server, so many times as slow to jobs of class `felt`."""
    pool = Pool(model="V100", servers=1, gpus_per_server=len(times), slowdowns={"felt": times})
    load = Workload(
        name="slow",
        jobs=jobs,
        tickets={UserName("ann"): 100.0},
        rates={(job_class, "V100"): 1.0 for job_class in CLASSES},
    )
    cluster = ClusterSpec(pools=(pool,))
    return Experiment(cluster=cluster, workload=load, policy=policy, costs=costs, known_rates=True)


def ends(result: Result) -> list[float | None]:
    return [job.ended_s for job in result.jobs]


@pytest.mark.parametrize("run", [run_quanta, run_machines])
def test_a_job_is_as_fast_as_the_slowest_of_its_gpus(run) -> None:
    assert ends(run(asked(one(1), policy="las"))) == pytest.approx([1_200.0])
    assert ends(run(asked(one(1, job_class="even"), policy="las"))) == pytest.approx([600.0])
    gang = one(1, gpus=2)
    assert ends(run(asked(gang, times=(1.0, 3.0, 1.0, 1.5), policy="las"))) == pytest.approx([1_800.0])
    assert ends(run(asked(gang, times=(1.0, 3.0, 1.0, 1.5)))) == pytest.approx([600.0])


@pytest.mark.parametrize("run", [run_quanta, run_machines])
def test_pal_gives_who_feels_it_the_even_gpus(run) -> None:
    jobs = (one(1, job_class="even"), one(2))
    assert ends(run(asked(*jobs, policy="las"))) == pytest.approx([600.0, 600.0])
    jobs = (one(1), one(2, job_class="even"))
    assert ends(run(asked(*jobs, policy="las"))) == pytest.approx([1_200.0, 600.0])
    assert ends(run(asked(*jobs))) == pytest.approx([600.0, 600.0])


@pytest.mark.parametrize("run", [run_quanta, run_machines])
def test_who_comes_and_feels_it_more_takes_the_gpu_over_and_a_free_one_is_moved_to(run) -> None:
    jobs = (one(1, 1_200, job_class="even"), one(2, 300, arrival_s=300.0))
    times = (3.0, 1.0)
    result = run(asked(*jobs, times=times))
    assert ends(result) == pytest.approx([1_200.0, 600.0], abs=1.0)
    two = (one(1, 300), one(2, 900))
    first, second = ends(run(asked(*two, times=(1.0, 3.0))))
    assert first == pytest.approx(300.0)
    assert second == pytest.approx(300.0 + 800.0, abs=61.0), (
        "a third of 300 steps done, then alone on the fast one"
    )


@pytest.mark.parametrize(
    ("run", "part", "ends_s"),
    [
        (run_quanta, 0.8, 750.0),
        (run_machines, 0.8, 750.0),
        (run_quanta, 0.2, 1_800.0),
    ],  # machines measure what is lost
)
def test_a_job_that_may_be_laid_over_servers_is_where_the_slow_gpus_and_the_network_cost_it_least(
    run, part: float, ends_s: float
) -> None:
    pool = Pool(model="V100", servers=2, gpus_per_server=2, slowdowns={"felt*": (3.0, 1.0, 3.0, 1.0)})
    made = asked(one(1, gpus=2, topology=Topology.ANY))
    load = replace(made.workload, spread={("felt", "V100"): part})
    found = run(replace(made, workload=load, cluster=ClusterSpec(pools=(pool,))))
    assert ends(found) == pytest.approx([ends_s], abs=61.0), (
        "turns over several servers begin with the second quantum"
    )


def test_going_to_another_gpu_costs_a_checkpoint_and_a_start() -> None:
    costs = Costs(suspend_s=0.0, resume_s=0.0, start_s=10.0, checkpoint_bytes_per_s=1e9)
    jobs = (one(1, 300), one(2, 900, state_bytes=5_000_000_000))
    first, second = ends(run_quanta(asked(*jobs, times=(1.0, 3.0), costs=costs)))
    assert first == pytest.approx(310.0)
    assert second == pytest.approx(310.0 + 800.0 + 20.0, abs=61.0)


def test_speeds_that_nobody_asks_for_cost_nothing_and_change_nothing() -> None:
    jobs = tuple(one(at, 100 * at, arrival_s=30.0 * at) for at in range(1, 9))
    even = asked(*jobs, times=(1.0, 1.0), policy="las")
    plain = replace(even, cluster=ClusterSpec(pools=(replace(even.cluster.pools[0], slowdowns={}),)))
    assert ends(run_quanta(even)) == ends(run_quanta(plain))


def test_a_file_says_how_slow_each_gpu_is(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text('v100: [1, 2, 1, 1.5]\nK80: {"bert*": [3, 1], "*": [1, 1]}\n')
    found = slowed(parse_cluster("v100:4,k80:2@2"), tmp_path / "s.yaml")
    assert [dict(pool.slowdowns) for pool in found.pools] == [
        {"*": (1, 2, 1, 1.5)},
        {"bert*": (3, 1), "*": (1, 1)},
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("V100: [1, 2]", "V100.*: 2 numbers; expected 4 numbers, one a GPU, server by server"),
        ("V100: [1, 2, 0, 1]", "V100.*[2]: 0; expected a number from 0.01 to 100"),
        ("V100: [1, 2, -1, 1]", "V100.*[2]: -1; expected a number from 0.01 to 100"),
        ("V100: [1, .nan, 1, 1]", "V100.*[1]: nan; expected a number"),
        ("V100: {bert: 3}", "V100.bert: 3; expected 4 numbers"),
        ("A100: [1]", "A100: expected one of the cluster's models, V100"),
        ("[1, 2]", "a list; expected GPU models with a list of numbers each"),
        ("{V100: [1], v100: [2]}", "V100, v100: expected each GPU model once"),
        ("V100: [", "expected YAML"),
        ("[" * 5000, "nested too deeply; expected GPU models"),
        ("V100: 2020-13-45", "month must be in 1..12; expected YAML"),
    ],
)
def test_bad_files_of_slowdowns_are_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(RefusedError) as caught:
        slowed(parse_cluster("v100:4"), tmp_path / "s.yaml")
    assert f"{tmp_path / 's.yaml'}: " in str(caught.value)
    assert says in str(caught.value)
