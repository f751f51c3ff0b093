"""Workload files: YAML for one written by hand (docs/simulator.md), CSV for long ones. Every mistake is named with file, line, field, value and what was expected."""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from hs_core.errors import Kind, RefusedError
from hs_core.model import Migrate, UserName
from hs_sim.cluster import canonical
from hs_sim.generate import TABLE_1
from hs_sim.model import SimJob, Workload

MOST_BYTES = 512 << 20
MOST_JOBS = 2_000_000
COLUMNS = (
    "user", "arrival_s", "steps", "job_class", "gpus", "nodes", "gpu_types", "gpu_memory_bytes", "state_bytes", "migrate",
    "sliceable", "priority",
)  # fmt: skip
NEEDED = ("user", "arrival_s", "steps", "job_class")
DEFAULT_TICKETS = 100.0

_Where = tuple[Path, int]  # file, line


def load(path: Path) -> Workload:
    """YAML or CSV by its suffix."""
    text = _read(path)
    if path.suffix.lower() == ".csv":
        return _from_csv(path, text)
    if path.suffix.lower() in (".yaml", ".yml", ".json"):
        return _from_yaml(path, text)
    raise RefusedError(f"{path}: suffix {path.suffix!r}; expected .yaml, .yml, .json or .csv")


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise RefusedError(f"{path}: {path.stat().st_size} bytes; expected at most {MOST_BYTES}")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RefusedError(f"{path}: there is no such file", Kind.NOT_FOUND) from None
    except UnicodeDecodeError as error:
        raise RefusedError(f"{path}: byte {error.start} is not UTF-8; expected text in UTF-8") from None
    except OSError as error:
        raise RefusedError(f"{path}: {error.strerror}; expected a file that can be read") from None


# --- CSV: `# user NAME TICKETS` and `# rate CLASS MODEL RATE` lines, a header, one job a line ---------------------------


def _from_csv(path: Path, text: str) -> Workload:
    tickets: dict[UserName, float] = {}
    rates: dict[tuple[str, str], float] = {}
    name = path.stem
    body: list[str] = []
    numbers: list[int] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("#"):
            words = line[1:].split()
            if words[:1] == ["user"]:
                _expect(len(words) == 3, (path, number), "user", line, "`# user NAME TICKETS`")
                tickets[UserName(words[1])] = _number((path, number), "tickets", words[2], above=0)
            elif words[:1] == ["rate"]:
                _expect(len(words) == 4, (path, number), "rate", line, "`# rate CLASS MODEL STEPS_PER_S`")
                rates[words[1], canonical(words[2])] = _number((path, number), "rate", words[3], least=0)
            elif words[:1] == ["name"] and len(words) > 1:
                name = " ".join(words[1:])
        elif line.strip():
            body.append(line)
            numbers.append(number)
    if not body:
        _refuse((path, 1), "jobs", "none", f"a header line of {', '.join(NEEDED)} …, then one job a line")
    rows = csv.reader(io.StringIO("\n".join(body)))
    header = [word.strip() for word in next(rows)]
    for field in header:
        _known((path, numbers[0]), field, COLUMNS)
    for field in NEEDED:
        _expect(field in header, (path, numbers[0]), "header", ",".join(header), f"a column {field}")
    jobs = []
    for at, row in enumerate(rows, start=1):
        where = (path, numbers[min(at, len(numbers) - 1)])
        _expect(len(row) == len(header), where, "line", ",".join(row), f"{len(header)} fields")
        jobs.append(_job(where, {k: v.strip() for k, v in zip(header, row, strict=True) if v.strip()}))
    return _whole(path, name, jobs, tickets, rates)


# --- YAML ---------------------------------------------------------------------------------------------------------------


