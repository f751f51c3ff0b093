"""What an allocation is asked with, and what it answers."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hs_core.errors import BrokenError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NO_PAIRS = np.empty((0, 2), np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Speeds of two jobs on the same GPUs, by kinds of jobs (same model, batch and gang: same speeds alone, too)."""

    kind: Ints  # of each job
    speed: Floats  # kinds x kinds x types: steps/s of a job of the first kind beside one of the second; 0: not together


@dataclass(frozen=True, kw_only=True)
class Question:
    """J jobs over T GPU types. Steps/s are those of the whole job, on all GPUs of its gang."""

    speed: Floats  # J x T, steps/s alone; 0: it can't run there
    gang: Ints  # J, GPUs
    gpus: Ints | Floats  # T; a part of a cluster may have parts of GPUs
    room: Ints = field(
        default_factory=lambda: np.zeros(0, np.int64)
    )  # T: the largest gang that fits there; none given: gpus (`replace` both)
    weight: Floats = field(default_factory=lambda: np.ones(0))  # J, above 0; none given: 1 each
    sharing: Sharing | None = None  # None: one job to a GPU

    def __post_init__(self) -> None:
        jobs, types = self.speed.shape if self.speed.ndim == 2 else (-1, -1)
        if not len(self.weight):
            object.__setattr__(self, "weight", np.ones(max(jobs, 0)))
        if not len(self.room):
            object.__setattr__(self, "room", np.floor(self.gpus).astype(np.int64))
        for name, found, expected in (
            ("room", self.room.shape, (len(self.gpus),)),
            ("speed", self.speed.shape, (len(self.gang), len(self.gpus))),
            ("weight", self.weight.shape, (len(self.gang),)),
        ):
            if found != expected:
                raise BrokenError(f"{name} has shape {found}; expected {expected} by gang and gpus")
        if not (np.isfinite(self.speed).all() and (self.speed >= 0).all()):
            raise BrokenError("speed has values below 0 or not finite; expected steps a second")
        if not ((self.weight > 0).all() and np.isfinite(self.weight).all()):
            raise BrokenError(f"weight has {self.weight.min(initial=1.0)}; expected numbers above 0")
        if (self.gang < 1).any() or (self.gpus < 0).any():
            raise BrokenError(
                "gang or gpus has values too small; expected gangs of 1 or more, no negative GPUs"
            )
        if self.sharing is not None:
            self._check_sharing(self.sharing, jobs, types)

    def _check_sharing(self, sharing: Sharing, jobs: int, types: int) -> None:
        kinds = len(sharing.speed)
        if sharing.kind.shape != (jobs,) or sharing.speed.shape != (kinds, kinds, types):
            shapes = f"kind {sharing.kind.shape} and speed {sharing.speed.shape}"
            raise BrokenError(f"sharing has {shapes}; expected ({jobs},) and (kinds, kinds, {types})")
        if jobs and not 0 <= sharing.kind.min() <= sharing.kind.max() < kinds:
            raise BrokenError(f"sharing names a kind {sharing.kind.max()}; expected 0 to {kinds - 1}")
        _, first, of = np.unique(sharing.kind, return_index=True, return_inverse=True)
        same = (self.speed == self.speed[first][of]).all() and (self.gang == self.gang[first][of]).all()
        if not same:
            raise BrokenError("two jobs of one kind have different speeds or gangs; expected the same")

    @cached_property
    def can(self) -> Bools:
        """J x T: whether the job can run there at all, for its speed and its gang."""
        able: Bools = (self.speed > 0) & (self.gang[:, None] <= self.room[None, :])
        return able

    def part(self, jobs: Ints, share: float = 1.0) -> "Question":
        """Some jobs (positions) on a share of every type."""
        return Question(
            speed=self.speed[jobs],
            gang=self.gang[jobs],
            gpus=np.asarray(self.gpus, float) * share,
            room=self.room,
            weight=self.weight[jobs],
            sharing=None
            if self.sharing is None
            else Sharing(kind=self.sharing.kind[jobs], speed=self.sharing.speed),
        )

    def blind(self, *, everywhere: bool = False) -> "Question":
        """The heterogeneity-blind question: all types are equally fast.

        `everywhere`: also where a job can't run at all, as Gavel has it (time given there is lost).
        """
        speed = np.where((self.speed > 0) | everywhere, 1.0, 0.0)
        return replace(self, speed=speed, sharing=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Fractions of time; what a job has, alone and in pairs, sums to at most 1."""

    alone: Floats  # J x T
    pairs: Ints = field(default_factory=lambda: NO_PAIRS)  # P x 2: positions of jobs, the smaller first
    paired: Floats = field(default_factory=lambda: np.empty((0, 0)))  # P x T
    value: float = 0.0  # of the policy's objective
    lps: int = 0  # linear programs it took

    def time(self) -> Floats:
        """J: the part of the time in which each job runs."""
        total: Floats = self.alone.sum(axis=1)
        if len(self.pairs):
            for side in (0, 1):
                np.add.at(total, self.pairs[:, side], self.paired.sum(axis=1))
        return total


def proportional_speed(question: Question) -> Floats:
    """J: steps/s with the same part of every type as of the cluster: what Gavel's fairness is measured in."""
    total = float(question.gpus.sum())
    share = question.gpus / (total if total > 0 else 1.0)
    speed: Floats = np.where(question.can, question.speed, 0.0) @ share
    return speed


def isolated_share(question: Question) -> Floats:
    """J x T: a cluster of its own, one J-th of this one: time on each type when its GPUs are split evenly among the jobs."""
    jobs = max(1, len(question.gang))
    share = question.gpus[None, :] / (jobs * question.gang[:, None])
    isolated: Floats = share / np.maximum(1.0, share.sum(axis=1, keepdims=True))
    return isolated


def isolated_speed(question: Question) -> Floats:
    """J: steps/s in the isolated share."""
    speed: Floats = (question.speed * isolated_share(question)).sum(axis=1)
    return speed
