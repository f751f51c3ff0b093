"""How fast the jobs of the past are taken to be when they are simulated: as was measured, in each way in which they may run; where it was not, as a guess from what was."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from hs_client import forms
from hs_proto.v1 import common_pb2 as common
from hs_proto.v1 import controller_pb2 as wire

Rates = dict[str, float]  # GPU model → mini-batches a second
Way = tuple[str, str]  # class of the workload; a shape of elastic jobs, or over how many servers

LONGEST = 200  # characters of a class: hs-sim takes 256, with the strategy


class Known:
    """`models`: that the simulated cluster has."""

    def __init__(self, jobs: Sequence[wire.JobDetail], models: Sequence[str]) -> None:
        measured: dict[Way, Rates] = {}
        self._beside: dict[tuple[str, str, str], float] = {}  # class, class beside it, model: slowed so
        for job in jobs:
            for way in job.way_rates:
                class_ = _variant(class_of(job), way)
                if way.steps_per_s > 0 and not way.beside:
                    measured.setdefault((class_, _kind(way)), {})[way.gpu_model] = way.steps_per_s
                elif way.steps_per_s > 0:
                    self._beside[class_, way.beside, way.gpu_model] = way.steps_per_s
        for job in jobs:
            if not any((class_, kind) in measured for class_, kind in _ways(job)):
                measured[_now(job)] = _as_it_went(job.view)
        self._measured = measured
        self._filled = _fill(measured, models)
        self._elastic = {class_of(job) for job in jobs if job.spec.HasField("elastic")}

    def strategies(self, job: wire.JobDetail) -> list[str]:
        """Of those that it declares the ones whose speed is known, its user's own choice first."""
        names = [forms.strategy(each) for each in job.spec.strategies]
        classes = {class_ for class_, _ in self._filled}
        return [name for name in names if _as(class_of(job), name) in classes]

    def rates(self) -> dict[str, Rates]:
        """Of jobs that are not elastic, on one server where that is known and open."""
        found: dict[str, Rates] = {}
        for class_, kind in sorted(self._filled, key=lambda way: (way[0], _nodes(way[1]))):
            if class_ not in self._elastic:
                found.setdefault(class_, self._filled[class_, kind])
        return found

    def rate(self, job: wire.JobDetail, model: str) -> float:
        """As it runs, or ran last, if that was measured."""
        return next(self._filled[way] for way in _ways(job) if way in self._filled).get(model, 1.0)

    def spread(self) -> dict[str, Rates]:
        """The part of its rate that is left to a class over several servers, where both were measured."""
        found: dict[str, dict[str, list[float]]] = {}
        for (class_, kind), rates in self._measured.items():
            whole = self._measured.get((class_, _over(1)), {})
            for model in whole.keys() & rates.keys() if _nodes(kind) > 1 else ():
                part = min(1.0, rates[model] / whole[model])
                found.setdefault(class_, {}).setdefault(model, []).append(part)
        return {class_: {model: median(parts) for model, parts in by.items()} for class_, by in found.items()}

    def speeds(self) -> dict[str, dict[str, Any]]:
        """Of elastic jobs, in each shape."""
        found: dict[str, dict[str, Any]] = {}
        for (class_, kind), rates in sorted(self._filled.items()):
            for model, rate in rates.items() if class_ in self._elastic and kind else ():
                found.setdefault(class_, {}).setdefault(model, {"measured": {}})["measured"][kind] = rate
        return found

    def interference(self) -> dict[str, dict[str, Rates]]:
        """How many times as long a class's mini-batches took beside another that is there."""
        classes = {class_ for class_, _ in self._filled}
        found: dict[str, dict[str, Rates]] = {}
        for (class_, other, model), slowed in sorted(self._beside.items()):
            ways = sorted((way for way in self._measured if way[0] == class_), key=lambda way: _nodes(way[1]))
            alone = next((rates[model] for way in ways if model in (rates := self._measured[way])), 0.0)
            if alone and short(other) in classes:
                found.setdefault(class_, {}).setdefault(short(other), {})[model] = max(1.0, alone / slowed)
        return found


def class_of(job: wire.JobDetail) -> str:
    return short(job.job_class) or f"job {job.view.id}"


def short(name: str) -> str:
    """Different ones stay different, in all likelihood: beginning and end are where commands differ."""
    half = (LONGEST - 3) // 2
    return name if len(name) <= LONGEST else f"{name[:half]} … {name[-half:]}"


def models_of(view: wire.JobView) -> list[str]:
    """GPU models that it ran on at once: K80+V100."""
    return view.gpu_model.split("+")


def declared_shape(spec: common.JobSpec) -> common.Shape:
    """Of an elastic job, as it asks to be run: its own batch in as few parts as fit."""
    nodes = max(1, spec.nodes)
    said, gpus = spec.elastic, max(1, spec.gpus) * nodes
    parts = -(-said.batch // (gpus * max(1, said.batch_per_gpu_max)))
    per_gpu = -(-said.batch // (gpus * max(1, parts)))
    return common.Shape(gpus=gpus, per_gpu=per_gpu, parts=max(1, parts), nodes=nodes)


def _as(class_: str, strategy: str) -> str:
    """As hs-sim's files name a class in a strategy."""
    return f"{class_} as {strategy}" if strategy else class_


def _variant(class_: str, way: wire.WayRate | wire.JobView) -> str:
    return _as(class_, forms.strategy(way.strategy) if way.HasField("strategy") else "")


def _kind(way: wire.WayRate) -> str:
    return _text(way.shape) if way.HasField("shape") else _over(way.nodes)


def _text(shape: common.Shape) -> str:
    parts = f"x{shape.parts}" if shape.parts > 1 else ""
    return f"{shape.gpus}x{shape.per_gpu}{parts}" + (f"/{shape.nodes}" if shape.nodes > 1 else "")


def _over(nodes: int) -> str:
    return f"over {max(1, nodes)}"


def _nodes(kind: str) -> int:
    return int(kind.removeprefix("over ")) if kind.startswith("over ") else 0


def _now(job: wire.JobDetail) -> Way:
    """How it runs, or ran last."""
    class_ = _variant(class_of(job), job.view)
    if job.spec.HasField("elastic"):
        return class_, _text(job.view.shape if job.view.HasField("shape") else declared_shape(job.spec))
    return class_, _over(job.view.nodes)


def _ways(job: wire.JobDetail) -> list[Way]:
    return [
        _now(job),
        *((_variant(class_of(job), way), _kind(way)) for way in job.way_rates if not way.beside),
    ]


def _as_it_went(view: wire.JobView) -> Rates:
    """One that counts no steps: a step a second."""
    return dict.fromkeys(models_of(view), view.step / view.run_s if view.step else 1.0)


def _fill(measured: dict[Way, Rates], models: Iterable[str]) -> dict[Way, Rates]:
    """Where a class was not measured: as much faster or slower as the classes measured on both models are (the median), else as fast."""
    models = list(models)

    def ratio(model: str, other: str) -> float:
        both = [rates[model] / rates[other] for rates in measured.values() if rates.keys() >= {model, other}]
        return median(both) if both else 1.0

    filled: dict[Way, Rates] = {}
    for way, rates in measured.items():
        known = {model: rate for model, rate in rates.items() if model in models}
        known = known or {models[0]: next(iter(rates.values()))}
        anchor = next(iter(known))
        filled[way] = {model: known.get(model, known[anchor] * ratio(model, anchor)) for model in models}
    return filled