def _from_yaml(path: Path, text: str) -> Workload:
    tree = _Lined.parse(path, text)
    _expect(
        isinstance(tree, dict),
        (path, 1),
        "workload",
        type(tree).__name__,
        "a mapping: name, users, rates, jobs",
    )
    for field in tree:
        _known((path, tree.lines[field]), field, ("name", "users", "rates", "jobs"))
    tickets = {}
    for user, value in _mapping(path, tree, "users").items():
        where = (path, tree["users"].lines[user])
        tickets[UserName(str(user))] = _number(where, f"users.{user}", value, above=0)
    rates = {}
    for class_, by_model in _mapping(path, tree, "rates").items():
        where = (path, tree["rates"].lines[class_])
        _expect(
            isinstance(by_model, dict), where, f"rates.{class_}", by_model, "GPU model: mini-batches a second"
        )
        for model, value in by_model.items():
            line = (path, by_model.lines[model])
            rates[str(class_), canonical(str(model))] = _number(
                line, f"rates.{class_}.{model}", value, least=0
            )
    listed = tree.get("jobs")
    _expect(
        isinstance(listed, list) and bool(listed),
        (path, tree.lines.get("jobs", 1)),
        "jobs",
        listed,
        "a list of jobs",
    )
    jobs = []
    assert isinstance(listed, list)
    for entry in listed:
        where = (path, getattr(entry, "line", 1))
        _expect(
            isinstance(entry, dict), where, "jobs", entry, "a mapping: user, arrival_s, steps, job_class, …"
        )
        count = int(_number(where, "count", entry.get("count", 1), least=1, whole=True))
        fields = {}
        for field, value in entry.items():
            _known((path, entry.lines[field]), field, (*COLUMNS, "count"))
            if field != "count":
                fields[field] = value
        jobs += [_job(where, fields, entry.lines)] * count
    return _whole(path, str(tree.get("name", path.stem)), jobs, tickets, rates)


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

        Loader.add_constructor("tag:yaml.org,2002:map", mapping)
        try:
            return yaml.load(text, Loader)  # noqa: S506 — a safe loader
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise RefusedError(f"{path}:{line}: {error.problem}; expected YAML") from None
        except yaml.YAMLError as error:
            raise RefusedError(f"{path}: {error}; expected YAML") from None
        except RecursionError:
            raise RefusedError(f"{path}: nested too deeply; expected a mapping of lists") from None


def _mapping(path: Path, tree: Any, field: str) -> Mapping[Any, Any]:
    found = tree.get(field)
    if found is None:
        return {}
    if not isinstance(found, dict):
        _refuse((path, tree.lines[field]), field, found, "a mapping")
    return found


# --- one job --------------------------------------------------------------------------------------------------------------


def _job(where: _Where, fields: Mapping[str, Any], lines: Mapping[str, int] | None = None) -> SimJob:
    def at(field: str) -> _Where:
        return where[0], (lines or {}).get(field, where[1])

    def whole(field: str, default: int, least: int = 0) -> int:
        return int(_number(at(field), field, fields.get(field, default), least=least, whole=True))

    for field in NEEDED:
        _expect(field in fields, where, field, "nothing", "every job names it")
    types = fields.get("gpu_types", ())
    if isinstance(types, str):
        types = [word for word in types.replace("|", " ").replace(",", " ").split() if word]
    _expect(isinstance(types, list | tuple), at("gpu_types"), "gpu_types", types, "a list of GPU models")
    migrate = str(fields.get("migrate", Migrate.AUTO))
    _expect(migrate in list(Migrate), at("migrate"), "migrate", migrate, " or ".join(Migrate))
    sliceable = str(fields.get("sliceable", "true")).lower()
    _expect(sliceable in ("true", "false"), at("sliceable"), "sliceable", sliceable, "true or false")
    user, job_class = str(fields["user"]), str(fields["job_class"])
    _expect(0 < len(user) <= 128, at("user"), "user", user, "1 to 128 characters")
    _expect(0 < len(job_class) <= 256, at("job_class"), "job_class", job_class, "1 to 256 characters")
    return SimJob(
        id=0,
        user=UserName(user),
        arrival_s=_number(at("arrival_s"), "arrival_s", fields["arrival_s"], least=0),
        steps=whole("steps", 0, 1),
        job_class=job_class,
        gpus=whole("gpus", 1, 1),
        nodes=whole("nodes", 1, 1),
        gpu_types=tuple(canonical(str(model)) for model in types),
        gpu_memory_bytes=whole("gpu_memory_bytes", 0),
        state_bytes=whole("state_bytes", 0),
        migrate=Migrate(migrate),
        sliceable=sliceable == "true",
        priority=whole("priority", 0, -1_000_000),
    )


