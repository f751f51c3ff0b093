"""Jobs that can neither be moved nor share GPUs are bound to those where their processes stand; the controller does not know of it."""

from dataclasses import replace

import pytest

from hs_core.cluster import Settings
from hs_core.dice import roll
from hs_core.events.cluster import PolicySet
from hs_core.names import UserName
from hs_sim.cases import case_of
from hs_sim.faults import TIMING, UNTIL_S
from hs_sim.machines.laws import Laws
from hs_sim.machines.world import World

SEEDS = [
    seed for seed in range(24) if seed != 10
]  # that one has a gang for which only some policies have a place


@pytest.mark.parametrize(
    ("policy", "change_s", "bound"),
    [("fft", 75.0, 0.8), ("gavel-max-min", 60.0, 0.8), ("las", 45.0, 1.0), ("srtf", 60.0, 0.8)],
)
def test_another_policy_takes_office_and_no_gpu_idles_beside_jobs_that_stand_there(
    policy: str, change_s: float, bound: float
) -> None:
    """`bound`: part of the jobs that cannot be moved. In some of these worlds of each policy GPUs idled while hosts kept to the turn alone."""
    changed = 0
    for seed in SEEDS:
        case = case_of(seed)
        dice = roll(seed, "bound")
        world = World(
            replace(case.experiment, policy="gandiva-fair"),
            timing=TIMING,
            specs=lambda job, case=case: case.specs[job.id],
            settings=Settings(fence_after_s=0.0),
            watched=True,
        )
        world.cannot_checkpoint = frozenset(
            job.id for job in case.experiment.workload.jobs if dice.random() < bound
        )
        world.watch = laws = Laws(world)
        world.horizon_s = UNTIL_S

        def change(world: World = world) -> None:
            nonlocal changed
            changed += any(
                part.occupied_s is not None
                for agent in world.agents.values()
                for part in agent.parts.values()
            )
            world.controller.tell(lambda now_s: PolicySet(now_s=now_s, name=policy, by=UserName("root")))

        world.clock.at(change_s, change)
        world.run()
        laws.at_the_end()
    assert changed >= 18
