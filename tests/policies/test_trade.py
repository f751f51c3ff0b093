"""Trading: the paper's table 3, who trades at what price, what is taken back, and that nobody loses by it."""

import json
from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.dice import roll
from hs_core.errors import BrokenError
from hs_core.mechanism.auction import MARGIN, PRICE_UNIT, Deal, Side, auction, price_of
from hs_core.mechanism.trade import Market, Needs, Outcome, check_trades, dump, load
from hs_core.names import UserName
from hs_core.policy import Trade

A, B, C = (UserName(name) for name in "ABC")
NEWEST_FIRST = ("V100", "P100", "K80")
Base = dict[tuple[UserName, str], Fraction]


class Rates:
    def __init__(self, rates: Mapping[UserName, Mapping[str, float]]) -> None:
        self.rates = rates

    def __call__(self, user: UserName, fast: str, slow: str) -> float | None:
        mine = self.rates.get(user, {})
        return mine[fast] / mine[slow] if fast in mine and slow in mine else None


def each(users: Mapping[UserName, float]) -> Rates:
    return Rates({user: {"V100": speedup, "K80": 1.0} for user, speedup in users.items()})


TABLE_3 = each({A: 1.25, B: 5.0, C: 6.25})


def base(**pools: int) -> Base:
    return {(user, model): Fraction(gpus) for user in (A, B, C) for model, gpus in pools.items()}


def settle(
    has: Base,
    rates: Rates,
    standing: tuple[Trade, ...] = (),
    needs: Needs | None = None,
    models: tuple[str, ...] = NEWEST_FIRST,
    *,
    within: Mapping[UserName, float] | None = None,
) -> Outcome:
    """`within`: how far users' speed-ups may be off."""

    def off(user: UserName, _fast: str, _slow: str) -> float:
        return (within or {}).get(user, 0.0)

    return Market(has, standing, needs or Needs(), rates, within=off).settle(models, 60.0)


def given_by(user: UserName, outcome: Outcome) -> Fraction:
    return sum((trade.fast_gpus for trade in outcome.trades if trade.giver == user), Fraction(0))


def throughput(entitled: Mapping[tuple[UserName, str], Fraction], user: UserName, rates: Rates) -> float:
    return sum(float(gpus) * rates.rates[of][model] for (of, model), gpus in entitled.items() if of == user)


def test_table_3() -> None:
    has = base(V100=4, K80=20)
    outcome = settle(has, TABLE_3)
    assert outcome.entitled == {(A, "K80"): 40, (B, "V100"): 4, (B, "K80"): 20, (C, "V100"): 8}
    assert sum(trade.fast_gpus for trade in outcome.trades) == 4
    assert {(t.giver, t.taker, t.price) for t in outcome.trades} == {(A, C, 5.0)}
    assert [throughput(has, user, TABLE_3) for user in (A, B, C)] == [25, 40, 45]
    assert [throughput(outcome.entitled, user, TABLE_3) for user in (A, B, C)] == [40, 40, 50]


def test_a_trade_is_explained() -> None:
    (news,) = settle(base(V100=4, K80=20), TABLE_3).news
    assert news.why == (
        "A gives 4 V100 and receives 20 K80 from C: a V100 is worth 1.25 K80 to it, 6.25 to C"
    )
    assert not news.undone


@pytest.mark.parametrize(
    ("top", "second", "least", "price"),
    [
        (6.25, 5.0, 1.25, 5.0),
        (6.0, None, 2.0, 4.0),  # two users: the surplus is split
        (6.0, 6.0, 2.0, 4.0),  # a tie at the top: the second price would leave the receiver nothing
        (6.0, 2.0, 2.0, None),  # the giver would gain nothing
        (2.01, None, 2.0, None),  # not worth a move
        (1e12, None, 1.0, None),  # a profile that lies
        (1e-6, None, 1e-12, None),
    ],
)
def test_the_price_is_the_second_bid(
    top: float, second: float | None, least: float, price: float | None
) -> None:
    assert price_of(top, second, least) == (None if price is None else price * PRICE_UNIT)


