"""Idle GPUs of another model: who goes to them, who stays, and that nobody goes to and fro for them."""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from hs_core.mechanism.mover import Limits
from hs_core.model import Migrate, MoveReason
from hs_core.names import HostName, JobId
from hs_core.policy import HostFacts, JobFacts

from .asked import LONG_AGO, at, decide, moves, rates, run, sweep  # noqa: TID252 — tests are no package on the path
from .worlds import Run, homes_of, host, job  # noqa: TID252

ALIKE = {"V100": 1.0, "K80": 1.0}
STAYS: dict[str, Any] = {"migrate": Migrate.NEVER}


def beside_a_covering_gang(**facts: Any) -> tuple[list[HostFacts], list[JobFacts]]:
    """B's gang has a GPU of each K80 server, A's job all of one, and no share of them: A's are the V100s, which idle."""
    hosts = [host("v"), *[host(name, model="K80") for name in ("k", "l")]]
    gang = job(1, "B", 2, nodes=2, job_class="B/x", gpu_types=("K80",))
    return hosts, [*at("k+l", gang), *at("k", job(2, "A", 4, job_class="A/x", **facts))]


def test_a_job_that_a_gang_over_its_pool_leaves_no_turn_goes_to_idle_gpus_of_another_model() -> None:
    hosts, jobs = beside_a_covering_gang()
    speeds = {"A/x": {"V100": 1.02, "K80": 1.0}, "B/x": ALIKE}
    told = {(of, model): rate for of, by in speeds.items() for model, rate in by.items()}
    verdict = decide(hosts, jobs, rates=told)
    assert moves(verdict) == {2: MoveReason.POOL}
    assert homes_of(verdict)[2] == "v"
    (_, text) = verdict.plan.moves[JobId(2)]
    assert text == ("where it is it runs in 0% of the quanta, and GPUs of v that it can have idle in 100%")


@pytest.mark.parametrize(
    "facts",
    [
        STAYS,
        {"migrate": Migrate.SAME_TYPE},
        {"gpu_types": ("K80",)},
        {"barred": frozenset({HostName("v")})},
        {"settled_s": LONG_AGO},
    ],
)
def test_who_may_not_go_waits_beside_them(facts: dict[str, Any]) -> None:
    hosts, jobs = beside_a_covering_gang(**facts)
    assert moves(decide(hosts, jobs, rates=rates(A=ALIKE, B=ALIKE))) == {}


def test_nobody_goes_to_them_beyond_the_budget_nor_to_a_server_that_accepts_none() -> None:
    hosts, jobs = beside_a_covering_gang()
    told = rates(A=ALIKE, B=ALIKE)
    assert moves(decide(hosts, jobs, rates=told, migrations_left=0)) == {}
    closed = [replace(hosts[0], accepts=False), *hosts[1:]]
    assert moves(decide(closed, jobs, rates=told)) == {}


def full_of_wide_ones(wide: int, speedup: float) -> tuple[list[HostFacts], list[JobFacts], dict[str, Any]]:
    """A's jobs, the first of them of four GPUs, take turns on the V100s. On the K80s B's three of four GPUs and one of two idle two of them in a turn."""
    hosts = [host("v"), host("k", model="K80")]
    fast = at("v", job(1, "A", wide, job_class="A/x", **STAYS), *sweep(2, 7, "A"))
    slow = at("k", *sweep(20, 1, "B", 4, **STAYS), job(30, "B", 1, job_class="B/x", **STAYS))
    told = rates(A={"V100": speedup, "K80": 1.0}, B=ALIKE)
    return hosts, [*fast, *slow], {"rates": told}


def test_a_narrow_job_goes_though_the_first_of_its_class_is_too_wide() -> None:
    hosts, jobs, told = full_of_wide_ones(4, 1.2)
    verdict = decide(hosts, jobs, **told)
    gone = [homes_of(verdict)[job_id] for job_id in moves(verdict)]
    assert 1 <= len(gone) <= 3
    assert set(gone) == {"k"}


