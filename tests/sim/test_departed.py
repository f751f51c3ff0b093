"""Users' shares once one of them has gone: jobs of all the others have moved, and each user's come to their turns as evenly as before."""

from statistics import fmean

import pytest

from hs_sim.figures.common import HOUR_S, QUANTUM_S, Sweep, experiment, last_end_s, mean_gpus, workload
from hs_sim.quanta import run_quanta

POOLS = {"V100": 12, "P100": 24, "K80": 64}
GANGS = {"goes": 1, "pairs": 2, "gangs": 4, "stays": 1}
SPEEDS = {"V100": 4.0, "P100": 2.0, "K80": 1.0}  # of everybody: nobody gains by a trade


def worst(hours: float) -> float:
    """Of the users who stay, the farthest off a third of a model's GPUs, in the time that is left. `hours`: of the one who goes."""
    shares = sum(gpus * SPEEDS[model] for model, gpus in POOLS.items()) / len(GANGS)
    sweeps = [
        Sweep(
            user=user,
            count=150,
            gang=gang,
            job_class=user,
            seconds=hours * HOUR_S * shares / 150 if user == "goes" else 1e6,
            on="K80",
        )
        for user, gang in GANGS.items()
    ]
    rates = {(user, model): speed for user in GANGS for model, speed in SPEEDS.items()}
    result = run_quanta(experiment(workload("one goes", sweeps, rates), POOLS, until_s=6 * HOUR_S))
    gone_s = last_end_s(result, ["goes"]) + 45 * QUANTUM_S
    return max(
        abs(mean_gpus(result, [user], gone_s, result.ended_s, [model]) / (gpus / 3) - 1.0)
        for model, gpus in POOLS.items()
        for user in GANGS
        if user != "goes"
    )


@pytest.mark.slow
def test_the_worst_off_is_within_a_thirtieth_of_its_share_on_average_whenever_one_of_them_goes():
    assert fmean(map(worst, (3.8, 3.9, 4.0, 4.1, 4.2, 4.3))) <= 1 / 30
