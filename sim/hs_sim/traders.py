"""Users to whom faster GPUs are worth unlike much, drawn for `hs_sim.faults`: under gandiva-fair they trade, and what befalls them has trades taken back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hs_core.dice import Random, roll
from hs_core.names import UserName
from hs_sim.model import ClusterSpec, Experiment, Noise, Pool, SimJob, SpeedChange

MODELS = ("V100", "P100", "K80")
USERS = (UserName("A"), UserName("B"), UserName("C"))
LITTLE, MUCH = (1.0, 1.5), (1.8, 2.8)  # how many times as fast on the newest pool as on the oldest
OWN = 0.88  # how likely a job is of its user's usual class
PINNED = 0.04  # and has to be on GPUs of one model
EVEN = 0.8  # and of the user whose jobs ask for the fewest GPUs so far
GANGS = 0.1  # and is over two servers, where a pool has them
ASKED = 2.6  # GPUs that jobs ask for, of those that there are, at least: else nobody could use what it is paid with
MOST_JOBS = 18
CHANGES_S = 120.0  # by when speeds have changed


def with_traders(experiment: Experiment) -> Experiment:
    """The same seed with pools, classes and jobs so unlike that users trade. More than half of these know all speeds, the others measure them first."""
    dice = roll(experiment.seed, "traders")
    pools = _pools(dice)
    rates = _rates(dice, pools)
    jobs = _jobs(dice, pools)
    workload = replace(
        experiment.workload,
        jobs=jobs,
        tickets={name: dice.choice([100.0, 100.0, 150.0]) for name in USERS},
        rates=rates,
        changes=_changes(dice, rates),
    )
    return replace(
        experiment,
        cluster=ClusterSpec(pools=pools),
        workload=workload,
        policy="gandiva-fair",
        noise=Noise(rate_cv=dice.choice([0.0, 0.0, 0.05, 0.2])),
        known_rates=dice.random() < 0.6,
    )


def _pools(dice: Random) -> tuple[Pool, ...]:
    models = MODELS if dice.random() < 0.25 else (MODELS[0], MODELS[-1])
    gpus = dice.choice([2, 4])
    return tuple(
        Pool(
            model=model,
            servers=4 // gpus + (model == MODELS[-1] and dice.randint(0, 1)),
            gpus_per_server=gpus,
        )
        for model in models
    )


def _rates(dice: Random, pools: Sequence[Pool]) -> dict[tuple[str, str], float]:
    """A class for each user and, beside them, one for anybody: the first gains little by faster GPUs, the second much."""
    gains = [dice.uniform(*LITTLE), dice.uniform(*MUCH), dice.uniform(LITTLE[0], MUCH[1])]
    gains.append(dice.choice(gains))
    rates: dict[tuple[str, str], float] = {}
    for number, gain in enumerate(gains):
        slowest = dice.uniform(3.0, 6.0)
        for at, pool in enumerate(reversed(pools)):
            part = at / max(1, len(pools) - 1)
            bent = dice.uniform(0.6, 1.4) if 0 < part < 1 else 1.0
            rates[f"c{number}", pool.model] = slowest * gain ** (part * bent)
    return rates


def _jobs(dice: Random, pools: Sequence[Pool]) -> tuple[SimJob, ...]:
    there = sum(pool.gpus for pool in pools)
    shapes: list[tuple[int, int, str]] = []  # GPUs on each of so many servers, of this model ("": of any)
    while sum(gpus * nodes for gpus, nodes, _ in shapes) < ASKED * there and len(shapes) < MOST_JOBS:
        pool = dice.choice(list(pools))
        nodes = 2 if pool.servers > 1 and dice.random() < GANGS else 1
        pinned = pool.model if nodes > 1 or dice.random() < PINNED else ""
        shapes.append((dice.choice([1, 1, 1, 2, 2, pool.gpus_per_server]), nodes, pinned))
    users = USERS[: dice.choice([2, 3])]
    arrivals = sorted(dice.choice([0.0, dice.uniform(0.0, 15.0), dice.uniform(0.0, 60.0)]) for _ in shapes)
    asked = dict.fromkeys(users, 0)
    jobs = []
    for number, (arrival_s, shape) in enumerate(zip(arrivals, shapes, strict=True), start=1):
        gpus, nodes, pinned = shape
        least = min(users, key=asked.__getitem__)
        user = least if dice.random() < EVEN else dice.choice(users)
        asked[user] += gpus * nodes
        own = USERS.index(user) if dice.random() < OWN else len(USERS)
        jobs.append(
            SimJob(
                id=number,
                user=user,
                arrival_s=arrival_s,
                steps=dice.randint(100, 500),
                job_class=f"c{own}",
                gpus=gpus,
                nodes=nodes,
                gpu_types=(pinned,) if pinned else (),
                state_bytes=dice.choice([0, 1 << 28, 1 << 30]),
            )
        )
    return tuple(jobs)


def _changes(dice: Random, rates: Mapping[tuple[str, str], float]) -> tuple[SpeedChange, ...]:
    """Classes that gain otherwise from then on: trades that lose by it are taken back."""
    changes = []
    for _ in range(dice.choice([0, 0, 1, 2])):
        job_class, model = dice.choice(sorted(rates))
        speed = rates[job_class, model] * dice.choice([0.4, 0.7, 1.4, 2.5])
        at_s = dice.uniform(10.0, CHANGES_S)
        changes.append(SpeedChange(at_s=at_s, job_class=job_class, model=model, steps_per_s=speed))
    return tuple(sorted(changes, key=lambda change: change.at_s))
