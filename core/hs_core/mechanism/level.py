"""What users really get of a pool: entitlements where their jobs are, and what others leave.

An entitlement that nobody uses (its user's jobs live in other pools, and are too few or too large to be everywhere) is no GPU that
idles: the stride hands it to those who are there, in proportion to theirs. So a user gets `min(asked, level · entitled)`, with the level
at which the pool is full; below that, all it asks for.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf

import numpy as np
from numpy.typing import NDArray

from hs_core.names import UserName

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

FEW = 64  # users: up to so many are looked at one by one
EVEN = 1e-9  # of a level: what is rounded away between the level and who just gets all they ask for
COARSE = 200  # of a pool's GPUs one part may change before the level is found anew


class Level:
    def __init__(self, gpus: int, entitled: Mapping[UserName, float], asked: Mapping[UserName, int]) -> None:
        self._gpus = gpus
        self._entitled = entitled
        self._asked = dict(asked)
        self._total = sum(asked.values())
        # By name: floats do not add up the same in another order, and equal mappings may have one.
        self._rows = {
            user: at for at, user in enumerate(sorted(user for user, has in entitled.items() if has > 0))
        }
        self._has = tuple(map(entitled.__getitem__, self._rows))
        self._asks = [self._asked.get(user, 0) for user in self._rows]
        self._changed = 0
        self._level: float | None = None
        self._parts: dict[UserName, float] | None = None  # until somebody asks for more or fewer
        self._open = 0.0  # entitlements of those who do not get all they ask for

    @property
    def goes_by(self) -> tuple[int, Mapping[UserName, float], Mapping[UserName, int]]:
        """GPUs, entitlements, and what is asked for now."""
        return self._gpus, self._entitled, dict(self._asked)

    def is_of(self, gpus: int, entitled: Mapping[UserName, float], asked: Mapping[UserName, int]) -> bool:
        """One made of these would say the same: nobody has asked for more or fewer since it was found."""
        same = (self._gpus, self._entitled, self._asked) == (gpus, entitled, asked)
        return same and not self._changed

    @property
    def idle(self) -> bool:
        """Nobody asks for some of the GPUs."""
        return self._total < self._gpus

    def ask(self, user: UserName, gpus: int) -> None:
        """So many more; negative: fewer."""
        self._asked[user] = self._asked.get(user, 0) + gpus
        if (row := self._rows.get(user)) is not None:
            self._asks[row] += gpus
        self._total += gpus
        self._changed += abs(gpus)
        self._parts = None
        if self._changed * COARSE > self._gpus:
            self._level = None

    def part(self, user: UserName, more: int = 0) -> float:
        """Of the time that the user's jobs there run, if they ask for so many GPUs more; 1 if they ask for none."""
        asked = self._asked.get(user, 0)
        wants = asked + more
        if wants <= 0 or self._total + more <= self._gpus:
            return 1.0
        has = self._entitled.get(user, 0.0)
        if wants <= has:
            return 1.0
        if self._total <= self._gpus:  # the first who would wait
            asks = self._asks.copy()
            if (row := self._rows.get(user)) is not None:
                asks[row] = wants
            level, _ = self._find(asks)
            return min(1.0, max(has, self._gpus - self._total + asked, level * has) / wants)
        if has <= 0:
            return self._left(more)
        level = self._now()
        line = level * has
        before, gets = min(float(asked), line), min(float(wants), line)
        if gets > before:
            others = self._open + (has if asked <= line else 0.0)
            gets = min(gets, (level - (gets - before) / others) * has) if others > 0 else gets
        return max(has, gets) / wants

    def parts(self) -> Mapping[UserName, float]:
        """`part` of everybody who asks or asked for something."""
        if self._parts is None:
            self._parts = self._find_parts()
        return self._parts

    def _find_parts(self) -> dict[UserName, float]:
        if self._total <= self._gpus:
            return dict.fromkeys(self._asked, 1.0)
        level, entitled, left = self._now(), self._entitled, self._left()
        return {
            user: (max(has, min(asked, level * has)) / asked if has > 0 else left)
            if asked > (has := entitled.get(user, 0.0))
            else 1.0
            for user, asked in self._asked.items()
        }

    def parts_of(self, users: Sequence[UserName], which: Ints, more: Ints) -> Floats:
        """`part` of many: of these users the ones at these places, each with so many more."""
        asked = np.array([self._asked.get(user, 0) for user in users], dtype=np.int64)[which]
        has = np.array([self._entitled.get(user, 0.0) for user in users], dtype=np.float64)[which]
        wants = asked + more
        found: Floats = np.ones(len(which))
        waits = ((wants > 0) & (self._total + more > self._gpus) & (wants > has)).nonzero()[0]
        if not waits.size:
            return found
        if self._total <= self._gpus:
            some = zip(which[waits].tolist(), more[waits].tolist(), strict=True)
            found[waits] = [self.part(users[at], gpus) for at, gpus in some]
            return found
        asked, has, wants = asked[waits], has[waits], wants[waits]
        level = self._now()
        if level == inf:
            none = waits[has <= 0]
            found[none] = [self._left(gpus) for gpus in more[none].tolist()]
            return found
        line = level * has
        before, gets = np.where(line < asked, line, asked), np.where(line < wants, line, wants)
        others = self._open + np.where(asked <= line, has, 0.0)
        presses = (gets > before) & (others > 0)
        lower = (level - np.divide(gets - before, others, out=np.zeros_like(others), where=presses)) * has
        gets = np.where(presses & (lower < gets), lower, gets)
        found[waits] = np.where(gets > has, gets, has) / wants
        return found

    def _left(self, more: int = 0) -> float:
        """Part of the time for those without a share, if they ask for so many GPUs more: where nobody else wants what is left."""
        served = sum(self._asks)
        return min(1.0, max(0, self._gpus - served) / max(1, self._total + more - served))

    def _now(self) -> float:
        if self._level is None:
            self._level, self._open = self._find(self._asks)
            self._changed = 0
        return self._level

    def _find(self, asks: Sequence[int]) -> tuple[float, float]:
        """The level, and the entitlements of those who do not get all they ask for."""
        return _find(self._gpus, tuple(asks), self._has)