def test_nobody_goes_where_it_comes_to_less() -> None:
    hosts, jobs, told = full_of_wide_ones(4, 5.0)
    assert moves(decide(hosts, jobs, **told)) == {}


def test_of_a_class_that_was_not_measured_there_one_job_goes_and_only_to_gpus_that_idle_all_the_time() -> (
    None
):
    hosts = [host("v"), host("k", model="K80")]
    crowd = at("v", *sweep(1, 12, "A"))
    told = {"rates": rates(A={"V100": 1.0})}
    (gone,) = moves(decide(hosts, crowd, **told))
    assert gone in range(1, 13)


# --- drawn worlds -------------------------------------------------------------------------------------------------------

MODELS = ("V100", "P100", "K80")
LOOKED_AT = 60  # quanta


def drawn(seed: int) -> tuple[Run, dict[tuple[str, str], float], dict[int, tuple[str, str]]]:
    """Two or three models, two or three users with a class each, whose gangs are of several sizes. Everything is measured."""
    dice = Random(seed)
    models, gpus = MODELS[:: dice.choice((1, 2))], dice.choice((2, 4))
    hosts = [
        host(f"{m}{n}", gpus, "Q9" if m == "P100" else m) for m in models for n in range(dice.randint(1, 2))
    ]
    users = "ABC"[: dice.choice((2, 3))]
    gains = {user: dice.uniform(1.0, 2.8) for user in users}
    told = {
        (f"{user}/x", "Q9" if m == "P100" else m): gains[user] ** (1 - place / (len(models) - 1))
        for user in users
        for place, m in enumerate(models)
    }
    jobs: list[JobFacts] = []
    while sum(one.gang for one in jobs) < 2.4 * gpus * len(hosts):
        user = dice.choice(users)
        jobs.append(job(len(jobs) + 1, user, dice.choice((1, 1, 2, gpus)), job_class=f"{user}/x"))
    tickets = {user: dice.choice((50, 100, 200)) for user in users}
    world = run(hosts, jobs, rates=told, tickets=tickets)
    return world, told, {int(one.id): (one.job_class, str(one.user)) for one in jobs}


def free_in_quantum(world: Run) -> Counter[str]:
    """GPUs that idled so far, by server."""
    return Counter({str(name): gpus for name, gpus in world.idle.items()})


@pytest.mark.parametrize("seed", [*range(8), 10, 23, 31, 42, 53, 57])
def test_nobody_waits_beside_idle_gpus_that_are_worth_more_to_it(seed: int) -> None:
    """Measured, quantum by quantum, once all have settled; a quarter more is worth a move, and what is measured may be a tenth off. Nor does anybody go to and fro."""
    world, told, of = drawn(seed)
    world.go(100)
    model = {str(one.name): one.model for one in world.asked.hosts}
    pools = {one.id: model[one.hosts[0]] for one in world.asked.jobs}
    world.gpus.clear()
    idle: dict[str, list[int]] = {name: [] for name in model}
    for _ in range(LOOKED_AT):
        before = free_in_quantum(world)
        world.step()
        now = free_in_quantum(world)
        for name, seen in idle.items():
            seen.append(now[name] - before[name])
    assert {one.id: model[one.hosts[0]] for one in world.asked.jobs} == pools
    for one in world.asked.jobs:
        (name,) = map(str, one.hosts)
        had = world.gpus[one.id] / one.gang / LOOKED_AT * told[of[int(one.id)][0], model[name]]
        for other, seen in idle.items():
            if model[other] != model[name]:
                then = (
                    sum(gpus >= one.gang for gpus in seen)
                    / LOOKED_AT
                    * told[of[int(one.id)][0], model[other]]
                )
                assert then <= (1 + Limits().spare_gain) * had + 0.1, (one.id, name, other)
