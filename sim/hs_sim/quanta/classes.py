"""Classes of jobs as the controller has them: jobs of one user, class and number of servers; how fast each is, by GPU model."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from hs_core.job_class import job_class, named_class
from hs_core.strategy import class_as
from hs_sim.elastic import told_per_s
from hs_sim.model import SimJob, Workload
from hs_sim.quanta.rows import Floats, Ints


class Classes:
    def __init__(self, workload: Workload, models: Sequence[str]) -> None:
        self._jobs = workload.jobs
        self._spread = workload.spread
        self._models = list(models)
        self._known: dict[tuple[str, str, int], int] = {}  # by user, class of the workload, and servers
        self.names: list[str] = []
        rates: list[list[float]] = []
        for job in self._jobs:
            for (number, class_), nodes in product(enumerate(job.classes), job.spreads or (job.nodes,)):
                key = (job.user, class_, nodes)
                if key not in self._known:
                    self._known[key] = len(self.names)
                    self.names.append(_name(job, number, nodes))
                    rates.append([_told(workload, job, class_, model, nodes) for model in models])
        self.rates: Floats = np.array(rates, dtype=np.float64).reshape(len(self.names), len(models))
        self.pairs = [(name, model) for name in self.names for model in models]
        self.of_workload = {self.names[at]: class_ for (_, class_, _), at in self._known.items()}  # by name

    def of_all(self) -> Ints:
        """Of every job of the workload, as it comes."""
        found = [self._known[job.user, job.classes[0], job.nodes] for job in self._jobs]
        return np.array(found, dtype=np.int64)

    def find(self, user: str, class_: str, nodes: int) -> int:
        return self._known[user, class_, nodes]

    def change_speed(self, job_class: str, model: str, steps_per_s: float) -> list[int]:
        """Of a class of the workload; whose jobs these are."""
        mine = [at for at, job in enumerate(self._jobs) if job_class in job.classes]
        for job in mine:
            spec = self._jobs[job]
            for nodes in spec.spreads or (spec.nodes,):
                part = self._spread.get((job_class, model), 1.0) if nodes > 1 else 1.0
                self.rates[self._known[spec.user, job_class, nodes], self._models.index(model)] = (
                    steps_per_s * part
                )
        return mine


def _name(job: SimJob, number: int, nodes: int) -> str:
    """Of one of its classes, over so many servers, as the controller has it."""
    if not job.strategies and (name := job.classes[number]):
        return named_class(job.user, name, nodes)
    found = job_class(job.user, replace(job.spec(), nodes=nodes, gpus=job.gang // nodes))
    return class_as(found, job.strategies[number]) if job.strategies else found


def _told(workload: Workload, job: SimJob, class_: str, model: str, nodes: int) -> float:
    """What jobs of the class report as declared."""
    speed = workload.speeds.get((class_, model))
    if job.elastic is not None and speed is not None:
        return told_per_s(speed, job.elastic.on(job.gang, job.nodes))
    return workload.rate(class_, model, nodes)
