"""Trades of fast GPUs for slow ones between users of unlike speed-ups (Gandiva_fair, 3.4, 3.5): what stands is taken back once it no longer may, and more is traded (`auction`).

Departures: a user takes part only with what it can spare and use. GPUs that a pinned job needs are not given away, and nobody receives more
than its jobs can occupy: the paper's users have jobs without end.
And speed-ups are measured: reports differ, and how far a speed-up may be from the true one is known (`Within`). Both must gain more than that, or trades would be
made of noise, and undone by it, and jobs would move to and fro for nothing. For the same reason a loss that may be none takes no trade back.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import count
from math import lcm
from typing import Any

from hs_core.errors import BrokenError
from hs_core.mechanism.auction import MARGIN, PRICE_UNIT, SLACK, Side, auction
from hs_core.names import UserName
from hs_core.policy import Trade, TradeNews

BORNE = 0.1  # a loss above takes a trade back, however little is known of it

At = tuple[UserName, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What users could do with GPUs. What is absent is without limit (`usable`, `total`) or nothing (`pinned`)."""

    usable: Mapping[At, int] = field(default_factory=dict)  # GPUs of a pool that the user's jobs could occupy
    pinned: Mapping[At, int] = field(default_factory=dict)  # those of jobs that can run nowhere else
    total: Mapping[UserName, int] = field(default_factory=dict)  # over all pools


@dataclass(frozen=True, slots=True)
class Outcome:
    trades: tuple[Trade, ...]  # oldest first
    news: tuple[TradeNews, ...]
    entitled: Mapping[At, Fraction]
    at_rest: bool = False  # nothing changed hands, and nothing will before something else changes


Speedups = Callable[[UserName, str, str], float | None]
"""(user, fast, slow) → how many times as fast its jobs are; None: not measured."""
Awaited = Callable[[UserName, str, str], bool]
"""(user, fast, slow) → it is not measured yet and will be in a few quanta."""
Steps = Callable[[UserName, str, str], Sequence[tuple[float, int]]]
"""(user, fast, slow) → (speed-up, GPUs asked for) of each of its classes, the largest first; empty: they are not several."""
Within = Callable[[UserName, str, str], float]
"""(user, fast, slow) → how far the true speed-up may be from the measured one, as a part of it."""


def _never(_user: UserName, _fast: str, _slow: str) -> bool:
    return False


def _exactly(_user: UserName, _fast: str, _slow: str) -> float:
    return 0.0


