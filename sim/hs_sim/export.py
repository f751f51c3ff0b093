"""Workloads as files, such that reading them gives the same workload."""

import csv
import io
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from math import inf

from hs_core.names import UserName
from hs_sim.files import NEVER
from hs_sim.jobfields import COLUMNS, NEEDED, cell
from hs_sim.model import SimJob, Workload


def dump_csv(workload: Workload) -> str:
    out = io.StringIO()
    out.write(f"# name {workload.name}\n")
    for user in sorted(workload.tickets):
        out.write(f"# {shlex.join(['user', user, repr(workload.tickets[user])])}\n")
    for class_, model in sorted(workload.rates):
        out.write(f"# {shlex.join(['rate', class_, model, repr(workload.rates[class_, model])])}\n")
    for class_, other, model in sorted(workload.interference):
        ratio = _told(workload.interference[class_, other, model])
        out.write(f"# {shlex.join(['beside', class_, other, model, str(ratio)])}\n")
    for class_, model in sorted(workload.spread):
        out.write(f"# {shlex.join(['spread', class_, model, repr(workload.spread[class_, model])])}\n")
    for (class_, model), speed in sorted(workload.speeds.items()):
        parts = [f"{name}={value!r}" for name, value in asdict(speed).items()]
        out.write(f"# {shlex.join(['speed', class_, model, *parts])}\n")
    out.write(_line(COLUMNS))
    for job in workload.jobs:
        out.write(_line([cell(getattr(job, field)) for field in COLUMNS]))
    return out.getvalue()


def _line(cells: Sequence[object]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    line = out.getvalue()
    if not line.startswith("#"):
        return line
    first, comma, others = line.partition(",")  # else it would be a remark
    return f'"{first}"{comma}{others}'


def dump_yaml(workload: Workload) -> str:
    import yaml  # noqa: PLC0415

    classes: dict[str, dict[str, float]] = {}
    for (class_, model), rate in sorted(workload.rates.items()):
        classes.setdefault(class_, {})[model] = rate
    slowed: dict[str, dict[str, dict[str, float | str]]] = {}
    for (class_, other, model), ratio in sorted(workload.interference.items()):
        slowed.setdefault(class_, {}).setdefault(other, {})[model] = _told(ratio)
    plain = SimJob(id=0, user=UserName(""), arrival_s=0.0, steps=0, job_class="")
    jobs = [
        {
            field: value
            if isinstance(value, int | float | str) and not isinstance(value, StrEnum)
            else cell(value)
            for field in COLUMNS
            if field in NEEDED or getattr(job, field) != getattr(plain, field)
            for value in [getattr(job, field)]
        }
        for job in workload.jobs
    ]
    tree = {
        "name": workload.name,
        "users": {str(user): workload.tickets[user] for user in sorted(workload.tickets)},
        "rates": classes,
        "interference": slowed,
        "jobs": jobs,
    }
    if not slowed:
        del tree["interference"]
    if workload.spread:
        parts: dict[str, dict[str, float]] = {}
        for (class_, model), part in sorted(workload.spread.items()):
            parts.setdefault(class_, {})[model] = part
        tree["spread"] = parts
    if workload.speeds:
        by_model: dict[str, dict[str, dict[str, float]]] = {}
        for (class_, model), speed in sorted(workload.speeds.items()):
            by_model.setdefault(class_, {})[model] = asdict(speed)
        tree["speeds"] = by_model
    text: str = yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=140, allow_unicode=True)
    return text


def _told(ratio: float) -> float | str:
    return NEVER if ratio == inf else ratio
