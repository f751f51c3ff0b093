"""The cluster's own past as a workload for hs-sim: what was submitted, by whom, and how fast it was found to train."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from hs_client import forms
from hs_client.errors import ConflictError
from hs_client.known import Known, class_of, models_of
from hs_proto.v1 import common_pb2 as common
from hs_proto.v1 import controller_pb2 as wire

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Past:
    """`workload`: hs-sim's YAML, as nested values. `left_out`: jobs that never trained, with nothing to replay. Times count from when a job could have run."""

    workload: Mapping[str, Any]
    cluster: str  # hs-sim's --cluster
    jobs: int
    left_out: int
    unknown: tuple[str, ...]  # strategies of classes that nobody measured: they are not replayed
    mean_jct_s: float | None  # of those that have ended
    makespan_s: float | None
    ended: int
    costs: Mapping[
        str, float
    ]  # seconds that a switch took, `start`, `suspend`, `resume`, as far as any was seen
    starts: int  # that were seen


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
    known = Known(trained, models)
    came = _could_run(trained)
    trained.sort(key=lambda job: came[job.view.id])
    start = came[trained[0].view.id]
    rows = [_row(job, came[job.view.id] - start, known) for job in trained]
    ended = [job.view for job in trained if job.view.ended_at > 0]
    users = sorted({job.view.user for job in trained})
    told = {
        "spread": known.spread(),
        "interference": known.interference(),
        "speeds": known.speeds(),
    }
    return Past(
        workload={
            "name": "journal",
            "users": {user: tickets.get(user, 100.0) for user in users},
            "rates": known.rates(),
            **{name: table for name, table in told.items() if table},
            "jobs": rows,
        },
        cluster=cluster,
        jobs=len(rows),
        left_out=len(jobs) - len(rows),
        unknown=_unknown(trained, known),
        mean_jct_s=sum(view.ended_at - came[view.id] for view in ended) / len(ended) if ended else None,
        makespan_s=max(view.ended_at for view in ended) - start if ended else None,
        ended=len(ended),
        costs=_costs(trained),
        starts=sum(len(_starts_s(job)) for job in trained),
    )


def _cluster(nodes: Iterable[wire.NodeView]) -> str:
    """Servers of one model with unlike numbers of GPUs are taken as of the most usual size, their GPUs with the least memory among them, and as much host memory
    as the one with most: what could run on some of them can run."""
    sizes: dict[str, Counter[int]] = {}
    memory: dict[str, int] = {}
    host_memory: dict[str, int] = {}
    for node in nodes:
        if node.gpus:
            model = node.gpus[0].model
            sizes.setdefault(model, Counter())[len(node.gpus)] += 1
            least = min(gpu.memory_bytes for gpu in node.gpus)
            memory[model] = min(memory.get(model, least), least)
            host_memory[model] = max(host_memory.get(model, 0), node.memory_bytes)
    if not sizes:
        raise ConflictError("no server has joined the cluster: nothing to simulate on")
    pools = []
    for model, counts in sizes.items():
        per = counts.most_common(1)[0][0]
        servers = max(1, round(sum(size * count for size, count in counts.items()) / per))
        # Rounded up: a job that asks for all of a GPU's memory fits still.
        gib = f"/{-(-memory[model] // GIB)}" if memory[model] else ""
        if gib and host_memory[model]:
            gib += f"/{-(-host_memory[model] // GIB)}"
        pools.append(f"{model}:{servers * per}@{per}{gib}")
    return ",".join(pools)


# --- when ---------------------------------------------------------------------------------------------------------------


def _could_run(jobs: Sequence[wire.JobDetail]) -> dict[int, float]:
    """By job, when nothing but the policy kept it from running any more: what it was to run after had ended, its array's limit let it, its owner had let it go."""
    ended = {job.view.id: job.view.ended_at for job in jobs if job.view.ended_at > 0}
    limited = _of_limited_arrays(jobs)
    found = {}
    for job in jobs:
        view = job.view
        waits = [ended[after.job_id] for after in job.spec.after if after.job_id in ended]
        waits += [limited[view.id]] if view.id in limited else []
        waits += _released(job)
        found[view.id] = max([view.submitted_at, *waits])
    return found


def _released(job: wire.JobDetail) -> list[float]:
    """Ends of pauses before it ran for the first time."""
    first = job.view.started_at or float("inf")
    return [event.at for event in job.story if event.kind == "resumed" and event.at <= first]


