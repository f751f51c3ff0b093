"""Two jobs on one GPU, simulated: speeds, ends and charges are those of the arithmetic."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hs_core.dice import roll
from hs_core.events.cluster import PolicySet
from hs_core.mechanism.sharing import ends
from hs_core.names import UserName
from hs_core.policies import POLICIES
from hs_sim.cluster import parse_cluster
from hs_sim.drawn import STATIC, shockwave_like
from hs_sim.generate import Recipe, gang_rates, generate
from hs_sim.machines import run_machines
from hs_sim.machines.laws import Laws
from hs_sim.machines.timing import IDEAL
from hs_sim.machines.world import World
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, Result, SimJob, Workload
from hs_sim.quanta import run_quanta

GIB = 2**30
FREE = Costs(suspend_s=0.0, resume_s=0.0, start_s=0.0)


def one(at: int, steps: int, arrival_s: float = 0.0, gpus: int = 1, **more: object) -> SimJob:
    return SimJob(
        id=at, user=UserName("ann"), arrival_s=arrival_s, steps=steps, job_class="c", gpus=gpus,
        gpu_memory_bytes=4 * GIB, **more,
    )  # type: ignore[arg-type]  # fmt: skip


def run(*jobs: SimJob, gpus: int = 1, ratio: float = 1.2, policy: str = "sjf-bsbf", **more: object) -> Result:
    load = Workload(
        name="pairs",
        jobs=jobs,
        tickets={UserName("ann"): 100.0},
        rates={("c", "V100"): 1.0},
        interference={("c", "c", "V100"): ratio},
    )
    cluster = ClusterSpec(
        pools=(Pool(model="V100", servers=1, gpus_per_server=gpus, gpu_memory_bytes=16 * GIB),)
    )
    facts: Mapping[str, object] = {"costs": FREE, "known_rates": True} | more
    experiment = Experiment(cluster=cluster, workload=load, policy=policy, **facts)  # type: ignore[arg-type]
    return run_quanta(experiment)


def test_both_are_slowed_while_they_share_and_neither_afterwards() -> None:
    result = run(one(1, 1_000), one(2, 700, 120.0))
    first, second = result.jobs
    found = ends(880.0, 700.0, 1.2, 1.2)  # at 120 s 880 steps of the first are left
    assert first.ended_s == pytest.approx(120.0 + float(found.shared_older_s))
    assert second.ended_s == pytest.approx(120.0 + float(found.shared_newer_s))
    assert result.samples[-1].at_s >= first.ended_s


def test_gpu_seconds_of_who_shares_add_up_to_what_there_is() -> None:
    first, second = run(one(1, 1_000), one(2, 700, 120.0)).jobs
    assert second.gpu_s["V100"] == pytest.approx(700 * 1.2 / 2)
    assert first.gpu_s["V100"] + second.gpu_s["V100"] == pytest.approx(first.ended_s)


def test_where_nothing_is_gained_the_second_waits() -> None:
    first, second = run(one(1, 1_000), one(2, 700, 120.0), ratio=1.9).jobs
    assert first.ended_s == pytest.approx(1_000.0)
    assert second.ended_s == pytest.approx(1_700.0)
    first, second = run(one(1, 1_000), one(2, 700, 120.0), ratio=1.9, policy="sjf-ffs").jobs
    assert first.ended_s > 1_500.0


def test_a_third_takes_the_place_of_who_ended() -> None:
    jobs = run(one(1, 3_000), one(2, 500, 60.0), one(3, 500, 61.0)).jobs
    assert jobs[1].ended_s == pytest.approx(60.0 + 600.0)
    assert jobs[2].started_s == pytest.approx(jobs[1].ended_s)
    assert jobs[2].ended_s == pytest.approx(jobs[1].ended_s + 600.0)


def test_a_gang_shares_with_two_jobs_and_is_as_slow_as_its_slowest_worker() -> None:
    jobs = run(one(1, 2_000), one(2, 2_000), one(3, 400, 60.0, gpus=2), gpus=2).jobs
    assert jobs[2].ended_s == pytest.approx(60.0 + 480.0)
    assert jobs[0].ended_s == jobs[1].ended_s == pytest.approx(2_000.0 + 80.0)
    assert jobs[2].gpu_s["V100"] == pytest.approx(480.0)


def test_how_much_two_slow_each_other_is_measured_before_it_is_known() -> None:
    # Tried once on the assumption that it pays; then it is known that it does not.
    jobs = run(*(one(at, 3_000, 60.0 * at) for at in range(1, 5)), ratio=2.6, known_rates=False).jobs
    shared = [job for job in jobs if job.gpu_s["V100"] < 0.99 * 3_000 * 2.6 and job.gpu_s["V100"] > 3_001]
    assert len(shared) == 2


def test_sharing_costs_nothing_where_nobody_shares() -> None:
    alone = run(one(1, 1_000), policy="sjf")
    same = run(one(1, 1_000))
    assert alone.jobs == same.jobs


def test_both_depths_agree_on_who_shares_and_when_all_end() -> None:
    jobs = [one(1, 3_000), one(2, 700, 130.0), one(3, 2_000, 310.0), one(4, 900, 790.0), one(5, 400, 1_500.0)]
    quanta = run(*jobs, gpus=2, known_rates=False)
    machines = run_machines(quanta.experiment)
    for fast, true in zip(quanta.jobs, machines.jobs, strict=True):
        assert true.ended_s == pytest.approx(fast.ended_s, abs=2.0)
        assert true.gpu_s["V100"] == pytest.approx(fast.gpu_s["V100"], abs=3.0)
    assert sum(job.gpu_s["V100"] < 0.99 * job.steps for job in machines.jobs if job.id > 2) > 0, "some share"


def test_pairs_that_leave_share_their_gpus_until_they_are_gone() -> None:
    load = shockwave_like(gang_rates(), jobs=40, jobs_per_hour=100.0, modes=STATIC, seed=1)
    classes = sorted({job.job_class for job in load.jobs})
    dice = roll(1, "ratios")
    done = run_quanta(
        Experiment(
            cluster=parse_cluster("v100:12", 4),
            workload=replace(
                load,
                jobs=tuple(replace(job, state_bytes=10**9) for job in load.jobs),
                interference={
                    (one, other, "V100"): dice.uniform(1.0, 1.9) for one in classes for other in classes
                },
            ),
            policy="tesserae-srtf",
            quantum_s=360.0,
            known_rates=True,
            rounds=True,
        )
    )
    assert all(job.ended_s is not None for job in done.jobs)


@pytest.mark.parametrize("policy", [name for name, policy in POLICIES.items() if policy.needs.sharing])
def test_whoever_pairs_jobs_ends_all_of_a_drawn_workload_and_gpu_time_adds_up(policy: str) -> None:
    drawn = generate(Recipe(jobs=40, users=4, jobs_per_hour=60, seed=3))
    jobs = tuple(replace(job, gpu_memory_bytes=4 * GIB) for job in drawn.jobs)
    cluster = ClusterSpec(
        pools=tuple(Pool(model=model, servers=2, gpus_per_server=4) for model in ("V100", "K80"))
    )
    result = run_quanta(Experiment(cluster=cluster, workload=replace(drawn, jobs=jobs), policy=policy))
    assert all(job.ended_s is not None for job in result.jobs)
    assert sum(sum(job.gpu_s.values()) for job in result.jobs) <= 16 * result.ended_s
    for model in ("V100", "K80"):
        for sample in result.samples:
            had = sum(gpus for (_, on), gpus in sample.gpus.items() if on == model)
            assert had <= 8 * 1.005, "but for the moment in which one leaves GPUs that others stay on"


@pytest.mark.parametrize("bound", [False, True], ids=["that can be moved", "that cannot be moved"])
@pytest.mark.parametrize("between", ["las", "fifo", "gandiva-fair", "pal", "gang-lottery"])
@pytest.mark.parametrize("policy", ["sjf-bsbf", "sjf-ffs"])
def test_a_pair_that_another_policy_separated_shares_its_gpu_again(
    policy: str, between: str, bound: bool
) -> None:
    jobs = (one(1, 600), one(2, 600, 1.0))
    load = Workload(
        name="pairs", jobs=jobs, tickets={UserName("ann"): 100.0}, rates={("c", "V100"): 1.0},
        interference={("c", "c", "V100"): 1.2},
    )  # fmt: skip
    cluster = ClusterSpec(
        pools=(Pool(model="V100", servers=1, gpus_per_server=1, gpu_memory_bytes=16 * GIB),)
    )
    experiment = Experiment(
        cluster=cluster, workload=load, policy=policy, costs=FREE, known_rates=True, sample_s=30.0
    )
    world = World(experiment, timing=IDEAL, watched=True)
    world.cannot_checkpoint = frozenset({1, 2} if bound else ())
    world.watch = laws = Laws(world)
    paired: list[bool] = []

    def look_and_set(name: str) -> None:
        rows = world.controller.machine.jobs()
        paired.append(all(row.report is not None and row.report.beside for row in rows))
        world.controller.tell(lambda now_s: PolicySet(now_s=now_s, name=name, by=UserName("root")))

    for at_s, name in ((100.0, between), (250.0, policy), (300.0, policy), (400.0, policy)):
        world.clock.at(at_s, look_and_set, name)
    world.run()
    laws.at_the_end()
    assert paired == [True, False, True, True]
