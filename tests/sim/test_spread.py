"""Placement sensitivity: a gang over several servers may be slower than on one, and what is measured of either is kept apart."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hs_core.errors import RefusedError
from hs_core.names import UserName
from hs_core.policies import find
from hs_core.policy import Memory, Policy, Snapshot, Verdict
from hs_sim.export import dump_csv, dump_yaml
from hs_sim.files import load
from hs_sim.gavel import load_trace
from hs_sim.machines import run_machines
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, Result, SimJob, Workload, gavel_compat
from hs_sim.quanta import run_quanta

A = UserName("A")
JOBS = (
    SimJob(id=1, user=A, arrival_s=0.0, steps=6_000, job_class="net", gpus=2),
    SimJob(id=2, user=A, arrival_s=0.0, steps=6_000, job_class="net", nodes=2),
)


def an_experiment(**wishes: object) -> Experiment:
    workload = Workload(
        name="w",
        jobs=JOBS,
        tickets={A: 100.0},
        rates={("net", "V100"): 10.0},
        spread={("net", "V100"): 0.5},
    )
    made = Experiment(
        cluster=ClusterSpec(pools=(Pool(model="V100", servers=2, gpus_per_server=2),)),
        workload=workload,
        policy="las",
        costs=Costs(suspend_s=0.0, resume_s=0.0, start_s=0.0),
    )
    return replace(made, **wishes)  # type: ignore[arg-type]  # the tests' own wishes


def alone(at: int, experiment: Experiment) -> Experiment:
    job = replace(JOBS[at], id=1)
    return replace(experiment, workload=replace(experiment.workload, jobs=(job,)))


@pytest.mark.parametrize(("at", "seconds"), [(0, 600.0), (1, 1_200.0)])
def test_a_gang_takes_longer_over_several_servers_in_both_depths(at: int, seconds: float) -> None:
    experiment = alone(at, an_experiment())
    assert run_quanta(experiment).jobs[0].ended_s == pytest.approx(seconds, abs=62.0)
    assert run_machines(experiment).jobs[0].ended_s == pytest.approx(seconds, abs=62.0), (
        "a gang begins an edge later"
    )


@pytest.mark.parametrize("policy", ["fifo", "srtf", "gavel-max-min", "pollux"])
@pytest.mark.parametrize("run", [run_quanta, run_machines])
def test_who_comes_first_of_all_beside_a_part_of_a_gang_begins_at_once(
    run: Callable[[Experiment], Result], policy: str
) -> None:
    """Turns of servers with such a part come a quantum ahead; for the first quantum of a run there is none."""
    load = an_experiment().workload
    jobs = (replace(JOBS[1], id=1), SimJob(id=2, user=A, arrival_s=0.0, steps=3_000, job_class="net"))
    asked = an_experiment(policy=policy, costs=Costs(), known_rates=True, workload=replace(load, jobs=jobs))
    _, beside = run(asked).jobs
    assert beside.started_s == pytest.approx(10.0, abs=0.2)
    assert beside.ended_s == pytest.approx(310.0, abs=1.5)


def test_policies_see_both_speeds_apart() -> None:
    seen: list[Snapshot] = []
    las = find("las")

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        seen.append(snapshot)
        return las.decide(snapshot, memory)

    run_quanta(an_experiment(), policy=Policy(name="las", needs=las.needs, decide=decide))
    assert seen[-1].rates == {("A/net", "V100"): 10.0, ("A/net on 2 servers", "V100"): 5.0}


def test_in_gavels_world_nothing_is_lost_by_being_spread() -> None:
    compat = alone(1, gavel_compat(an_experiment(policy="fifo", quantum_s=360.0)))
    assert run_quanta(compat).jobs[0].ended_s == pytest.approx(600.0, abs=1.0)


def test_files_say_how_much_is_left(tmp_path: Path) -> None:
    workload = an_experiment().workload
    for name, dump in (("w.yaml", dump_yaml), ("w.csv", dump_csv)):
        (tmp_path / name).write_text(dump(workload))
        assert load(tmp_path / name).spread == workload.spread
    text = dump_yaml(workload).replace("V100: 0.5", "V100: 1.5")
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(
        RefusedError, match=r"spread.net.V100: 1.5; expected a part of its rate: above 0, at most 1"
    ):
        load(tmp_path / "bad.yaml")


def test_gavels_table_says_what_gangs_keep_where_they_are_not_consolidated(tmp_path: Path) -> None:
    kinds = {"('A', 1)": {"null": 8.0}, "('A', 8)": {"null": 40.0}, "('B', 8)": {"null": 4.0}}
    apart = {"('A', 8)": {"null": 30.0}, "('B', 8)": {"null": 5.0}}
    table = tmp_path / "throughputs.json"
    table.write_text(json.dumps({"v100": kinds, "v100_unconsolidated": apart}))
    trace = tmp_path / "jobs.trace"
    trace.write_text("A\tx\t.\t-n\t0\t100\t8\t1\t0\t0\n")
    found = load_trace(trace, table, 4)
    assert found.spread == {("A x8", "V100"): 0.75, ("B x8", "V100"): 1.0}
    assert found.rate("A x8", "V100", 2) == 30.0
    apart["('A', 8)"] = {"null": "fast"}  # type: ignore[dict-item]
    table.write_text(json.dumps({"v100": kinds, "v100_unconsolidated": apart}))
    with pytest.raises(
        RefusedError, match=r"v100_unconsolidated, \('A', 8\), null: 'fast'; expected steps/s"
    ):
        load_trace(trace, table, 4)
