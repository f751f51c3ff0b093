"""Policies that replace one another at random moments: what one leaves behind harms nobody under the next, and all jobs end."""

from dataclasses import replace

import pytest

from hs_core.cluster import Settings
from hs_core.dice import Random, roll
from hs_core.model import Topology
from hs_core.policies import POLICIES
from hs_sim.cases import case_of
from hs_sim.cases.case import TROUBLE_S, Case
from hs_sim.cases.kinds import GROWING, NET
from hs_sim.elastic import declared_rates
from hs_sim.faults import TIMING, UNTIL_S
from hs_sim.machines.laws import Laws
from hs_sim.machines.trade_laws import TradeLaws
from hs_sim.machines.trouble import Fault, FaultPlan, Kind
from hs_sim.machines.world import World

GIB = 1 << 30


def of_every_kind(case: Case, dice: Random) -> Case:
    """Jobs that may share GPUs, some of them, and jobs that may be restarted on other numbers of them."""
    experiment = case.experiment
    speeds = {
        ("net", pool.model): replace(NET, grad_per_example_s=(2 if pool.model == "K80" else 1) / 1_000)
        for pool in experiment.cluster.pools
    }
    jobs, specs = [], {}
    for job in experiment.workload.jobs:
        more: dict[str, object] = {"gpu_memory_bytes": dice.choice([0, 4 * GIB, 4 * GIB, 10 * GIB])}
        if job.nodes == 1 and job.elastic is None and dice.random() < 0.35:
            most = experiment.cluster.pools[0].gpus_per_server
            topology = dice.choice([Topology.AUTO, Topology.ANY])
            elastic = replace(GROWING, gpus_max=dice.randint(2, most))
            more |= {"gpus": dice.choice([1, 2]), "gpu_types": (), "job_class": "net", "elastic": elastic}
            more |= {"topology": topology, "steps": 4 * job.steps}
        jobs.append(replace(job, **more))  # type: ignore[arg-type]
        specs[job.id] = replace(case.specs[job.id], checkpoint_dir="", **more)
    ones = {job.job_class: job for job in jobs if job.job_class == "net"}
    workload = replace(
        experiment.workload,
        jobs=tuple(jobs),
        rates={**experiment.workload.rates, **declared_rates(ones, speeds)},
        speeds={**experiment.workload.speeds, **(speeds if ones else {})},
    )
    return replace(case, experiment=replace(experiment, workload=workload, interference=1.3), specs=specs)


def switches(dice: Random) -> FaultPlan:
    times = [dice.uniform(1.0, TROUBLE_S) for _ in range(dice.randint(2, 8))]
    return FaultPlan(
        faults=tuple(
            Fault(kind=Kind.POLICY_SET, at_s=at_s, policy=dice.choice(sorted(POLICIES))) for at_s in times
        )
    )


@pytest.mark.parametrize("seed", [0, 2, 4, 5, 6, 8, 9, 11, 12, 14, 15, 18])
def test_nothing_that_a_policy_leaves_behind_harms_anybody_under_the_next(seed: int) -> None:
    dice = roll(seed, "switches")
    case = of_every_kind(case_of(seed), dice)
    world = World(
        case.experiment,
        faults=switches(dice),
        timing=TIMING,
        specs=lambda job: case.specs[job.id],
        settings=Settings(fence_after_s=0.0),
        watched=True,
    )
    if dice.random() < 0.5:
        world.cannot_checkpoint = case.cannot_checkpoint
    world.watch = laws = Laws(world)
    world.trade_laws = TradeLaws(world)
    world.horizon_s = UNTIL_S
    world.run()
    laws.at_the_end()
