"""How far users are from what their shares of several GPU models are worth.

Drawn clusters where nothing changes but turns. Half of the users have no more jobs than an even part of the cluster
has GPUs. All users' jobs train equally fast on a model; *speed-up*: of each model over the next older one. Run once
as it is, and once without amends (`hs_core.mechanism.amends`), as the paper has it.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import fsum
from unittest.mock import patch

from hs_core.dice import roll
from hs_core.mechanism.job_weights import Shares
from hs_core.names import UserName
from hs_core.policies import gandiva_fair
from hs_sim.model import ClusterSpec, Experiment, Pool, Sample, SimJob, Workload
from hs_sim.quanta import run_quanta

WORLDS = 60
MODELS = ("V100", "P100", "K80")
FIRST, LAST = 60, 160  # quanta that are looked at
QUANTUM_S = 60.0
FOREVER = 10**9


def draw(number: int, speedup: float) -> tuple[Experiment, dict[str, float]]:
    """2 or 3 models of 1 to 4 servers of 4 GPUs, 2 to 5 users; what a GPU of each model is worth."""
    dice = roll(11, number)
    pools = tuple(
        Pool(model=model, servers=dice.randint(1, 4), gpus_per_server=4)
        for model in MODELS[: dice.randint(2, 3)]
    )
    gpus = sum(4 * pool.servers for pool in pools)
    worth = {pool.model: speedup**-age for age, pool in enumerate(pools)}
    users: dict[UserName, tuple[int, int]] = {}
    tickets: dict[UserName, float] = {}
    several = dice.randint(2, 5)
    for at in range(several):
        gang = dice.choice([1, 1, 1, 2, 2, 4])
        user = UserName(f"user{at}")
        most = gpus // several if dice.random() < 0.5 else 2 * gpus
        users[user] = (dice.randint(1, max(1, most // gang)), gang)
        tickets[user] = dice.choice([50.0, 100.0, 100.0, 200.0])
    whose = [(user, gang) for user, (count, gang) in users.items() for _ in range(count)]
    jobs = tuple(
        SimJob(id=at, user=user, arrival_s=0.0, steps=FOREVER, job_class=user, gpus=gang, state_bytes=1 << 20)
        for at, (user, gang) in enumerate(whose, start=1)
    )
    rates = {(user, model): 10.0 * one for user in users for model, one in worth.items()}
    experiment = Experiment(
        cluster=ClusterSpec(pools=pools),
        workload=Workload(name="pools", jobs=jobs, tickets=tickets, rates=rates),
        until_s=LAST * QUANTUM_S,
        known_rates=True,
    )
    return experiment, worth


def lacks(number: int, speedup: float) -> list[float]:
    experiment, worth = draw(number, speedup)
    return lacks_in(run_quanta(experiment).samples[FIRST:LAST], experiment.workload.tickets, worth)


def lacks_in(samples: Sequence[Sample], users: Iterable[UserName], worth: Mapping[str, float]) -> list[float]:
    """Of each user, what it lacks of what its shares are worth, as a part of that; 0 where it has more."""
    found: list[float] = []
    for user in users:
        had, due = (
            fsum(gpus * worth[model] for each in samples for (of, model), gpus in kind(each).items() if of == user)
            for kind in (lambda sample: sample.gpus, lambda sample: sample.entitled)
        )  # fmt: skip
        found.append(max(0.0, 1 - had / due))
    return found


def without(
    _world: object, _levels: object, entitled: Shares, *_: object
) -> dict[tuple[UserName, str], Fraction]:
    return {**entitled}


def line(speedup: float) -> str:
    worlds = [lacks(number, speedup) for number in range(WORLDS)]
    users = [lack for world in worlds for lack in world]
    far = [sum(max(world) > part for world in worlds) for part in (0.05, 0.1)]
    return f"{100 * fsum(users) / len(users):.1f} % on average, most {100 * max(users):.0f} %; a user lacks 5 % in {far[0]} of {WORLDS} worlds, 10 % in {far[1]}"


def main() -> None:
    print("what users lack of what their shares are worth")
    for speedup in (1.0, 1.3, 2.0):
        print(f"speed-up {speedup:g}, amends:    {line(speedup)}")
        with patch.object(gandiva_fair, "amended", without):
            print(f"speed-up {speedup:g}, no amends: {line(speedup)}", flush=True)


if __name__ == "__main__":
    main()
