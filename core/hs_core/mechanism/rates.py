"""Speeds of job classes on pools, as ratios that can be compared between users."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import fsum, hypot, inf
from typing import NamedTuple

from hs_core.mechanism.world import World
from hs_core.names import UserName
from hs_core.newest import Newest
from hs_core.policy import Snapshot

_Classes = Mapping[str, int]
"""Of a user's jobs, and the GPUs that they ask for."""


class _Bid(NamedTuple):
    speedup: float | None  # of a user
    steps: Sequence[tuple[float, int]]  # of its classes, if they are several, with the GPUs that they ask for
    within: float  # how far off it may be, as a part of it
    known: int  # GPUs that its classes ask for which have been measured on both
    unknown: int  # and the others


Kinds = Sequence[tuple[str, str, int]]
"""Of a user's jobs: class, model, and GPUs that they ask for."""
Value = Mapping[str, tuple[float, bool]]
"""By model: a GPU's, and whether all of the user's classes that live there were measured there."""

_Found = dict[tuple[str, str], _Bid]
"""By (fast, slow)."""


HOPE = (
    1.25  # what a newer model is taken to be worth before anybody knows: the least that table 1 has is 1.22
)


class Speeds:
    """How many times as fast a class is on a pool as on the slowest where it was measured and makes any progress."""

    def __init__(
        self,
        rates: Mapping[tuple[str, str], float],
        models: Iterable[str],
        within: Mapping[tuple[str, str], float] | None = None,
    ) -> None:
        """`rates`, `within`: as in a snapshot. `models`: newest first."""
        self._models = tuple(models)
        known = set(self._models)
        self._rates = rates
        self._within = within or {}
        slowest: dict[str, float] = {}
        for (job_class, model), rate in rates.items():
            if model in known and 0 < rate < slowest.get(job_class, inf):
                slowest[job_class] = rate
        self._speeds = {at: rate / slowest.get(at[0], 1.0) for at, rate in rates.items()}
        self._hoped: dict[str, tuple[float, ...]] = {}
        self._bids: dict[UserName, tuple[_Classes, _Found]] = {}
        self._worth: dict[UserName, tuple[Kinds, Value]] = {}

    def get(self, job_class: str, model: str) -> float | None:
        return self._speeds.get((job_class, model))

    def hoped(self, job_class: str) -> tuple[float, ...]:
        """By model: where it was not measured as fast as on the next newer one, or a little faster than on the next older (as `Worth` has it)."""
        found = self._hoped.get(job_class)
        if found is None:
            found = self._hoped[job_class] = tuple(self._hope(job_class))
        return found

    def _hope(self, job_class: str) -> Iterator[float]:
        known = [self.get(job_class, model) for model in self._models]
        for at, speed in enumerate(known):
            newer = next((other for other in reversed(known[: at + 1]) if other is not None), None)
            older = next((other for other in known[at:] if other is not None), 1 / HOPE)
            yield HOPE * older if newer is None else newer if speed is None else speed

    def rate(self, job_class: str, model: str) -> float | None:
        """Mini-batches a second."""
        return self._rates.get((job_class, model))

    def within(self, job_class: str, model: str) -> float:
        """How far from its rate the true one may be, as a part of it."""
        return self._within.get((job_class, model), 0.0)

    def bids(self, user: UserName, classes: "_Classes") -> "_Found":
        """The user's that have been found so far, with those classes: as long as rates stay so do they."""
        kept = self._bids.get(user)
        if kept is None or kept[0] != classes:
            kept = self._bids[user] = classes, {}
        return kept[1]

    def worth(self, user: UserName, kinds: Kinds) -> Value:
        """Mean over what the user's jobs ask for; kept for as long as that stays the same."""
        kept = self._worth.get(user)
        if kept is None or kept[0] != kinds:
            kept = self._worth[user] = kinds, self._value(kinds)
        return kept[1]

    def _value(self, kinds: Kinds) -> Value:
        classes: dict[str, int] = {}
        untold: set[str] = set()
        for job_class, model, gpus in kinds:
            classes[job_class] = classes.get(job_class, 0) + gpus
            if self.get(job_class, model) is None:
                untold.add(model)
        whole, rows = sum(classes.values()), [(gpus, self.hoped(one)) for one, gpus in classes.items()]
        return {
            model: (fsum([gpus * row[at] for gpus, row in rows]) / whole, model not in untold)
            for at, model in enumerate(self._models)
        }

    def measured(self, job_class: str, models: Iterable[str]) -> bool:
        return all((job_class, model) in self._rates for model in models)