@pytest.mark.parametrize(
    ("within", "price"), [(0.0, 5.0), (0.2, 5.0), (0.25, 5.0), (0.5, 6.25 / 1.5), (5.0, None)]
)
def test_noise_lowers_no_price_by_more_than_makes_the_receiver_sure_to_gain(
    within: float, price: float | None
) -> None:
    paid = price_of(6.25, 5.0, 1.25, top_within=within)
    assert paid == (None if price is None else pytest.approx(price * PRICE_UNIT, abs=1))
    assert price_of(5.0, 5.0, 1.25, top_within=0.1) == 3.125 * PRICE_UNIT, "a tie is one as before"


def test_two_users_split_the_surplus() -> None:
    has = {(A, "V100"): Fraction(2), (B, "K80"): Fraction(8)}
    outcome = settle(has, each({A: 2.0, B: 6.0}))
    assert outcome.entitled == {(A, "K80"): 8, (B, "V100"): 2}


def test_profiles_that_lie_keep_nobody_else_from_trading() -> None:
    """Of two with absurd speed-ups one would pay the other's bid; that is no price, and the others' trades are none of theirs."""
    liars = {UserName("Y"): 5e6, UserName("Z"): 6e6}
    few = {(user, model): Fraction(1) for user in liars for model in ("V100", "K80")}
    honest = settle(base(V100=4, K80=20), TABLE_3)
    outcome = settle(base(V100=4, K80=20) | few, each({A: 1.25, B: 5.0, C: 6.25, **liars}))
    assert honest.trades
    assert outcome.trades == honest.trades


@pytest.mark.parametrize(("within", "trades"), [(0.0, True), (0.05, True), (0.2, False)])
def test_nobody_trades_for_a_gain_that_may_be_none(within: float, trades: bool) -> None:
    has = base(V100=4, K80=20)
    outcome = settle(has, each({A: 2.6, B: 3.0, C: 3.4}), within=dict.fromkeys((A, B, C), within))
    assert bool(outcome.trades) is trades


@pytest.mark.parametrize(("user", "speedup"), [("Y", 7.0), ("Z", 1.2)])
def test_who_is_hardly_known_keeps_nobody_else_from_trading(user: str, speedup: float) -> None:
    unknown = UserName(user)
    has = base(V100=4, K80=20) | {(unknown, "V100"): Fraction(4), (unknown, "K80"): Fraction(20)}
    rates = each({A: 1.25, B: 5.0, C: 6.25, unknown: speedup})
    outcome = settle(has, rates, within={unknown: 100.0})
    assert {(trade.giver, trade.taker) for trade in outcome.trades} == {(A, C)}


@pytest.mark.parametrize("user", [A, C])
def test_a_trade_is_taken_back_once_nobody_knows_what_it_is_worth_to_a_side(user: UserName) -> None:
    """Its jobs were measured and have ended; those that it has now have nothing of the slow pool, or of the fast one, to be measured on."""
    has = base(V100=4, K80=20)
    first = settle(has, TABLE_3)
    rates = {A: 1.25, B: 5.0, C: 6.25}
    del rates[user]
    after = settle(has, each(rates), first.trades)
    assert not any(user in {trade.giver, trade.taker} for trade in after.trades)
    assert {at: gpus for at, gpus in after.entitled.items() if at[0] == user} == {
        (user, "V100"): 4,
        (user, "K80"): 20,
    }
    assert f"the jobs that {user} has now" in after.news[0].why

    def awaited(of: UserName, _fast: str, _slow: str) -> bool:
        return of == user

    soon = Market(has, first.trades, Needs(), each(rates), awaited=awaited).settle(NEWEST_FIRST, 60.0)
    assert soon.trades == first.trades, "it will be known in a few quanta"
    assert not soon.at_rest, "or it will not, and that is a matter of time alone"


def test_a_loss_that_may_be_none_takes_no_trade_back() -> None:
    has = base(V100=4, K80=20)
    first = settle(has, each({A: 2.0, B: 5.0, C: 6.25}))
    assert {(trade.giver, trade.taker, trade.price) for trade in first.trades} == {(A, C, 5.0)}
    doubt = dict.fromkeys((A, B, C), 0.06)
    for now in ({A: 5.2, B: 5.0, C: 5.3}, {A: 2.0, B: 5.0, C: 4.8}):
        assert settle(has, each(now), first.trades, within=doubt).trades == first.trades
    for now in ({A: 5.4, B: 5.0, C: 5.3}, {A: 2.0, B: 4.0, C: 4.6}):
        assert settle(has, each(now), first.trades, within=doubt).news[0].undone
    lost = settle(has, each({A: 6.0, B: 5.0, C: 6.25}), first.trades, within=dict.fromkeys((A, B, C), 100.0))
    assert lost.news[0].undone, "not every loss is borne, however little is known"