@lru_cache(maxsize=16)  # decisions that follow one another ask the same, pool by pool
def _find(gpus: int, asks: Sequence[int], entitled: Sequence[float]) -> tuple[float, float]:
    """`asks`, `entitled`: by user."""
    if sum(asks) <= gpus:
        return inf, 0.0
    return (one_by_one if len(asks) <= FEW else at_once)(gpus, asks, entitled)


def one_by_one(gpus: int, asks: Sequence[int], entitled: Sequence[float]) -> tuple[float, float]:
    """Level, and entitlements of those who do not get all they ask for, where not all can."""
    lines = sorted([
        (asked / has, at) for at, (asked, has) in enumerate(zip(asks, entitled, strict=True)) if asked > 0
    ])  # fmt: skip
    total = sum([entitled[at] for _, at in lines])
    served, passed = 0, 0.0  # what those ask for who get all of it, and their entitlements
    level = open_ = 0.0
    for line, at in lines:
        open_ = total - passed
        level = (gpus - served) / open_
        if level * (1 + EVEN) < line:  # the first who does not get all
            break
        served += asks[at]
        passed += entitled[at]
    return level, open_


def at_once(gpus: int, asks: Sequence[int], entitled: Sequence[float]) -> tuple[float, float]:
    """The same for many."""
    asked, has = np.array(asks, dtype=np.float64), np.array(entitled, dtype=np.float64)
    there = asked > 0
    asked, has = asked[there], has[there]
    line = asked / has
    order = np.argsort(line, kind="stable")
    asked, has, line = asked[order], has[order], line[order]
    served, open_ = np.zeros(len(line)), np.full(len(line), has.sum())
    np.cumsum(asked[:-1], out=served[1:])
    open_[1:] -= np.cumsum(has[:-1])
    levels = (gpus - served) / open_
    at = int(np.argmax(levels * (1 + EVEN) < line))
    return float(levels[at]), float(open_[at])
