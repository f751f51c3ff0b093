"""Workloads that are made: Poisson arrivals, the Philly trace's sizes, the models of Gandiva_fair's table 1. Same arguments, same jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp

from hs_core.dice import Random, roll
from hs_core.errors import RefusedError
from hs_core.names import UserName
from hs_sim.model import SimJob, Workload
from hs_sim.reading import LEAST_TICKETS, MOST_TICKETS

MiB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A row of table 1 (Gandiva_fair, 2.2): time of a mini-batch on one K80, and how many times faster others are."""

    name: str
    k80_ms: float
    p40: float
    p100: float
    v100: float
    state_mib: int  # of a checkpoint, by the usual number of parameters with momentum; not from the paper

    def rates(self) -> dict[str, float]:
        k80 = 1000.0 / self.k80_ms
        return {"K80": k80, "P40": k80 * self.p40, "P100": k80 * self.p100, "V100": k80 * self.v100}


TABLE_1 = {
    model.name: model
    for model in (
        Model(name="vae", k80_ms=11.5, p40=1.17, p100=1.19, v100=1.25, state_mib=10),
        Model(name="superresolution", k80_ms=207.5, p40=1.43, p100=1.73, v100=1.87, state_mib=20),
        Model(name="dcgan", k80_ms=183.4, p40=4.34, p100=4.31, v100=6.42, state_mib=80),
        Model(name="gru", k80_ms=48.4, p40=3.00, p100=3.58, v100=4.81, state_mib=200),
        Model(name="lstm", k80_ms=48.9, p40=3.10, p100=3.58, v100=4.81, state_mib=250),
        Model(name="resnet50", k80_ms=134.0, p40=3.17, p100=3.34, v100=5.14, state_mib=200),
        Model(name="resnext50", k80_ms=2005.7, p40=3.70, p100=4.12, v100=6.33, state_mib=200),
    )
}

PHILLY_SIZES = {1: 0.866, 2: 0.023, 4: 0.049, 8: 0.062}
"""GPUs → part of the jobs (Gandiva_fair, 3.3, of the Philly trace). Its "more than 4" are 8 here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    jobs: int = 1000
    users: int = 10
    users_spread: float = 0.0  # Zipf's exponent: the n-th user submits 1 / n^it of what the first does
    jobs_per_hour: float = 0.0  # Poisson; 0: all come at the beginning
    service_s: float = 3600.0  # median time that a job would take alone on its slowest GPUs
    service_spread: float = 1.0  # sigma of its logarithm (times of real clusters: 1 to 2); 0: all alike
    sizes: Mapping[int, float] = field(default_factory=lambda: PHILLY_SIZES)
    models: Sequence[str] = tuple(TABLE_1)
    tickets: float = 100.0
    gpus_per_server: int = 4
    seed: int = 0


def rates_of(models: Sequence[str]) -> dict[tuple[str, str], float]:
    """(class, GPU model) → rate of the whole gang: of every size one mini-batch at a time, data parallel, so the same rate."""
    return {(name, gpu): rate for name in models for gpu, rate in TABLE_1[name].rates().items()}


def gang_rates(sizes: Sequence[int] = (1, 2, 4, 8)) -> dict[tuple[str, str], float]:
    """Table 1 in the form of Gavel's table, (`<model> x<gang>`, GPU model) → rate of the gang."""
    return {
        (f"{name} x{size}", gpu): rate
        for (name, gpu), rate in rates_of(tuple(TABLE_1)).items()
        for size in sizes
    }


def generate(recipe: Recipe) -> Workload:
    """Users have one model each in turn, as people who tune one thing do; a job's work is drawn in seconds on K80."""
    _check(recipe)
    dice = roll(recipe.seed, "workload")
    users = [UserName(f"user{at:0{len(str(recipe.users))}}") for at in range(1, recipe.users + 1)]
    model_of = {user: recipe.models[at % len(recipe.models)] for at, user in enumerate(users)}
    spread = recipe.users_spread
    weights = [at**-spread for at in range(1, recipe.users + 1)] if spread else []
    jobs: list[SimJob] = []
    now_s = 0.0
    for number in range(1, recipe.jobs + 1):
        if recipe.jobs_per_hour:
            now_s += dice.expovariate(recipe.jobs_per_hour / 3600.0)
        user = dice.choices(users, weights)[0] if weights else dice.choice(users)
        model = TABLE_1[model_of[user]]
        size = _size(recipe.sizes, dice)
        seconds = recipe.service_s * exp(recipe.service_spread * dice.gauss(0.0, 1.0))
        nodes = -(-size // recipe.gpus_per_server)
        jobs.append(
            SimJob(
                id=number,
                user=user,
                arrival_s=round(now_s, 3),
                steps=max(1, round(seconds * model.rates()["K80"])),
                job_class=model.name,
                gpus=size // nodes,
                nodes=nodes,
                state_bytes=model.state_mib * MiB,
            )
        )
    source = f"generator, seed {recipe.seed}: {recipe.jobs} jobs of {recipe.users} users"
    return Workload(
        name=f"generated-{recipe.seed}",
        jobs=tuple(jobs),
        tickets=dict.fromkeys(users, recipe.tickets),
        rates=rates_of(recipe.models),
        source=source,
    )


def _size(sizes: Mapping[int, float], dice: Random) -> int:
    at = dice.random() * sum(sizes.values())
    for size, part in sizes.items():
        at -= part
        if at < 0:
            return size
    return next(reversed(list(sizes)))


def _check(recipe: Recipe) -> None:
    for name, value, least, most in (
        ("jobs", recipe.jobs, 1, 2_000_000),
        ("users", recipe.users, 1, 2_000_000),
        ("jobs-per-hour", recipe.jobs_per_hour, 0.0, 1e9),
        ("service-s", recipe.service_s, 1e-3, 1e9),
        ("service-spread", recipe.service_spread, 0.0, 10.0),
        ("users-spread", recipe.users_spread, 0.0, 10.0),
        ("tickets", recipe.tickets, LEAST_TICKETS, MOST_TICKETS),
    ):
        if not least <= value <= most:
            raise RefusedError(f"--{name}: {value}; expected {least} to {most:.10g}")
    for model in recipe.models:
        if model not in TABLE_1:
            raise RefusedError(f"--models: {model!r}; expected some of {', '.join(TABLE_1)}")
    for size in recipe.sizes:
        if size > recipe.gpus_per_server and size % recipe.gpus_per_server:
            raise RefusedError(
                f"--gpus-per-server: jobs of {size} GPUs do not fill servers of {recipe.gpus_per_server}"
            )
