"""Workload files: YAML for one written by hand (docs/simulator.md), CSV for long ones. Every mistake is named with file, line, field, value and what was expected."""

import csv
import io
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from hs_core.errors import RefusedError
from hs_core.mechanism.goodput import Speed
from hs_core.names import UserName
from hs_sim.cluster import canonical
from hs_sim.colocated import Ratios
from hs_sim.elastic import declared_rates
from hs_sim.elasticfile import speed_of
from hs_sim.generate import TABLE_1
from hs_sim.jobfields import COLUMNS, NEEDED, job_of
from hs_sim.lined import Lined, LinedList, mapping_of
from hs_sim.model import SimJob, Workload
from hs_sim.reading import (
    LEAST_TICKETS,
    MOST_TICKETS,
    Sieve,
    Where,
    did_you_mean,
    expect,
    kind_of,
    known,
    number,
    refuse,
    text_of,
    wording,
)

MOST_JOBS = 2_000_000
NEVER = "never"
Speeds = dict[tuple[str, str], Speed]
DEFAULT_TICKETS = 100.0


def load(path: Path, sieve: Sieve | None = None) -> Workload:
    """YAML or CSV by its suffix. `sieve`: what becomes of bad jobs; without one the file is refused."""
    text = text_of(path)
    if path.suffix.lower() == ".csv":
        return _from_csv(path, text, sieve or Sieve())
    if path.suffix.lower() in (".yaml", ".yml", ".json"):
        return _from_yaml(path, text, sieve or Sieve())
    raise RefusedError(f"{path}: suffix {path.suffix!r}; expected .yaml, .yml, .json or .csv")


# --- CSV: `# user NAME TICKETS` and `# rate CLASS MODEL RATE` lines, a header, one job a line ---------------------------


def _from_csv(path: Path, text: str, sieve: Sieve) -> Workload:
    tickets: dict[UserName, float] = {}
    rates: dict[tuple[str, str], float] = {}
    slowed: Ratios = {}
    spread: dict[tuple[str, str], float] = {}
    speeds: Speeds = {}
    name = path.stem
    body: list[str] = []
    lines: list[int] = []
    for line, words in enumerate(text.splitlines(), start=1):
        if words.startswith("#"):
            name = (
                _remark((path, line), words, tickets, rates, slowed=slowed, spread=spread, speeds=speeds)
                or name
            )
        elif words.strip():
            body.append(words)
            lines.append(line)
    if not body:
        refuse((path, 1), "jobs", "none", f"a header line of {', '.join(NEEDED)} …, then one job a line")
    rows = csv.reader(io.StringIO("\n".join(body)))
    header = [word.strip() for word in next(rows)]
    for mark, name_of in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and mark in header[0]:
            refuse((path, lines[0]), "header", header[0], f"commas between the fields, not {name_of}")
    expect(all(header), (path, lines[0]), "header", ",".join(header), "a name for every column")
    named = ", ".join(NEEDED)
    expect(
        any(field in COLUMNS for field in header),
        (path, lines[0]),
        "header",
        ",".join(header),
        f"names of columns before the first job: {named} …",
    )
    for field in header:
        known((path, lines[0]), field, COLUMNS)
    for field in NEEDED:
        expect(field in header, (path, lines[0]), "header", ",".join(header), f"a column {field}")
    expect(len(set(header)) == len(header), (path, lines[0]), "header", ",".join(header), "each column once")
    jobs: list[SimJob] = []
    for row in rows:
        where = (path, lines[rows.line_num - 1])  # a field in quotes may go over several lines
        _not_too_many(where, len(jobs) + 1)
        with sieve.job():
            expect(len(row) == len(header), where, "line", ",".join(row), f"{len(header)} fields")
            jobs.append(job_of(where, {k: v.strip() for k, v in zip(header, row, strict=True) if v.strip()}))
    found = _whole(path, name, jobs, tickets=tickets, rates=rates, speeds=speeds, sieve=sieve)
    return replace(found, interference=slowed, spread=spread)


def _not_too_many(where: Where, jobs: int) -> None:
    """As they are read: what they all come to may be more than memory holds."""
    expect(jobs <= MOST_JOBS, where, "jobs", jobs, f"at most {MOST_JOBS} in a file")


