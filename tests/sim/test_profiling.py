"""Profiling runs, simulated: both depths agree job by job, every law holds, and little is spent on them."""

from dataclasses import replace

import pytest

from hs_core.names import UserName
from hs_core.policy import Profiling
from hs_sim.cluster import parse_cluster
from hs_sim.machines.laws import Laws
from hs_sim.machines.world import World
from hs_sim.model import Experiment, Result, SimJob, Workload
from hs_sim.quanta import run_quanta

A, B = UserName("A"), UserName("B")
SPEEDS = {"a": (9.0, 4.0, 2.0), "b": (6.0, 5.0, 4.0), "c": (3.0, 2.5, 0.5)}
RATES = {
    (name, model): speed
    for name, speeds in SPEEDS.items()
    for model, speed in zip(("V100", "P100", "K80"), speeds, strict=True)
}


def asked(*jobs: SimJob, **wishes: object) -> Experiment:
    made = Experiment(
        cluster=parse_cluster("v100:4,p100:4,k80:4", 4),
        workload=Workload(name="w", jobs=jobs, tickets={A: 1.0, B: 1.0}, rates=RATES),
        policy="fft",
        quantum_s=300.0,
    )
    return replace(made, **wishes)  # type: ignore[arg-type]  # the tests' own wishes


def a_job(at: int, job_class: str, steps: int, gpus: int = 1, arrival_s: float = 0.0) -> SimJob:
    return SimJob(
        id=at, user=A if at % 2 else B, arrival_s=arrival_s, steps=steps, job_class=job_class, gpus=gpus
    )


MANY = [a_job(at + 1, "abc"[at % 3], 2_000 + 300 * at, 1 + at % 2, 40.0 * at) for at in range(9)]


def ends(result: Result) -> list[float]:
    return [job.ended_s or -1.0 for job in result.jobs]


def watched(experiment: Experiment) -> Result:
    world = World(experiment, watched=True)
    laws = Laws(world)
    world.watch = laws
    found = world.run()
    laws.at_the_end()
    return found


@pytest.mark.parametrize("policy", ["fft", "hadar", "gavel-max-min", "tesserae-srtf"])
@pytest.mark.parametrize(
    "jobs",
    [[a_job(1, "a", 3_000)], MANY],
    ids=["one job that goes from model to model", "several of three classes"],
)
def test_both_depths_agree_on_when_each_ends_and_how_often_it_moved(jobs: list[SimJob], policy: str) -> None:
    if policy == "hadar":
        jobs = jobs[
            :8
        ]  # with the ninth, a choice of one edge hangs on seconds: how old jobs are is part of their worth
    experiment = asked(*jobs, policy=policy, profiling=Profiling(batches=20))
    quick, real = run_quanta(experiment), watched(experiment)
    assert [job.migrations for job in real.jobs] == [job.migrations for job in quick.jobs]
    # A run ends with a report, of which there is one a second.
    assert ends(real) == pytest.approx(ends(quick), abs=2.0 * sum(job.migrations for job in quick.jobs) + 2.0)
    assert {job.steps for job in real.jobs} == {job.steps for job in jobs}


def test_one_job_is_measured_on_three_models_within_a_round_and_goes_on_where_it_is_fastest() -> None:
    alone = asked(a_job(1, "a", 30_000))
    (at_first,) = run_quanta(replace(alone, until_s=100.0)).jobs
    assert 0 < max(at_first.gpu_s["V100"], at_first.gpu_s["P100"]) < 40.0, "seconds, and a process's start"
    assert at_first.gpu_s["K80"] > 0
    (job,) = run_quanta(alone).jobs
    assert job.gpu_s["V100"] > 0.85 * sum(job.gpu_s.values())
    assert job.migrations == 3, "to two other models, and back"


@pytest.mark.parametrize("policy", ["fft", "hadar-exact", "gavel-max-min"])
def test_where_those_come_first_who_gain_little_by_new_gpus_jobs_end_sooner_in_the_mean(policy: str) -> None:
    """Measured as it happens, they keep the new GPUs, and nobody learns what the others would gain there."""
    jobs = [a_job(at + 1, "c" if at < 6 else "a", 20_000, arrival_s=10.0 * at) for at in range(12)]
    with_ = asked(*jobs, policy=policy)
    little = {("c", model): speed for model, speed in (("V100", 3.0), ("P100", 2.9), ("K80", 2.8))}
    with_ = replace(with_, workload=replace(with_.workload, rates={**RATES, **little}))
    without = replace(with_, profiling=Profiling(batches=0))
    assert sum(ends(run_quanta(with_))) < 0.95 * sum(ends(run_quanta(without)))


@pytest.mark.parametrize("policy", ["fft", "hadar-exact", "gavel-max-min", "gavel-hierarchical"])
def test_without_runs_jobs_of_which_nothing_is_known_are_on_the_newest_gpus_as_far_as_these_go(
    policy: str,
) -> None:
    """Who sits on old ones would never be measured on the others."""
    jobs = [a_job(at + 1, "abc"[at % 3], 20_000) for at in range(4)]
    for job in run_quanta(asked(*jobs, policy=policy, profiling=Profiling(batches=0))).jobs:
        assert set(job.gpu_s) == {"V100"}


def test_a_run_ends_within_a_round_also_where_everything_else_waits_for_its_edge() -> None:
    (job,) = run_quanta(asked(a_job(1, "a", 3_000), rounds=True, until_s=290.0)).jobs
    assert job.gpu_s["P100"] > 0
    assert job.gpu_s["V100"] < 40.0


def test_where_speeds_are_known_nothing_is_measured() -> None:
    known = asked(*MANY, known_rates=True)
    assert ends(run_quanta(known)) == ends(run_quanta(replace(known, profiling=Profiling(batches=0))))


def test_runs_with_more_mini_batches_take_longer() -> None:
    few, many = (
        run_quanta(asked(a_job(1, "a", 30_000), profiling=Profiling(batches=batches))).jobs[0].gpu_s["P100"]
        for batches in (20, 200)
    )
    # 4 a second there: 50 seconds in place of the 8 that a rate takes to be known
    assert many - few == pytest.approx(50.0 - 8.0, abs=2.0)


def test_the_same_experiment_gives_the_same_result() -> None:
    assert ends(run_quanta(asked(*MANY))) == ends(run_quanta(asked(*MANY)))
