"""Where gangs over several servers have quanta begin together, turns come one ahead: who is given one has it, wherever the next round would have it."""

import pytest

from hs_core.model import Migrate
from hs_core.names import UserName
from hs_sim.machines.timing import Timing
from hs_sim.machines.world import World
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, SimJob, Workload

QUANTUM_S = 10.0
QUANTA = 60
FOREVER = 10**7
SMALL = (
    Pool(model="V100", servers=2, gpus_per_server=1),
    Pool(model="P100", servers=1, gpus_per_server=1),
    Pool(model="K80", servers=2, gpus_per_server=6),
)
# GPUs on each server, servers, arrival in quanta.
ON_SMALL = ((4, 1, 0), (2, 1, 0), (2, 1, 0), (1, 1, 0), (2, 2, 1), (3, 1, 1), (2, 1, 5), (1, 1, 8), (1, 2, 8))
FOURS = (Pool(model="V100", servers=4, gpus_per_server=4),)
ON_FOURS = (
    *((3, 1, 0), (1, 1, 0), (1, 2, 0), (1, 2, 0), (4, 1, 0), (3, 1, 0), (1, 2, 0)),
    *((4, 1, 3), (2, 1, 6), (3, 1, 7), (1, 2, 8)),
)


def experiment(
    policy: str, pools: tuple[Pool, ...], drafts: tuple[tuple[int, int, int], ...], stay: int
) -> Experiment:
    """`stay`: the job whose process writes no checkpoints is nailed down besides."""
    jobs = tuple(
        SimJob(
            id=number,
            user=UserName("ab"[number % 2]),
            arrival_s=at * QUANTUM_S,
            steps=FOREVER,
            job_class="xyz"[number % 3],
            gpus=gpus,
            nodes=nodes,
            state_bytes=1 << 28,
            migrate=Migrate.NEVER if number == stay else Migrate.AUTO,
        )
        for number, (gpus, nodes, at) in enumerate(drafts, start=1)
    )
    speed = {"V100": 4.0, "P100": 3.0, "K80": 2.0}
    return Experiment(
        cluster=ClusterSpec(pools=pools),
        workload=Workload(
            name="turns kept",
            jobs=jobs,
            tickets={UserName("a"): 200.0, UserName("b"): 200.0},
            rates={(name, pool.model): speed[pool.model] for name in "xyz" for pool in pools},
        ),
        policy=policy,
        quantum_s=QUANTUM_S,
        costs=Costs(start_s=2.0),
        migrations_per_hour=10_000.0,
        until_s=QUANTA * QUANTUM_S,
    )


@pytest.mark.parametrize(
    ("policy", "pools", "drafts", "stay"),
    [
        ("gavel-makespan-packed", SMALL, ON_SMALL, 3),
        ("gavel-sjf", FOURS, ON_FOURS, 5),
    ],
)
def test_nobody_goes_from_server_to_server_at_each_edge_without_a_turn(
    policy: str, pools: tuple[Pool, ...], drafts: tuple[tuple[int, int, int], ...], stay: int
) -> None:
    world = World(experiment(policy, pools, drafts, stay), timing=Timing(progress_s=2.5), watched=True)
    world.cannot_checkpoint = frozenset({stay})
    homes: dict[int, list[tuple[str, ...]]] = {}  # that a job had one after the other since it trained last
    most: dict[int, int] = {}

    def watch(now: World) -> None:
        for number, job in now.truth.jobs.items():
            row = now.controller.machine.find(job.id) if job.id is not None else None
            if row is None or job.busy or number not in homes:
                homes[number] = []
            elif row.hosts and [row.hosts] != homes[number][-1:]:
                homes[number].append(row.hosts)
                most[number] = max(most.get(number, 0), len(homes[number]))

    world.watch = watch
    world.run()
    assert max(most.values(), default=0) <= 3, most
