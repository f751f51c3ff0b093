"""Shares that users cannot use where their jobs are come back to them where they are."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from math import fsum
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.mechanism.amends import amended
from hs_core.mechanism.job_weights import Shares
from hs_core.mechanism.loads import find_levels
from hs_core.mechanism.rates import speeds_of
from hs_core.mechanism.world import World, look
from hs_core.names import UserName
from hs_core.shares import entitle_pools
from hs_sim.model import ClusterSpec, Experiment, Pool, SimJob, Workload
from hs_sim.quanta import run_quanta

from .worlds import having, host, job, snapshot  # noqa: TID252 — tests are no package on the path

HOSTS = [host("v1"), host("k1", model="K80")]
ANN, BOB, CAT, DAN = map(UserName, ("ann", "bob", "cat", "dan"))
Rates = Mapping[tuple[str, str], float]


def lives(*users: tuple[str, int, str], rates: Rates, tickets: Mapping[str, int]) -> World:
    """`users`: of each job whose it is, its GPUs and its server."""
    jobs = [
        job(at, user, gang, host=name, job_class=user) for at, (user, gang, name) in enumerate(users, start=1)
    ]
    return look(having(snapshot(HOSTS, jobs, tickets), jobs, rates=dict(rates)))


def shared(world: World) -> tuple[Shares, Shares]:
    entitled = entitle_pools(world.pools, world.demand(), world.snapshot.tickets)
    shares = {at: float(share) for at, share in entitled.items()}
    speeds = speeds_of(world.snapshot, world.models)
    return entitled, amended(world, find_levels(world, shares), entitled, shares, speeds)


def rated(**speedups: float) -> Rates:
    return {(user, model): 10.0 * (s if model == "V100" else 1) for user, s in speedups.items() for model in ("V100", "K80")}  # fmt: skip


FIVE = (("ann", 2, "v1"), ("bob", 2, "v1"), ("ann", 2, "k1"), ("bob", 2, "k1"), ("ann", 2, "k1"))


@pytest.mark.parametrize(("ann", "bobs"), [(1.0, 2), (3.0, 2), (0.25, Fraction(3, 2))])
def test_who_has_what_another_cannot_use_gives_as_much_where_the_other_waits(
    ann: float, bobs: Fraction
) -> None:
    """Two thirds of a V100 that are bob's go to ann; that is what she gives of the K80s, or less where it is worth less to her."""
    world = lives(*FIVE, rates=rated(ann=ann, bob=1.0), tickets={"ann": 100, "bob": 200})
    entitled, found = shared(world)
    assert (entitled[BOB, "V100"], entitled[BOB, "K80"]) == (Fraction(8, 3), Fraction(4, 3))
    assert float(found[BOB, "K80"]) == pytest.approx(bobs, abs=1 / 64)
    assert float(found[ANN, "K80"]) == pytest.approx(4 - bobs, abs=1 / 64)
    assert found[ANN, "V100"] == entitled[ANN, "V100"]


def test_nobody_gives_before_its_classes_are_measured_where_they_are() -> None:
    known = rated(ann=1.0, bob=1.0)
    for untold in (("ann", "V100"), ("ann", "K80")):
        rates = {at: rate for at, rate in known.items() if at != untold}
        entitled, found = shared(lives(*FIVE, rates=rates, tickets={"ann": 100, "bob": 200}))
        assert found is entitled


def test_where_jobs_are_in_proportion_to_shares_these_are_left_as_they_are() -> None:
    jobs = [(user, 1, name) for user in ("ann", "bob") for name in ("v1", "k1") for _ in range(4)]
    entitled, found = shared(lives(*jobs, rates=rated(ann=2.0, bob=1.0), tickets={"ann": 100, "bob": 100}))
    assert found is entitled


def test_of_very_many_users_nobody_is_rounded_to_nothing() -> None:
    """Ann's jobs, and two hundred users of one job: these divide what is left of the K80s."""
    many = tuple(f"user{at}" for at in range(200))
    jobs = [("ann", 1, "v1")] * 4 + [("ann", 1, "k1")] * 8 + [(user, 1, "k1") for user in many]
    tickets = {"ann": 400, **{user: 10 + at for at, user in enumerate(many)}}
    rates = rated(ann=1.0, **dict.fromkeys(many, 1.0))
    entitled, found = shared(lives(*jobs, rates=rates, tickets=tickets))
    assert found is not entitled
    assert fsum(share for (_, model), share in found.items() if model == "K80") == pytest.approx(4, rel=0.01)
    given = [float(found[at] / entitled[at]) for user in many if (at := (UserName(user), "K80"))]
    assert min(given) >= 0.98


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.sampled_from(["ann", "bob", "cat"]), st.sampled_from([1, 2, 4]), st.sampled_from(["v1", "k1"])),
        min_size=2, max_size=10,
    ),
    st.tuples(*[st.sampled_from([0.5, 1.0, 1.3, 2.0, 5.0])] * 3),
    st.tuples(*[st.sampled_from([50, 100, 400])] * 3),
)  # fmt: skip
def test_nobody_comes_to_less_than_its_shares_are_worth_or_than_it_had(
    jobs: list[tuple[str, int, str]], speedups: tuple[float, ...], tickets: tuple[int, ...]
) -> None:
    rates = rated(**dict(zip(("ann", "bob", "cat"), speedups, strict=True)))
    world = lives(*jobs, rates=rates, tickets=dict(zip(("ann", "bob", "cat"), tickets, strict=True)))
    entitled, found = shared(world)
    before, after = (
        {
            model: {user: part * world.gpus.get((user, model), 0) for user, part in level.parts().items()}
            for model, level in find_levels(world, {at: float(share) for at, share in has.items()}).items()
        }
        for has in (entitled, found)
    )
    slack = len(before) / 64  # GPUs that shares are rounded by
    for model, gpus in world.pools:
        assert fsum(after[model].values()) == pytest.approx(fsum(before[model].values()), abs=slack)
        assert fsum(after[model].values()) <= gpus + slack
    for user in world.snapshot.tickets:
        worth = {model: rates[user, model] for model in before}
        due = fsum(worth[model] * float(entitled.get((user, model), 0)) for model in worth)
        had, has = (
            fsum(worth[model] * where[model].get(user, 0.0) for model in worth) for where in (before, after)
        )
        assert has >= min(due, had) - slack * max(worth.values())


