"""Gangs over several servers: what it costs them to be bound to GPUs, and to have their turns decided ahead."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from hs_core.cluster import Settings
from hs_core.dice import roll
from hs_core.model import Job
from hs_core.names import JobId, UserName
from hs_core.reports import Phase
from hs_sim import cases, faults
from hs_sim.cases.case import QUANTUM_S
from hs_sim.machines import run_machines
from hs_sim.machines.restless import restless
from hs_sim.machines.world import World
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, Result, SimJob, Workload
from hs_sim.quanta import run_quanta

START_S = 28.0
LOOK_S = 0.5


def slow_starts(seed: int) -> World:
    """A gang on a GPU of each of two servers, and ten jobs that come, go, and move about beside it. A start takes 14 quanta."""
    dice = roll(seed, "slow starts")
    gang = SimJob(id=1, user=UserName("A"), arrival_s=5.0, steps=3_000, job_class="c", gpus=1, nodes=2)
    others = [
        SimJob(
            id=2 + number,
            user=UserName(dice.choice("BC")),
            arrival_s=arrival_s,
            steps=dice.randint(500, 2_500),
            job_class="c",
            gpus=dice.choice([1, 1, 2]),
            state_bytes=1 << 28,
        )
        for number, arrival_s in enumerate(sorted(dice.uniform(10.0, 200.0) for _ in range(10)))
    ]
    return World(
        Experiment(
            cluster=ClusterSpec(pools=(Pool(model="V100", servers=2, gpus_per_server=4),)),
            workload=Workload(
                name="slow starts",
                jobs=(gang, *others),
                tickets={UserName(name): 100.0 for name in "ABC"},
                rates={("c", "V100"): 10.0},
            ),
            quantum_s=2.0,
            costs=Costs(start_s=START_S),
            seed=seed,
        )
    )


def test_jobs_that_come_and_go_beside_a_gang_do_not_have_it_started_anew() -> None:
    for seed in range(5):
        world = slow_starts(seed)
        world.run()
        gang = world.truth.jobs[1]
        assert gang.launches == 1, f"seed {seed}: it was started {gang.launches} times"


class Standing:
    """For how long gangs stood at once beside GPUs that would have been enough for them on all of their servers."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._since_s: dict[JobId, float] = {}

    def __call__(self, world: World) -> None:
        now_s = world.clock.now_s
        stand = {
            row.id for row in world.controller.machine.jobs() if len(row.hosts) > 1 and _stands(world, row)
        }
        self._since_s = {job: self._since_s.get(job, now_s) for job in stand}
        self.longest_s = max([self.longest_s, *(now_s - since_s for since_s in self._since_s.values())])


def _stands(world: World, row: Job) -> bool:
    for host in row.hosts:
        agent = world.agents[host]
        reports = agent.machine.reports(world.clock.now_s)
        idle = len(agent.gpus) - sum(len(report.gpus) for report in reports if report.in_turn)
        own = [report.phase for report in reports if report.job == row.id]
        if own != [Phase.HELD] or idle < row.spec.gpus:
            return False
    return True


@pytest.mark.parametrize("seed", [1040, 2888, 3048, 3504])
def test_a_gang_does_not_stand_for_long_beside_gpus_that_others_have_left(seed: int) -> None:
    """In worlds in which jobs are moved about for no reason."""
    case = cases.case_of(seed)
    world = World(
        replace(case.experiment, sample_s=LOOK_S),
        timing=faults.TIMING,
        specs=lambda job: case.specs[job.id],
        settings=Settings(fence_after_s=case.fence_after_s, lease_s=faults.LEASE_S),
        dress=partial(restless, likely=case.moving),
        watched=True,
    )
    world.cannot_checkpoint = case.cannot_checkpoint
    world.horizon_s = faults.UNTIL_S
    world.watch = standing = Standing()
    world.run()
    assert standing.longest_s <= 1.5 * QUANTUM_S


@pytest.mark.parametrize("depth", [run_quanta, run_machines])
def test_gpus_of_a_gang_that_ended_go_to_another_at_the_next_edge(
    depth: Callable[[Experiment], Result],
) -> None:
    """Two gangs take turns on all of two servers, three of the one to one of the other: most often its next turn is decided when it ends."""
    for length_s in range(500, 740, 30):
        steps = {1: 10 * length_s, 2: 100_000}
        jobs = tuple(
            SimJob(id=at, user=UserName("BA"[at % 2]), arrival_s=0.0, steps=steps[at], job_class="c", gpus=4, nodes=2)
            for at in steps
        )  # fmt: skip
        tickets = {UserName("A"): 300.0, UserName("B"): 100.0}
        load = Workload(name="two", jobs=jobs, tickets=tickets, rates={("c", "V100"): 10.0})
        pools = (Pool(model="V100", servers=2, gpus_per_server=4),)
        result = depth(Experiment(cluster=ClusterSpec(pools=pools), workload=load, until_s=1_800.0))
        ended_s = result.jobs[0].ended_s
        assert ended_s is not None
        later = [sample for sample in result.samples if sample.at_s > 60.0 * (ended_s // 60.0 + 2) - 1.0]
        assert len(later) > 5
        for sample in later:
            assert sum(sample.gpus.values()) == pytest.approx(8.0, abs=0.4), (length_s, ended_s, sample.at_s)
