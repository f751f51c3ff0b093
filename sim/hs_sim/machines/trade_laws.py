"""What must hold of trades: in every decision, after every event, and in what a controller finds after a crash.

No GPU appears or is lost by them, nobody has less of use than its own entitlement would give, and what was told of them, made and taken back,
comes to those that stand.
"""

import json
from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import hypot
from operator import is_
from typing import TYPE_CHECKING

from hs_core.cluster import Outcome
from hs_core.facts import TRADE, TRADE_UNDONE, Fact
from hs_core.mechanism.trade import BORNE, load
from hs_core.names import UserName
from hs_core.policy import Memory, Snapshot, Trade, Verdict
from hs_sim.machines.journal import Draft

if TYPE_CHECKING:
    from hs_sim.machines.world import World

SLACK = 1e-6  # of what is shown in floating point
SIGNS = {TRADE: 1, TRADE_UNDONE: -1}
UNSEEN = (None, None, None)

At = tuple[UserName, str]
"""A user in a pool."""
Way = tuple[str | int | float, ...]
"""Who gives, who receives, fast model, slow model, price."""


class TradeLaws:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._life = -1
        self._seen: tuple[object, ...] = UNSEEN  # trades and entitlements that were looked at last
        self._told: dict[Way, float] = {}  # fast GPUs, by all that was told
        self._kept: dict[Way, float] = {}  # by what of that is committed
        self.told = dict.fromkeys(SIGNS, 0)  # how often

    def ruled(self, snapshot: Snapshot, memory: Memory, verdict: Verdict) -> None:
        """What a policy decides; also where nothing comes of it."""
        standing = load(memory.get("trades", ()))
        if not (standing or verdict.trades or verdict.news):
            return
        due = _amounts(standing)
        for news in verdict.news:
            _add(due, _way(news.trade), float(-news.trade.fast_gpus if news.undone else news.trade.fast_gpus))
        self._must(due == _amounts(verdict.trades), f"trades of {due} are to stand, not {verdict.trades}")
        written = json.loads(json.dumps(verdict.memory.get("trades", ())))
        self._must(load(written) == [*verdict.trades], f"{written} is remembered of {verdict.trades}")
        self._adds_up(verdict.base or verdict.entitled, verdict.trades, verdict.entitled, slack=0.0)
        self._nobody_loses(snapshot, verdict.trades)

    def happened(self, outcome: Outcome) -> None:
        """Right after an event: nothing of it is committed yet."""
        self._take_office()
        told = [fact for fact in outcome.facts if fact.kind in SIGNS]
        for fact in told:
            self.told[fact.kind] += 1
        _take(self._told, told)
        machine = self._world.controller.machine
        trades, base, entitled = machine.trades(), machine.base(), machine.entitled()
        if not told and all(map(is_, (trades, base, entitled), self._seen)):
            return  # what held of these after the event before
        stand = _amounts(trades)
        self._must(self._told == stand, f"what was told of trades comes to {self._told}; {stand} stand")
        if entitled:  # else nobody has been asked yet, or there is nobody to ask about
            self._adds_up(base, trades, entitled, slack=SLACK)
        self._seen = (trades, base, entitled)

    def committed(self, draft: Draft) -> None:
        _take(self._kept, draft.facts)

    def _take_office(self) -> None:
        """A new controller: what was told and not committed was never told."""
        controller = self._world.controller
        if controller.life == self._life:
            return
        self._life = controller.life
        if controller.journal.meta.get("restored"):  # what was told since the copy was made is gone, too
            self._kept = _amounts(controller.machine.trades())
        self._told = dict(self._kept)
        self._seen = UNSEEN

    # --- laws -------------------------------------------------------------------------------------------------------

    def _adds_up(
        self,
        base: Mapping[At, Fraction | float],
        standing: Iterable[Trade],
        entitled: Mapping[At, Fraction | float],
        *,
        slack: float,
    ) -> None:
        due: dict[At, Fraction | float] = dict(base)
        for trade in standing:
            for user, sign in ((trade.giver, 1), (trade.taker, -1)):
                for model, gpus in (
                    (trade.fast, -sign * trade.fast_gpus),
                    (trade.slow, sign * trade.slow_gpus),
                ):
                    due[user, model] = due.get((user, model), 0) + gpus
        for at in sorted({*due, *entitled}):
            has: Fraction | float = entitled.get(at, Fraction(0))
            should: Fraction | float = due.get(at, Fraction(0))
            right = has >= 0 and abs(float(has - should)) <= slack
            self._must(
                right, f"{at[0]} is entitled to {has} {at[1]}, where its share and trades come to {should}"
            )

    def _nobody_loses(self, snapshot: Snapshot, standing: Iterable[Trade]) -> None:
        """By its jobs' classes; where these are unlike, by the one by which it gains most. What may be no loss, as far as rates are known, is none."""
        nothing = Fraction(0)
        gets: dict[tuple[UserName, str, str], tuple[Fraction, Fraction, Fraction]] = {}
        for trade in standing:
            for user, sign in ((trade.giver, -1), (trade.taker, 1)):
                pair = (user, trade.fast, trade.slow)
                fast, slow, price = gets.get(pair, (nothing, nothing, nothing))
                gets[pair] = (
                    fast + sign * trade.fast_gpus,
                    slow - sign * trade.slow_gpus,
                    price + trade.slow_gpus,
                )
        rates, within = snapshot.rates, snapshot.rates_within
        for (user, fast_model, slow_model), (fast, slow, price) in gets.items():
            known = [
                ((of, fast_model), (of, slow_model))
                for of in sorted({job.job_class for job in snapshot.jobs if job.user == user})
                if (of, fast_model) in rates and (of, slow_model) in rates
            ]
            gain = max(
                (rates[one] / rates[other] * float(fast) + float(slow) for one, other in known), default=0.0
            )
            off = max(
                (hypot(within.get(one, 0.0), within.get(other, 0.0)) for one, other in known), default=0.0
            )
            borne = min(BORNE, off) * float(price)
            self._must(
                gain >= -borne - SLACK, f"{user} loses {-gain} {slow_model} by its trades of {fast_model}"
            )

    def _must(self, holds: bool, what: str) -> None:
        if not holds:
            self._world.broken(what)


def _amounts(standing: Iterable[Trade]) -> dict[Way, float]:
    """Fast GPUs, which are whole."""
    found: dict[Way, float] = {}
    for trade in standing:
        _add(found, _way(trade), float(trade.fast_gpus))
    return found


def _way(trade: Trade) -> Way:
    return (trade.giver, trade.taker, trade.fast, trade.slow, trade.price)


def _take(amounts: dict[Way, float], facts: Iterable[Fact]) -> None:
    for fact in facts:
        if sign := SIGNS.get(fact.kind):
            data = fact.data
            way = (data["gives"], data["receives"], data["fast"], data["slow"], data["price"])
            _add(amounts, way, sign * float(data["fast_gpus"]))


def _add(amounts: dict[Way, float], way: Way, gpus: float) -> None:
    left = amounts.get(way, 0.0) + gpus
    if left:
        amounts[way] = left
    else:
        amounts.pop(way, None)
