"""Rounds: with costs, with batch sizes that change, and as other simulators have them."""

from dataclasses import replace

import pytest

from hs_core.errors import RefusedError
from hs_core.names import UserName
from hs_core.policies import find
from hs_core.policy import Memory, Snapshot, Verdict
from hs_sim.cluster import parse_cluster
from hs_sim.generate import Recipe, generate
from hs_sim.machines import run_machines
from hs_sim.model import SHOCKWAVE, Costs, Experiment, Growth, SimJob, Stage, Workload, gavel_compat
from hs_sim.quanta import run_quanta
from hs_sim.quanta.lives import Lives


def test_a_move_costs_what_it_takes_and_not_the_rest_of_the_round() -> None:
    ann, bob = UserName("ann"), UserName("bob")
    fast = SimJob(id=1, user=ann, arrival_s=0.0, steps=4_000, job_class="c", gpus=2, state_bytes=10**9)
    slow = SimJob(id=2, user=bob, arrival_s=0.0, steps=6_000, job_class="c", gpus=2, state_bytes=10**9)
    done = run_quanta(
        Experiment(
            cluster=parse_cluster("v100:2,k80:2", 2),
            workload=Workload(
                name="two",
                jobs=(fast, slow),
                tickets={ann: 100.0, bob: 100.0},
                rates={("c", "V100"): 10.0, ("c", "K80"): 1.0},
            ),
            policy="srtf",
            quantum_s=300.0,
            costs=Costs(
                suspend_s=0.0,
                resume_s=0.0,
                start_s=10.0,
                checkpoint_bytes_per_s=1e8,
                network_bytes_per_s=5e7,
            ),
            rounds=True,
            known_rates=True,
        )
    )
    first, second = done.jobs
    assert first.ended_s == 10.0 + 400.0
    assert second.migrations == 1
    # At the edge at 600 s it leaves the K80, after 590 s of training there: written, sent, read, started.
    assert second.ended_s == 600.0 + (10.0 + 20.0 + 10.0 + 10.0) + (6_000 - 590) / 10.0


def growing(growth: Growth, *, epochs: int = 30, **changes: object) -> Experiment:
    """One job: 100 steps an epoch at 1/s, from epoch 10 on 50 at 1/s, from epoch 20 on 25."""
    stages = (
        Stage(job_class="small", from_epoch=0, epoch_steps=100),
        Stage(job_class="middle", from_epoch=10, epoch_steps=50),
        Stage(job_class="large", from_epoch=20, epoch_steps=25),
    )
    ann = UserName("ann")
    job = SimJob(
        id=1, user=ann, arrival_s=0.0, steps=100 * epochs, job_class="small", stages=stages, growth=growth
    )
    return Experiment(
        cluster=parse_cluster("v100:1", 1),
        workload=Workload(
            name="growing",
            jobs=(replace(job, **changes),),  # type: ignore[arg-type]
            tickets={ann: 100.0},
            rates={(name, "V100"): 1.0 for name in ("small", "middle", "large")},
        ),
        policy="gavel-max-min",
        quantum_s=100.0,
        costs=Costs(suspend_s=0.0, resume_s=0.0, start_s=0.0),
        known_rates=True,
    )


def test_a_job_whose_batches_grow_ends_as_much_earlier() -> None:
    (job,) = run_quanta(growing(Growth.JUMP)).jobs
    assert job.steps == 3_000
    assert job.ended_s == 10 * 100 + 10 * 50 + 10 * 25


def test_a_job_that_ends_before_its_batches_grow_is_as_long_as_any() -> None:
    (job,) = run_quanta(growing(Growth.CLIMB, epochs=7)).jobs
    assert job.ended_s == 700


def test_how_much_of_a_growing_job_is_done_is_said_in_its_first_batches() -> None:
    (job,) = run_quanta(replace(growing(Growth.JUMP), until_s=1_500.0)).jobs
    assert job.ended_s is None
    assert job.steps_done == 2_000


def test_as_in_shockwaves_simulator_a_change_is_made_a_round_after_it_was_seen() -> None:
    jump = gavel_compat(growing(Growth.JUMP))
    # Epoch 10 is seen at 1000 s, made at 1100 s when 11 are done; 20 is seen at 1600 s (21 done), made at 1700 s (23 done): 7 are left.
    assert run_quanta(jump).jobs[0].ended_s == 1_700 + 7 * 25
    climb = gavel_compat(growing(Growth.CLIMB))
    # An epoch ahead: 10 is seen at 900 s with 9 done, made at 1000 s; 20 seen at 1500 s (20 done; 1400 s had 18), made at 1600 s (22 done).
    assert run_quanta(climb).jobs[0].ended_s == 1_600 + 8 * 25


