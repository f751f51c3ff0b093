"""Homes in which users lack least of what their shares are worth: a search in numbers (for `mechanism.exchange`).

From homes to better ones step by step: one job goes elsewhere, or two change places. What jobs come to is played ahead (`mechanism.played`), and who lacks
something weighs more in it. Where no step helps, from two changes at random on.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import fsum
from typing import NamedTuple

from hs_core.dice import roll
from hs_core.mechanism.played import played

STEPS = 8
MOST_CHANGES = 160  # that are looked at in a step
CLOSELY = 6  # of these
SIDESTEPS = 6  # from where no step helps, each of two changes at random
NEARER = 0.0005  # of a step, in the squares of what users lack
ROUNDS = 5  # of who lacks something weighing more
HEAVIER = 4.0  # times as much as its share, or as little, who weighs so
TURN = 2.0  # times as much as the round before
COMES_TO = (
    0.8  # of what it comes to where it is, at least, who goes to another model and whose user lacks something
)
ENOUGH = 0.004  # of these squares: with less nobody looks any further, nor moves for less
LEAST = 1e-3  # tickets per GPU
SLACK = 1e-9

Homes = tuple[int, ...]  # a server for each job
Change = tuple[tuple[int, int], ...]  # jobs, and the servers that they go to
MayUse = tuple[frozenset[int], ...]  # servers, by job; none: it does not move
Factors = tuple[float, ...]  # of each user's weight
_Has = list[tuple[int, float]]  # jobs of a server, and what each comes to


class Table(NamedTuple):
    """A decision in numbers. A value: the same question has the same answer."""

    gpus: tuple[int, ...]  # by server
    pool: tuple[int, ...]
    owner: tuple[int, ...]  # by job
    width: tuple[int, ...]
    value: tuple[tuple[float, ...], ...]  # and pool: of all its GPUs, if it always runs
    stays: tuple[bool, ...]  # nothing can suspend it
    due: tuple[float, ...]  # by user: what its shares are worth
    weight: tuple[float, ...]  # tickets per GPU
    homes: Homes


class Found(NamedTuple):
    homes: Homes
    before: Sequence[float]  # what each user lacks, as a part of what is due to it
    after: Sequence[float]

    @property
    def gain(self) -> float:
        return _squares(self.before) - _squares(self.after)


@lru_cache(maxsize=64)
def better(table: Table, may_use: MayUse) -> Found:
    search, start = _Search(table, may_use), weighed(table)
    best = search.descend(start, start)
    for sidestep in range(SIDESTEPS):
        if best.squares < ENOUGH:
            break
        other = search.descend(search.aside(best, sidestep), start)
        if other.squares < best.squares - NEARER and search.is_fair(other, start):
            best = other
    return Found(best.homes, start.lacks, best.lacks)


@lru_cache(maxsize=64)
def weighed(table: Table) -> "Weighed":
    """Homes as they are."""
    return _Search(table).weighed(table.homes, (1.0,) * len(table.due))


def _squares(lacks: Sequence[float]) -> float:
    return fsum([lack * lack for lack in lacks if lack > 0])


class Weighed(NamedTuple):
    """Homes, and weights by which users lack least there."""

    homes: Homes
    factors: Factors
    comes_to: Sequence[float]  # each job
    lacks: Sequence[float]  # each user, as a part of what is due to it; negative: it has more

    @property
    def squares(self) -> float:
        return _squares(self.lacks)


class _Search:
    def __init__(self, table: Table, may_use: MayUse = ()) -> None:
        self._table, self._may_use = table, may_use

    def descend(self, now: Weighed, start: Weighed) -> Weighed:
        for _ in range(STEPS):
            step = self._step(now, start)
            if step is None:
                break
            now = step
        return now

    def aside(self, now: Weighed, number: int) -> Weighed:
        dice, homes = roll(number, len(now.homes)), now.homes
        for _ in range(2):
            if changes := list(self._changes(homes)):
                homes = _changed(homes, dice.choice(changes))
        return self.weighed(homes, now.factors)

    def _step(self, now: Weighed, start: Weighed) -> Weighed | None:
        """To the best of the homes that are one change away; None: none is any better."""
        changes = list(self._changes(now.homes))
        if len(changes) > MOST_CHANGES:
            changes = roll(len(changes), *now.homes).sample(changes, MOST_CHANGES)
        has = self._by_server(now.homes, now.factors)
        found: list[tuple[float, Homes]] = []
        for change in changes:
            homes, then = _changed(now.homes, change), list(has)
            for server in {now.homes[at] for at, _ in change} | {to for _, to in change}:
                then[server] = self._server(server, homes, now.factors)
            found.append((round(_squares(self._lacks(_together(then, len(homes)))), 9), homes))
        found.sort()
        closely = [self.weighed(homes, now.factors) for _, homes in found[:CLOSELY]]
        fair = [one for one in closely if one.squares < now.squares - NEARER and self.is_fair(one, start)]
        return min(fair, key=lambda one: one.squares, default=None)

    def is_fair(self, one: Weighed, start: Weighed) -> bool:
        """No more is lost in all than those who lack something gain, and only of those who had more than is due to them a job comes to less on another model."""
        table = self._table
        lost = fsum(start.comes_to) - fsum(one.comes_to)
        if lost > self._short(start) - self._short(one) + SLACK:
            return False
        return not any(
            table.pool[to] != table.pool[home] and now < was * COMES_TO and start.lacks[owner] > 0
            for to, home, now, was, owner in zip(
                one.homes, start.homes, one.comes_to, start.comes_to, table.owner, strict=True
            )
        )

    def _short(self, one: Weighed) -> float:
        return fsum([lack * due for lack, due in zip(one.lacks, self._table.due, strict=True) if lack > 0])

    def _changes(self, homes: Homes) -> Iterator[Change]:
        """One job elsewhere, or two in each other's place."""
        table, may_use = self._table, self._may_use
        movable = [at for at, servers in enumerate(may_use) if servers]
        for at in movable:
            for server in sorted(may_use[at]):
                if server != homes[at]:
                    yield ((at, server),)
        alike = [(table.owner[at], table.width[at], table.value[at]) for at in range(len(homes))]
        for place, one in enumerate(movable):
            for other in movable[place + 1 :]:
                here, there = homes[one], homes[other]
                if here == there or alike[one] == alike[other]:
                    continue
                if there in may_use[one] and here in may_use[other]:
                    yield (one, there), (other, here)

    def weighed(self, homes: Homes, factors: Factors) -> Weighed:
        best: Weighed | None = None
        for _ in range(ROUNDS):
            comes_to = _together(self._by_server(homes, factors), len(homes))
            now = Weighed(homes, factors, comes_to, self._lacks(comes_to))
            if best is None or now.squares < best.squares:
                best = now
            if best.squares <= 0:
                break
            factors = tuple([
                min(HEAVIER, max(1 / HEAVIER, factor * min(TURN, max(1 / TURN, 1 / max(LEAST, 1 - lack)))))
                for factor, lack in zip(factors, now.lacks, strict=True)
            ])  # fmt: skip
        assert best is not None
        return best

    def _lacks(self, comes_to: Sequence[float]) -> list[float]:
        sums = [0.0] * len(self._table.due)
        for owner, value in zip(self._table.owner, comes_to, strict=True):
            sums[owner] += value
        return [1 - has / due if due > 0 else 0.0 for has, due in zip(sums, self._table.due, strict=True)]

    def _by_server(self, homes: Homes, factors: Factors) -> list[_Has]:
        return [self._server(server, homes, factors) for server in range(len(self._table.gpus))]

    def _server(self, server: int, homes: Homes, factors: Factors) -> _Has:
        """What jobs there come to."""
        table = self._table
        gpus, pool = table.gpus[server], table.pool[server]
        there = [at for at, home in enumerate(homes) if home == server]
        turns = [at for at in there if not table.stays[at]]
        has = [(at, table.value[at][pool]) for at in there if table.stays[at]]
        gpus -= sum(table.width[at] for at, _ in has)
        # To two digits: turns that hardly differ are not worth playing again.
        weights = [float(f"{table.weight[table.owner[at]] * factors[table.owner[at]]:.1e}") for at in turns]
        jobs = tuple(zip([table.width[at] for at in turns], weights, strict=True))
        parts = played(max(0, gpus), jobs).parts
        return has + [(at, part * table.value[at][pool]) for at, part in zip(turns, parts, strict=True)]


def _together(servers: Sequence[_Has], jobs: int) -> list[float]:
    found = [0.0] * jobs
    for has in servers:
        for at, value in has:
            found[at] = value
    return found


def _changed(homes: Homes, change: Change) -> Homes:
    new = list(homes)
    for at, server in change:
        new[at] = server
    return tuple(new)