def _whole(
    path: Path,
    name: str,
    jobs: list[SimJob],
    tickets: dict[UserName, float],
    rates: dict[tuple[str, str], float],
) -> Workload:
    _expect(0 < len(jobs) <= MOST_JOBS, (path, 1), "jobs", len(jobs), f"1 to {MOST_JOBS} jobs")
    for model in TABLE_1.values():
        if not any(class_ == model.name for class_, _ in rates):
            rates |= {(model.name, gpu): rate for gpu, rate in model.rates().items()}
    known = {class_ for class_, _ in rates}
    used = dict.fromkeys(job.job_class for job in jobs)
    for class_ in used:
        if class_ not in known:
            close = get_close_matches(class_, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise RefusedError(
                f"{path}: job_class {class_!r} has no rates; expected some under `rates`{hint}"
            )
    ordered = sorted(enumerate(jobs), key=lambda pair: (pair[1].arrival_s, pair[0]))
    users = dict.fromkeys(job.user for job in jobs)
    return Workload(
        name=name,
        jobs=tuple(replace(job, id=number) for number, (_, job) in enumerate(ordered, start=1)),
        tickets={user: tickets.get(user, DEFAULT_TICKETS) for user in sorted({*users, *tickets})},
        rates={at: rate for at, rate in rates.items() if at[0] in used},
        source=str(path),
    )


def _number(
    where: _Where,
    field: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    whole: bool = False,
) -> float:
    expected = "a whole number" if whole else "a number"
    if least is not None:
        expected += f" of at least {least:g}"
    if above is not None:
        expected += f" above {above:g}"
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    good = isfinite(number) and abs(number) <= 1e18 and (not whole or number == int(number))
    good = good and (least is None or number >= least) and (above is None or number > above)
    _expect(good, where, field, value, expected)
    return number


def _known(where: _Where, field: Any, known: Iterable[str]) -> None:
    known = list(known)
    if field not in known:
        close = get_close_matches(str(field), known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        _refuse(where, str(field), "unknown field", f"one of {', '.join(known)}{hint}")


def _expect(good: bool, where: _Where, field: str, value: object, expected: str) -> None:
    if not good:
        _refuse(where, field, value, expected)


def _refuse(where: _Where, field: str, value: object, expected: str) -> NoReturn:
    shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "…"
    raise RefusedError(f"{where[0]}:{where[1]}: {field}: {shown}; expected {expected}")


# --- export ---------------------------------------------------------------------------------------------------------------


def dump_csv(workload: Workload) -> str:
    out = io.StringIO()
    out.write(f"# name {workload.name}\n")
    for user in sorted(workload.tickets):
        out.write(f"# user {user} {workload.tickets[user]!r}\n")
    for class_, model in sorted(workload.rates):
        out.write(f"# rate {class_} {model.replace(' ', '_')} {workload.rates[class_, model]!r}\n")
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
    plain = SimJob(id=0, user=UserName(""), arrival_s=0.0, steps=0, job_class="")
    jobs = [
        {
            field: value
            if isinstance(value, int | float | str) and not isinstance(value, Migrate)
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
        "jobs": jobs,
    }
    text: str = yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=140, allow_unicode=True)
    return text


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "|".join(map(str, value))
    if isinstance(value, Migrate):
        return str(value)
    return repr(value) if isinstance(value, float) else value
