"""What users lack of their shares, and how much heavier that makes their jobs until it is made good.

jobTickets (Gandiva_fair, eq 3) make shares right where every server carries alike. Jobs are whole, so servers never quite do: a user whose
only job is beside others on the one server that is a little too full would be short for as long as it lives. So every quantum each user's
GPUs in each pool, as seen in their turns, are set against what is due to it there, and what it lacks (or has too much) beyond the grain of
quanta and gangs makes its tickets heavier (or lighter), by so much as would make it good in `HORIZON` quanta. Loads are weighed with that, so
balance moves jobs away from who lacks, and those who had their part of crowded servers go to roomier ones.

Departure: the paper leaves this to balance alone.
"""

from collections.abc import Mapping
from fractions import Fraction
from math import sqrt
from typing import Any

from hs_core.mechanism.level import Level
from hs_core.mechanism.world import At, World
from hs_core.model import UserName

HORIZON = 10  # quanta
STEPS = 32  # of a whole: factors are multiples of its inverse, so that tickets stay simple fractions
LEAST, MOST = STEPS // 2, 2 * STEPS
DIGITS = 3
WHOLE = Fraction(1)


class Lags:
    """GPU-quanta by user and pool. `kept`: what `dump` gave last."""

    def __init__(self, world: World, levels: Mapping[str, Level], kept: Mapping[str, Any]) -> None:
        self._due = _due(world, levels)
        self._grain = _grain(world, self._due)
        self._full = {at for at, gpus in self._due.items() if gpus >= world.gpus[at]}
        self._lags = {
            at: self._bound(at, float(lag))
            for model, lags in kept.items()
            for user, lag in lags.items()
            if (at := (UserName(user), model)) in self._due
        }

    def observe(self, world: World) -> None:
        """A quantum is over: who is in its turn was so during it."""
        got: dict[At, int] = {}
        for job in world.jobs:
            if job.running and (home := world.homes.get(job.id)):
                at = (job.user, world.model(home))
                got[at] = got.get(at, 0) + job.gang
        for model in world.models:
            users = [at for at in self._due if at[1] == model]
            handed, due = sum(got.get(at, 0) for at in users), sum(self._due[at] for at in users)
            if handed and due > 0:
                # Of what was handed out: GPUs that nobody could use are nobody's lag. And what all lack (or who left took along) nobody
                # does: else everybody's tickets would grow, and those who lack nothing be pushed aside.
                common = handed - sum(self._lags.get(at, 0.0) for at in users)
                for at in users:
                    lag = self._lags.get(at, 0.0) + self._due[at] * common / due - got.get(at, 0)
                    self._lags[at] = self._bound(at, lag)

    def factors(self) -> dict[At, Fraction]:
        """Of tickets; those left out: 1."""
        found = {}
        for at, lag in self._lags.items():
            beyond = abs(lag) - self._grain[at]
            if beyond > 0:
                change = beyond / (HORIZON * self._due[at])
                steps = round(STEPS * (1 + change if lag > 0 else 1 / (1 + change)))
                if steps != STEPS:
                    found[at] = Fraction(min(MOST, max(LEAST, steps)), STEPS)
        return found

    def dump(self) -> dict[str, dict[str, float]]:
        """JSON-able."""
        kept: dict[str, dict[str, float]] = {}
        for (user, model), lag in sorted(self._lags.items()):
            if lag:
                kept.setdefault(model, {})[user] = lag
        return kept

    def _bound(self, at: At, lag: float) -> float:
        """No more than the largest factor needs. Who should run all the time cannot have had too much."""
        most = self._grain[at] + HORIZON * self._due[at] * (MOST / STEPS - 1)
        least = self._grain[at] if at in self._full else most
        return round(max(-least, min(most, lag)), DIGITS)


def _due(world: World, levels: Mapping[str, Level]) -> dict[At, float]:
    """GPUs by user, in pools of more than one server: within one the stride is exact."""
    servers: dict[str, int] = {}
    for rack, count in world.racks.items():
        servers[rack.model] = servers.get(rack.model, 0) + count
    return {
        (user, model): gpus * levels[model].part(user)
        for (user, model), gpus in sorted(world.gpus.items())
        if gpus > 0 and servers[model] > 1 and levels[model].part(user) > 0
    }


def _grain(world: World, due: Mapping[At, float]) -> dict[At, float]:
    """What comes and goes by itself: the largest gang, and as turns of many fall together; half of a gang where all should run at once."""
    largest: dict[At, int] = {}
    for (user, _, model), jobs in world.kinds.items():
        if jobs and (at := (user, model)) in due:
            largest[at] = max([largest.get(at, 0), *(job.gang for job in jobs)])
    return {
        at: largest.get(at, 0) * 0.5 if gpus >= world.gpus[at] else largest.get(at, 0) + sqrt(gpus)
        for at, gpus in due.items()
    }
