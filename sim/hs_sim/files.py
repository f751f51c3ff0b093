"""Workload files: YAML for one written by hand (docs/simulator.md), CSV for long ones. Every mistake is named with file, line, field, value and what was expected."""

import csv
import io
import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Any

from hs_core.errors import RefusedError
from hs_core.forms import Elastic
from hs_core.mechanism.pollux import Speed
from hs_core.model import Migrate, Topology
from hs_core.names import UserName
from hs_core.strategy import Strategy, obstacle, parse
from hs_sim.cluster import canonical
from hs_sim.colocated import Ratios
from hs_sim.elastic import declared_rates
from hs_sim.elasticfile import elastic_of, elastic_text, speed_of
from hs_sim.generate import TABLE_1
from hs_sim.model import Growth, SimJob, Stage, Workload
from hs_sim.reading import Sieve, Where, did_you_mean, expect, known, number, refuse, text_of

MOST_JOBS = 2_000_000
COLUMNS = (
    "user", "arrival_s", "steps", "job_class", "gpus", "nodes", "gpu_types", "gpu_memory_bytes", "state_bytes", "migrate",
    "sliceable", "priority", "stages", "growth", "gpu_memory_fixed_bytes", "accumulation_max", "elastic", "noise_scale", "dataset", "dataset_bytes", "strategies",
    "topology",
)  # fmt: skip
NEVER = "never"
Speeds = dict[tuple[str, str], Speed]
NEEDED = ("user", "arrival_s", "steps", "job_class")
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
    for field in header:
        known((path, lines[0]), field, COLUMNS)
    for field in NEEDED:
        expect(field in header, (path, lines[0]), "header", ",".join(header), f"a column {field}")
    expect(len(set(header)) == len(header), (path, lines[0]), "header", ",".join(header), "each column once")
    jobs = []
    for at, row in enumerate(rows, start=1):
        where = (path, lines[min(at, len(lines) - 1)])
        with sieve.job():
            expect(len(row) == len(header), where, "line", ",".join(row), f"{len(header)} fields")
            jobs.append(_job(where, {k: v.strip() for k, v in zip(header, row, strict=True) if v.strip()}))
    found = _whole(path, name, jobs, tickets=tickets, rates=rates, speeds=speeds, sieve=sieve)
    return replace(found, interference=slowed, spread=spread)


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
        tickets[UserName(words[1])] = number(where, "tickets", words[2], above=0)
    elif words[:1] == ["rate"]:
        expect(
            len(words) == 4,
            where,
            "rate",
            line,
            "`# rate CLASS MODEL STEPS_PER_S`, in quotes where there are spaces",
        )
        rates[words[1], canonical(words[2])] = number(where, "rate", words[3], least=0)
    elif words[:1] == ["beside"]:
        expected = "`# beside CLASS OTHER_CLASS MODEL TIMES_AS_LONG`, in quotes where there are spaces"
        expect(len(words) == 5, where, "beside", line, expected)
        slowed[words[1], words[2], canonical(words[3])] = _ratio(where, "beside", words[4])
    elif words[:1] == ["spread"]:
        expected = "`# spread CLASS MODEL PART_OF_ITS_RATE`, in quotes where there are spaces"
        expect(len(words) == 4, where, "spread", line, expected)
        spread[words[1], canonical(words[2])] = _part(where, "spread", words[3])
    elif words[:1] == ["speed"]:
        parts = [word.partition("=") for word in words[3:]]
        expected = "`# speed CLASS MODEL grad_per_example_s=SECONDS …`, in quotes where there are spaces"
        expect(len(words) > 3 and all(equals for _, equals, _ in parts), where, "speed", line, expected)
        told = {name: value for name, _, value in parts}
        speeds[words[1], canonical(words[2])] = speed_of(where, f"speed {words[1]} {words[2]}", told)
    elif words[:1] == ["name"]:
        return " ".join(words[1:])
    return ""


# --- YAML ---------------------------------------------------------------------------------------------------------------


