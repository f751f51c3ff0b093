"""Users of unlike speed-ups, whose jobs nobody has measured: once these have been measured they trade, and nobody is below what its untraded share gives."""

from math import fsum

import pytest

from hs_core.dice import roll
from hs_core.names import UserName
from hs_sim.machines import run_machines
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, SimJob, Workload

QUANTUM_S = 2.0
FIRST, LAST = 42, 120  # quanta that are looked at
USERS = {"ada": (100.0, 1), "bob": (100.0, 1), "eve": (200.0, 2)}  # tickets, and GPUs of each of four jobs
STEPS_PER_S = {
    "ada": {"V100": 19.2, "P100": 18.3, "K80": 16.7},
    "bob": {"V100": 16.0, "P100": 13.5, "K80": 10.0},
    "eve": {"V100": 25.0, "P100": 13.8, "K80": 6.2},
}


@pytest.mark.parametrize("seed", [3, 5, 12])
def test_users_who_trade_have_what_their_untraded_shares_give_and_no_gpu_idles(seed: int) -> None:
    dice = roll(5, seed)
    jobs = tuple(
        SimJob(
            id=at,
            user=UserName(user),
            arrival_s=0.05 * at + 0.3 * dice.random(),
            steps=10**9,
            job_class=user,
            gpus=USERS[user][1],
            state_bytes=1 << 20,
        )
        for at, user in enumerate([*USERS] * 4, start=1)
    )
    result = run_machines(
        Experiment(
            cluster=ClusterSpec(
                pools=tuple(
                    Pool(model=model, servers=1, gpus_per_server=4) for model in ("V100", "P100", "K80")
                )
            ),
            workload=Workload(
                name="unlike",
                jobs=jobs,
                tickets={UserName(user): tickets for user, (tickets, _) in USERS.items()},
                rates={(user, model): rate for user, by in STEPS_PER_S.items() for model, rate in by.items()},
            ),
            quantum_s=QUANTUM_S,
            costs=Costs(start_s=1.5 * QUANTUM_S),
            seed=seed,
            until_s=LAST * QUANTUM_S,
        )
    )
    samples = result.samples[FIRST:LAST]
    assert result.trades
    assert fsum(gpus for each in samples for gpus in each.gpus.values()) > 0.99 * 12 * len(samples)
    for user, (tickets, _) in USERS.items():
        made = fsum(
            gpus * STEPS_PER_S[user][model]
            for each in samples
            for (of, model), gpus in each.gpus.items()
            if of == user
        )
        untraded = fsum(4 * tickets / 400 * rate for rate in STEPS_PER_S[user].values()) * len(samples)
        assert made > untraded