def test_less_than_a_gpu_is_not_traded() -> None:
    has = {(A, "V100"): Fraction(9, 10), (B, "K80"): Fraction(80)}
    assert settle(has, each({A: 2.0, B: 6.0})).trades == ()


def test_nobody_trades_who_was_not_measured() -> None:
    assert settle(base(V100=4, K80=20), each({A: 1.25})).trades == ()


def test_trades_stand_and_are_not_made_twice() -> None:
    first = settle(base(V100=4, K80=20), TABLE_3)
    again = settle(base(V100=4, K80=20), TABLE_3, tuple(load(json.loads(json.dumps(dump(first.trades))))))
    assert again.trades == first.trades
    assert again.entitled == first.entitled
    assert again.news == ()


def test_what_the_share_no_longer_carries_is_taken_back_and_no_more() -> None:
    first = settle(base(V100=4, K80=20), TABLE_3)
    less = {(A, "V100"): Fraction(3), (C, "V100"): Fraction(3), (A, "K80"): Fraction(15)} | {
        (user, "K80"): Fraction(15) for user in (B, C)
    }
    after = settle(less, TABLE_3, first.trades)
    assert [(news.undone, news.trade.fast_gpus) for news in after.news] == [(True, 1)]
    assert "own share no longer has the" in after.news[0].why
    assert after.entitled == {(A, "K80"): 30, (B, "K80"): 15, (C, "V100"): 6}


def test_a_trade_by_which_neither_gains_any_more_is_taken_back() -> None:
    first = settle(base(V100=4, K80=20), TABLE_3)
    assert {trade.price for trade in first.trades} == {5.0}
    after = settle(base(V100=4, K80=20), each(dict.fromkeys((A, B, C), 5.0)), first.trades)
    assert after.news[0].undone
    assert "neither gains" in after.news[0].why
    assert not after.trades
    assert after.entitled == base(V100=4, K80=20)


def test_a_profile_that_shows_a_loss_takes_a_trade_back() -> None:
    first = settle(base(V100=4, K80=20), TABLE_3)
    changed = each({A: 5.5, B: 5.0, C: 5.2})
    after = settle(base(V100=4, K80=20), changed, first.trades)
    assert after.news[0].undone
    assert "A's jobs are now 5.5 times as fast" in after.news[0].why
    for user in (A, B, C):
        assert throughput(after.entitled, user, changed) >= throughput(base(V100=4, K80=20), user, changed)


def test_nobody_receives_more_than_its_jobs_can_use() -> None:
    few = Needs(usable={(A, "K80"): 26, (A, "V100"): 26}, total={A: 26})
    outcome = settle(base(V100=4, K80=20), TABLE_3, needs=few)
    assert given_by(A, outcome) == 0  # 4 + 20 of 26 are met already: 5 for 1 would be 4 too many
    outcome = settle(base(V100=4, K80=20), TABLE_3, needs=Needs(total={A: 33}))
    assert given_by(A, outcome) == 2


def test_jobs_that_ended_take_back_what_only_they_could_use() -> None:
    first = settle(base(V100=4, K80=20), TABLE_3, needs=Needs(total={A: 40}))
    assert sum(trade.fast_gpus for trade in first.trades) == 4
    after = settle(base(V100=4, K80=20), TABLE_3, first.trades, Needs(total={A: 33}))
    assert given_by(A, after) == 2
    assert "can no longer use so many GPUs" in after.news[0].why


def test_gpus_of_pinned_jobs_are_not_given_away() -> None:
    outcome = settle(base(V100=4, K80=20), TABLE_3, needs=Needs(pinned={(A, "V100"): 3}))
    assert given_by(A, outcome) == 1
    assert outcome.entitled[A, "V100"] == 3