def test_who_did_not_run_in_the_round_before_loses_its_restart_there() -> None:
    ann, bob = UserName("ann"), UserName("bob")
    first = SimJob(id=1, user=ann, arrival_s=0.0, steps=250, job_class="c")
    second = SimJob(id=2, user=bob, arrival_s=0.0, steps=250, job_class="c")
    load = Workload(
        name="two",
        jobs=(first, second),
        tickets={ann: 100.0, bob: 100.0},
        rates={("c", "V100"): 1.0},
        peer=SHOCKWAVE,
    )
    experiment = Experiment(cluster=parse_cluster("v100:1", 1), workload=load, policy="fifo", quantum_s=100.0)
    one, other = run_quanta(gavel_compat(experiment)).jobs
    assert one.ended_s == 250  # the first round costs nothing
    assert other.ended_s == 250 + 20 + 250  # the third round was over with the first job
    assert other.gpu_s == {"V100": 250.0}


def test_depth_machines_refuses_batches_that_grow() -> None:
    with pytest.raises(RefusedError, match="batch size"):
        run_machines(growing(Growth.JUMP))


def test_as_in_gavels_simulator_rounds_begin_with_arrivals_and_end_with_the_last_job() -> None:
    ann, bob, cid = (UserName(name) for name in ("ann", "bob", "cid"))
    jobs = tuple(
        SimJob(id=at, user=user, arrival_s=arrival_s, steps=130, job_class="c")
        for at, (user, arrival_s) in enumerate(((ann, 50.0), (bob, 1_000.0), (cid, 1_500.0)), start=1)
    )
    load = Workload(
        name="sparse", jobs=jobs, tickets=dict.fromkeys((ann, bob, cid), 100.0), rates={("c", "V100"): 1.0}
    )
    experiment = Experiment(
        cluster=parse_cluster("v100:2", 1), workload=load, policy="gavel-max-min", quantum_s=100.0
    )
    first, second, third = run_quanta(gavel_compat(experiment)).jobs
    assert (first.started_s, first.ended_s) == (50.0, 180.0)
    # 950 s after the last allocation it gets none; nothing runs, and time goes on to the next arrival, which is the last.
    assert (second.started_s, second.ended_s) == (1_500.0, 1_630.0)
    assert (third.started_s, third.ended_s) == (1_500.0, 1_630.0)


@pytest.mark.parametrize("costs", [Costs(), None], ids=["with costs", "at once"])
@pytest.mark.parametrize("name", ["gavel-max-min", "gavel-ftf", "gavel-max-min-blind"])
def test_a_run_whose_rounds_go_on_is_the_run_in_which_each_is_decided(name: str, costs: Costs | None) -> None:
    load = generate(Recipe(jobs=60, users=6, jobs_per_hour=20.0, service_s=3 * 3600.0, seed=7))
    cluster = parse_cluster("v100:8,p100:8,k80:8")
    asked = gavel_compat(Experiment(cluster=cluster, workload=load, policy=name, quantum_s=360.0))
    if costs is not None:
        asked = replace(asked, costs=costs)
    policy = find(name, compat=True)

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        return replace(policy.decide(snapshot, memory), sequel=None)

    goes_on = run_quanta(asked, policy=policy)
    decided = run_quanta(asked, policy=replace(policy, decide=decide))
    assert goes_on.jobs == decided.jobs
    assert goes_on.samples == decided.samples
    assert decided.decisions >= decided.quanta - 5, "but where nobody is there"
    if costs is None:
        assert goes_on.decisions < decided.decisions / 3


@pytest.mark.parametrize("policy", ["gavel-max-min", "gavel-max-sum", "gavel-max-min-blind"])
def test_jobs_that_move_at_one_edge_move_as_if_one_after_the_other(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe(jobs=60, users=9, jobs_per_hour=20.0, service_s=4 * 3600.0, service_spread=1.2)
    experiment = gavel_compat(
        Experiment(
            cluster=parse_cluster("v100:8,p100:8,k80:8"),
            workload=generate(recipe),
            policy=policy,
            quantum_s=360.0,
        )
    )
    together = run_quanta(experiment)
    monkeypatch.setattr(Lives, "moves_at_once", lambda _: False)
    apart = run_quanta(experiment)
    assert sum(job.migrations for job in together.jobs) > 100
    assert (together.jobs, together.samples) == (apart.jobs, apart.samples)