@pytest.mark.parametrize("seed", range(10))
def test_amends_are_of_the_world_as_it_is_whatever_was_asked_before(seed: int) -> None:
    """One thing after another changes: jobs, gangs beside them, tickets, speeds."""
    dice, hosts = Random(seed), [host("v1"), host("k1", model="K80"), host("k2", model="K80")]
    jobs = {at: (dice.choice(["ann", "bob", "cat"]), dice.choice([1, 2, 4]), dice.choice(["v1", "k1"])) for at in range(1, 9)}  # fmt: skip
    tickets, speedups, gangs = {"ann": 100, "bob": 100, "cat": 50}, {"ann": 1.0, "bob": 2.0, "cat": 3.0}, 1

    def now() -> Shares:
        there = [job(at, user, gang, host=name, job_class=user) for at, (user, gang, name) in jobs.items()]
        there += [job(90 + at, "ann", 8, nodes=2, hosts=("k1", "k2"), job_class="ann") for at in range(gangs)]
        world = look(having(snapshot(hosts, there, tickets), there, rates=dict(rated(**speedups))))
        return shared(world)[1]

    seen = []
    for _ in range(30):
        what = dice.choice(["job", "gangs", "tickets", "speeds", "nothing"])
        if what == "job":
            jobs[dice.randint(1, 8)] = (
                dice.choice(["ann", "bob", "cat"]),
                2,
                dice.choice(["v1", "k1", "k2"]),
            )
        elif what == "gangs":
            gangs = 1 - gangs
        elif what == "tickets":
            tickets[dice.choice(["ann", "bob", "cat"])] = dice.choice([50, 100, 400])
        elif what == "speeds":
            speedups[dice.choice(["ann", "bob", "cat"])] = dice.choice([0.5, 1.0, 2.0, 5.0])
        asked_again = now()
        seen.append(asked_again)
        asked_afresh = (
            ThreadPoolExecutor(1).submit(now).result()
        )  # another thread remembers nothing of this one's
        assert asked_again == asked_afresh
    assert len({tuple(sorted(shares.items())) for shares in seen}) > 3


def had_and_due(
    pools: Mapping[str, int], jobs: Iterable[tuple[UserName, int, int]], tickets: Mapping[UserName, float]
) -> dict[UserName, tuple[float, float]]:
    """GPUs over 80 quanta, where all are as fast. `pools`: servers of 4 GPUs; `jobs`: whose each is, its GPUs on a server, and its servers."""
    experiment = Experiment(
        cluster=ClusterSpec(
            pools=tuple(Pool(model=model, servers=count, gpus_per_server=4) for model, count in pools.items())
        ),
        workload=Workload(
            name="amends",
            jobs=tuple(
                SimJob(id=at, user=user, arrival_s=0.0, steps=10**9, job_class=user, gpus=gpus, nodes=nodes)
                for at, (user, gpus, nodes) in enumerate(jobs, start=1)
            ),
            tickets=tickets,
            rates={(user, model): 10.0 for user in tickets for model in pools},
        ),
        until_s=120 * 60.0,
        known_rates=True,
    )
    samples = run_quanta(experiment).samples[40:]
    return {
        user: (
            fsum(gpus for each in samples for (of, _), gpus in each.gpus.items() if of == user),
            fsum(gpus for each in samples for (of, _), gpus in each.entitled.items() if of == user),
        )
        for user in tickets
    }


def test_a_user_of_one_job_trains_for_as_long_as_its_tickets_pay_for() -> None:
    """It is entitled to two GPUs in all, of which 0.57 are of the pool where its job lives; it had these alone, three tenths of the time."""
    jobs = [(ANN, 2, 1)] * 10 + [(BOB, 2, 1)] * 20 + [(CAT, 2, 1)]
    found = had_and_due({"V100": 1, "P100": 3, "K80": 2}, jobs, {ANN: 100.0, BOB: 200.0, CAT: 50.0})
    for had, due in found.values():
        assert had >= 0.95 * due


def test_nobody_is_given_so_much_beside_a_gang_over_several_servers_that_this_misses_its_turns() -> None:
    """Ann's gang needs all K80s at once, and bob's one job has a server of them: it is due 2.4 GPUs there, and 1.3 elsewhere. All of the time for it is none for her."""
    jobs = [(ANN, 4, 3), (BOB, 4, 1), *[(CAT, 1, 1)] * 8, *[(DAN, 1, 1)] * 8]
    found = had_and_due({"V100": 1, "K80": 3}, jobs, {ANN: 200.0, BOB: 100.0, CAT: 100.0, DAN: 100.0})
    had, due = found[ANN]
    assert had >= 0.98 * due
