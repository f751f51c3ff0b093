"""Offers of moves to other pools: found for all kinds at once, they are those that are found one by one."""

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from hs_core.mechanism import better_pools
from hs_core.mechanism.loads import Board, find_levels
from hs_core.mechanism.mover import Limits, Mover
from hs_core.mechanism.offers import find
from hs_core.mechanism.rates import Speeds
from hs_core.mechanism.world import look
from hs_core.mechanism.worth import Offer, Worth
from hs_core.names import UserName
from hs_core.policy import JobFacts
from hs_core.shares import entitle_pools

from .worlds import host, job, snapshot  # noqa: TID252 — tests are no package on the path

MODELS = ("V100", "K80", "Q9")
USERS = "ABCDEFGH"


def a_job(dice: Random, at: int, most: int) -> JobFacts:
    model, user = dice.choice(MODELS), dice.choice(USERS)
    gang, nodes = dice.choice([(1, 1), (1, 1), (2, 1), (4, 1), (8, 2)])
    home = dice.sample([f"{model}-{number}" for number in range(most)], nodes)
    one = job(at, user, gang, nodes=nodes, hosts=tuple(home), job_class=f"{user}/{dice.choice('xyz')}")
    return replace(one, movable=True, started=dice.random() < 0.7)


def offers(seed: int) -> list[Offer]:
    dice = Random(seed)
    most = dice.choice((3, 6, 40))  # servers of a model: on many all jobs run
    hosts = [host(f"{model}-{at}", model=model) for model in MODELS for at in range(most)]
    jobs = [a_job(dice, at, most) for at in range(dice.choice((20, 60)))]
    world = look(snapshot(hosts, jobs, {user: dice.choice((50, 100, 70)) for user in USERS}))
    rates = {
        (f"{user}/{name}", model): dice.choice((0.0, 1.0, 1.3, 2.0, 7.0))
        for user in USERS
        for name in "xyz"
        for model in MODELS
        if dice.random() < 0.8
    }
    entitled = entitle_pools(world.pools, world.demand(), world.snapshot.tickets)
    shares = {at: float(share) * dice.choice((1.0, 1.0, 0.5)) for at, share in entitled.items()}
    shares = {at: share for at, share in shares.items() if dice.random() < 0.9}
    board = Board(world, shares, find_levels(world, shares), dict[tuple[str, str], Fraction]())
    speeds = Speeds(rates, MODELS)
    return sorted(better_pools.BetterPools(Mover(board, speeds, Limits())).all_offers())


@pytest.mark.parametrize("seed", range(60))
def test_offers_of_all_kinds_at_once_are_those_of_one_after_the_other(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(better_pools, "FEW_KINDS", 1000)
    one_by_one = offers(seed)
    monkeypatch.setattr(better_pools, "FEW_KINDS", 0)
    assert offers(seed) == one_by_one
    if not seed:
        assert one_by_one, "there was something to find"


@pytest.mark.parametrize(("asked", "goes"), [(3, ["V100"]), (4, [])])
def test_who_has_no_share_of_a_pool_goes_there_only_where_gpus_idle(asked: int, goes: list[str]) -> None:
    """It has given all of its own away, and who received them asks for fewer by now."""
    jobs = [job(at, "B", host="v") for at in range(asked)]
    jobs += [job(10 + at, "A", host="k") for at in range(6)]
    rates = {("", model): rate for model, rate in (("V100", 12.0), ("K80", 10.0))}
    world = look(snapshot([host("v"), host("k", model="K80")], jobs))
    shares = {(UserName("B"), "V100"): 4.0, (UserName("A"), "K80"): 4.0}
    board = Board(world, shares, find_levels(world, shares), dict[tuple[str, str], Fraction]())
    speeds = Speeds(rates, world.models)
    assert list(Worth(board, speeds).targets(UserName("A"), "", "K80")) == goes
    assert [offer[4] for offer in find(board, speeds, 0.1, 1.5) if offer[1] == "A"] == goes