def _of_limited_arrays(jobs: Sequence[wire.JobDetail]) -> dict[int, float]:
    """When there was room for each in its array: as many of those before it had ended as were too many."""
    arrays: dict[int, list[wire.JobDetail]] = {}
    for job in jobs:
        if job.spec.array_limit and job.view.array_id:
            arrays.setdefault(job.view.array_id, []).append(job)
    found = {}
    for members in arrays.values():
        members.sort(key=lambda job: (job.view.started_at or float("inf"), job.view.id))
        limit = members[0].spec.array_limit
        for at, job in enumerate(members):
            ends = sorted(before.view.ended_at for before in members[:at] if before.view.ended_at > 0)
            if at >= limit and len(ends) > at - limit:
                found[job.view.id] = ends[at - limit]
    return found


# --- at what cost -------------------------------------------------------------------------------------------------------


def _costs(jobs: Sequence[wire.JobDetail]) -> dict[str, float]:
    """The median start, as some have waited for memory, or were held up by much else that came up; suspends and resumes in the mean, of which only sums are kept."""
    starts_s = [seconds for job in jobs for seconds in _starts_s(job)]
    views = [job.view for job in jobs]
    suspends, resumes = sum(view.suspends for view in views), sum(view.resumes for view in views)
    found = {"start": median(starts_s)} if starts_s else {}
    if suspends:
        found["suspend"] = sum(view.suspend_s for view in views) / suspends
    if resumes:
        found["resume"] = sum(view.resume_s for view in views) / resumes
    return found


def _starts_s(job: wire.JobDetail) -> list[float]:
    """Of the processes that came up before their turn. When one that was started in its turn was up nobody has told.

    A job without steps computes from its launch on, and is said to be up when its server has waited for steps in vain.
    """
    found, began = list[float](), 0.0
    for event in job.story if job.view.step else ():
        if event.kind == "starting":
            began = event.at
        elif event.kind in _BESIDE:
            continue
        elif began:
            found += [max(0.0, event.at - began)] if event.kind in _UP else []
            began = 0.0
    return found


_UP = frozenset({"ready", "suspended", "running"})
_BESIDE = frozenset({"exec", "migrated", "reshaped", "restored"})  # what else is told of a job that comes up


# --- what ---------------------------------------------------------------------------------------------------------------


def _row(job: wire.JobDetail, arrival_s: float, known: Known) -> dict[str, Any]:
    """As its user declared it, not as it happened to run. What is as hs-sim takes it anyway is left out."""
    view, spec = job.view, job.spec
    said = {
        "gpu_types": list(view.gpu_types),
        "gpu_memory_bytes": spec.gpu_memory_bytes,
        "gpu_memory_fixed_bytes": spec.gpu_memory_fixed_bytes,
        "memory_bytes": spec.memory_bytes,
        "accumulation_max": spec.accumulation_max if spec.accumulation_max > 1 else 0,
        "migrate": spec.migrate if spec.migrate != "auto" else "",
        "sliceable": "" if view.sliceable and spec.suspend != "none" else "false",
        "topology": spec.topology if spec.topology != "auto" else "",
        "strategies": known.strategies(job),
        "dataset": spec.dataset,
        "dataset_bytes": spec.dataset_bytes,
        "elastic": _elastic(spec.elastic) if spec.HasField("elastic") else "",
        "noise_scale": view.noise_scale if view.noise_samples else 0,
    }
    return {
        "user": view.user,
        "arrival_s": round(arrival_s, 3),
        "steps": max(1, int(_steps(job, known))),
        "job_class": class_of(job),
        "gpus": max(1, spec.gpus),
        "nodes": max(1, spec.nodes),
        "priority": view.priority,
        **{name: value for name, value in said.items() if value},
    }


def _steps(job: wire.JobDetail, known: Known) -> float:
    """Of an elastic one that has succeeded what its user said: it did fewer, larger mini-batches."""
    view, spec = job.view, job.spec
    if spec.steps and (view.ended_at == 0 or (spec.HasField("elastic") and view.state == "succeeded")):
        return max(view.step, spec.steps) if view.ended_at == 0 else spec.steps
    return view.step or round(view.run_s * min(known.rate(job, model) for model in models_of(view)))


def _elastic(said: common.Elastic) -> str:
    noise = f" {said.noise_scale!r}" if said.noise_scale else ""
    batches = f"{said.batch}-{said.batch_max} {said.batch_per_gpu_max}"
    return f"{said.gpus_min}-{said.gpus_max} {batches}{noise}"


def _unknown(jobs: Iterable[wire.JobDetail], known: Known) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for job in jobs:
        measured = known.strategies(job)
        for each in map(forms.strategy, job.spec.strategies):
            if each not in measured:
                found[f"{class_of(job)} as {each}"] = None
    return tuple(found)
