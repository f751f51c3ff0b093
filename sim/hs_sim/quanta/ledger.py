"""Series of a run: what each user received and was entitled to on each model, sampled, and bounded however long the run is."""

from collections.abc import Hashable, Iterable, Mapping
from fractions import Fraction
from typing import TypeVar

import numpy as np

from hs_core.names import UserName
from hs_sim.model import Sample
from hs_sim.quanta.rows import Bools, Floats, Ints

K = TypeVar("K", bound=Hashable)

SMALL = 2_048  # places: no more are all looked at
FEW = 16  # times fewer than places: so many are added one by one
MOST_NUMBERS = 2_000_000  # held in samples; beyond it neighbours become one


def as_floats(numbers: Iterable[Fraction]) -> Floats:
    ratios = [number.as_integer_ratio() for number in numbers]
    return np.array([over / under for over, under in ratios], dtype=np.float64)


class Sums:
    """A number for each place."""

    def __init__(self, places: int) -> None:
        self._sums: Floats = np.zeros(places)

    def add(self, places: Ints, amounts: Floats) -> None:
        """What comes to one place several times is added up first."""
        self._sums += np.bincount(places, weights=amounts, minlength=self._sums.size)

    def add_one(self, place: int, amount: float) -> None:
        self._sums[place] += amount

    def take(self) -> tuple[list[int], Floats]:
        """The places that have something, in order, and what. From then on they have nothing."""
        (at,) = (self._sums != 0.0).nonzero()  # of truths it finds them thrice as fast
        sums = self._sums[at]
        self._sums.fill(0.0)
        return at.tolist(), sums


class FewOfMany(Sums):
    """The same for very many places, of which few are added to between two samples: no others are looked at."""

    def __init__(self, places: int) -> None:
        super().__init__(places)
        self._part: Floats = np.zeros(places)
        self._touched: Bools = np.zeros(places, dtype=np.bool_)

    def add(self, places: Ints, amounts: Floats) -> None:
        if places.size * FEW > self._sums.size:
            added = np.bincount(places, weights=amounts, minlength=self._sums.size)
            self._sums += added
            self._touched |= added != 0.0
            return
        self._touched[places] = True
        np.add.at(self._part, places, amounts)
        self._sums[places] += self._part[places]
        self._part[places] = 0.0

    def add_one(self, place: int, amount: float) -> None:
        self._touched[place] = True
        self._sums[place] += amount

    def take(self) -> tuple[list[int], Floats]:
        at = np.flatnonzero(self._touched)
        sums = self._sums[at]
        self._sums[at], self._touched[at] = 0.0, False
        some = sums != 0.0
        return at[some].tolist(), sums[some]


def _sums(places: int) -> Sums:
    return Sums(places) if places <= SMALL else FewOfMany(places)


class Series:
    def __init__(
        self, users: list[UserName], owners: Mapping[tuple[UserName, str], int], sample_s: float
    ) -> None:
        """`owners`: users in pools, and the place of each."""
        self._users = users
        self._owners, self._place = [*owners], owners
        self._sample_s = sample_s
        self._began_s = 0.0
        self._gpu_s = _sums(len(owners))
        self._entitled_s = _sums(len(owners))
        self._steps = _sums(len(users))
        self._shares: Mapping[tuple[UserName, str], Fraction] = {}  # as told last
        self._entitled_at: Ints = np.empty(0, dtype=np.int64)
        self._entitled: Floats = np.empty(0)  # of those
        self._entitled_from_s = 0.0
        self._samples: list[Sample] = []
        self._spans: list[float] = []
        self._numbers = 0

    def received(self, owner: Ints, gpu_s: Floats, users: Ints, steps: Floats | None) -> None:
        """`owner`: user and model as one number. `steps`: None if there were none."""
        self._gpu_s.add(owner, gpu_s)
        if steps is not None:
            self._steps.add(users, steps)

    def received_by_one(self, owner: int, gpu_s: float, user: int, steps: float) -> None:
        self._gpu_s.add_one(owner, gpu_s)
        self._steps.add_one(user, steps)

    def entitled(self, shares: Mapping[tuple[UserName, str], Fraction], now_s: float) -> None:
        self._accrue(now_s)
        if shares is self._shares:
            return
        self._shares = shares
        of, count = map(self._place.__getitem__, shares), len(shares)
        self._entitled_at = np.fromiter(of, dtype=np.int64, count=count)
        self._entitled = as_floats(shares.values())

    def _accrue(self, now_s: float) -> None:
        if now_s == self._entitled_from_s:
            return
        self._entitled_s.add(self._entitled_at, self._entitled * (now_s - self._entitled_from_s))
        self._entitled_from_s = now_s

    def tick(self, now_s: float, *, last: bool = False) -> None:
        span_s = now_s - self._began_s
        if span_s <= 0 or (span_s < self._sample_s * (1 - 1e-9) and not last):
            return
        self._accrue(now_s)
        users, steps = self._steps.take()
        sample = Sample(
            at_s=now_s,
            gpus=self._named(self._gpu_s, span_s),
            entitled=self._named(self._entitled_s, span_s),
            steps_per_s=dict(
                zip(map(self._users.__getitem__, users), (steps / span_s).tolist(), strict=True)
            ),
        )
        self._samples.append(sample)
        self._spans.append(span_s)
        self._numbers += _size(sample)
        self._began_s = now_s
        if self._numbers > MOST_NUMBERS:
            self._thin()

    def _named(self, sums: Sums, span_s: float) -> dict[tuple[UserName, str], float]:
        at, values = sums.take()
        return dict(zip(map(self._owners.__getitem__, at), (values / span_s).tolist(), strict=True))

    def _thin(self) -> None:
        """Two samples become one, and from now on one takes twice as long."""
        pairs = list(zip(self._samples, self._spans, strict=True))
        self._samples, self._spans = [], []
        for at in range(0, len(pairs), 2):
            (one, span), *rest = pairs[at : at + 2]
            if rest:
                other, more = rest[0]
                one = Sample(
                    at_s=other.at_s,
                    gpus=_mean(one.gpus, span, other.gpus, more),
                    entitled=_mean(one.entitled, span, other.entitled, more),
                    steps_per_s=_mean(one.steps_per_s, span, other.steps_per_s, more),
                )
                span += more
            self._samples.append(one)
            self._spans.append(span)
        self._numbers = sum(map(_size, self._samples))
        self._sample_s = 2 * max(self._sample_s, max(self._spans) / 2)

    def samples(self) -> tuple[Sample, ...]:
        return tuple(self._samples)


def _size(sample: Sample) -> int:
    return len(sample.gpus) + len(sample.entitled) + len(sample.steps_per_s)


def _mean(one: Mapping[K, float], span: float, other: Mapping[K, float], more: float) -> dict[K, float]:
    whole = span + more
    return {
        key: (one.get(key, 0.0) * span + other.get(key, 0.0) * more) / whole
        for key in dict.fromkeys([*one, *other])
    }
