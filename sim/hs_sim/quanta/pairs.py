"""Jobs on the same GPUs: how much they slow each other, what each is charged, and what was measured of it."""

from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import product

from hs_sim.model import Experiment
from hs_sim.quanta.fleet import Fleet
from hs_sim.quanta.profile import ENOUGH
from hs_sim.quanta.rows import Ints
from hs_sim.quanta.turns import Turns

Share = tuple[int, int, int]
"""(server, partner, GPUs)"""

Key = tuple[str, str, str]
"""(class, class beside it, GPU model)"""


class Pairs:
    """At most two jobs on a GPU: a guest, and the partner whose GPU it is."""

    def __init__(
        self, fleet: Fleet, turns: Turns, leaving: Mapping[int, object], experiment: Experiment
    ) -> None:
        """`leaving`: who is on its way to another server, and runs until its checkpoint is written."""
        self._fleet = fleet
        self._turns = turns
        self._leaving = leaving
        self._shared: dict[int, list[Share]] = {}  # as those who run do, whatever the newest turns say
        self._truth = Interference(fleet, experiment.workload.interference)
        self._otherwise = experiment.interference
        self._known = experiment.known_rates
        self._slowed: dict[int, tuple[int, ...]] = {}  # and by whom: those that share now
        self._reports: dict[Key, int] = {}
        self._measured: dict[Key, float] = {}

    @property
    def any(self) -> bool:
        """Somebody shares GPUs, or is to."""
        return bool(self._turns.guests or self._slowed)

    def guest(self, job: int) -> bool:
        return job in self._turns.guests

    def spared(self, job: int, beside: Container[int]) -> dict[int, int]:
        """By server, GPUs that it need not have for its own, where those jobs run."""
        found: dict[int, int] = {}
        shares = self._shared if job in self._leaving else self._turns.guests
        for row, partner, gpus in shares.get(job, ()):
            if partner in beside:
                found[row] = found.get(row, 0) + gpus
        return found

    def lent(self, job: int) -> dict[int, int]:
        """By server, its GPUs that a guest has who is leaving."""
        found: dict[int, int] = {}
        for guest in self._shared.keys() & self._leaving.keys():
            for row, partner, gpus in self._shared[guest]:
                if partner == job:
                    found[row] = found.get(row, 0) + gpus
        return found

    def guests(self) -> set[int]:
        """Who runs, or is to, on GPUs of others."""
        leaving = self._shared.keys() & self._leaving.keys()
        return (self._turns.guests.keys() - self._leaving.keys()) | leaving

    def pace(self) -> list[tuple[int, float, float]]:
        """(job, rate, GPUs that it is charged for) of those for whom these are to be others now."""
        fleet = self._fleet
        mates: dict[int, list[int]] = {}
        halves: dict[int, float] = {}
        shared: dict[int, list[Share]] = {}
        for guest in sorted(self.guests()):
            shares = self._shared if guest in self._leaving else self._turns.guests
            for share in shares[guest]:
                _, partner, gpus = share
                if fleet.running[guest] and fleet.running[partner]:
                    shared.setdefault(guest, []).append(share)
                    for one, other in ((guest, partner), (partner, guest)):
                        mates.setdefault(one, []).append(other)
                        halves[one] = halves.get(one, 0.0) + gpus / 2
        self._shared = shared
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
        return fleet.job_class[job], fleet.job_class[other], fleet.models[fleet.model[job]]

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
        self._of = fleet.workload_class
        self._models = fleet.models
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