def _from_yaml(path: Path, text: str, sieve: Sieve) -> Workload:
    tree = _Lined.parse(path, text)
    expect(
        isinstance(tree, dict),
        (path, 1),
        "workload",
        type(tree).__name__,
        "a mapping: name, users, rates, jobs",
    )
    for field in tree:
        known(
            (path, tree.lines[field]),
            field,
            ("name", "users", "rates", "spread", "interference", "speeds", "jobs"),
        )
    tickets = {}
    for user, value in _mapping(path, tree, "users").items():
        where = (path, tree["users"].lines[user])
        tickets[UserName(str(user))] = number(where, f"users.{user}", value, above=0)
    rates = {}
    for class_, by_model in _mapping(path, tree, "rates").items():
        where = (path, tree["rates"].lines[class_])
        expect(
            isinstance(by_model, dict), where, f"rates.{class_}", by_model, "GPU model: mini-batches a second"
        )
        for model, value in by_model.items():
            line = (path, by_model.lines[model])
            rates[str(class_), canonical(str(model))] = number(
                line, f"rates.{class_}.{model}", value, least=0
            )
    slowed = _interference(path, tree)
    spread = {}
    for class_, by_model in _mapping(path, tree, "spread").items():
        where = (path, tree["spread"].lines[class_])
        expect(isinstance(by_model, dict), where, f"spread.{class_}", by_model, "GPU model: part of its rate")
        for model, value in by_model.items():
            line = (path, by_model.lines[model])
            spread[str(class_), canonical(str(model))] = _part(line, f"spread.{class_}.{model}", value)
    listed = tree.get("jobs")
    expect(
        isinstance(listed, list) and bool(listed),
        (path, tree.lines.get("jobs", 1)),
        "jobs",
        listed,
        "a list of jobs",
    )
    jobs: list[SimJob] = []
    assert isinstance(listed, _LinedList)
    for at, entry in zip(listed.lines, listed, strict=True):
        with sieve.job():
            jobs += _entry((path, at), entry)
    name = str(tree.get("name", path.stem))
    speeds = _speeds(path, tree)
    found = _whole(path, name, jobs, tickets=tickets, rates=rates, speeds=speeds, sieve=sieve)
    return replace(found, interference=slowed, spread=spread)


def _part(where: Where, field: str, value: object) -> float:
    part = number(where, field, value, above=0)
    expect(part <= 1, where, field, value, "a part of its rate: above 0, at most 1")
    return part


def _speeds(path: Path, tree: Any) -> Speeds:
    """Class of elastic jobs → GPU model → the parts of what a mini-batch takes."""
    found: Speeds = {}
    for class_, by_model in _mapping(path, tree, "speeds").items():
        where = (path, tree["speeds"].lines[class_])
        expect(
            isinstance(by_model, dict), where, f"speeds.{class_}", by_model, "GPU model: parts of its time"
        )
        for model, parts in by_model.items():
            line, field = (path, by_model.lines[model]), f"speeds.{class_}.{model}"
            expect(isinstance(parts, dict), line, field, parts, "grad_per_example_s: seconds, …")
            found[str(class_), canonical(str(model))] = speed_of(line, field, parts)
    return found


def _ratio(where: Where, field: str, value: object) -> float:
    """Or `never`: they do not fit on one GPU."""
    return inf if value == NEVER else number(where, field, value, least=1)


def _interference(path: Path, tree: Any) -> Ratios:
    """Class → class beside it → GPU model → how many times as long its mini-batches take."""
    found: Ratios = {}
    for class_, others in _mapping(path, tree, "interference").items():
        field = f"interference.{class_}"
        where = (path, tree["interference"].lines[class_])
        expect(isinstance(others, dict), where, field, others, "class beside it: GPU model: times as long")
        for other, by_model in others.items():
            line = (path, others.lines[other])
            expect(isinstance(by_model, dict), line, f"{field}.{other}", by_model, "GPU model: times as long")
            for model, value in by_model.items():
                ratio = _ratio((path, by_model.lines[model]), f"{field}.{other}.{model}", value)
                found[str(class_), str(other), canonical(str(model))] = ratio
    return found


def _entry(where: Where, entry: Any) -> list[SimJob]:
    expect(isinstance(entry, dict), where, "jobs", entry, "a mapping: user, arrival_s, steps, job_class, …")
    count = int(number(where, "count", entry.get("count", 1), least=1, whole=True))
    expect(count <= MOST_JOBS, where, "count", count, f"at most {MOST_JOBS}")
    fields = {}
    for field, value in entry.items():
        known((where[0], entry.lines[field]), field, (*COLUMNS, "count"))
        if field != "count":
            fields[field] = value
    return [_job(where, fields, entry.lines)] * count


