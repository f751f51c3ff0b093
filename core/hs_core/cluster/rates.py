"""Rates as they are measured: which reports tell one, and what is known of a class on the pools."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hs_core.copier import maker
from hs_core.forms import Shape
from hs_core.job_class import class_over, job_class
from hs_core.model import JobSpec, spreads
from hs_core.names import GpuId, JobId, UserName
from hs_core.profile import SETTLE_S, Profile, Rate, RateSample
from hs_core.reports import JobReport, Phase
from hs_core.speeds import GpuSpeeds
from hs_core.strategy import Strategy, class_as

ENOUGH = 3  # samples, before a policy sees the rate
QUANTA_A_SAMPLE = 0.5  # once all that are kept are there: they are of several quanta then, whoever has a turn
_sample = maker(RateSample)
_Turn = tuple[int, int, tuple[JobId, ...]]  # epoch, resumes, who shares its GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRate:
    """Of one job class on one pool."""

    model: str
    steps_per_s: float
    samples: int
    newest_s: float
    speedup: float  # against the slowest pool that was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class WayRate:
    """Of one job class on one pool, in one of the ways in which a job may run."""

    model: str
    steps_per_s: float
    nodes: int  # servers
    strategy: Strategy | None = None  # None: it declared none
    shape: Shape | None = None  # None: it is not elastic
    beside: str = ""  # class of the job on the same GPUs; empty: it had them for itself


class Rates:
    """The profile, fed by reports. Bounded: classes are made up by users."""

    def __init__(
        self, dumped: list[Any], quantum_s: float, most_classes: int, gpus: Sequence[Any] = ()
    ) -> None:
        """`dumped`, `gpus`: as `dump` and `gpus.dump` said."""
        # A turn of a second or two, as demonstrations have them, is measured as well.
        self._profile = Profile.load(
            dumped, settle_s=min(SETTLE_S, quantum_s / 4), every_s=QUANTA_A_SAMPLE * quantum_s
        )
        self._most = most_classes
        self._classes = dict.fromkeys(entry[0] for entry in dumped)  # by newest sample, oldest first
        self._turns: dict[JobId, dict[str, tuple[_Turn, float]]] = {}  # by copy, and seconds run before
        self._known: dict[tuple[str, str], float] = {}
        self._within: dict[tuple[str, str], float] = {}  # of these, but for 0
        self._outdated: set[tuple[str, str]] = set()  # of those: measured again since they were shown
        self.interference: dict[tuple[str, str, str], float] = {}
        """(class, class beside it, model) → how many times as long its mini-batches take, at least 1."""
        self.speeds: dict[tuple[str, str], dict[Shape, float]] = {}
        """(class, model) → mini-batches a second of an elastic job in each shape."""
        self._shapes = 0  # in all of `speeds`
        for name, model, *_ in dumped:
            self._show(name, model)
        self.gpus = GpuSpeeds.load(list(gpus))

    def turn_s(self, old: JobReport | None, new: JobReport, of: str = "") -> float | None:
        """Seconds that its turn has been on, with who shares its GPUs now; None: the report tells no rate, or none that was not told before.

        To be asked of every report. `of`: the server of one of its copies.
        """
        which = (new.epoch, new.resumes, new.beside)
        turns = self._turns.get(new.job)
        if turns is None:
            turns = self._turns[new.job] = {}
        turn = turns.get(of)
        if turn is None or turn[0] != which:
            before_s = old.run_s if old is not None and old.epoch == new.epoch else 0.0
            turn = turns[of] = (which, before_s)
        if new.steps_per_s <= 0 or old is None or not _is_news(old, new):
            return None
        return new.run_s - turn[1]

    def measured(
        self,
        job_class: str,
        models: Sequence[str],
        steps_per_s: float,
        turn_s: float,
        now_s: float,
        *,
        beside: Collection[str] = (),
        split: bool = False,
        shape: Shape | None = None,
        declared: Shape | None = None,
        gpus: Sequence[GpuId] = (),
    ) -> bool:
        """Whether the rate was taken in. `models`: of its servers; `beside`: classes of the jobs on its GPUs; `split`: its mini-batches are worked through in parts;
        `shape`: that an elastic job was told; `declared`: of one that was told none, which is what it has; `gpus`: all that it had.

        How much two jobs slow each other is taken to be the same whatever the parts; alone, a job that is split tells nothing of one that is not.
        """
        model = self._slowest(job_class, models)
        if model is None or len(beside) > 1 or (split and not beside) or (shape is not None and beside):
            return False
        sample = _sample(
            job_class=job_class,
            model=model,
            steps_per_s=steps_per_s,
            now_s=now_s,
            since_resume_s=turn_s,
            beside=next(iter(beside), ""),
            shape=shape,
        )
        if not self._profile.add(sample):
            return False
        in_shape = shape
        if declared is not None and shape is None and not beside:
            in_shape = declared
            self._profile.add(replace(sample, shape=declared))
        if not beside and shape is None and gpus and all(one == model for one in models):
            self.gpus.add(job_class, model, gpus, steps_per_s)
        self._classes.pop(job_class, None)
        self._classes[job_class] = None
        if (job_class, model) in self._known and self._profile.is_plain(job_class, model):
            self._outdated.add((job_class, model))  # jobs report every second, decisions are fewer
        else:
            self._show_sample(sample, in_shape)
        if len(self._classes) > self._most:
            self._forget_class(next(iter(self._classes)))
        return True

    def _slowest(self, job_class: str, models: Sequence[str]) -> str | None:
        """A gang is as fast as its slowest server; where that is not known of several models, its rate is no model's."""
        if len(models) == 1:
            return models[0]
        several = sorted(set(models))
        if len(several) == 1:
            return several[0]
        known = self.known
        rate, model = min((known.get((job_class, model), 0.0), model) for model in several)
        return model if rate > 0 else None

    @property
    def known(self) -> Mapping[tuple[str, str], float]:
        """(class, model) → mini-batches a second."""
        self._show_outdated()
        return self._known

    @property
    def within(self) -> Mapping[tuple[str, str], float]:
        """(class, model) → how far from the known rate the true one may be, as a part of it; left out: it is the same."""
        self._show_outdated()
        return self._within

    @property
    def count(self) -> int:
        """How much is known."""
        return len(self._known) + len(self.interference) + self._shapes

    def _show_outdated(self) -> None:
        for key in self._outdated:
            self._show_plain(*key)
        self._outdated.clear()

    def _show_plain(self, job_class: str, model: str) -> None:
        rate = self._profile.rate(job_class, model)
        if rate is None or rate.samples < ENOUGH:
            return
        self._known[job_class, model] = rate.steps_per_s
        if rate.within:
            self._within[job_class, model] = rate.within
        else:
            self._within.pop((job_class, model), None)

    def _show(self, job_class: str, model: str) -> None:
        self._show_plain(job_class, model)
        for beside, shared in self._profile.beside(job_class, model).items():
            self._show_beside(job_class, model, beside, shared)
        for shape, found in self._profile.shapes(job_class, model).items():
            self._show_shape(job_class, model, shape, found)

    def _show_sample(self, sample: RateSample, shape: Shape | None) -> None:
        """What one more sample may have changed. `shape`: in which it was taken."""
        job_class, model = sample.job_class, sample.model
        self._show_plain(job_class, model)
        if sample.beside:
            shared = self._profile.rate(job_class, model, sample.beside)
            self._show_beside(job_class, model, sample.beside, shared)
        elif sample.shape is None:  # by which all that it does beside others is measured
            for beside, known in self._profile.beside(job_class, model).items():
                self._show_beside(job_class, model, beside, known)
        if shape is not None:
            self._show_shape(job_class, model, shape, self._profile.rate(job_class, model, shape=shape))

    def _show_beside(self, job_class: str, model: str, beside: str, shared: Rate | None) -> None:
        alone = self._known.get((job_class, model))
        if shared is not None and shared.samples >= ENOUGH and alone is not None:
            self.interference[job_class, beside, model] = max(1.0, alone / shared.steps_per_s)

    def _show_shape(self, job_class: str, model: str, shape: Shape, found: Rate | None) -> None:
        if found is not None and found.samples >= ENOUGH:
            speeds = self.speeds.setdefault((job_class, model), {})
            self._shapes += shape not in speeds
            speeds[shape] = found.steps_per_s

    def _forget_class(self, job_class: str) -> None:
        del self._classes[job_class]
        self._profile.forget(job_class)
        self.gpus.forget(job_class)
        self._outdated = {key for key in self._outdated if key[0] != job_class}
        for known in (self._known, self._within, self.speeds):
            for key in [key for key in known if key[0] == job_class]:
                del known[key]
        self._shapes = sum(map(len, self.speeds.values()))
        for pair in [pair for pair in self.interference if job_class in pair[:2]]:
            del self.interference[pair]

    def forget_job(self, job: JobId) -> None:
        self._turns.pop(job, None)

    def of(self, job_class: str) -> tuple[PoolRate, ...]:
        rates = self._profile.rates(job_class)
        slowest = min((rate.steps_per_s for rate in rates.values()), default=1.0)
        return tuple(
            PoolRate(
                model=model,
                steps_per_s=rate.steps_per_s,
                samples=rate.samples,
                newest_s=rate.newest_s,
                speedup=rate.steps_per_s / slowest,
            )
            for model, rate in rates.items()
        )

    def ways(self, spec: JobSpec, user: UserName) -> Iterator[WayRate]:
        """All that was measured of its class: in each strategy that it declares, over each number of servers that it leaves open, in each shape, beside each class."""
        declared = job_class(user, spec)
        own = spec.elastic.on(spec.gang, spec.nodes) if spec.elastic is not None else None
        for nodes in spreads(spec) or (spec.nodes,):
            laid = class_over(declared, spec.nodes, nodes)
            for strategy in spec.strategies or (None,):
                for (model, beside, shape), rate in self._profile.of(class_as(laid, strategy)).items():
                    if own is not None and shape is None and not beside:
                        continue  # it is under that shape, too
                    yield WayRate(
                        model=model,
                        steps_per_s=rate.steps_per_s,
                        nodes=shape.nodes if shape is not None else nodes,
                        strategy=strategy,
                        shape=shape or own,
                        beside=beside,
                    )

    def dump(self) -> list[Any]:
        return self._profile.dump()


def _is_news(old: JobReport, new: JobReport) -> bool:
    """A rate measured in a turn that is on, or was when this was measured; what is only repeated tells nothing."""
    if new.phase is Phase.RUNNING:
        return new.steps_per_s != old.steps_per_s or (new.run_s > old.run_s and new.step > old.step)
    return new.suspends > old.suspends and new.run_s > old.run_s
