"""Traces and throughputs as Gavel's simulator (OSDI'20) has them: tab-separated jobs, and steps a second of whole gangs by GPU model."""

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hs_core.errors import Kind, RefusedError
from hs_core.model import UserName
from hs_sim.cluster import canonical
from hs_sim.model import SimJob, Workload

FIELDS = 10  # job type, command, folder, steps argument, needs data, steps, gang, weight, SLO, arrival
WEIGHT_TICKETS = 100.0  # of a weight of 1


def load_trace(path: Path, throughputs: Path, gpus_per_server: int = 4) -> Workload:
    """Every job is a user of its own: Gavel shares among jobs, by weight."""
    rates = load_throughputs(throughputs)
    jobs: list[SimJob] = []
    tickets: dict[UserName, float] = {}
    for number, line in enumerate(_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        words = line.split("\t")
        if len(words) != FIELDS:
            raise RefusedError(
                f"{path}:{number}: line: {len(words)} fields; expected {FIELDS} with tabs between them"
            )
        steps, gang = (_number(path, number, name, words[at]) for name, at in (("steps", 5), ("gang", 6)))
        weight, arrival_s = (
            _number(path, number, name, words[at]) for name, at in (("weight", 7), ("arrival", 9))
        )
        job_class = f"{words[0]} x{int(gang)}"
        if not any(name == job_class for name, _ in rates):
            raise RefusedError(
                f"{path}:{number}: job type: {words[0]!r} on {int(gang)} GPUs; expected one of {throughputs}"
            )
        if gang < 1 or steps < 1 or weight <= 0 or arrival_s < 0:
            raise RefusedError(
                f"{path}:{number}: {line!r}; expected steps and gang of 1 or more, a weight above 0, arrival 0 or later"
            )
        user = UserName(f"job{number:05d}")
        nodes = -(-int(gang) // gpus_per_server)
        tickets[user] = WEIGHT_TICKETS * weight
        jobs.append(
            SimJob(
                id=0,
                user=user,
                arrival_s=arrival_s,
                steps=int(steps),
                job_class=job_class,
                gpus=int(gang) // nodes,
                nodes=nodes,
            )
        )
    jobs.sort(key=lambda job: job.arrival_s)
    if not jobs:
        raise RefusedError(f"{path}: jobs: none; expected one a line")
    used = {job.job_class for job in jobs}
    return Workload(
        name=path.stem,
        jobs=tuple(replace(job, id=number) for number, job in enumerate(jobs, start=1)),
        tickets=tickets,
        rates={at: rate for at, rate in rates.items() if at[0] in used},
        source=f"{path}, {throughputs}",
    )


def load_throughputs(path: Path) -> dict[tuple[str, str], float]:
    """(`<job type> x<gang>`, GPU model) → steps a second of the gang on as few servers as can be."""
    try:
        tree: Any = json.loads(_text(path))
        found = {}
        for model, kinds in tree.items():
            if model.endswith("_unconsolidated"):
                continue
            for kind, beside in kinds.items():
                name, gang = ast.literal_eval(kind)
                found[f"{name} x{int(gang)}", canonical(model)] = float(beside["null"])
    except (ValueError, KeyError, TypeError, AttributeError, SyntaxError, RecursionError) as error:
        raise RefusedError(
            f"{path}: {error}; expected Gavel's throughputs: model, then job type and gang, then null"
        ) from None
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RefusedError(f"{path}: there is no such file", Kind.NOT_FOUND) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"{path}: {error}; expected a text file") from None


def _number(path: Path, line: int, field: str, word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = float("nan")
    if not abs(number) <= 1e15:
        raise RefusedError(f"{path}:{line}: {field}: {word!r}; expected a number")
    return number
