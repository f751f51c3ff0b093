"""What users lack of their shares, and how much heavier that makes their jobs until it is made good.

jobTickets (Gandiva_fair, eq 3) make shares right where every server carries alike. Jobs are whole, so servers never quite do: a user whose
only job is beside others on the one server that is a little too full would be short for as long as it lives. So every quantum each user's
GPUs in each pool, as seen in their turns, are set against what is due to it there, and what it lacks (or has too much) beyond the grain of
quanta and gangs makes its tickets heavier (or lighter), by so much as would make it good in `HORIZON` quanta. Loads are weighed with that, so
balance moves jobs away from who lacks, and those who had their part of crowded servers go to roomier ones.

Departure: the paper leaves this to balance alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import compress
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hs_core.lazy import lazy
from hs_core.mechanism.band import NUMBERS
from hs_core.mechanism.floor import Floor
from hs_core.mechanism.level import Level
from hs_core.mechanism.roll import Roll
from hs_core.mechanism.world import At, World
from hs_core.newest import Newest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

HORIZON = 14  # quanta; with far fewer (4) one lag is followed by the opposite one
STEPS = 64  # of a whole: factors are multiples of its inverse, so that tickets stay simple fractions
LEAST, MOST = STEPS // 2, 2 * STEPS
DIGITS = 3
WHOLE = Fraction(1)
_FACTORS = [Fraction(step, STEPS) for step in range(MOST + 1)]  # by step: the same few again and again


class Lags:
    """GPU-quanta by user and pool. `kept`: what `dump` gave last. A value: observing gives another one."""

    def __init__(self, world: World, levels: Mapping[str, Level], kept: Mapping[str, Any]) -> None:
        self._dues = _dues(_ask(world, levels))
        self.whom = self._dues.whom
        lags = [float(kept.get(model, {}).get(user, 0.0)) for user, model in self.whom]
        self.lags = self._dues.bound(np.array(lags, dtype=np.float64))

    def observe(self, got: Mapping[At, int]) -> "Lags":
        """A quantum is over, in which users' jobs had so many GPUs."""
        return self.after(np.array([got.get(at, 0) for at in self.whom], dtype=np.float64))

    def after(self, had: Floats) -> "Lags":
        """As `observe`, by `whom`."""
        if not self.whom:
            return self
        dues = self._dues
        handed, lags = dues.by_pool(had), dues.by_pool(self.lags)
        # Of what was handed out: GPUs that nobody could use are nobody's lag. And what all lack (or who left took along) nobody
        # does: else everybody's tickets would grow, and those who lack nothing be pushed aside.
        common = (handed - lags) / dues.over
        after = object.__new__(Lags)  # a copy, at a fraction of `copy`'s time: there is one each quantum
        after._dues, after.whom = dues, self.whom
        moved = dues.bound(self.lags + dues.due * common[dues.pool] - had)
        after.lags = np.where(handed[dues.pool] > 0, moved, self.lags)
        return after

    def dues(self) -> Mapping[At, float]:
        """GPUs that are due to users, pool by pool."""
        return dict(zip(self.whom, self._dues.due.tolist(), strict=True))

    @lazy
    def steps(self) -> Ints:
        """Factors in steps, one for each of `due`'s."""
        beyond = np.maximum(0.0, np.abs(self.lags) - self._dues.grain)
        change = 1.0 + beyond / (HORIZON * self._dues.due)
        steps = np.rint(STEPS * np.where(self.lags > 0, change, 1.0 / change))
        found: Ints = np.minimum(np.maximum(steps, LEAST), MOST).astype(np.int64)
        return found

    def steps_of(self, factors: Mapping[At, Fraction]) -> Ints:
        """Those as `steps` has them."""
        found = map(factors.get, self.whom)  # multiples of a step's inverse
        steps = (STEPS if one is None else STEPS * one.numerator // one.denominator for one in found)
        return np.fromiter(steps, dtype=np.int64, count=len(self.whom))

    def named(self, which: NDArray[np.bool_]) -> set[At]:
        """Of those that `steps` has."""
        return set(compress(self.whom, which.tolist()))

    def factors(self) -> dict[At, Fraction]:
        """Of tickets; those left out: 1."""
        steps = zip(self.whom, self.steps.tolist(), strict=True)
        return {at: _FACTORS[step] for at, step in steps if step != STEPS}

    def dump(self) -> dict[str, dict[str, float]]:
        """JSON-able."""
        kept: dict[str, dict[str, float]] = {}
        for (user, model), lag in zip(self.whom, self.lags.tolist(), strict=True):
            if lag:
                kept.setdefault(model, {})[user] = lag
        return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A question: who could have how much, by users in pools. Equal ones have equal answers."""

    floor: Floor
    gpus: Mapping[At, int]
    largest: Mapping[At, int]  # gang
    go_by: Sequence[Any]  # levels
    levels: Mapping[str, Level] = field(compare=False)


def _ask(world: World, levels: Mapping[str, Level]) -> _Asked:
    largest: dict[At, int] = {}
    for (user, _, model), band in world.kinds.items():
        if widths := band.widths:
            at = (user, model)
            widest = max(widths)
            if widest > largest.get(at, 0):
                largest[at] = widest
    go_by = [level.goes_by for level in levels.values()]
    return _Asked(floor=world.floor, gpus=dict(world.gpus), largest=largest, go_by=go_by, levels=levels)


class _Dues:
    """What is due to whom, and what comes and goes by itself. By `whom`. A value."""

    def __init__(self, asked: _Asked) -> None:
        places = _by_name(tuple(asked.gpus))
        gpus = np.array([asked.gpus[at] for at in places], dtype=np.float64)
        every = gpus * np.array(_parts(asked, places), dtype=np.float64)
        here = every > 0
        self.whom = list(compress(places, here.tolist()))
        models = {model: at for at, model in enumerate(asked.floor.models)}
        self._pools = len(models)
        self.pool: Ints = np.array([models[model] for _, model in self.whom], dtype=np.int64)
        self.due: Floats = every[here]
        of_pool = self.by_pool(self.due)
        self.over = np.where(of_pool > 0, of_pool, inf)  # to divide by: of nothing nobody has a part
        full = self.due >= gpus[here]
        # What comes and goes by itself: the largest gang, and as turns of many fall together; half of a gang where all should run at once.
        largest = np.array([asked.largest.get(at, 0) for at in self.whom], dtype=np.float64)
        self.grain: Floats = np.where(full, largest * 0.5, largest + np.sqrt(self.due))
        # No more than the largest factor needs. Who should run all the time cannot have had too much.
        self._most: Floats = self.grain + HORIZON * self.due * (MOST / STEPS - 1)
        self._least: Floats = -np.where(full, self.grain, self._most)

    def by_pool(self, amounts: Floats) -> Floats:
        """Added up."""
        return np.bincount(self.pool, weights=amounts, minlength=self._pools).astype(np.float64, copy=False)

    def bound(self, lags: Floats) -> Floats:
        # Among few users most of the time is numpy's own on the way to this: the shortest one.
        bound: Floats = np.minimum(np.maximum(lags, self._least), self._most).round(DIGITS)
        return bound


_dues = Newest(_Dues)
_by_name: Newest[tuple[At, ...], list[At]] = Newest(sorted)


def had_in_turn(world: World) -> dict[At, int]:
    """GPUs that users' jobs have in the turns that end now."""
    if world.roll is not None:
        return _had_by_roll(world, world.roll)
    got: dict[At, int] = {}
    running, homes, hosts = world.snapshot.running, world.homes, world.hosts
    for job in compress(world.jobs, map(running.__contains__, world.ids)):
        if home := homes.get(job.id):
            at = (job.user, hosts[home[0]].model)
            got[at] = got.get(at, 0) + job.gang
    return got


def _had_by_roll(world: World, roll: Roll) -> dict[At, int]:
    """The same among very many jobs."""
    homes = world.homes
    at = roll.places([job for job in world.snapshot.running if job in homes])
    models, users = world.models, NUMBERS.users()
    gpus = np.bincount(roll.owner[at] * len(models) + roll.pool[at], weights=roll.gang[at])
    had = np.flatnonzero(gpus)
    owner, pool = (numbers.tolist() for numbers in np.divmod(had, len(models)))
    names = ((users[one], models[other]) for one, other in zip(owner, pool, strict=True))
    return dict(zip(names, gpus[had].astype(np.int64).tolist(), strict=True))


def _parts(asked: _Asked, places: Sequence[At]) -> list[float]:
    """Of the time that users' jobs run, in pools of more than one server: within one the stride is exact."""
    servers: dict[str, int] = {}
    for rack, count in asked.floor.racks.items():
        servers[rack.model] = servers.get(rack.model, 0) + count
    parts = {model: level.parts() for model, level in asked.levels.items() if servers[model] > 1}
    return [parts[model][user] if model in parts else 0.0 for user, model in places]
