"""What is asked of a run, and what is told of it, is the same in both depths."""

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby

import pytest

from hs_core.names import HostName, UserName
from hs_core.policies import find
from hs_core.policy import Going, Memory, Snapshot, Verdict
from hs_sim.cluster import keep_to_what_runs, parse_cluster
from hs_sim.machines import World, run_machines
from hs_sim.metrics import fair_share_error
from hs_sim.model import Costs, Experiment, Noise, Result, SimJob, Workload
from hs_sim.quanta import run_quanta

A, B, C = UserName("A"), UserName("B"), UserName("C")
MODELS = ("V100", "K80")
depths = pytest.mark.parametrize("run", [run_quanta, run_machines])
Run = Callable[[Experiment], Result]


def a_job(number: int, user: UserName = A, **wishes: object) -> SimJob:
    job = SimJob(id=number, user=user, arrival_s=0.0, steps=6_000, job_class=str(user))
    return replace(job, **wishes)  # type: ignore[arg-type]


def asked(*jobs: SimJob, gpus: str = "v100:1@1,k80:1@1", **wishes: object) -> Experiment:
    """Classes are called by their users; a V100 makes A's 1.25, B's 5 and C's 6.25 times as fast as a K80."""
    faster = {"A": 1.25, "B": 5.0, "C": 6.25}
    load = Workload(
        name="asked",
        jobs=jobs,
        tickets={job.user: 100.0 for job in jobs},
        rates={(name, model): 10.0 * (at if model == "V100" else 1.0) for name, at in faster.items() for model in MODELS},
    )  # fmt: skip
    return replace(Experiment(cluster=parse_cluster(gpus), workload=load), **wishes)  # type: ignore[arg-type]


def all_seen(experiment: Experiment, *, quanta: bool) -> list[Snapshot]:
    """What the policy was asked with jobs in it."""
    seen: list[Snapshot] = []
    policy = find(experiment.policy)

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        seen.append(snapshot)
        return policy.decide(snapshot, memory)

    watched = replace(policy, decide=decide)
    if quanta:
        run_quanta(experiment, policy=watched)
    else:
        World(experiment, policy=watched).run()
    return [snapshot for snapshot in seen if snapshot.jobs]


def first_seen(experiment: Experiment, *, quanta: bool) -> Snapshot:
    return all_seen(experiment, quanta=quanta)[0]


@pytest.mark.parametrize("quanta", [True, False])
def test_a_policy_is_told_where_a_job_is_going_until_it_has_left(quanta: bool) -> None:
    """Its checkpoint takes long enough to be written that it is decided about others meanwhile."""
    jobs = (
        a_job(1, A, steps=3_000),
        a_job(2, A, steps=30_000, state_bytes=3_000, gpu_types=()),
        *(a_job(at, B, arrival_s=170.0 + 10.0 * at, steps=600, gpu_types=("K80",)) for at in range(3, 23)),
    )
    experiment = asked(*jobs, policy="srtf", known_rates=True, costs=Costs(checkpoint_bytes_per_s=100.0))
    about = [
        next(job for job in snapshot.jobs if job.id == 2)
        for snapshot in all_seen(experiment, quanta=quanta)
        if any(job.id == 2 for job in snapshot.jobs)
    ]
    told = [(job.hosts, job.going) for job in about if job.hosts]
    old, new = (HostName("k80-0001"),), (HostName("v100-0001"),)
    assert [case for case, _ in groupby(told)] == [(old, None), (old, Going(hosts=new, gpus=1)), (new, None)]


def test_speeds_that_are_known_are_told_from_the_beginning_alike_in_both_depths() -> None:
    jobs = (a_job(1, A, job_class="A"), a_job(2, A, job_class="B", nodes=2))
    slowed = {("A", "B", "V100"): 1.25, ("A", "A", "K80"): 2.0}
    experiment = asked(*jobs, gpus="v100:4@1,k80:4@1", policy="sjf-bsbf")
    load = replace(experiment.workload, interference=slowed, spread={("B", "V100"): 0.5})
    experiment = replace(experiment, workload=load, known_rates=True)
    quick, real = (first_seen(experiment, quanta=quanta) for quanta in (True, False))
    assert dict(quick.rates) == {
        ("A/A", "V100"): 12.5,
        ("A/A", "K80"): 10.0,
        ("A/B on 2 servers", "V100"): 25.0,
        ("A/B on 2 servers", "K80"): 10.0,
    }
    assert dict(real.rates) == pytest.approx(dict(quick.rates))
    assert dict(real.interference) == pytest.approx(dict(quick.interference))
    unknown = replace(experiment, known_rates=False)
    assert not any(first_seen(unknown, quanta=quanta).rates for quanta in (True, False))


