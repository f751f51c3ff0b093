"""Measured mini-batch rates per (job class, model, class beside it on its GPUs or shape of an elastic job, if any): the median of the most recent samples (Gandiva_fair, 3.5).

Rates come from jobs that are hostile code: what is not a plausible rate is left out, the rest is clamped to what a
GPU can do, and a change (learning-rate phase, batch size) replaces the old samples within `KEEP` of them.

Departures: the paper takes the mean. A few reports that are far off, by a lie or a hiccup, would make and undo trades, and jobs move to and fro.
And once there are `KEEP`, reports that come soon after one another are one sample, their median: jobs report every second, and the newest reports of a class
are those of whoever has its turn just now. What a class does is what its jobs do in turns of several quanta.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from math import isfinite, sqrt
from statistics import median
from typing import Any

from hs_core.forms import Shape

KEEP = 16  # most recent samples
TOGETHER = 64  # newest reports that are one sample, at most
SURE = 2.0  # 99 of 100 samples' medians are no farther from the true one (see `_within`)
SETTLE_S = 5.0  # after a resume: caches are cold, clocks are low
SLOWEST = 1e-6  # mini-batches a second: one in eleven days
FASTEST = 1e6  # a kernel launch alone takes longer


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSample:
    """One report of a job in its turn; `since_resume_s` is when the turn's first step began."""

    job_class: str
    model: str
    steps_per_s: float
    now_s: float
    since_resume_s: float  # or since who shares its GPUs changed
    beside: str = ""  # class of the job on the same GPUs; empty: it had them for itself
    shape: Shape | None = None  # that it was told; None: as declared


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    steps_per_s: float  # median
    samples: int
    newest_s: float
    within: float  # how far from it the true one may be, as a part of it: by how much samples differ


_PLAIN: set[tuple[str, Shape | None]] = {("", None)}
_Key = tuple[str, str, str, Shape | None]
"""Class, model, class beside it, shape."""


@dataclass(slots=True)
class _Newest:
    """Reports that the newest sample is made of."""

    since_s: float
    reports: deque[float]
    newest_s: float