class Market:
    """Base entitlements and the trades upon them, while one decision is made."""

    def __init__(
        self,
        base: Mapping[At, Fraction],
        standing: Sequence[Trade],
        needs: Needs,
        speedups: Speedups,
        *,
        awaited: Awaited = _never,
        steps: Steps | None = None,
        within: Within = _exactly,
    ) -> None:
        self._given = base
        self._needs = needs
        self._speedups = speedups
        self._awaited = awaited
        self._steps = steps
        self._within = within
        # Whole numbers throughout: all amounts over one common denominator.
        self._unit = lcm(PRICE_UNIT, *{gpus.denominator for gpus in base.values()})
        self._base = {at: self._whole(gpus) for at, gpus in base.items()}
        self._has = dict(self._base)
        self._totals: dict[UserName, int] = {}
        for (user, _), gpus in self._base.items():
            self._totals[user] = self._totals.get(user, 0) + gpus
        self._base_totals = dict(self._totals)
        self._trades = dict(enumerate(standing))  # by number, as they were made
        self._numbers = count(len(standing))
        self._news: list[TradeNews] = []
        self._waits = False  # for a bid that is about to come, or for who is about to know
        for trade in standing:
            self._book(trade, 1)

    def _whole(self, gpus: Fraction) -> int:
        return gpus.numerator * (self._unit // gpus.denominator)

    def settle(self, models: Sequence[str], now_s: float, margin: float = MARGIN) -> Outcome:
        """Takes back what no longer stands, then trades on, over all pairs of pools (`models`: newest first)."""
        self._take_back()
        users = sorted(self._totals)
        for at, fast in enumerate(models):
            for slow in reversed(models[at + 1 :]):
                self._trade(users, fast, slow, now_s, margin)
        return self._outcome()

    def hold(self) -> Outcome:
        """Only takes back what no longer stands."""
        self._take_back()
        return self._outcome()

    def _outcome(self) -> Outcome:
        trades = tuple(self._trades.values())
        check_trades(self._base, self._has, trades, self._speedups, self._borne)
        entitled = {
            at: self._given[at] if gpus == self._base.get(at) else Fraction(gpus, self._unit)
            for at, gpus in self._has.items()
            if gpus
        }
        at_rest = not (self._news or self._waits)
        return Outcome(trades, tuple(self._news), entitled, at_rest)

    # --- taking back ------------------------------------------------------------------------------------------------

    def _take_back(self) -> None:
        self._undo_losses()
        self._undo_uncarried()

    def _undo_losses(self) -> None:
        """A new profile shows a loss, or that neither gains; or nobody knows any more: other jobs came in place of those that were measured."""
        for number, trade in reversed(list(self._trades.items())):
            giver = self._speedups(trade.giver, trade.fast, trade.slow)
            taker = self._speedups(trade.taker, trade.fast, trade.slow)
            borne, taker_borne = self._borne(trade.giver, trade), self._borne(trade.taker, trade)
            if giver is not None and giver > trade.price * (1 + borne):
                self._undo(
                    number, f"{trade.giver}'s jobs are now {giver:.3g} times as fast on a {trade.fast}"
                )
            elif taker is not None and taker < trade.price * (1 - taker_borne):
                self._undo(
                    number, f"{trade.taker}'s jobs are now only {taker:.3g} times as fast on a {trade.fast}"
                )
            elif giver == taker == trade.price:
                self._undo(number, f"a {trade.fast} is now worth its price to both, so that neither gains")
            elif (user := self._unknown(trade, giver, taker)) is not None:
                self._undo(
                    number,
                    f"nobody knows how many times as fast the jobs that {user} has now are on a {trade.fast}",
                )

    def _unknown(self, trade: Trade, giver: float | None, taker: float | None) -> UserName | None:
        """Whose speed-up is not known, nor about to be. Of who has left the share is what no longer carries it."""
        for user, speedup in ((trade.giver, giver), (trade.taker, taker)):
            here = speedup is None and self._base_totals.get(user, 0) > 0
            if here and not self._awaited(user, trade.fast, trade.slow):
                return user
            self._waits |= here  # for so long only
        return None

    def _borne(self, user: UserName, trade: Trade) -> float:
        """The part of the price that the user may seem to lose, as it may be no loss."""
        return min(BORNE, self._within(user, trade.fast, trade.slow))

    def _undo_uncarried(self) -> None:
        """Newest first, and no more of them than must be, until every balance is one that the users' own shares and jobs carry."""
        undone = not self._all_carried()
        while undone:
            undone = False
            for number, trade in reversed(list(self._trades.items())):
                if (found := self._shortfall(trade)) is not None:
                    gpus, why = found
                    self._undo(number, why, gpus)
                    undone = True

    def _all_carried(self) -> bool:
        """Of no trade anything has to be taken back, as nearly always: there are fewer balances than trades have sides."""
        unit, base, totals = self._unit, self._base_totals, self._totals
        # Who has what it had before any trade carries that.
        changed = [(at, gpus) for at, gpus in self._has.items() if gpus != self._base.get(at)]
        if any(gpus < self._least(at) or gpus > self._most(at) for at, gpus in changed):
            return False
        limits = self._needs.total
        return all(
            totals[user] <= max(limits[user] * unit, base.get(user, 0)) for user in totals if user in limits
        )

    def _shortfall(self, trade: Trade) -> tuple[int, str] | None:
        """(fast GPUs to be taken back, why). None, as nearly always: the users carry it."""
        fast, slow = trade.fast, trade.slow
        for user, gave, received in ((trade.giver, fast, slow), (trade.taker, slow, fast)):
            short = self._least((user, gave)) - self._has.get((user, gave), 0)
            if short > 0:
                return self._back(trade, gave, short), f"{user}'s own share no longer has the {gave} GPUs"
            short = self._has.get((user, received), 0) - self._most((user, received))
            if short > 0:
                why = f"{user}'s jobs can no longer use so many {received} GPUs"
                return self._back(trade, received, short), why
        if trade.slow_gpus == trade.fast_gpus:
            return None
        grew = trade.giver if trade.slow_gpus > trade.fast_gpus else trade.taker
        limit = self._needs.total.get(grew)
        if limit is None:
            return None
        short = self._totals.get(grew, 0) - max(limit * self._unit, self._base_totals.get(grew, 0))
        if short <= 0:
            return None
        each = abs(self._slow(trade) - self._unit)
        return -(-short // max(1, each)), f"{grew}'s jobs can no longer use so many GPUs"

    def _back(self, trade: Trade, model: str, short: int) -> int:
        """Fast GPUs with which so much of one of its two models is taken back."""
        each = self._unit if model == trade.fast else self._slow(trade)
        return -(-short // max(1, each))

    def _slow(self, trade: Trade) -> int:
        """For one fast GPU."""
        return self._whole(trade.slow_gpus / trade.fast_gpus)

    def _least(self, at: At) -> int:
        return min(self._base.get(at, 0), self._needs.pinned.get(at, 0) * self._unit)

    def _most(self, at: At) -> int:
        limit = self._needs.usable.get(at)
        if limit is None:
            return self._has.get(at, 0)
        return max(limit * self._unit, self._base.get(at, 0))

    def _undo(self, number: int, why: str, gpus: int | None = None) -> None:
        """Takes the trade back, or so many of its fast GPUs."""
        back = trade = self._trades[number]
        if gpus is not None and gpus < trade.fast_gpus:
            part = gpus / trade.fast_gpus
            back = replace(trade, fast_gpus=Fraction(gpus), slow_gpus=trade.slow_gpus * part)
            self._trades[number] = replace(
                trade, fast_gpus=trade.fast_gpus - gpus, slow_gpus=trade.slow_gpus - back.slow_gpus
            )
        else:
            del self._trades[number]
        self._book(back, -1)
        self._news.append(TradeNews(trade=back, undone=True, why=f"taken back: {why}"))

    def _book(self, trade: Trade, sign: int) -> None:
        fast, slow = sign * self._whole(trade.fast_gpus), sign * self._whole(trade.slow_gpus)
        has, totals = self._has, self._totals
        for user, gave, received in ((trade.giver, fast, slow), (trade.taker, -fast, -slow)):
            at_fast, at_slow = (user, trade.fast), (user, trade.slow)
            has[at_fast] = has.get(at_fast, 0) - gave
            has[at_slow] = has.get(at_slow, 0) + received
            totals[user] = totals.get(user, 0) + received - gave

    # --- trading ----------------------------------------------------------------------------------------------------

    def _trade(self, users: Sequence[UserName], fast: str, slow: str, now_s: float, margin: float) -> None:
        sides, silent = [], []
        has, speedups = self._has, self._speedups
        for user in users:
            if (user, fast) not in has and (user, slow) not in has:
                continue
            speedup = speedups(user, fast, slow)
            if speedup is not None:
                sides.append(self._side(user, speedup, fast, slow))
            else:
                silent.append(user)
        # Two are not alone as long as a third's bid is about to come: their price would be none of the market's.
        if len(sides) == 2 and any(self._awaited(user, fast, slow) for user in silent):
            self._waits = True
            return
        for deal in auction(sides, self._unit, margin):
            trade = Trade(
                fast=fast,
                slow=slow,
                giver=deal.giver.user,
                taker=deal.taker.user,
                fast_gpus=Fraction(deal.gpus),
                slow_gpus=Fraction(deal.gpus * deal.price, PRICE_UNIT),
                price=deal.price / PRICE_UNIT,
                giver_speedup=deal.giver.ask,
                taker_speedup=deal.taker.bid,
                since_s=now_s,
            )
            self._book(trade, 1)
            self._trades[next(self._numbers)] = trade
            self._news.append(TradeNews(trade=trade, why=explain(trade)))

    def _side(self, user: UserName, speedup: float, fast: str, slow: str) -> Side:
        unit, usable, pinned, has = self._unit, self._needs.usable, self._needs.pinned, self._has
        at_fast, at_slow = (user, fast), (user, slow)
        has_fast, has_slow = has.get(at_fast, 0), has.get(at_slow, 0)
        stays_fast, stays_slow = pinned.get(at_fast, 0), pinned.get(at_slow, 0)
        side = Side(user, speedup, speedup, has_fast - stays_fast * unit, has_slow - stays_slow * unit)
        if side.fast < unit and side.slow <= 0:
            return side  # it has nothing to give, and nothing to pay with
        side.within = self._within(user, fast, slow)
        if (limit := usable.get(at_fast)) is not None:
            side.fast_room = max(0, limit * unit - has_fast)
        if (limit := usable.get(at_slow)) is not None:
            side.slow_room = max(0, limit * unit - has_slow)
        if (limit := self._needs.total.get(user)) is not None:
            side.room = max(0, limit * unit - self._totals[user])
        if self._steps is not None and (steps := self._steps(user, fast, slow)):
            side.go_by_classes(steps, has_fast, unit)
        return side


def explain(trade: Trade) -> str:
    return (
        f"{trade.giver} gives {_gpus(trade.fast_gpus)} {trade.fast} and receives {_gpus(trade.slow_gpus)} {trade.slow} "
        f"from {trade.taker}: a {trade.fast} is worth {trade.giver_speedup:.3g} {trade.slow} to it, {trade.taker_speedup:.3g} to {trade.taker}"
    )


def _gpus(count: Fraction) -> str:
    return f"{_float(count):.4g}"


def _float(count: Fraction) -> float:
    """As `float` does, at a third of its cost."""
    return count.numerator / count.denominator


def _nothing(_user: UserName, _trade: Trade) -> float:
    return 0.0


def check_trades(
    base: Mapping[At, int],
    after: Mapping[At, int],
    trades: Iterable[Trade],
    speedups: Speedups,
    borne: Callable[[UserName, Trade], float] = _nothing,
) -> None:
    """The law of trading: no GPU appears or is lost, nobody owes one, and nobody's throughput is below its base's, but for what may be no loss: so large a
    part of a price (`borne`)."""
    pools: dict[str, int] = {}
    for at, gpus in after.items():
        if gpus < 0:
            raise BrokenError(f"after trades user {at[0]} owes {at[1]} GPUs")
        pools[at[1]] = pools.get(at[1], 0) + gpus
    for (_, model), gpus in base.items():
        pools[model] = pools.get(model, 0) - gpus
    if odd := sorted(model for model, gpus in pools.items() if gpus):
        raise BrokenError(f"trades change the number of {odd[0]} GPUs")
    gains: dict[tuple[UserName, str, str], float] = {}
    for trade in trades:
        fast_gpus, slow_gpus = _float(trade.fast_gpus), _float(trade.slow_gpus)
        for user, sign in ((trade.giver, -1), (trade.taker, 1)):
            speedup = speedups(user, trade.fast, trade.slow)
            if speedup is not None:
                pair = (user, trade.fast, trade.slow)
                worth = sign * (speedup * fast_gpus - slow_gpus) + borne(user, trade) * slow_gpus
                gains[pair] = gains.get(pair, 0.0) + worth
    if losing := sorted(at for at, gain in gains.items() if gain < -SLACK):
        user, fast, slow = losing[0]
        raise BrokenError(
            f"user {user} loses {-gains[losing[0]]:.3g} {slow} GPUs' worth by its trades of {fast} for {slow}"
        )


def dump(trades: Iterable[Trade]) -> list[Any]:
    """JSON-able."""
    return [
        [
            *(t.fast, t.slow, t.giver, t.taker, str(t.fast_gpus), str(t.slow_gpus)),
            *(t.price, t.giver_speedup, t.taker_speedup, t.since_s),
        ]
        for t in trades
    ]


def load(dumped: Iterable[Any]) -> list[Trade]:
    return [_load(*row) for row in dumped]


@lru_cache(maxsize=1 << 13, typed=True)  # from one decision to the next most stand
def _load(*row: Any) -> Trade:
    fast, slow, giver, taker, fast_gpus, slow_gpus, price, giver_speedup, taker_speedup, since_s = row
    return Trade(
        fast=fast,
        slow=slow,
        giver=giver,
        taker=taker,
        fast_gpus=Fraction(fast_gpus),
        slow_gpus=Fraction(slow_gpus),
        price=price,
        giver_speedup=giver_speedup,
        taker_speedup=taker_speedup,
        since_s=since_s,
    )