_Asked = tuple[Mapping[tuple[str, str], float], tuple[str, ...], Mapping[tuple[str, str], float]]
_speeds: Newest[_Asked, Speeds] = Newest(lambda asked: Speeds(*asked))


def speeds_of(snapshot: Snapshot, models: Sequence[str]) -> Speeds:
    """Worked out anew where they are not those of the decision before."""
    return _speeds((snapshot.rates, tuple(models), snapshot.rates_within))


AWAITED_QUANTA = 15  # since a job was placed: its rate should be known by then


class Bids:
    """Users' speed-ups: over their classes that were measured on both pools, weighted by the GPUs that they ask for.

    None is known where other classes, which could run on both, ask for more GPUs than these: what a few jobs gain tells nothing of them, and who
    has traded all of a slow pool away would never have them measured there.
    """

    def __init__(self, world: World, speeds: Speeds) -> None:
        self._world = world
        self._speeds = speeds
        self._found: dict[UserName, _Found] = {}
        self._demands: dict[UserName, list[tuple[tuple[str, ...], int]]] = {}
        for (user, models), gpus in world.demands.items():
            self._demands.setdefault(user, []).append((models, gpus))
        self.classes: dict[UserName, dict[str, int]] = {}  # of each user's jobs, and the GPUs they ask for
        for (user, job_class, _), gpus in world.kind_gpus.items():
            mine = self.classes.setdefault(user, {})
            mine[job_class] = mine.get(job_class, 0) + gpus
        for job in world.new:
            mine = self.classes.setdefault(job.user, {})
            mine[job.job_class] = mine.get(job.job_class, 0) + job.gang

    def __call__(self, user: UserName, fast: str, slow: str) -> float | None:
        bid = self._of(user, fast, slow)
        if bid.unknown > bid.known and bid.unknown - self._to_one(user, fast, slow) > bid.known:
            return None
        return bid.speedup

    def _to_one(self, user: UserName, fast: str, slow: str) -> int:
        """GPUs that jobs ask for which cannot run on both."""
        return sum(
            gpus for models, gpus in self._demands.get(user, ()) if fast not in models or slow not in models
        )

    def steps(self, user: UserName, fast: str, slow: str) -> Sequence[tuple[float, int]]:
        """As `trade.Steps` has it."""
        return self._of(user, fast, slow).steps

    def within(self, user: UserName, fast: str, slow: str) -> float:
        """As `trade.Within` has it."""
        return self._of(user, fast, slow).within

    def _of(self, user: UserName, fast: str, slow: str) -> _Bid:
        found = self._found.get(user)
        if found is None:
            found = self._found[user] = self._speeds.bids(user, self.classes.get(user, {}))
        bid = found.get((fast, slow))
        if bid is None:
            bid = found[fast, slow] = self._find(user, fast, slow)
        return bid

    def _find(self, user: UserName, fast: str, slow: str) -> _Bid:
        steps, off = list[tuple[float, int]](), list[float]()
        speeds, unknown = self._speeds, 0
        for job_class, gpus in self.classes.get(user, {}).items():
            over, under = speeds.rate(job_class, fast), speeds.rate(job_class, slow)
            if over is None or under is None:
                unknown += gpus
            elif under > 0 and gpus > 0:
                steps.append((over / under, gpus))
                within = hypot(speeds.within(job_class, fast), speeds.within(job_class, slow))
                off.append(gpus * (over / under) * within)
        if not steps:
            return _Bid(None, (), 0.0, 0, unknown)
        # The same in whatever order classes come.
        worth, known = fsum(gpus * speedup for speedup, gpus in steps), sum(gpus for _, gpus in steps)
        within = fsum(off) / worth if worth else 0.0
        several = sorted(steps, reverse=True) if len(steps) > 1 else ()
        return _Bid(worth / known, several, within, known, unknown)

    def awaited(self, user: UserName, fast: str, slow: str) -> bool:
        """A class of the user's is on both pools, or new on one of them, and will have been measured on both soon."""
        snapshot = self._world.snapshot
        since_s = snapshot.now_s - AWAITED_QUANTA * snapshot.quantum_s
        for job_class in self.classes.get(user, ()):
            missing = [model for model in (fast, slow) if self._speeds.rate(job_class, model) is None]
            there = [self._world.kinds.get((user, job_class, model)) for model in missing]
            if missing and all(any(job.settled_s > since_s for job in jobs or ()) for jobs in there):
                return True
        return False
