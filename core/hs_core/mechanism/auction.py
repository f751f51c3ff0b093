"""One pair of pools' trades, at the second price (Gandiva_fair, 3.4).

Every user's bid is its speed-up S, what one fast GPU is worth to it in slow ones. The user with the least S gives,
the one with the largest receives; the price is the next bid below the receiver's, or halfway between the two where they are alone
or where the next bid equals the receiver's. GPUs change hands one by one; those that go between the same two at the same price are one
trade. Who has nothing left to give or to pay makes place for the next, so two sorts and two pointers do what asking everybody
anew after each GPU would.

Departure: whose classes are unlike does not bid its mean alone. The classes of the largest
speed-ups have its fast GPUs, as far as these go, so that the last of them may be worth more to it than its mean, and the next one less. It gives for the
larger of the two and receives for the smaller, for as many GPUs at once as that holds for: at the mean it would lose by what it gives, and by the last and the
next alone too, for its slower classes come to the fast GPUs once it has hardly any slow ones. What stands goes by the mean.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from hs_core.names import UserName

MARGIN = 0.01  # both must gain so much; less is not worth a migration
PRICE_UNIT = 1000  # prices are whole thousandths, so that amounts stay simple fractions
CHEAPEST, DEAREST = 0.1, 1e6  # prices outside are no prices but a profile that lies
SLACK = 1e-9

_bid, _ask = attrgetter("bid"), attrgetter("ask")


@dataclass(slots=True)
class Side:
    """A user in one auction and what it still has, in units of 1/`unit` GPU (see `auction`)."""

    user: UserName
    bid: float  # the most that it pays for a fast GPU, in slow ones
    ask: float  # the least that it gives one for
    fast: int  # that it can spare
    slow: int
    fast_room: int | None = None  # that it could use besides; None: any number
    slow_room: int | None = None
    room: int | None = None  # over all pools
    within: float = 0.0  # how far the true speed-up may be from what it bids and asks, as a part of it

    def gives(self, unit: int, cost: int) -> int:
        """The most fast GPUs, whole, that it gives for `cost` units of slow ones each."""
        most = self.fast // unit
        if self.slow_room is not None:
            most = min(most, self.slow_room // cost)
        if self.room is not None and cost > unit:
            most = min(most, self.room // (cost - unit))
        return most

    def takes(self, unit: int, cost: int) -> int:
        """The most that it takes for that."""
        most = self.slow // cost
        if self.fast_room is not None:
            most = min(most, self.fast_room // unit)
        if self.room is not None and cost < unit:
            most = min(most, self.room // (unit - cost))
        return most

    def exchange(self, fast: int, slow: int) -> None:
        """Fast units go, slow ones come."""
        self.fast -= fast
        self.slow += slow
        if self.fast_room is not None:
            self.fast_room += fast
        if self.slow_room is not None:
            self.slow_room -= slow
        if self.room is not None:
            self.room += fast - slow

    def go_by_classes(self, steps: Sequence[tuple[float, int]], has: int, unit: int) -> None:
        """What it bids and asks for where its classes are unlike, and so many GPUs as that holds for. `steps`: speed-up and GPUs asked for of each, the largest first; `has`: fast ones."""
        worth, begins, _ = _step(steps, max(0, has - unit), unit)
        self.ask = max(self.ask, worth)
        self.fast = min(self.fast, has - begins)
        worth, _, ends = _step(steps, has + unit - 1, unit)
        self.bid = min(self.bid, worth)
        if ends is not None:
            self.fast_room = ends - has if self.fast_room is None else min(self.fast_room, ends - has)


@dataclass(frozen=True, slots=True)
class Deal:
    giver: Side
    taker: Side
    gpus: int  # fast ones, whole
    price: int  # in thousandths


def price_of(
    top: float, second: float | None, least: float, margin: float = MARGIN,
    *, top_within: float = 0.0, least_within: float = 0.0,
) -> int | None:  # fmt: skip
    """Thousandths of a slow GPU for one fast; None: no price lets both gain. `second` is None where only two are left.

    Both must gain `margin`, and more than their speed-ups may be off (`top_within`, `least_within`). Where that leaves the receiver too little at the second price, it
    pays the most that leaves it enough: who says now this and now that is not to have for half the price what others bid for.
    """
    asks, bids = 1 + max(margin, least_within), 1 + max(margin, top_within)
    if second is None or top <= second * (1 + margin):
        second = (top + least) / 2
    elif top <= second * bids:
        second = top / bids * (1 - SLACK)
    gain = second > least * asks and top > second * bids
    if not gain or not CHEAPEST <= second <= DEAREST:
        return None
    return round(second * PRICE_UNIT)


def auction(sides: Iterable[Side], unit: int, margin: float = MARGIN) -> list[Deal]:
    """All trades of one pair of pools; sides are changed as they trade. O(n log n).

    Whoever can give or take no more makes place for the next, as if everybody were asked anew after each GPU.
    `sides` come in the order of users: that settles ties. `unit`: a multiple of PRICE_UNIT.
    """
    here = [side for side in sides if side.fast >= unit or side.slow > 0]
    takers = sorted(here, key=_bid, reverse=True)
    givers = sorted(here, key=_ask, reverse=True)
    givers.reverse()  # of those alike the last one comes first
    deals: list[Deal] = []
    gone: set[UserName] = set()
    thousandth = unit // PRICE_UNIT
    top, bottom = 0, 0
    # Nobody asks for less than it bids: where one is both no two are left who would gain.
    while top < len(takers) and bottom < len(givers) and takers[top] is not givers[bottom]:
        taker, giver = takers[top], givers[bottom]
        if giver.fast < unit:
            gone.add(giver.user)
            bottom += 1
            continue
        if taker.slow <= 0:
            top += 1
            continue
        second = _second(takers, top + 1, giver, gone)
        price = price_of(
            taker.bid, second, giver.ask, margin, top_within=taker.within, least_within=giver.within
        )
        if price is None:
            # Two whose profiles lie, or say little, would keep all others from trading.
            if taker.bid > DEAREST or taker.within > max(margin, giver.within):
                top += 1
            elif giver.within > margin:
                bottom += 1
            else:
                break
            continue
        cost = price * thousandth
        given, taken = giver.gives(unit, cost), taker.takes(unit, cost)
        gpus = min(given, taken)
        if gpus > 0:
            giver.exchange(gpus * unit, gpus * cost)
            taker.exchange(-gpus * unit, -gpus * cost)
            deals.append(Deal(giver, taker, gpus, price))
        if given <= taken:
            gone.add(giver.user)
            bottom += 1
        else:
            top += 1
    return deals


def _second(takers: Sequence[Side], first: int, giver: Side, gone: Collection[UserName]) -> float | None:
    """The largest bid of those from there on who are left, if it is not below what the giver asks for."""
    for at in range(first, len(takers)):
        if takers[at].bid < giver.ask:
            return None
        if takers[at] is not giver and takers[at].user not in gone:
            return takers[at].bid
    return None


def _step(steps: Sequence[tuple[float, int]], place: int, unit: int) -> tuple[float, int, int | None]:
    """What the fast GPU at that place is worth, and between which places each is (None: beyond all that are asked for)."""
    begins = 0
    for speedup, gpus in steps[:-1]:
        ends = begins + gpus * unit
        if place < ends:
            return speedup, begins, ends
        begins = ends
    return steps[-1][0], begins, None
