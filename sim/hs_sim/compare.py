"""The same workload under several policies and seeds: what came of each run, in numbers and curves. Picklable, so that runs can be anywhere."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import fsum
from typing import Any

from hs_sim.metrics import Summary, finish_time_fairness, summarize, utilization_series
from hs_sim.model import Experiment, Result

Curve = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    experiment: Experiment
    depth: str = "quanta"

    @property
    def label(self) -> str:
        return f"{self.experiment.policy}, seed {self.experiment.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    summary: Summary
    jct_s: tuple[float, ...]  # ascending
    ftf: tuple[float, ...]  # ascending
    utilization: Curve  # (seconds, part of the GPUs)


def run(case: Case) -> Outcome:
    if case.depth == "machines":
        from hs_sim.machines import run_machines  # noqa: PLC0415 — only who asks for it pays for it

        result = run_machines(case.experiment)
    else:
        from hs_sim.quanta import run_quanta  # noqa: PLC0415

        result = run_quanta(case.experiment)
    return outcome_of(result)


def outcome_of(result: Result) -> Outcome:
    return Outcome(
        summary=summarize(result),
        jct_s=tuple(sorted(job.jct_s for job in result.jobs if job.jct_s is not None)),
        ftf=tuple(sorted(finish_time_fairness(result))),
        utilization=tuple(utilization_series(result)),
    )


def mean_of(rows: Sequence[Summary]) -> Summary:
    """Over seeds of one policy: means of what there is; the largest of what is a largest."""
    changes: dict[str, Any] = {}
    for field in fields(Summary):
        values = [getattr(row, field.name) for row in rows]
        numbers = [value for value in values if isinstance(value, int | float)]
        if field.name in ("policy", "depth", "seed") or not numbers:
            continue
        mean = fsum(numbers) / len(numbers)
        changes[field.name] = round(mean) if all(isinstance(value, int) for value in numbers) else mean
        if field.name in _LARGEST:
            changes[field.name] = max(numbers)
    return replace(rows[0], **changes)


_LARGEST = ("ftf_max", "longest_wait_s", "decision_s_max")