class _Lined(dict[Any, Any]):
    """A mapping of a YAML file that knows its lines."""

    line: int
    lines: dict[Any, int]

    @classmethod
    def parse(cls, path: Path, text: str) -> Any:
        import yaml  # noqa: PLC0415 — only who reads YAML pays for it

        class Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
            pass

        def mapping(loader: Any, node: Any) -> "_Lined":
            made = cls()
            made.line = node.start_mark.line + 1
            made.lines = {}
            for key_node, value_node in node.value:
                key = loader.construct_object(key_node, deep=True)
                line = key_node.start_mark.line + 1
                if not isinstance(key, str | int | float):
                    raise RefusedError(f"{path}:{line}: a key is a {type(key).__name__}; expected a word")
                if key in made:
                    raise RefusedError(f"{path}:{line}: {key}: named twice; expected each field once")
                made[key] = loader.construct_object(value_node, deep=True)
                made.lines[key] = line
            return made

        def sequence(loader: Any, node: Any) -> "_LinedList":
            made = _LinedList(loader.construct_object(item, deep=True) for item in node.value)
            made.lines = [item.start_mark.line + 1 for item in node.value]
            return made

        Loader.add_constructor("tag:yaml.org,2002:map", mapping)
        Loader.add_constructor("tag:yaml.org,2002:seq", sequence)
        try:
            return yaml.load(text, Loader)  # noqa: S506 — a safe loader
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise RefusedError(f"{path}:{line}: {error.problem}; expected YAML") from None
        except yaml.YAMLError as error:
            raise RefusedError(f"{path}: {error}; expected YAML") from None
        except RecursionError:
            raise RefusedError(f"{path}: nested too deeply; expected a mapping of lists") from None


class _LinedList(list[Any]):
    """A list of a YAML file that knows the lines of its items."""

    lines: list[int]


def _mapping(path: Path, tree: Any, field: str) -> Mapping[Any, Any]:
    found = tree.get(field)
    if found is None:
        return {}
    if not isinstance(found, dict):
        refuse((path, tree.lines[field]), field, found, "a mapping")
    return found


# --- one job --------------------------------------------------------------------------------------------------------------


def _job(where: Where, fields: Mapping[str, Any], lines: Mapping[str, int] | None = None) -> SimJob:
    def at(field: str) -> Where:
        return where[0], (lines or {}).get(field, where[1])

    def whole(field: str, default: int, least: int = 0) -> int:
        return int(number(at(field), field, fields.get(field, default), least=least, whole=True))

    for field in NEEDED:
        expect(field in fields, where, field, "nothing", "every job names it")
    types = fields.get("gpu_types", ())
    if isinstance(types, str):
        types = [word for word in types.replace("|", " ").replace(",", " ").split() if word]
    expect(isinstance(types, list | tuple), at("gpu_types"), "gpu_types", types, "a list of GPU models")
    migrate = str(fields.get("migrate", Migrate.AUTO))
    expect(migrate in list(Migrate), at("migrate"), "migrate", migrate, " or ".join(Migrate))
    sliceable = str(fields.get("sliceable", "true")).lower()
    expect(sliceable in ("true", "false"), at("sliceable"), "sliceable", sliceable, "true or false")
    growth = str(fields.get("growth", Growth.JUMP))
    expect(growth in list(Growth), at("growth"), "growth", growth, " or ".join(Growth))
    dataset = str(fields.get("dataset", ""))
    expect(len(dataset) <= 128, at("dataset"), "dataset", dataset, "at most 128 characters")
    dataset_bytes = whole("dataset_bytes", 0)
    expect(
        bool(dataset) or not dataset_bytes,
        at("dataset_bytes"),
        "dataset_bytes",
        dataset_bytes,
        "a dataset to go with it",
    )
    elastic = elastic_of(at("elastic"), fields.get("elastic", ""), whole("gpus", 1, 1))
    noise = number(at("noise_scale"), "noise_scale", fields.get("noise_scale", 0.0), least=0)
    expect(
        elastic is not None or not noise,
        at("noise_scale"),
        "noise_scale",
        noise,
        "an elastic job to go with it",
    )
    nodes = whole("nodes", 1, 1)
    expect(elastic is None or nodes == 1, at("nodes"), "nodes", nodes, "1 for an elastic job")
    stages = _stages(at("stages"), fields.get("stages", ""))
    strategies = _strategies(at("strategies"), fields.get("strategies", ""), whole("gpus", 1, 1) * nodes)
    plain = not strategies or (elastic is None and not stages)
    expect(
        plain,
        at("strategies"),
        "strategies",
        fields.get("strategies"),
        "neither elastic nor stages beside them",
    )
    topology = str(fields.get("topology", Topology.AUTO))
    expect(topology in list(Topology), at("topology"), "topology", topology, " or ".join(Topology))
    alone = topology == Topology.AUTO or elastic is None
    expect(alone, at("topology"), "topology", topology, "auto for an elastic job: it stays on one server")
    user, job_class = str(fields["user"]), str(fields["job_class"])
    expect(0 < len(user) <= 128, at("user"), "user", user, "1 to 128 characters")
    expect(0 < len(job_class) <= 256, at("job_class"), "job_class", job_class, "1 to 256 characters")
    return SimJob(
        id=0,
        user=UserName(user),
        arrival_s=number(at("arrival_s"), "arrival_s", fields["arrival_s"], least=0),
        steps=whole("steps", 0, 1),
        job_class=job_class,
        gpus=whole("gpus", 1, 1),
        nodes=nodes,
        gpu_types=tuple(canonical(str(model)) for model in types),
        gpu_memory_bytes=whole("gpu_memory_bytes", 0),
        state_bytes=whole("state_bytes", 0),
        migrate=Migrate(migrate),
        sliceable=sliceable == "true",
        priority=whole("priority", 0, -1_000_000),
        stages=stages,
        growth=Growth(growth),
        gpu_memory_fixed_bytes=whole("gpu_memory_fixed_bytes", 0),
        accumulation_max=whole("accumulation_max", 1, 1),
        dataset=dataset,
        dataset_bytes=dataset_bytes,
        elastic=elastic,
        noise_scale=noise,
        strategies=strategies,
        topology=Topology(topology),
        line=where[1],
    )