@pytest.mark.parametrize("quanta", [True, False])
def test_known_speeds_are_as_blurred_as_measured_ones(quanta: bool) -> None:
    experiment = asked(a_job(1), known_rates=True, noise=Noise(rate_cv=0.3), policy="srtf")
    rates = first_seen(experiment, quanta=quanta).rates
    assert rates["A/A", "V100"] == pytest.approx(12.5, rel=0.5)
    assert rates["A/A", "V100"] != 12.5


@depths
def test_no_job_that_has_started_moves_where_no_migrations_are_allowed(run: Run) -> None:
    jobs = [a_job(number, (A, B)[number % 2], steps=20_000) for number in range(1, 7)]
    experiment = asked(*jobs, policy="las", known_rates=True)
    assert sum(job.migrations for job in run(experiment).jobs) > 0
    still = run(replace(experiment, migrations_per_hour=0.0))
    assert sum(job.migrations for job in still.jobs) == 0


@depths
def test_trades_are_told_with_their_time(run: Run) -> None:
    jobs = [a_job(number, (A, B, C)[number % 3], steps=200_000) for number in range(1, 121)]
    result = run(asked(*jobs, gpus="v100:12,k80:60", known_rates=True, until_s=120.0))
    made = [trade for trade in result.trades if not trade["undone"]]
    assert made
    assert {(trade["gives"], trade["fast"], trade["slow"]) for trade in made} == {("A", "V100", "K80")}
    assert sum(float(str(trade["fast_gpus"])) for trade in made) == pytest.approx(4.0)
    assert all(0.0 <= float(str(trade["at"])) <= 120.0 for trade in made)


@depths
def test_entitlements_of_samples_are_means_over_their_time(run: Run) -> None:
    """One user is there for the first half hour only; of two samples an hour the first says so."""
    jobs = (a_job(1, A, steps=12_500 * 3), a_job(2, B, arrival_s=1_800.0, steps=50_000 * 3))
    costs = Costs(suspend_s=0.0, resume_s=0.0, start_s=0.0)
    result = run(asked(*jobs, gpus="v100:2@2", costs=costs, sample_s=3_600.0, quantum_s=60.0))
    first = result.samples[0]
    assert first.at_s == pytest.approx(3_600.0)
    assert first.gpus[A, "V100"] == pytest.approx(first.entitled[A, "V100"], abs=0.02)
    assert first.gpus[B, "V100"] == pytest.approx(first.entitled[B, "V100"], abs=0.02)
    assert fair_share_error(result) < 0.03


@depths
@pytest.mark.parametrize("policy", ["gandiva-fair", "fifo", "las", "gavel-max-min"])
def test_nobody_is_entitled_to_anything_while_nobody_is_there(run: Run, policy: str) -> None:
    jobs = (a_job(1, A), a_job(2, B, arrival_s=36_000.0))
    result = run(asked(*jobs, gpus="v100:2@2", policy=policy))
    assert fair_share_error(result) < 0.06, "what a process's start and the rest of a quantum take"


@depths
def test_a_rate_of_0_keeps_a_class_to_the_other_models(run: Run) -> None:
    experiment = asked(a_job(1), a_job(2, B))
    rates = {**experiment.workload.rates, ("B", "K80"): 0.0}
    load = replace(experiment.workload, rates=rates)
    kept = keep_to_what_runs(load, experiment.cluster)
    result = run(replace(experiment, workload=kept, policy="fifo"))
    assert all(job.ended_s for job in result.jobs)
    assert set(result.jobs[1].gpu_s) == {"V100"}
