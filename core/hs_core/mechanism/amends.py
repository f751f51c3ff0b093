"""What users cannot use of their shares where their jobs are, made good where they are: by those who have it instead.

Entitlements are fractions of every pool, and jobs are whole: whose one job lives in one pool uses nothing of its shares in the others. The stride
hands these to who is there, so that a user of a few jobs would train for a third of the time for which its tickets pay, as long as it lives, and
others for more than theirs. So who has GPUs of others' shares gives as much of its own, worth as much to itself, in pools where those others' jobs
wait. Nobody comes to less than its shares are worth to it by that, as far as rates tell.

Departure: the paper leaves this to users having many jobs.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cached_property
from math import frexp, fsum
from typing import Any

from hs_core.mechanism.band import NOBODY
from hs_core.mechanism.beside_gangs import most_beside
from hs_core.mechanism.job_weights import Shares
from hs_core.mechanism.level import Level
from hs_core.mechanism.rates import Speeds, Value
from hs_core.mechanism.world import At, World
from hs_core.names import UserName
from hs_core.newest import Own

STEPS = 64  # of a GPU, and finer the less of one it is: shares are multiples of its inverse, so that tickets stay simple fractions
NEAR = 0.01  # of what its shares are worth to a user: so far off is near enough
KEPT = 0.25  # of what it has in a pool stays with whoever gives: its jobs there must not starve
TINY = 1e-9

# Amends made last, and what they go by. Nothing comes of it but time.
_newest = Own[list[tuple[tuple[Any, ...], Shares | None]]](list)


def amended(
    world: World,
    levels: Mapping[str, Level],
    entitled: Shares,
    shares: Mapping[At, float],
    speeds: Speeds,
) -> Shares:
    """In GPUs, by user and pool: of pools in which somebody gives to others, what everybody is to have there.

    `shares`: what users are entitled to, as floats; `levels`: of these and of the world as it is now.
    """
    asked = world.gpus
    if len(world.models) < 2:
        return entitled
    short = {user for (user, model), share in shares.items() if share > asked.get((user, model), 0)}
    if not short:
        return entitled
    newest, goes_by = _newest(), _goes_by(world, entitled, speeds)
    if not newest or newest[0][0] != goes_by:
        newest[:] = [(goes_by, _amend(_Books(world, levels, shares, speeds), entitled, short))]
    found = newest[0][1]
    return entitled if found is None else found


def _goes_by(world: World, entitled: Shares, speeds: Speeds) -> tuple[Any, ...]:
    beside = {
        name: (parts.users, parts.per_node, here.users, here.gangs)
        for name, parts in world.parts.items()
        if parts
        for here in (world.at.get(name, NOBODY),)
    }
    # Copies of what the world has: that is about to change.
    return world.floor, world.pools, entitled, speeds, dict(world.gpus), dict(world.kind_gpus), beside


def _amend(books: "_Books", entitled: Shares, short: Collection[UserName]) -> Shares | None:
    """None: nobody gives to others."""
    books.enter(books.waiting(short))
    touched = books.even_out() if books.lack else set[str]()
    if not touched:
        return None
    found = dict(entitled)
    for at, has in books.has.items():
        if at[1] in touched:
            share = _simple(has)
            # Who runs all the time keeps what it could use if more of its jobs came.
            was = entitled.get(at) if has >= books.asked[at] - TINY else None
            found[at] = share if was is None else _larger(share, was)
    return found


def _larger(one: Fraction, other: Fraction) -> Fraction:
    """As `max`, at a fraction of its cost."""
    (over, under), (others, parts) = one.as_integer_ratio(), other.as_integer_ratio()
    return one if over * parts >= others * under else other


def _simple(gpus: float) -> Fraction:
    """Nobody is rounded to nothing, however many divide a pool."""
    steps = STEPS << max(0, -frexp(gpus)[1])
    return Fraction(round(gpus * steps), steps)


class _Books:
    """Of users that were entered what they lack of what their shares are worth to them; negative: they have more."""

    def __init__(
        self, world: World, levels: Mapping[str, Level], shares: Mapping[At, float], speeds: Speeds
    ) -> None:
        self._world, self._shares, self._speeds = world, shares, speeds
        self.asked = world.gpus
        parts = {model: level.parts() for model, level in levels.items()}
        # GPUs that users' jobs can expect, where they live.
        self.has = {(user, model): parts[model][user] * gpus for (user, model), gpus in world.gpus.items()}
        self._parts = parts
        self._wait: dict[str, dict[UserName, float]] = {model: {} for model in world.models}
        for (user, model), has in self.has.items():
            if (waits := world.gpus[user, model] - has) > TINY:
                self._wait[model][user] = waits
        self._could: dict[str, Mapping[UserName, float]] = {}
        self._worth: dict[UserName, Value] = {}
        self._lacks: dict[UserName, float] = {}

    @cached_property
    def _kinds(self) -> dict[UserName, list[tuple[str, str, int]]]:
        """Of users who have jobs somewhere: class, model, and GPUs that they ask for."""
        found: dict[UserName, list[tuple[str, str, int]]] = {}
        for (user, job_class, model), gpus in self._world.kind_gpus.items():
            if gpus > 0:
                found.setdefault(user, []).append((job_class, model, gpus))
        return found

    @property
    def lack(self) -> bool:
        """Somebody lacks something."""
        return any(lacks > 0 for lacks in self._lacks.values())

    def waiting(self, users: Collection[UserName]) -> set[UserName]:
        """Those of them whose jobs wait somewhere."""
        models = [model for model, wait in self._wait.items() if not wait.keys().isdisjoint(users)]
        return {user for model in models for user in self._waits(model)}.intersection(users)

    def _waits(self, model: str) -> Mapping[UserName, float]:
        """Of users whose jobs wait there, before any GPUs are handed over: those that are asked for, and not expected though they could be had."""
        found = self._could.get(model)
        if found is None:
            found = self._wait[model]
            if found and (most := most_beside(self._world, model, self._parts[model])):
                could = {
                    user: min(waits, most[user] - self.has[user, model]) for user, waits in found.items()
                }
                found = {user: waits for user, waits in could.items() if waits > TINY}
            self._could[model] = found
        return found

    def enter(self, users: Iterable[UserName]) -> None:
        wanted = set(users)
        for user, kinds in self._kinds.items() if wanted else ():
            if user not in wanted:
                continue
            worth = self._speeds.worth(user, kinds)
            pairs = [
                (one, is_known, self._shares.get((user, model), 0.0), self.has.get((user, model), 0.0))
                for model, (one, is_known) in worth.items()
            ]
            due = fsum([one * share for one, _, share, _ in pairs])
            had = fsum([one * (has if is_known else min(has, share)) for one, is_known, share, has in pairs])
            self._worth[user] = worth
            self._lacks[user] = due - had if abs(due - had) > NEAR * due else 0.0

    def even_out(self) -> set[str]:
        """Pool by pool those who have more than their shares are worth give to those who have less and whose jobs wait there. Where somebody could."""
        some = [model for model in self._world.models if any(True for _ in self._could_get(model))]
        self.enter({user for user, model in self.asked if model in some and user not in self._worth})
        return {model for model in some if self._hand_over(model)}

    def _hand_over(self, model: str) -> bool:
        gets, gives = dict(self._could_get(model)), dict(self._could_give(model))
        wanted, offered = fsum(gets.values()), fsum(gives.values())
        amount = min(wanted, offered)
        if amount <= TINY:
            return False
        for parts, whole, sign in ((gets, wanted, 1), (gives, offered, -1)):
            for user, most in parts.items():
                gpus = sign * most * amount / whole
                self.has[user, model] += gpus
                self._lacks[user] -= gpus * self._worth[user][model][0]
        return True

    def _could_get(self, model: str) -> Iterator[tuple[UserName, float]]:
        waits = self._waits(model)
        for user, lacks in self._lacks.items() if waits else ():
            if lacks > 0 and user in waits:
                one, _ = self._worth[user][model]
                yield user, min(waits[user], lacks / one) if one > 0 else waits[user]

    def _could_give(self, model: str) -> Iterator[tuple[UserName, float]]:
        for user, lacks in self._lacks.items():
            has = self.has.get((user, model), 0.0)
            one, is_known = self._worth[user][model]
            if lacks < 0 and has > TINY and is_known and one > 0:
                yield user, min(has * (1 - KEPT), -lacks / one)