def _remark(
    where: Where,
    line: str,
    tickets: dict[UserName, float],
    rates: dict[tuple[str, str], float],
    *,
    slowed: Ratios,
    spread: dict[tuple[str, str], float],
    speeds: Speeds,
) -> str:
    """What a line that begins with # says; the workload's name, if that is it."""
    try:
        first = line[1:].split(maxsplit=1)[:1]
        said = (["user"], ["rate"], ["beside"], ["spread"], ["speed"], ["name"])
        words = shlex.split(line[1:]) if first in said else []
    except ValueError as error:
        refuse(where, "line", line, f"quotes in pairs ({error})")
    if words[:1] == ["user"]:
        expect(
            len(words) == 3, where, "user", line, "`# user NAME TICKETS`, in quotes where there are spaces"
        )
        expect(words[1] not in tickets, where, "user", line, "each user once")
        tickets[UserName(words[1])] = number(
            where, "tickets", words[2], least=LEAST_TICKETS, most=MOST_TICKETS
        )
    elif words[:1] == ["rate"]:
        expect(
            len(words) == 4,
            where,
            "rate",
            line,
            "`# rate CLASS MODEL STEPS_PER_S`, in quotes where there are spaces",
        )
        key = words[1], canonical(words[2])
        expect(key not in rates, where, "rate", line, "each class and model once")
        rates[key] = number(where, "rate", words[3], least=0)
    elif words[:1] == ["beside"]:
        expected = "`# beside CLASS OTHER_CLASS MODEL TIMES_AS_LONG`, in quotes where there are spaces"
        expect(len(words) == 5, where, "beside", line, expected)
        pair = words[1], words[2], canonical(words[3])
        expect(pair not in slowed, where, "beside", line, "each pair and model once")
        slowed[pair] = _ratio(where, "beside", words[4])
    elif words[:1] == ["spread"]:
        expected = "`# spread CLASS MODEL PART_OF_ITS_RATE`, in quotes where there are spaces"
        expect(len(words) == 4, where, "spread", line, expected)
        key = words[1], canonical(words[2])
        expect(key not in spread, where, "spread", line, "each class and model once")
        spread[key] = _part(where, "spread", words[3])
    elif words[:1] == ["speed"]:
        parts = [word.partition("=") for word in words[3:]]
        expected = "`# speed CLASS MODEL grad_per_example_s=SECONDS …`, in quotes where there are spaces"
        expect(len(words) > 3 and all(equals for _, equals, _ in parts), where, "speed", line, expected)
        told = {name: value for name, _, value in parts}
        expect(len(told) == len(parts), where, "speed", line, "each part once")
        key = words[1], canonical(words[2])
        expect(key not in speeds, where, "speed", line, "each class and model once")
        speeds[key] = speed_of(where, f"speed {words[1]} {words[2]}", told)
    elif words[:1] == ["name"]:
        return " ".join(words[1:])
    return ""


# --- YAML ---------------------------------------------------------------------------------------------------------------


def _from_yaml(path: Path, text: str, sieve: Sieve) -> Workload:
    tree = Lined.parse(path, text)
    expect(
        isinstance(tree, dict),
        (path, 1),
        "workload",
        kind_of(tree),
        "a mapping: name, users, rates, jobs",
    )
    for field in tree:
        known(
            (path, tree.lines[field]),
            field,
            ("name", "users", "rates", "spread", "interference", "speeds", "jobs"),
        )
    name = path.stem
    if tree.get("name") is not None:
        name = wording((path, tree.lines["name"]), "name", tree["name"])
    tickets = {}
    for user, value in mapping_of(path, tree, "users").items():
        where = (path, tree["users"].lines[user])
        tickets[UserName(str(user))] = number(
            where, f"users.{user}", value, least=LEAST_TICKETS, most=MOST_TICKETS
        )
    rates = _by_class(path, tree, "rates", partial(number, least=0), "mini-batches a second")
    slowed = _interference(path, tree)
    spread = _by_class(path, tree, "spread", _part, "part of its rate")
    listed = tree.get("jobs")
    expect(
        isinstance(listed, list) and bool(listed),
        (path, tree.lines.get("jobs", 1)),
        "jobs",
        listed,
        "a list of jobs",
    )
    jobs: list[SimJob] = []
    assert isinstance(listed, LinedList)
    for at, entry in zip(listed.lines, listed, strict=True):
        more: list[SimJob] = []
        with sieve.job():
            more = _entry((path, at), entry)
        _not_too_many((path, at), len(jobs) + len(more))
        jobs += more
    speeds = _speeds(path, tree)
    found = _whole(path, name, jobs, tickets=tickets, rates=rates, speeds=speeds, sieve=sieve)
    return replace(found, interference=slowed, spread=spread)


def _by_class(
    path: Path, tree: Lined, name: str, read: Callable[[Where, str, object], float], what: str
) -> dict[tuple[str, str], float]:
    """By class and GPU model; `what` is said of each."""
    found: dict[tuple[str, str], float] = {}
    for class_, by_model in mapping_of(path, tree, name).items():
        where = (path, tree[name].lines[class_])
        expect(isinstance(by_model, dict), where, f"{name}.{class_}", by_model, f"GPU model: {what}")
        for model, value in by_model.items():
            line, key = (path, by_model.lines[model]), (str(class_), canonical(str(model)))
            expect(key not in found, line, f"{name}.{class_}", model, "each model once")
            found[key] = read(line, f"{name}.{class_}.{model}", value)
    return found


def _part(where: Where, field: str, value: object) -> float:
    part = number(where, field, value, above=0)
    expect(part <= 1, where, field, value, "a part of its rate: above 0, at most 1")
    return part