class Profile:
    """Mutable; no I/O, no clock."""

    def __init__(self, keep: int = KEEP, settle_s: float = SETTLE_S, every_s: float = 0.0) -> None:
        """`every_s`: of reports that come sooner after the first of them one sample is made."""
        assert keep > 0, f"{keep=}"
        self._keep = keep
        self._settle_s = settle_s
        self._every_s = every_s
        self._samples: dict[_Key, deque[tuple[float, float]]] = {}
        self._newest: dict[_Key, _Newest] = {}  # of those that have `keep`
        self._kinds: dict[tuple[str, str], set[tuple[str, Shape | None]]] = {}  # that a class has of a model
        self._dumped: dict[_Key, list[Any]] = {}  # in order
        self._undumped: dict[_Key, None] = {}  # measured since

    def add(self, sample: RateSample) -> bool:
        """Whether it was taken in: not so soon after a resume, and not if it is no rate at all."""
        rate = sample.steps_per_s
        if (
            not isfinite(rate)
            or rate <= 0
            or not isfinite(sample.now_s)
            or not sample.since_resume_s >= self._settle_s
        ):
            return False
        key = (sample.job_class, sample.model, sample.beside, sample.shape)
        self._take_in(key, min(FASTEST, max(SLOWEST, rate)), sample.now_s)
        return True

    def _take_in(self, key: _Key, rate: float, now_s: float) -> None:
        self._undumped[key] = None
        newest = self._newest.get(key)
        if newest is not None and 0 <= now_s - newest.since_s < self._every_s:
            newest.reports.append(rate)
            newest.newest_s = now_s
            return
        samples = self._of(*key)
        self._put_together(key)
        samples.append((rate, now_s))
        if self._every_s and len(samples) == self._keep:
            self._newest[key] = _Newest(now_s, deque((rate,), maxlen=TOGETHER), now_s)

    def _put_together(self, key: _Key) -> None:
        newest = self._newest.get(key)
        if newest is not None and len(newest.reports) > 1:
            self._samples[key][-1] = (median(newest.reports), newest.newest_s)

    def _of(self, job_class: str, model: str, beside: str, shape: Shape | None) -> deque[tuple[float, float]]:
        key = (job_class, model, beside, shape)
        found = self._samples.get(key)
        if found is None:
            found = self._samples[key] = deque(maxlen=self._keep)
            self._kinds.setdefault((job_class, model), set()).add((beside, shape))
        return found

    def is_plain(self, job_class: str, model: str) -> bool:
        """All that is known of it there is with its GPUs for itself, in the shape that it declared."""
        return self._kinds.get((job_class, model)) == _PLAIN

    def rate(self, job_class: str, model: str, beside: str = "", shape: Shape | None = None) -> Rate | None:
        key = (job_class, model, beside, shape)
        samples = self._samples.get(key)
        if not samples:
            return None
        self._put_together(key)
        rates = sorted(rate for rate, _ in samples)
        return Rate(
            steps_per_s=median(rates),
            samples=len(samples),
            newest_s=max(now_s for _, now_s in samples),
            within=_within(rates),
        )

    def rates(self, job_class: str) -> dict[str, Rate]:
        """By model, those that have samples; with its GPUs for itself, in the shape that it declared."""
        found = {
            model: self.rate(job_class, model)
            for of, model, beside, shape in self._samples
            if of == job_class and not beside and shape is None
        }
        return {model: rate for model, rate in sorted(found.items()) if rate is not None}

    def beside(self, job_class: str, model: str) -> dict[str, Rate]:
        """By class of the job on the same GPUs, those that have samples."""
        kinds = self._kinds.get((job_class, model), ())
        found = {
            other: self.rate(job_class, model, other)
            for other in sorted({other for other, _ in kinds if other})
        }
        return {other: rate for other, rate in found.items() if rate is not None}

    def shapes(self, job_class: str, model: str) -> dict[Shape, Rate]:
        """By shape, those that have samples."""
        kinds = self._kinds.get((job_class, model), ())
        shapes = sorted((shape for _, shape in kinds if shape is not None), key=astuple)
        found = {shape: self.rate(job_class, model, shape=shape) for shape in shapes}
        return {shape: rate for shape, rate in found.items() if rate is not None}

    def of(self, job_class: str) -> dict[tuple[str, str, Shape | None], Rate]:
        """All that has samples, by model, class of the job on the same GPUs and shape."""
        models = sorted({model for name, model in self._kinds if name == job_class})
        found: dict[tuple[str, str, Shape | None], Rate] = {}
        for model in models:
            kinds = sorted(self._kinds[job_class, model], key=lambda kind: (kind[0], _plain(kind[1])))
            for beside, shape in kinds:
                if (rate := self.rate(job_class, model, beside, shape)) is not None:
                    found[model, beside, shape] = rate
        return found

    def speedup(self, job_class: str, fast: str, slow: str) -> float | None:
        """Rate on `fast` over rate on `slow`; None unless both were measured."""
        over, under = self.rate(job_class, fast), self.rate(job_class, slow)
        return over.steps_per_s / under.steps_per_s if over and under else None

    def forget(self, job_class: str) -> None:
        for key in [key for key in self._samples if job_class in (key[0], key[2])]:
            del self._samples[key]
            self._newest.pop(key, None)
            self._dumped.pop(key, None)
            self._undumped.pop(key, None)
            kinds = self._kinds[key[:2]]
            kinds.discard(key[2:])
            if not kinds:
                del self._kinds[key[:2]]

    def dump(self) -> list[Any]:
        """JSON-able. What was not measured since it was dumped last is the very same: it is asked for every few seconds, of all classes."""
        new = self._undumped.keys() - self._dumped.keys()
        for key in self._undumped:
            self._put_together(key)
            *names, shape = key
            plain = None if shape is None else astuple(shape)
            self._dumped[key] = [*names, plain, [list(sample) for sample in self._samples[key]]]
        self._undumped.clear()
        if new:
            self._dumped = dict(sorted(self._dumped.items(), key=_order))
        return list(self._dumped.values())

    @classmethod
    def load(
        cls, dumped: list[Any], keep: int = KEEP, settle_s: float = SETTLE_S, every_s: float = 0.0
    ) -> "Profile":
        profile = cls(keep, settle_s, every_s)
        for job_class, model, beside, shape, samples in dumped:
            key = (job_class, model, beside, _shape(shape))
            profile._of(*key).extend((rate, now_s) for rate, now_s in samples)
            profile._undumped[key] = None
        return profile


def _within(rates: Sequence[float]) -> float:
    """How far their median may be from the true one, as a part of it. `rates`: sorted.

    By the middle half of them, so that a few that are far off count for nothing, as in the notches of box plots.
    """
    aside = (len(rates) - 1) // 4
    spread = rates[len(rates) - 1 - aside] - rates[aside]
    return SURE * spread / (median(rates) * sqrt(len(rates)))


def _order(item: tuple[_Key, object]) -> tuple[object, ...]:
    *key, shape = item[0]
    return (*key, _plain(shape))


def _plain(shape: Shape | None) -> tuple[int, ...]:
    return () if shape is None else astuple(shape)


def _shape(dumped: Sequence[int] | None) -> Shape | None:
    if dumped is None:
        return None
    gpus, per_gpu, parts, nodes = dumped
    return Shape(gpus=gpus, per_gpu=per_gpu, parts=parts, nodes=nodes)
