"""Consolidated or spread, simulated: both depths lay a job over the servers that the policy says, at the speed of its class there."""

from dataclasses import replace
from pathlib import Path

import pytest

from hs_core.errors import RefusedError
from hs_core.model import Topology
from hs_core.names import UserName
from hs_core.policies import find
from hs_core.policy import Memory, Policy, Snapshot, Verdict
from hs_core.strategy import parse
from hs_sim.export import dump_csv, dump_yaml
from hs_sim.files import load
from hs_sim.machines import run_machines
from hs_sim.machines.world import World
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, Result, SimJob, Workload
from hs_sim.quanta import run_quanta

FILE = """\
rates: {net: {V100: 1.0}}
jobs:
  - {user: ann, arrival_s: 0, steps: 100, job_class: net, gpus: 2, topology: any}
"""


def a_job(number: int, arrival_s: float = 0.0, steps: int = 1_000, gpus: int = 2, **more: object) -> SimJob:
    made = SimJob(id=number, user=UserName("A"), arrival_s=arrival_s, steps=steps, job_class="net", gpus=gpus)
    return replace(made, **more)  # type: ignore[arg-type]  # the tests' own wishes


def an_experiment(part: float, *jobs: SimJob, **wishes: object) -> Experiment:
    """Two servers of three GPUs. `part`: of its rate that a job keeps over several."""
    workload = Workload(
        name="w",
        jobs=jobs,
        tickets={UserName("A"): 100.0},
        rates={("net", "V100"): 1.0, ("long", "V100"): 1.0},
        spread={("net", "V100"): part},
    )
    made = Experiment(
        cluster=ClusterSpec(pools=(Pool(model="V100", servers=2, gpus_per_server=3),)),
        workload=workload,
        policy="tiresias",
        costs=Costs(suspend_s=0.0, resume_s=0.0, start_s=5.0),
    )
    return replace(made, **wishes)  # type: ignore[arg-type]


def filled(topology: Topology) -> tuple[SimJob, ...]:
    """Each server has one GPU left, while all run."""
    long = [a_job(number, steps=10_000, job_class="long") for number in (1, 2)]
    return (*long, a_job(3, arrival_s=60.0, topology=topology))


def third(result: Result) -> float:
    ended = result.jobs[2].ended_s
    assert ended is not None
    return ended


def gpu_s_of_third(result: Result) -> float:
    return sum(result.jobs[2].gpu_s.values())


@pytest.mark.parametrize("policy", ["tiresias", "hadar", "hadar-exact"])
@pytest.mark.parametrize("run", [run_quanta, run_machines])
def test_it_runs_on_what_is_left_of_both_servers_at_the_speed_that_it_has_there(run, policy: str) -> None:  # type: ignore[no-untyped-def]
    spread = third(run(an_experiment(0.5, *filled(Topology.ANY), policy=policy)))
    assert spread == pytest.approx(60.0 + 1_000 / 0.5, abs=130.0)


@pytest.mark.parametrize("run", [run_quanta, run_machines])
def test_one_that_does_not_say_so_waits_for_one_server(run) -> None:  # type: ignore[no-untyped-def]
    """And has it in its turn: at its whole speed."""
    assert gpu_s_of_third(run(an_experiment(0.5, *filled(Topology.AUTO)))) == pytest.approx(2_000.0, rel=0.05)


@pytest.mark.parametrize(("part", "waits"), [(0.95, False), (0.5, True)])
def test_where_speeds_are_known_who_loses_by_it_waits(part: float, *, waits: bool) -> None:
    measured = a_job(4, arrival_s=30_000.0, steps=10, nodes=2, gpus=1)  # so both speeds are in the table
    asked = an_experiment(part, *filled(Topology.ANY), measured, known_rates=True)
    assert (third(run_quanta(asked)) > 2_000.0) is waits


def by_quanta(asked: Experiment, policy: Policy) -> Result:
    return run_quanta(asked, policy=policy)


def by_machines(asked: Experiment, policy: Policy) -> Result:
    return World(asked, policy=policy).run()


@pytest.mark.parametrize("run", [by_quanta, by_machines])
def test_one_with_strategies_is_laid_out_in_its_first_and_later_in_the_fastest_over_as_many_servers(
    run,
) -> None:  # type: ignore[no-untyped-def]
    """A policy that lays it over servers, and after ten minutes one that chooses strategies."""
    dp, tp = parse("dp=2"), parse("tp=2")
    first, *others = filled(Topology.ANY)
    last = replace(others.pop(), steps=10_000, strategies=(dp, tp))
    asked = an_experiment(
        1.0, replace(first, steps=100_000), *(replace(job, steps=100_000) for job in others), last
    )
    rates = {("net as dp=2", "V100"): 1.0, ("net as tp=2", "V100"): 4.0, ("long", "V100"): 1.0}
    spread = {(name, "V100"): 0.5 for name in ("net as dp=2", "net as tp=2")}
    asked = replace(asked, workload=replace(asked.workload, rates=rates, spread=spread), until_s=12_000.0)
    alone, choosing = find("tiresias"), find("tesserae-las")

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        now, key = (alone, "alone") if snapshot.now_s < 600.0 else (choosing, "choosing")
        verdict = now.decide(snapshot, memory.get(key, {}))
        return replace(verdict, memory={key: verdict.memory})

    both = Policy(name="both", needs=choosing.needs, decide=decide)
    for policy, about_s in ((alone, None), (both, 60.0 + 300.0 / 0.5 + 9_700.0 / 2.0)):
        ended = run(asked, policy).jobs[2].ended_s
        assert (ended is None) == (about_s is None), "half a step a second, in its first strategy"
        if about_s is not None:
            assert about_s - 200.0 < ended < about_s + 1_500.0, "two a second in the other"


def test_other_policies_run_it_as_it_asks() -> None:
    found = run_quanta(an_experiment(0.5, *filled(Topology.ANY), policy="las"))
    assert gpu_s_of_third(found) == pytest.approx(2_000.0, rel=0.05)


def test_files_say_it(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(FILE)
    found = load(tmp_path / "w.yaml")
    assert found.jobs[0].topology is Topology.ANY
    for name, dump in (("again.yaml", dump_yaml), ("again.csv", dump_csv)):
        (tmp_path / name).write_text(dump(found))
        assert load(tmp_path / name).jobs == found.jobs
    (tmp_path / "w.yaml").write_text(FILE.replace("any", "some"))
    with pytest.raises(RefusedError, match=r"w\.yaml:3: topology: .some.; expected auto or any"):
        load(tmp_path / "w.yaml")
