"""What the controller would have measured of elastic jobs in each of their shapes: one report a quantum from each in its turn."""

from collections import Counter
from collections.abc import Iterable, Mapping

from hs_core.forms import Shape
from hs_core.model import spans
from hs_sim.elastic import shapes_to_know, told_per_s
from hs_sim.quanta.fleet import Fleet
from hs_sim.quanta.profile import ENOUGH

Pair = tuple[str, str]  # class as the controller has it, GPU model


class Shapes:
    """Without noise: what is reported is what is true."""

    def __init__(self, fleet: Fleet, *, known: bool) -> None:
        self._fleet = fleet
        self._reports: Counter[tuple[Pair, Shape]] = Counter()
        self._known: dict[Pair, dict[Shape, float]] = {}
        for job, spec in enumerate(fleet.jobs) if known else ():
            if spec.elastic is not None:
                for model in fleet.servers.models:
                    known_shapes = shapes_to_know(spec.elastic, spans=spans(spec.spec()))
                    for shape in (*known_shapes, fleet.elastics.shape_of(job)):
                        self._learn(job, model, shape)

    def report(self, jobs: Iterable[int]) -> bool:
        """Of these, which are elastic and train. True if a policy may want to know."""
        news = False
        for job in jobs:
            shape = self._fleet.elastics.shape_of(job)
            model = self._fleet.model_of(job)
            key = ((self._fleet.job_class[job], model), shape)
            self._reports[key] += 1
            if self._reports[key] == ENOUGH:
                self._learn(job, model, shape)
                news = True
        return news

    def _learn(self, job: int, model: str, shape: Shape) -> None:
        speed = self._fleet.elastics.speed_on(job, model)
        if speed is not None:
            pair = (self._fleet.job_class[job], model)
            self._known.setdefault(pair, {})[shape] = told_per_s(speed, shape)

    def known(self) -> Mapping[Pair, Mapping[Shape, float]]:
        return {pair: dict(found) for pair, found in self._known.items()}
