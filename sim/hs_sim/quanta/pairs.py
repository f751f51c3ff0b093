"""Jobs on the same GPUs: how much they slow each other, what each is charged, and what was measured of it."""

from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import product

from hs_sim.model import Experiment
from hs_sim.quanta.fleet import Fleet
from hs_sim.quanta.profile import ENOUGH
from hs_sim.quanta.rows import Ints
from hs_sim.quanta.turns import Turns

Key = tuple[str, str, str]
"""(class, class beside it, GPU model)"""
Share = tuple[int, int, int, int]
"""(server, job, another job, GPUs that both are on), the lesser job first"""


class Pairs:
    """At most two jobs on a GPU: a guest, and the partner whose GPU it is."""

    def __init__(self, fleet: Fleet, turns: Turns, moving: Container[int], experiment: Experiment) -> None:
        """`moving`: jobs that write a checkpoint, on GPUs that are theirs, and their partners', until it is written."""
        self._fleet = fleet
        self._moving = moving
        self._last: list[Share] = []  # those that were running when it was looked last
        self._turns = turns
        self._truth = Interference(fleet, experiment.workload.interference)
        self._otherwise = experiment.interference
        self._known = experiment.known_rates
        self._slowed: dict[int, tuple[int, ...]] = {}  # and by whom: those that share now
        self._reports: dict[Key, int] = {}
        self._measured: dict[Key, float] = {}

    @property
    def any(self) -> bool:
        """Somebody shares GPUs, or is to."""
        return bool(self._turns.guests or self._last)

    def guest(self, job: int) -> bool:
        return job in self._turns.guests

    def shares(self) -> list[Share]:
        """Of the turns, and of those that are about to leave GPUs which they still share."""
        running = self._fleet.running
        found = {
            (row, min(guest, partner), max(guest, partner)): gpus
            for guest, shares in self._turns.guests.items()
            for row, partner, gpus in shares
        }
        for row, one, other, gpus in self._last:
            if (one in self._moving or other in self._moving) and running[one] and running[other]:
                found.setdefault((row, one, other), gpus)
        return [(*key, gpus) for key, gpus in found.items()]

    def kept(self, job: int) -> dict[int, int]:
        """By server, GPUs that stay in use by others when it goes."""
        found: dict[int, int] = {}
        for row, one, other, gpus in self._last:
            if job in (one, other) and self._fleet.running[other if job == one else one]:
                found[row] = found.get(row, 0) + gpus
        return found

    def spared(self, job: int, beside: Container[int]) -> dict[int, int]:
        """By server, GPUs that it need not have for its own, where those jobs run."""
        found: dict[int, int] = {}
        for row, one, other, gpus in self.shares() if self.any else ():
            if (job == one and other in beside) or (job == other and one in beside):
                found[row] = found.get(row, 0) + gpus
        return found

    def pace(self) -> list[tuple[int, float, float]]:
        """(job, rate, GPUs that it is charged for) of those for whom these are to be others now."""
        fleet = self._fleet
        mates: dict[int, list[int]] = {}
        halves: dict[int, float] = {}
        self._last = [share for share in self.shares() if fleet.running[share[1]] and fleet.running[share[2]]]
        for _, first, second, gpus in self._last:
            for one, other in ((first, second), (second, first)):
                mates.setdefault(one, []).append(other)
                halves[one] = halves.get(one, 0.0) + gpus / 2
        changed = []
        for job in {*mates, *self._slowed}:
            ratio = max((self._ratio(job, other) for other in mates.get(job, ())), default=1.0)
            rate = float(fleet.alone[job]) / ratio
            charged = float(fleet.gang[job]) - halves.get(job, 0.0)
            if (rate, charged) != (float(fleet.rate[job]), float(fleet.charged[job])):
                changed.append((job, rate, charged))
        self._slowed = {job: tuple(others) for job, others in mates.items()}
        return sorted(changed)

    def _key(self, job: int, other: int) -> Key:
        fleet = self._fleet
        return fleet.job_class[job], fleet.job_class[other], fleet.model_of(job)

    def _ratio(self, job: int, other: int) -> float:
        return self._truth.get(self._key(job, other), self._otherwise)

    def alone(self, jobs: Ints) -> Ints:
        """Those of these that share with nobody."""
        return jobs if not self._slowed else jobs[[job not in self._slowed for job in jobs.tolist()]]

    def report(self, jobs: Iterable[int]) -> bool:
        """Of every job that trained in this quantum, beside the job that it was beside. True if a policy may want to know."""
        news = False
        for job in jobs:
            for other in self._slowed.get(job, ())[:1]:
                key = self._key(job, other)
                self._reports[key] = count = self._reports.get(key, 0) + 1
                if count == ENOUGH:
                    self._measured[key] = self._truth.get(key, self._otherwise)
                    news = True
        return news

    def known(self) -> Mapping[Key, float]:
        """Those that the workload lists, where speeds are known from the beginning; else those that were measured."""
        return self._truth if self._known else dict(self._measured)


class Interference(Mapping[Key, float]):
    """What the workload says of pairs of classes, by the classes that the controller knows: of each job another, they are too many to list before they are asked for."""

    def __init__(self, fleet: Fleet, table: Mapping[Key, float]) -> None:
        self._of = fleet.classes.of_workload
        self._models = fleet.servers.models
        self._table = table

    def __getitem__(self, key: Key) -> float:
        one, other, model = key
        return self._table[self._of[one], self._of[other], model]

    def __iter__(self) -> Iterator[Key]:
        return (key for key in product(self._of, self._of, self._models) if self._in_table(key))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _in_table(self, key: Key) -> bool:
        one, other, model = key
        return (self._of[one], self._of[other], model) in self._table
