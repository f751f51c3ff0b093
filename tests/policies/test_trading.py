"""A market at rest stays at rest, and is found anew once something that it goes by is another."""

from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

from hs_core.mechanism.rates import Bids, Speeds, speeds_of
from hs_core.mechanism.trade import Outcome, dump
from hs_core.mechanism.trading import settle
from hs_core.mechanism.world import look
from hs_core.names import UserName
from hs_core.policy import JobFacts, Snapshot
from hs_core.shares import entitle_pools
from policies.worlds import having, host, job, snapshot

RATES = {("slow", "V100"): 1.2, ("slow", "K80"): 1.0, ("fast", "V100"): 5.0, ("fast", "K80"): 1.0}
HOSTS = [host("v", 4), host("k", 8, "K80")]
JOBS = [
    job(at, user, job_class=job_class, host=name, movable=True)
    for user, job_class, first in (("A", "slow", 1), ("B", "fast", 21))
    for at, name in enumerate("vvkkkkkkkkkk", start=first)
]


def settled(asked: Snapshot, before: Outcome | None = None) -> Outcome:
    world = look(asked)
    base = entitle_pools(world.pools, world.demand(), asked.tickets)
    standing = dump(before.trades) if before is not None else ()
    return settle(world, base, speeds_of(asked, world.models), standing)


def test_a_market_is_found_anew_until_it_is_at_rest_and_then_only_for_something_new() -> None:
    asked = snapshot(HOSTS, JOBS, rates=RATES)
    first = settled(asked)
    assert first.news, "A gives fast GPUs for more slow ones"
    assert not first.at_rest
    second = settled(replace(asked, now_s=60.0), first)
    assert second.trades == first.trades
    assert second.at_rest
    assert settled(replace(asked, now_s=120.0), second) is second, "time alone changes nothing"
    slower = replace(asked, rates={**RATES, ("fast", "V100"): 1.1})
    assert [news.undone for news in settled(slower, second).news], "what is a loss now is taken back"
    assert settled(having(asked, jobs=tuple(JOBS[:-1])), second) is not second
    assert settled(asked) == first, "the trades that stand are a part of what is asked"


def test_two_who_wait_for_a_third_bid_are_asked_again() -> None:
    third = [job(at, "C", job_class="new", host=name, movable=True) for at, name in enumerate("vk", start=41)]
    asked = snapshot(HOSTS, [*JOBS, *third], rates=RATES)
    waits = settled(asked)
    assert not waits.news
    assert not waits.at_rest
    assert settled(replace(asked, now_s=15 * 60.0 + 1.0)).news, "its rate has not come in all that time"


@pytest.mark.parametrize(
    ("others", "gpu_types", "known"), [(2, (), True), (3, (), False), (9, ("V100",), True)]
)
def test_what_a_few_jobs_gain_tells_nothing_of_more_that_were_not_measured(
    others: int, gpu_types: tuple[str, ...], known: bool
) -> None:
    """But of those that could not run on both anyway nothing has to be known."""
    few = [job(at, "A", job_class="fast", host="v", movable=True) for at in (1, 2)]
    more = [
        job(at, "A", job_class="new", host="v", movable=True, gpu_types=gpu_types)
        for at in range(3, 3 + others)
    ]
    world = look(snapshot(HOSTS, [*few, *more]))
    bid = Bids(world, Speeds(RATES, ("V100", "K80")))(UserName("A"), "V100", "K80")
    assert bid == (5.0 if known else None)


@pytest.mark.parametrize("seed", range(10))
def test_bids_that_are_remembered_are_those_that_would_be_found(seed: int) -> None:
    dice, models = Random(seed), ("V100", "K80", "Q9")
    hosts = [host(model, 8, model) for model in models]
    rates = {
        (name, model): dice.uniform(1.0, 5.0) for name in "wxyz" for model in models if dice.random() < 0.8
    }
    known, jobs = Speeds(rates, models), list[JobFacts]()
    for first in range(1, 200, 20):
        come = range(first, first + 5)
        jobs = [one for one in jobs if dice.random() < 0.8]
        jobs += [
            job(at, dice.choice("ABC"), job_class=dice.choice("wxyz"), host=dice.choice(models), movable=True)
            for at in come
        ]
        world = look(snapshot(hosts, jobs))
        kept, found = Bids(world, known), Bids(world, Speeds(rates, models))
        for user in "ABC":
            for fast, slow in permutations(models, 2):
                assert kept(UserName(user), fast, slow) == found(UserName(user), fast, slow)