def _strategies(where: Where, said: object, gang: int) -> tuple[Strategy, ...]:
    """`dp=4 | tp=2,pp=2`, or a list."""
    words = said if isinstance(said, list) else str(said).split("|")
    try:
        found = tuple(parse(str(word)) for word in words if str(word).strip())
    except RefusedError as refused:
        refuse(where, "strategies", said, str(refused))
    why = obstacle(found, gang)
    expect(not why, where, "strategies", said, why)
    return found


def _stages(where: Where, text: object) -> tuple[Stage, ...]:
    """`0/1563 CLASS | 31/782 CLASS`: epoch from which on, mini-batches of an epoch, class."""
    expect(isinstance(text, str), where, "stages", text, _STAGES)
    found = []
    for word in filter(None, (word.strip() for word in str(text).split("|"))):
        numbers, _, name = word.partition(" ")
        epoch, slash, steps = numbers.partition("/")
        expect(bool(slash and name.strip()), where, "stages", word, _STAGES)
        found.append(
            Stage(
                job_class=name.strip(),
                from_epoch=int(number(where, "stages, epoch", epoch, least=0, whole=True)),
                epoch_steps=int(number(where, "stages, steps of an epoch", steps, least=1, whole=True)),
            )
        )
    epochs = [stage.from_epoch for stage in found]
    expect(
        not epochs or (epochs[0] == 0 and epochs == sorted(set(epochs))),
        where,
        "stages",
        text,
        "epochs that rise from 0",
    )
    return tuple(found)


_STAGES = "`EPOCH/STEPS_OF_AN_EPOCH CLASS | …`"


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
    )


# --- export ---------------------------------------------------------------------------------------------------------------


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
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    for job in workload.jobs:
        table.writerow([_cell(getattr(job, field)) for field in COLUMNS])
    return out.getvalue()


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
            else _cell(value)
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


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    if isinstance(value, Elastic):
        return elastic_text(value)
    if isinstance(value, tuple):
        return "|".join(map(_word, value))
    if isinstance(value, StrEnum):
        return str(value)
    return repr(value) if isinstance(value, float) else value


def _word(value: object) -> str:
    if isinstance(value, Strategy):
        return value.text
    return (
        f"{value.from_epoch}/{value.epoch_steps} {value.job_class}"
        if isinstance(value, Stage)
        else str(value)
    )
