"""While GPUs of one server idle, nobody who could go there waits on another for longer than it has to stay where it came."""

from dataclasses import replace

import pytest

from hs_core.names import UserName
from hs_core.policies import find
from hs_core.policy import Policy
from hs_sim.cases import case_of
from hs_sim.faults import TIMING, UNTIL_S, run_seed
from hs_sim.machines.laws import Laws
from hs_sim.machines.truth import LawBrokenError
from hs_sim.machines.world import World
from hs_sim.model import ClusterSpec, Experiment, Pool, SimJob, Workload

TIMES = 6  # as long as the jobs of a seed of `hs_sim.faults`, which have ended before long


def two_servers(policy: Policy, other: str = "V100", rate: float = 10.0) -> World:
    """Of two jobs each, those of one of them have ended after two minutes. `other`: the model of one, on which mini-batches are done at that rate, and at 10 a second on V100s."""
    ann = UserName("ann")
    jobs = tuple(
        SimJob(id=at, user=ann, arrival_s=float(at), steps=100 if at % 2 else 10_000, job_class="c")
        for at in range(1, 5)
    )
    one = Pool(model="V100", servers=1, gpus_per_server=1)
    pools = [replace(one, servers=2)] if other == "V100" else [one, replace(one, model=other)]
    experiment = Experiment(
        cluster=ClusterSpec(pools=tuple(pools)),
        workload=Workload(
            name="two", jobs=jobs, tickets={ann: 100.0}, rates={("c", "V100"): 10.0, ("c", other): rate}
        ),
        policy=policy.name,
        quantum_s=10.0,
        sample_s=5.0,
    )
    world = World(experiment, timing=TIMING, policy=policy, watched=True)
    world.watch = Laws(world)
    world.horizon_s = UNTIL_S
    return world


def test_it_is_seen_where_a_policy_leaves_them_there() -> None:
    stays = find("gang-lottery")
    claims = replace(stays, needs=replace(stays.needs, moves=True))
    with pytest.raises(
        LawBrokenError, match=r"job \d \(1 x 1 GPUs\) waits at v100-000\d; idle: 1 of v100-000\d"
    ):
        two_servers(claims).run()
    two_servers(stays).run()
    two_servers(find("gandiva-fair")).run()


def test_nobody_need_go_to_gpus_that_are_less_than_half_as_fast_for_it() -> None:
    stays = find("gang-lottery")
    claims = replace(stays, needs=replace(stays.needs, moves=True))
    with pytest.raises(LawBrokenError, match=r"waits at k80-0001; idle: 1 of v100-0001"):
        two_servers(claims, "K80", 16.0).run()
    two_servers(claims, "K80", 25.0).run()


def lasts(seed: int, policy: str) -> World:
    """The jobs of a seed of `hs_sim.faults`, which last so much longer, and nothing that goes wrong."""
    case = case_of(seed)
    jobs = tuple(replace(job, steps=TIMES * job.steps) for job in case.experiment.workload.jobs)
    world = World(
        replace(case.experiment, workload=replace(case.experiment.workload, jobs=jobs), policy=policy),
        timing=TIMING,
        specs=lambda job: replace(case.specs[job.id], steps=TIMES * case.specs[job.id].steps),
        watched=True,
    )
    world.cannot_checkpoint = case.cannot_checkpoint
    world.horizon_s = TIMES * UNTIL_S
    return world


def holds(world: World) -> None:
    world.watch = laws = Laws(world)
    world.run()
    laws.at_the_end()


@pytest.mark.parametrize("policy", ["gandiva-fair", "las", "tesserae-las"])
def test_nobody_waits_beside_them_whatever_the_jobs(policy: str) -> None:
    for seed in range(11, 15):
        holds(lasts(seed, policy))


@pytest.mark.parametrize("seed", [4, 16, 54, 70, 78, 79])
def test_nor_beside_those_of_another_model_where_gangs_of_a_class_are_of_several_sizes(seed: int) -> None:
    """Of models that users trade, in turns that leave some of them idle."""
    holds(lasts(seed, "gandiva-fair"))


def test_nor_where_a_gang_over_all_of_its_pool_leaves_it_one_turn_in_250() -> None:
    failure = run_seed(7001166)
    assert failure is None, failure
