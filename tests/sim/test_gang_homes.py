"""Gangs over several whole servers, for days: what comes and goes leaves homes behind that have to fit together."""

import pytest

from hs_core.dice import roll
from hs_core.names import UserName
from hs_sim.model import ClusterSpec, Experiment, Pool, SimJob, Workload
from hs_sim.quanta import run_quanta

HOURS = 40
USER = UserName("ann")


@pytest.mark.parametrize("seed", range(4))
def test_gangs_of_one_two_and_four_servers_have_nearly_all_gpus_that_are_due_to_them(seed: int) -> None:
    dice = roll(31, seed)
    jobs: list[SimJob] = []
    now_s = 0.0
    while now_s < HOURS * 3600:
        nodes, lasts_s = dice.choice([1, 2, 4]), dice.expovariate(1 / 10_800)
        jobs.append(
            SimJob(
                id=len(jobs) + 1,
                user=USER,
                arrival_s=now_s,
                steps=1 + int(10 * lasts_s),
                job_class="gangs",
                gpus=4,
                nodes=nodes,
                state_bytes=1 << 30,
            )
        )
        now_s += dice.expovariate(1 / 1_575)  # as much work as the pool can do
    result = run_quanta(
        Experiment(
            cluster=ClusterSpec(pools=(Pool(model="K80", servers=16, gpus_per_server=4),)),
            workload=Workload(
                name="gangs", jobs=tuple(jobs), tickets={USER: 100.0}, rates={("gangs", "K80"): 10.0}
            ),
            until_s=HOURS * 3600.0,
        )
    )
    samples = result.samples[4 * 60 :]
    had = sum(gpus for sample in samples for gpus in sample.gpus.values())
    due = sum(gpus for sample in samples for gpus in sample.entitled.values())
    assert had > 0.95 * due


def moves(seed: int, quanta: int) -> int:
    """In a cluster where jobs, most of them gangs, have half as much again to do as there are GPUs, for ever."""
    dice = roll(32, seed)
    servers = dice.randint(3, 12)
    users = [UserName(f"user{at}") for at in range(dice.randint(1, 4))]
    jobs: list[SimJob] = []
    while sum(job.gpus * job.nodes for job in jobs) < 6 * servers:
        user = dice.choice(users)
        jobs.append(
            SimJob(
                id=len(jobs) + 1,
                user=user,
                arrival_s=0.0,
                steps=10**9,
                job_class=user,
                gpus=dice.choice([1, 2, 3, 4, 4, 4, 4]),
                nodes=min(servers, dice.choice([1, 1, 2, 2, 3, 4])),
                state_bytes=1 << 30,
            )
        )
    result = run_quanta(
        Experiment(
            cluster=ClusterSpec(pools=(Pool(model="K80", servers=servers, gpus_per_server=4),)),
            workload=Workload(
                name="still",
                jobs=tuple(jobs),
                tickets={user: dice.choice([50.0, 100.0, 200.0]) for user in users},
                rates={(user, "K80"): 10.0 for user in users},
            ),
            until_s=60.0 * quanta,
        )
    )
    return sum(job.migrations for job in result.jobs)


@pytest.mark.parametrize("seed", [4, 13, 14, 25, 46, 47, 52, 53, 58])
def test_where_nobody_comes_or_goes_moves_come_to_an_end(seed: int) -> None:
    """In these, of sixty, one job or another went to and fro between a server that was less full and one on which nobody waited, for ever."""
    assert moves(seed, 400) == moves(seed, 150)
