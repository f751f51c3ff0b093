"""The cluster's own past as a workload for hs-sim: what was submitted, by whom, and how fast it was found to train."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from hs_client.errors import ConflictError
from hs_proto.v1 import controller_pb2 as wire

Rates = dict[str, dict[str, float]]  # class → GPU model → steps a second


@dataclass(frozen=True, slots=True)
class Past:
    """`workload`: hs-sim's YAML, as nested values. `left_out`: jobs that never trained, with nothing to replay."""

    workload: Mapping[str, Any]
    cluster: str  # hs-sim's --cluster
    jobs: int
    left_out: int
    mean_jct_s: float | None  # of those that have ended
    makespan_s: float | None
    ended: int


def past(
    jobs: Sequence[wire.JobDetail], nodes: Iterable[wire.NodeView], tickets: Mapping[str, float]
) -> Past:
    """A job that has not ended counts with the steps its user said, or those it has done. One that counts no steps is taken at one a second.

    Raises ConflictError where there is nothing to replay, or no server.
    """
    cluster = _cluster(nodes)
    models = [pool.partition(":")[0] for pool in cluster.split(",")]
    trained = [job for job in jobs if job.view.run_s > 0]
    if not trained:
        raise ConflictError("no job of that time has trained yet: nothing to replay")
    rates = _fill(_measured(trained), models)
    start = min(job.view.submitted_at for job in trained)
    rows = [_row(job, start, rates) for job in sorted(trained, key=lambda job: job.view.submitted_at)]
    ended = [job.view for job in trained if job.view.ended_at > 0]
    users = sorted({job.view.user for job in trained})
    return Past(
        workload={
            "name": "journal",
            "users": {user: tickets.get(user, 100.0) for user in users},
            "rates": rates,
            "jobs": rows,
        },
        cluster=cluster,
        jobs=len(rows),
        left_out=len(jobs) - len(rows),
        mean_jct_s=sum(view.ended_at - view.submitted_at for view in ended) / len(ended) if ended else None,
        makespan_s=max(view.ended_at for view in ended) - start if ended else None,
        ended=len(ended),
    )


def _cluster(nodes: Iterable[wire.NodeView]) -> str:
    """Servers of one model with unlike numbers of GPUs are taken as of the most usual size."""
    sizes: dict[str, Counter[int]] = {}
    for node in nodes:
        if node.gpus:
            sizes.setdefault(node.gpus[0].model, Counter())[len(node.gpus)] += 1
    if not sizes:
        raise ConflictError("no server has joined the cluster: nothing to simulate on")
    pools = []
    for model, counts in sizes.items():
        per = counts.most_common(1)[0][0]
        servers = max(1, round(sum(size * count for size, count in counts.items()) / per))
        pools.append(f"{model}:{servers * per}@{per}")
    return ",".join(pools)


def _class_of(job: wire.JobDetail) -> str:
    return job.job_class or f"job {job.view.id}"


def _measured(jobs: Iterable[wire.JobDetail]) -> Rates:
    found: Rates = {}
    for job in jobs:
        rates = found.setdefault(_class_of(job), {})
        rates |= {rate.gpu_model: rate.steps_per_s for rate in job.rates if rate.steps_per_s > 0}
        if not rates and job.view.gpu_model:
            view = job.view
            rates |= dict.fromkeys(_models(view), view.step / view.run_s if view.step else 1.0)
    return found


def _models(view: wire.JobView) -> list[str]:
    """GPU models that it ran on at once: K80+V100."""
    return view.gpu_model.split("+")


def _fill(measured: Rates, models: Sequence[str]) -> Rates:
    """Where a class was not measured: as much faster or slower as the classes measured on both models are (the median), else as fast."""

    def ratio(model: str, other: str) -> float:
        both = [rates[model] / rates[other] for rates in measured.values() if rates.keys() >= {model, other}]
        return median(both) if both else 1.0

    filled: Rates = {}
    for name, rates in measured.items():
        known = {model: rate for model, rate in rates.items() if model in models} or {models[0]: 1.0}
        anchor = next(iter(known))
        filled[name] = {model: known.get(model, known[anchor] * ratio(model, anchor)) for model in models}
    return filled


def _row(job: wire.JobDetail, start: float, rates: Rates) -> dict[str, Any]:
    view, spec = job.view, job.spec
    steps = view.step if view.ended_at > 0 or not spec.steps else max(view.step, spec.steps)
    if not steps:
        known = rates[_class_of(job)]
        steps = round(view.run_s * min(known.get(model, 1.0) for model in _models(view)))
    row: dict[str, Any] = {
        "user": view.user,
        "arrival_s": round(view.submitted_at - start, 3),
        "steps": max(1, int(steps)),
        "job_class": _class_of(job),
        "gpus": max(1, view.gpus // max(1, view.nodes)),
        "nodes": max(1, view.nodes),
        "priority": view.priority,
    }
    if view.gpu_types:
        row["gpu_types"] = list(view.gpu_types)
    return row
