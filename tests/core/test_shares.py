"""Entitlements: weighted max-min with caps, exact."""

from collections.abc import Mapping
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_core.errors import BrokenError
from hs_core.names import JobId, UserName
from hs_core.shares import Demand, entitle, entitle_pools, job_tickets, pool_rank

A, B, C = (UserName(name) for name in "ABC")
EQUAL = {user: Fraction(100) for user in (A, B, C)}


def test_the_golden_case_of_eight_gpus() -> None:
    assert entitle(8, {A: 100, B: 100, C: 2}, EQUAL) == {A: 3, B: 3, C: 2}


def test_tickets_weigh() -> None:
    tickets = {A: Fraction(300), B: Fraction(100), C: Fraction(1, 3)}
    assert entitle(8, {A: 100, B: 100}, tickets) == {A: 6, B: 2}
    assert entitle(8, {A: 5, B: 100}, tickets) == {A: 5, B: 3}


def test_demand_below_capacity_is_met() -> None:
    assert entitle(8, {A: 1, B: 0, C: 2}, EQUAL) == {A: 1, B: 0, C: 2}
    assert entitle(0, {A: 1}, EQUAL) == {A: 0}
    assert entitle(8, {}, EQUAL) == {}


def test_nearly_equal_ratios_are_told_apart_exactly() -> None:
    # 10^17 and 10^17 + 1 over the same tickets are one float.
    users = [UserName(f"u{n}") for n in range(3)]
    demands = {users[0]: 10**17 + 1, users[1]: 10**17, users[2]: 10**17 + 2}
    tickets = dict.fromkeys(users, Fraction(1))
    assert entitle(3 * 10**17 + 1, demands, tickets) == {
        users[0]: Fraction(2 * 10**17 + 1, 2),
        users[1]: 10**17,
        users[2]: Fraction(2 * 10**17 + 1, 2),
    }


def by_hand(
    capacity: Fraction, demands: Mapping[UserName, Fraction | int], tickets: Mapping[UserName, Fraction]
) -> dict[UserName, Fraction]:
    """The definition, user by user."""
    left, open_ = capacity, sum(tickets.values(), Fraction(0))
    got = {}
    for user in sorted(demands, key=lambda user: demands[user] / tickets[user]):
        got[user] = min(Fraction(demands[user]), left * tickets[user] / open_)
        left, open_ = left - got[user], open_ - tickets[user]
    return got


@given(st.randoms(use_true_random=False), st.sampled_from([1, 7, 10**6, 10**17]))
def test_many_users_get_what_the_definition_says(dice: Random, finest: int) -> None:
    users = [UserName(f"u{n}") for n in range(dice.randint(1, 200))]
    kinds = [Fraction(dice.randint(1, 99), dice.randint(1, 9)) for _ in range(9)]
    tickets = {user: dice.choice(kinds) for user in users}
    demands = {user: Fraction(dice.randint(0, 20 * finest), finest) for user in users}
    asked = sum(demands.values(), Fraction(0))
    for capacity in (asked / 2, asked, asked + 1, asked - Fraction(1, 10**20), Fraction(1, 10**20)):
        if capacity >= 0:
            assert entitle(capacity, demands, tickets) == by_hand(capacity, demands, tickets)


@pytest.mark.parametrize(("demand", "tickets"), [(-1, Fraction(1)), (1, Fraction(0)), (1, Fraction(-2))])
def test_what_makes_no_sense_is_a_bug_of_the_caller(demand: int, tickets: Fraction) -> None:
    with pytest.raises(BrokenError):
        entitle(4, {A: demand}, {A: tickets})


shares = st.fractions(Fraction(1, 30), Fraction(50), max_denominator=30)
users_st = st.dictionaries(
    st.integers(0, 30).map(lambda n: UserName(f"u{n}")), st.tuples(st.integers(0, 40), shares), max_size=15
)


@given(st.one_of(st.integers(0, 100), st.fractions(0, 100, max_denominator=7)), users_st)
def test_the_laws_of_max_min(capacity: Fraction | int, users: dict[UserName, tuple[int, Fraction]]) -> None:
    demands = {user: demand for user, (demand, _) in users.items()}
    tickets = {user: weight for user, (_, weight) in users.items()}
    got = entitle(capacity, demands, tickets)
    assert sum(got.values()) == min(capacity, sum(demands.values()))
    assert all(0 <= got[user] <= demands[user] for user in demands)
    # Nobody who is short has less per ticket than anybody else: taking from the other would be no gain.
    for short in (user for user in demands if got[user] < demands[user]):
        assert all(got[short] / tickets[short] >= got[other] / tickets[other] for other in demands)


