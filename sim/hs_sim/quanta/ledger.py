"""Series of a run: what each user received and was entitled to on each model, sampled, and bounded however long the run is."""

from collections.abc import Hashable, Mapping
from fractions import Fraction
from typing import TypeVar

import numpy as np

from hs_core.names import UserName
from hs_sim.model import Sample
from hs_sim.quanta.rows import Floats, Ints

K = TypeVar("K", bound=Hashable)

MOST_NUMBERS = 2_000_000  # held in samples; beyond it neighbours become one


class Series:
    def __init__(self, users: list[UserName], models: list[str], sample_s: float) -> None:
        self.users, self.models = users, models
        self._user = {user: at for at, user in enumerate(users)}
        self._model = {model: at for at, model in enumerate(models)}
        self._sample_s = sample_s
        self._began_s = 0.0
        self._gpu_s: Floats = np.zeros(len(users) * len(models))
        self._entitled_s: Floats = np.zeros(len(users) * len(models))
        self._steps: Floats = np.zeros(len(users))
        self._entitled: Floats = np.zeros(len(users) * len(models))
        self._entitled_from_s = 0.0
        self._samples: list[Sample] = []
        self._spans: list[float] = []
        self._numbers = 0

    def received(self, owner: Ints, gpu_s: Floats, users: Ints, steps: Floats | None) -> None:
        """`owner`: user and model as one number. `steps`: None if there were none."""
        self._gpu_s += np.bincount(owner, weights=gpu_s, minlength=self._gpu_s.size)
        if steps is not None:
            self._steps += np.bincount(users, weights=steps, minlength=self._steps.size)

    def entitled(self, shares: Mapping[tuple[UserName, str], Fraction], now_s: float) -> None:
        self._accrue(now_s)
        self._entitled[:] = 0.0
        for (user, model), share in shares.items():
            self._entitled[self._user[user] * len(self.models) + self._model[model]] = float(share)

    def _accrue(self, now_s: float) -> None:
        self._entitled_s += self._entitled * (now_s - self._entitled_from_s)
        self._entitled_from_s = now_s

    def tick(self, now_s: float, *, last: bool = False) -> None:
        span_s = now_s - self._began_s
        if span_s <= 0 or (span_s < self._sample_s * (1 - 1e-9) and not last):
            return
        self._accrue(now_s)
        sample = Sample(
            at_s=now_s,
            gpus=self._named(self._gpu_s / span_s),
            entitled=self._named(self._entitled_s / span_s),
            steps_per_s={
                self.users[at]: float(self._steps[at] / span_s) for at in np.flatnonzero(self._steps).tolist()
            },
        )
        self._samples.append(sample)
        self._spans.append(span_s)
        self._numbers += _size(sample)
        self._began_s = now_s
        self._gpu_s[:] = self._entitled_s[:] = 0.0
        self._steps[:] = 0.0
        if self._numbers > MOST_NUMBERS:
            self._thin()

    def _named(self, values: Floats) -> dict[tuple[UserName, str], float]:
        models = len(self.models)
        return {
            (self.users[at // models], self.models[at % models]): float(values[at])
            for at in np.flatnonzero(values).tolist()
        }

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