def test_the_four_users_of_figure_9() -> None:
    """Speed-ups inferred from the paper's figure 9; it shows prices of 1.94, 3.3 to 3.42 and 0.99."""
    speedups = {"u1": (5.14, 3.34), "u2": (1.94, 3.42), "u3": (1.94, 3.30), "u4": (1.71, 1.73)}
    rates = Rates({UserName(u): {"V100": v, "P100": p, "K80": 1.0} for u, (v, p) in speedups.items()})
    has = {
        (UserName(user), model): Fraction(gpus)
        for user in speedups
        for model, gpus in (("V100", 3), ("P100", 6), ("K80", 16))
    }
    outcome = settle(has, rates)
    assert {trade.price for trade in outcome.trades} == {1.94, 3.34, 3.3, 0.988}
    gains = {
        user: throughput(outcome.entitled, UserName(user), rates) / throughput(has, UserName(user), rates) - 1
        for user in speedups
    }
    assert min(gains.values()) >= 0
    assert gains["u1"] > 0.29
    assert gains["u4"] > 0.23


UNLIKE = {A: ((5.0, 4), (1.0, 20)), B: ((4.0, 40),), C: ((6.0, 2), (1.0, 3))}
"""Classes: how many times as fast they are on a V100, and the GPUs that they ask for."""


def settle_unlike(has: Base, standing: tuple[Trade, ...] = ()) -> Outcome:
    means = {user: sum(s * n for s, n in steps) / sum(n for _, n in steps) for user, steps in UNLIKE.items()}
    needs = Needs(total={user: sum(n for _, n in steps) for user, steps in UNLIKE.items()})

    def steps(user: UserName, _fast: str, _slow: str) -> tuple[tuple[float, int], ...]:
        return UNLIKE[user] if len(UNLIKE[user]) > 1 else ()

    return Market(has, standing, needs, each(means), steps=steps).settle(NEWEST_FIRST, 60.0)


@pytest.mark.parametrize(("gpus", "gives"), [(4, 0), (5, 1), (7, 3)])
def test_who_has_unlike_classes_gives_no_gpu_that_the_faster_one_has(gpus: int, gives: int) -> None:
    """At their means A would gain by what it receives for any of them."""
    has = {(A, "V100"): Fraction(gpus), (B, "K80"): Fraction(30)}
    outcome = settle_unlike(has)
    assert given_by(A, outcome) == gives
    assert given_by(A, settle_unlike(has, outcome.trades)) == gives


@pytest.mark.parametrize(("gpus", "receives"), [(0, 2), (1, 1), (2, 0), (3, 0)])
def test_who_has_unlike_classes_pays_for_no_gpu_that_a_slower_one_would_get(gpus: int, receives: int) -> None:
    has = {(C, "V100"): Fraction(gpus), (C, "K80"): Fraction(20), (A, "V100"): Fraction(10)}
    assert given_by(A, settle_unlike(has)) == receives


def test_trades_that_lose_are_a_bug_of_this_program() -> None:
    bad = Trade(
        fast="V100", slow="K80", giver=A, taker=C, fast_gpus=Fraction(1), slow_gpus=Fraction(1), price=1.0,
        giver_speedup=1.25, taker_speedup=6.25, since_s=0.0,
    )  # fmt: skip
    with pytest.raises(BrokenError, match=r"user A loses 0\.25 K80 GPUs' worth"):
        check_trades({}, {}, [bad], TABLE_3)
    with pytest.raises(BrokenError, match="user A owes K80 GPUs"):
        check_trades({}, {(A, "K80"): -1}, [], TABLE_3)
    with pytest.raises(BrokenError, match="trades change the number of K80 GPUs"):
        check_trades({}, {(A, "K80"): 1}, [], TABLE_3)


# --- the same as asking everybody anew after each GPU ---------------------------------------------------------------


def rescan(sides: list[Side], unit: int, margin: float = MARGIN) -> list[tuple[UserName, UserName, int]]:
    """The rule, literally: (giver, taker, price) of each single GPU."""
    left = [side for side in sides if side.fast >= unit or side.slow > 0]
    made = []
    while len(left) > 1:
        taker = max(left, key=lambda side: side.bid)
        giver = min(reversed(left), key=lambda side: side.ask)
        if taker is giver:
            break
        if giver.fast < unit:
            left.remove(giver)
            continue
        if taker.slow <= 0:
            left.remove(taker)
            continue
        others = [side.bid for side in left if side is not taker and side is not giver]
        between = [bid for bid in others if bid >= giver.ask]
        price = price_of(taker.bid, max(between, default=None), giver.ask, margin)
        if price is None:
            break
        cost = price * unit // PRICE_UNIT
        if giver.slow_room is not None and giver.slow_room < cost:
            left.remove(giver)
        elif taker.slow < cost or (taker.fast_room is not None and taker.fast_room < unit):
            left.remove(taker)
        else:
            giver.fast -= unit
            giver.slow += cost
            taker.fast += unit
            taker.slow -= cost
            if giver.slow_room is not None:
                giver.slow_room -= cost
            if taker.fast_room is not None:
                taker.fast_room -= unit
            made.append((giver.user, taker.user, price))
    return made