@given(st.integers(0, 100), users_st, shares)
def test_scaling_tickets_changes_nothing(
    capacity: int, users: dict[UserName, tuple[int, Fraction]], by: Fraction
) -> None:
    demands = {user: demand for user, (demand, _) in users.items()}
    tickets = {user: weight for user, (_, weight) in users.items()}
    assert entitle(capacity, demands, tickets) == entitle(
        capacity, demands, {u: t * by for u, t in tickets.items()}
    )


def pools_of(
    pools: list[tuple[str, int]],
    demands: list[tuple[UserName, str, int]],
    tickets: Mapping[UserName, Fraction],
) -> dict[tuple[UserName, str], Fraction]:
    return entitle_pools(
        pools, [Demand(u, frozenset(models.split()), gpus) for u, models, gpus in demands], tickets
    )


def test_demand_that_a_newer_pool_met_is_not_there_in_the_next() -> None:
    got = pools_of([("V100", 4), ("K80", 4)], [(A, "V100 K80", 3), (B, "V100 K80", 100)], EQUAL)
    assert got == {(A, "V100"): 2, (B, "V100"): 2, (A, "K80"): 1, (B, "K80"): 3}


def test_table_3_before_trading() -> None:
    got = pools_of([("V100", 12), ("K80", 60)], [(user, "V100 K80", 200) for user in (A, B, C)], EQUAL)
    assert got == {(user, model): gpus for user in (A, B, C) for model, gpus in (("V100", 4), ("K80", 20))}


def test_pinned_demand_counts_in_its_pool_only() -> None:
    got = pools_of([("V100", 8), ("K80", 8)], [(A, "K80", 100), (B, "V100 K80", 100)], EQUAL)
    assert got == {(B, "V100"): 8, (A, "K80"): 4, (B, "K80"): 4}


def test_what_has_nowhere_else_to_go_is_served_first() -> None:
    got = pools_of([("V100", 2), ("K80", 4)], [(A, "V100 K80", 2), (A, "V100", 2)], EQUAL)
    assert got == {(A, "V100"): 2, (A, "K80"): 2}


def test_figures_8_10_11_without_trading() -> None:
    users = [UserName(f"u{n}") for n in range(4)]
    pools = [("V100", 12), ("P100", 24), ("K80", 64)]
    tickets = dict.fromkeys(users, Fraction(1))
    got = pools_of(pools, [(user, "V100 P100 K80", 300) for user in users], tickets)
    assert {got[users[0], model] for model, _ in pools} == {3, 6, 16}
    got = pools_of(pools, [(user, "V100 P100 K80", 300) for user in users[1:]], tickets)
    assert [got[users[1], model] for model, _ in pools] == [4, 8, Fraction(64, 3)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([A, B, C]),
            st.sets(st.sampled_from(["x", "y", "z"]), min_size=1),
            st.integers(1, 9),
        ),
        max_size=12,
    ),
    st.lists(st.integers(0, 12), min_size=3, max_size=3),
)
def test_no_pool_is_promised_twice_and_nobody_gets_more_than_it_can_use(
    asked: list[tuple[UserName, set[str], int]], sizes: list[int]
) -> None:
    pools = list(zip("xyz", sizes, strict=True))
    got = entitle_pools(pools, [Demand(user, frozenset(models), gpus) for user, models, gpus in asked], EQUAL)
    for model, size in pools:
        assert sum(share for (_, of), share in got.items() if of == model) <= size
    for user in (A, B, C):
        demand = sum(gpus for of, _, gpus in asked if of == user)
        assert sum(share for (of, _), share in got.items() if of == user) <= demand
        for model, _ in pools:
            assert got.get((user, model), 0) <= sum(
                g for of, models, g in asked if of == user and model in models
            )


def test_job_tickets_follow_the_gang() -> None:
    jobs = [
        (JobId(1), A, "V100", 1),
        (JobId(2), A, "V100", 3),
        (JobId(3), B, "V100", 8),
        (JobId(4), A, "K80", 2),
    ]
    entitled = {(A, "V100"): Fraction(2), (B, "V100"): Fraction(6), (A, "K80"): Fraction(1)}
    assert job_tickets(entitled, jobs) == {1: Fraction(1, 2), 2: Fraction(3, 2), 3: 6, 4: 1}


@pytest.mark.parametrize(
    "names",
    [
        ["GB200", "B200", "H200", "H100", "L40S", "A100", "V100", "P100", "P40", "T4x", "xyz"],
        [
            "NVIDIA H100 80GB HBM3",
            "NVIDIA A100-SXM4-80GB",
            "Tesla V100-SXM2-16GB",
            "Tesla P100-PCIE-16GB",
            "Tesla K80",
        ],
        ["T4", "V100", "K80", "abacus", "slide rule"],
    ],
)
def test_pools_are_ranked_newest_first_and_strangers_last_by_name(names: list[str]) -> None:
    oldest_first = names[::-1]
    assert sorted(oldest_first, key=pool_rank) == names