def _speeds(path: Path, tree: Any) -> Speeds:
    """Class of elastic jobs → GPU model → the parts of what a mini-batch takes."""
    found: Speeds = {}
    for class_, by_model in mapping_of(path, tree, "speeds").items():
        where = (path, tree["speeds"].lines[class_])
        expect(
            isinstance(by_model, dict), where, f"speeds.{class_}", by_model, "GPU model: parts of its time"
        )
        for model, parts in by_model.items():
            line, field = (path, by_model.lines[model]), f"speeds.{class_}.{model}"
            expect(isinstance(parts, dict), line, field, parts, "grad_per_example_s: seconds, …")
            key = str(class_), canonical(str(model))
            expect(key not in found, line, f"speeds.{class_}", model, "each model once")
            found[key] = speed_of(line, field, parts)
    return found


def _ratio(where: Where, field: str, value: object) -> float:
    """Or `never`: they do not fit on one GPU."""
    return inf if value == NEVER else number(where, field, value, least=1)


def _interference(path: Path, tree: Any) -> Ratios:
    """Class → class beside it → GPU model → how many times as long its mini-batches take."""
    found: Ratios = {}
    for class_, others in mapping_of(path, tree, "interference").items():
        field = f"interference.{class_}"
        where = (path, tree["interference"].lines[class_])
        expect(isinstance(others, dict), where, field, others, "class beside it: GPU model: times as long")
        for other, by_model in others.items():
            line = (path, others.lines[other])
            expect(isinstance(by_model, dict), line, f"{field}.{other}", by_model, "GPU model: times as long")
            for model, value in by_model.items():
                at, pair = (path, by_model.lines[model]), (str(class_), str(other), canonical(str(model)))
                expect(pair not in found, at, f"{field}.{other}", model, "each model once")
                found[pair] = _ratio(at, f"{field}.{other}.{model}", value)
    return found


def _entry(where: Where, entry: Any) -> list[SimJob]:
    expect(isinstance(entry, dict), where, "jobs", entry, "a mapping: user, arrival_s, steps, job_class, …")
    count = int(number(where, "count", entry.get("count", 1), least=1, most=MOST_JOBS, whole=True))
    fields = {}
    for field, value in entry.items():
        known((where[0], entry.lines[field]), field, (*COLUMNS, "count"))
        if field != "count":
            fields[field] = value
    return [job_of(where, fields, entry.lines)] * count


def _whole(
    path: Path,
    name: str,
    read: list[SimJob],
    *,
    tickets: dict[UserName, float],
    rates: dict[tuple[str, str], float],
    speeds: Speeds,
    sieve: Sieve,
) -> Workload:
    elastic = {job.job_class: job for job in reversed(read) if job.elastic is not None}
    rates = {key: rate for key, rate in rates.items() if key[0] not in elastic}
    rates |= declared_rates(elastic, speeds)
    for model in TABLE_1.values():
        if not any(class_ == model.name for class_, _ in rates):
            rates |= {(model.name, gpu): rate for gpu, rate in model.rates().items()}
    classes = {class_ for class_, _ in rates}
    jobs = []
    for job in read:
        with sieve.job():
            if job.elastic is not None and not any(class_ == job.job_class for class_, _ in speeds):
                refuse((path, job.line), "job_class", job.job_class, "one that has speeds, as it is elastic")
            for job_class in job.classes:
                if job_class not in classes:
                    hint = did_you_mean(job_class, sorted(classes))
                    refuse((path, job.line), "job_class", job_class, f"one that has rates{hint}")
            first = job.stages[0].job_class if job.stages else job.job_class
            expect(
                first == job.job_class,
                (path, job.line),
                "stages",
                first,
                f"{job.job_class!r} to be the first",
            )
            jobs.append(job)
    return replace(assemble(path, name, jobs, tickets=tickets, rates=rates, sieve=sieve), speeds=speeds)


def assemble(
    path: Path,
    name: str,
    jobs: list[SimJob],
    *,
    tickets: Mapping[UserName, float],
    rates: Mapping[tuple[str, str], float],
    sieve: Sieve,
) -> Workload:
    """Numbered by arrival. Users without tickets have the same."""
    if not jobs and sieve.left_out:
        raise RefusedError(f"{path}: all {len(sieve.left_out)} jobs are bad; the first: {sieve.left_out[0]}")
    expect(0 < len(jobs) <= MOST_JOBS, (path, 1), "jobs", len(jobs), f"1 to {MOST_JOBS} jobs")
    ordered = sorted(enumerate(jobs), key=lambda pair: (pair[1].arrival_s, pair[0]))
    used = {class_ for job in jobs for class_ in job.classes}
    users = dict.fromkeys(job.user for job in jobs)
    return Workload(
        name=name,
        jobs=tuple(replace(job, id=place) for place, (_, job) in enumerate(ordered, start=1)),
        tickets={user: tickets.get(user, DEFAULT_TICKETS) for user in sorted({*users, *tickets})},
        rates={at: rate for at, rate in rates.items() if at[0] in used},
        source=str(path),
        skipped=tuple(sieve.left_out),
        unnamed=tuple(sorted(users.keys() - tickets.keys())) if tickets else (),
    )
