"""Parallelism strategies, simulated: both depths read their speeds from the workload, and Tesserae finds the fastest."""

from dataclasses import replace
from pathlib import Path

import pytest

from hs_core.errors import RefusedError
from hs_core.names import UserName
from hs_core.strategy import parse
from hs_sim.export import dump_csv, dump_yaml
from hs_sim.files import load
from hs_sim.machines import run_machines
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, Result, SimJob, SpeedChange, Workload
from hs_sim.quanta import run_quanta

DP, TP, PP = parse("dp=4"), parse("tp=4"), parse("dp=2,pp=2")
RATES = {"gpt as dp=4": 1.0, "gpt as tp=4": 4.0, "gpt as dp=2,pp=2": 2.0}
FILE = """\
rates:
  gpt as dp=4: {V100: 1.0}
  gpt as tp=2,pp=2: {V100: 4.0}
interference:
  gpt as dp=4: {gpt as dp=4: {V100: 1.5}}
jobs:
  - {user: ann, arrival_s: 0, steps: 100, job_class: gpt, gpus: 4, strategies: "dp=4 | tp=2,pp=2"}
"""


def a_job(number: int = 1, **more: object) -> SimJob:
    made = SimJob(
        id=number,
        user=UserName("A"),
        arrival_s=0.0,
        steps=10_000,
        job_class="gpt",
        gpus=4,
        strategies=(DP, TP, PP),
    )
    return replace(made, **more)  # type: ignore[arg-type]  # the tests' own wishes


def an_experiment(*jobs: SimJob, **wishes: object) -> Experiment:
    workload = Workload(
        name="w",
        jobs=jobs,
        tickets={UserName("A"): 100.0},
        rates={(class_, "V100"): rate for class_, rate in RATES.items()},
    )
    made = Experiment(
        cluster=ClusterSpec(pools=(Pool(model="V100", servers=1, gpus_per_server=4),)),
        workload=workload,
        policy="tesserae-las",
        costs=Costs(suspend_s=0.0, resume_s=0.0, start_s=5.0),
    )
    return replace(made, **wishes)  # type: ignore[arg-type]


def end(result: Result) -> float:
    (job,) = result.jobs
    assert job.ended_s is not None
    return job.ended_s


def test_under_another_policy_it_runs_in_the_first_that_it_declared() -> None:
    assert end(run_quanta(an_experiment(a_job(), policy="las"))) == pytest.approx(10_000 / 1.0 + 5.0, abs=1.0)


def test_tesserae_tries_them_and_goes_on_in_the_fastest() -> None:
    result = run_quanta(an_experiment(a_job()))
    assert 10_000 / 4.0 < end(result) < 10_000 / 4.0 + 1_200.0
    assert 2 <= result.jobs[0].migrations <= 3, "each was tried once"


def test_where_speeds_are_known_it_begins_in_the_fastest() -> None:
    result = run_quanta(an_experiment(a_job(), known_rates=True))
    assert end(result) == pytest.approx(10_000 / 4.0 + 5.0, abs=1.0)
    assert result.jobs[0].migrations == 0


def test_with_a_strategy_of_ones_own_both_depths_end_at_one_time() -> None:
    asked = an_experiment(a_job(), policy="las")
    assert end(run_machines(asked)) == pytest.approx(end(run_quanta(asked)), rel=0.01)


def test_both_depths_try_as_many_and_agents_report_more_often_than_once_a_quantum() -> None:
    asked = an_experiment(a_job())
    quanta, machines = run_quanta(asked), run_machines(asked)
    assert machines.jobs[0].migrations == quanta.jobs[0].migrations
    assert 10_000 / 4.0 < end(machines) < end(quanta)


def test_a_change_of_speed_is_of_one_strategy() -> None:
    change = SpeedChange(at_s=1_000.0, job_class="gpt as dp=4", model="V100", steps_per_s=10.0)
    asked = an_experiment(a_job(), policy="las")
    faster = replace(asked, workload=replace(asked.workload, changes=(change,)))
    assert end(run_quanta(faster)) == pytest.approx(1_000.0 + 9_005.0 / 10.0, abs=5.0)
    other = replace(change, job_class="gpt as tp=4")
    same = replace(asked, workload=replace(asked.workload, changes=(other,)))
    assert end(run_quanta(same)) == end(run_quanta(asked))


def test_files_say_strategies_and_their_speeds(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(FILE)
    found = load(tmp_path / "w.yaml")
    assert found.jobs[0].strategies == (parse("dp=4"), parse("tp=2,pp=2"))
    assert found.rates["gpt as tp=2,pp=2", "V100"] == 4.0
    for name, dump in (("again.yaml", dump_yaml), ("again.csv", dump_csv)):
        (tmp_path / name).write_text(dump(found))
        again = load(tmp_path / name)
        assert (again.jobs, again.rates, again.interference) == (found.jobs, found.rates, found.interference)


@pytest.mark.parametrize(
    ("was", "is_", "told"),
    [
        (
            "dp=4 |",
            "dp=3 |",
            "w.yaml:7: strategies: 'dp=3'; expected degrees that multiply to its 4 GPUs, not to 3",
        ),
        ("dp=4 |", "xp=4 |", "w.yaml:7: strategies: 'xp=4'; expected degrees like"),
        ('"dp=4 | tp=2,pp=2"', '"dp=4 | tp=4"', "job_class: 'gpt as tp=4'; expected one that has rates"),
    ],
)
def test_what_is_wrong_with_them_is_told_with_its_line(tmp_path: Path, was: str, is_: str, told: str) -> None:
    (tmp_path / "w.yaml").write_text(FILE.replace(was, is_))
    with pytest.raises(RefusedError, match=told):
        load(tmp_path / "w.yaml")