def one_by_one(deals: list[Deal]) -> list[tuple[UserName, UserName, int]]:
    return [(deal.giver.user, deal.taker.user, deal.price) for deal in deals for _ in range(deal.gpus)]


side_st = st.tuples(
    st.sampled_from([0.5, 1.0, 1.25, 2.0, 3.0, 5.0, 5.0, 6.25]) | st.floats(0.3, 8.0),
    st.sampled_from([0.0, 0.0, 1.0]) | st.floats(0.0, 3.0),
    st.integers(0, 5000),
    st.integers(0, 30_000),
    st.none() | st.integers(0, 4000),
    st.none() | st.integers(0, 20_000),
)


@given(st.lists(side_st, max_size=12))
def test_two_pointers_make_the_trades_of_the_literal_rule(
    drawn: list[tuple[float, float, int, int, int | None, int | None]],
) -> None:
    def made() -> list[Side]:
        return [
            Side(UserName(f"u{at:02}"), bid, bid + more, *facts)
            for at, (bid, more, *facts) in enumerate(drawn)
        ]

    assert one_by_one(auction(made(), PRICE_UNIT)) == rescan(made(), PRICE_UNIT)


users_st = st.dictionaries(
    st.sampled_from([UserName(f"u{at}") for at in range(7)]),
    st.tuples(
        st.tuples(*[st.fractions(0, 30, max_denominator=6)] * 3),
        st.tuples(*[st.sampled_from([1e-6, 0.5, 1.0, 1.0, 2.0, 5.0, 1e6]) | st.floats(0.5, 8.0)] * 3),
        st.integers(0, 90),
    ),
    min_size=1,
)
Drawn = dict[UserName, tuple[tuple[Fraction, ...], tuple[float, ...], int]]


def world(drawn: Drawn) -> tuple[Base, Rates, Needs]:
    has = {
        (u, m): g for u, (gpus, _, _) in drawn.items() for m, g in zip(NEWEST_FIRST, gpus, strict=True) if g
    }
    rates = Rates({u: dict(zip(NEWEST_FIRST, speeds, strict=True)) for u, (_, speeds, _) in drawn.items()})
    return has, rates, Needs(total={user: total for user, (_, _, total) in drawn.items()})


@settings(max_examples=150)
@given(users_st, users_st)
def test_no_user_is_below_its_base_whatever_changes(before: Drawn, after: Drawn) -> None:
    has, rates, needs = world(before)
    first = settle(has, rates, needs=needs)
    has, rates, needs = world(after)
    outcome = settle(has, rates, tuple(load(json.loads(json.dumps(dump(first.trades))))), needs)
    assert all(gpus > 0 for gpus in outcome.entitled.values())
    for model in NEWEST_FIRST:
        assert sum(g for (_, m), g in has.items() if m == model) == sum(
            g for (_, m), g in outcome.entitled.items() if m == model
        )
    for user in after:
        floor = throughput(has, user, rates)
        assert throughput(outcome.entitled, user, rates) >= floor * (1 - 1e-9)
    again = settle(has, rates, outcome.trades, needs)
    assert not any(news.undone for news in again.news)


def test_a_thousand_users_trade_as_by_asking_all_anew_after_each_deal() -> None:
    def sides() -> list[Side]:
        dice = roll(1)
        return [
            Side(
                UserName(f"u{at:04}"),
                worth := dice.uniform(1, 8),
                worth,
                dice.randint(0, 6) * 1000,
                dice.randint(0, 40) * 1000,
            )
            for at in range(1_000)
        ]

    assert one_by_one(auction(sides(), PRICE_UNIT)) == rescan(sides(), PRICE_UNIT)
