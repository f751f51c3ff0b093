"""Traces and throughputs as Gavel's simulator (OSDI'20) has them, and Shockwave's, which is made of it: tab-separated jobs, and steps a second of whole gangs by GPU model."""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from hs_core.errors import RefusedError
from hs_core.names import UserName
from hs_sim.batches import stages
from hs_sim.cluster import canonical, nodes_of
from hs_sim.colocated import load_interference
from hs_sim.files import assemble
from hs_sim.model import GAVEL, SHOCKWAVE, Growth, SimJob, Workload
from hs_sim.reading import (
    LEAST_TICKETS,
    MOST_TICKETS,
    Sieve,
    Where,
    did_you_mean,
    expect,
    number,
    refuse,
    text_of,
    unread,
)

FIELDS = (
    "job type", "command", "working directory", "steps argument", "needs data dir", "total steps", "gang", "weight", "SLO", "arrival",
)  # fmt: skip
SHOCKWAVE_FIELDS = (*FIELDS[:7], "mode", *FIELDS[7:9], "duration", "arrival")
MODES = ("static", "accordion", "gns")
WEIGHT_TICKETS = 100.0  # of a weight of 1
MOST_GPUS = 1_000_000  # of a gang
UNCONSOLIDATED = "_unconsolidated"  # behind a model's name: speeds on more servers than a gang needs
SHAPE = "GPU model → ('job type', gang) → null → steps/s"

Speeds = Mapping[tuple[str, str], float]


def load_trace(
    path: Path, throughputs: Path, gpus_per_server: int = 4, sieve: Sieve | None = None
) -> Workload:
    """Every job is a user of its own: Gavel shares among jobs, by weight. Shockwave's traces have two fields more, and jobs whose batch size changes."""
    speeds = load_throughputs(throughputs)
    sieve = sieve or Sieve()
    lines = [(line, words) for line, words in enumerate(text_of(path).splitlines(), start=1) if words.strip()]
    if not lines:
        refuse((path, 1), "jobs", "none", "one a line")
    fields = SHOCKWAVE_FIELDS if lines[0][1].count("\t") + 1 == len(SHOCKWAVE_FIELDS) else FIELDS
    kinds = list(dict.fromkeys(name for name, _ in speeds))
    reader = _Reader(fields, speeds, frozenset(kinds), gpus_per_server, throughputs)
    jobs: list[SimJob] = []
    tickets: dict[UserName, float] = {}
    for line, words in lines:
        with sieve.job():
            job, tickets_of = reader.job((path, line), words.split("\t"))
            jobs.append(job)
            tickets[job.user] = tickets_of
    found = assemble(path, path.stem, jobs, tickets=tickets, rates=speeds, sieve=sieve)
    peer = GAVEL if fields is FIELDS else SHOCKWAVE
    classes = {job.job_class for job in found.jobs}
    slowed = load_interference(throughputs, classes)
    return replace(found, peer=peer, interference=slowed, spread=load_spread(throughputs, speeds))


class _Reader:
    def __init__(
        self,
        fields: Sequence[str],
        speeds: Speeds,
        kinds: frozenset[str],
        gpus_per_server: int,
        throughputs: Path,
    ) -> None:
        self._fields, self._speeds, self._kinds = fields, speeds, kinds
        self._gpus_per_server = gpus_per_server
        self._throughputs = throughputs

    def job(self, where: Where, words: Sequence[str]) -> tuple[SimJob, float]:
        """With its tickets."""
        if len(words) != len(self._fields):
            expected = f"{len(self._fields)} with tabs between them: {', '.join(self._fields)}"
            refuse(where, "fields", len(words), expected)
        of = dict(zip(self._fields, words, strict=True))

        def whole(field: str) -> int:
            return int(number(where, field, of[field], least=1, whole=True))

        steps, gang = whole("total steps"), whole("gang")
        expect(gang <= MOST_GPUS, where, "gang", gang, f"at most {MOST_GPUS} GPUs")
        weight = number(
            where,
            "weight",
            of["weight"],
            least=LEAST_TICKETS / WEIGHT_TICKETS,
            most=MOST_TICKETS / WEIGHT_TICKETS,
        )
        arrival_s = number(where, "arrival", of["arrival"], least=0)
        mode = of.get("mode", "static")
        expect(mode in MODES, where, "mode", mode, " or ".join(MODES))
        job_type = of["job type"]
        job_class = f"{job_type} x{gang}"
        if job_class not in self._kinds:
            self._refuse_kind(where, job_type, gang)
        parts, growth = stages(mode, job_type, gang, steps, self._speeds)
        nodes = nodes_of(gang, self._gpus_per_server)
        job = SimJob(
            id=0,
            user=UserName(f"job{where[1]:05d}"),
            arrival_s=arrival_s,
            steps=steps,
            job_class=job_class,
            gpus=gang // nodes,
            nodes=nodes,
            stages=parts,
            growth=growth if parts else Growth.JUMP,
            line=where[1],
        )
        return job, WEIGHT_TICKETS * weight

    def _refuse_kind(self, where: Where, job_type: str, gang: int) -> NoReturn:
        sizes = sorted(
            int(size) for name, _, size in (kind.rpartition(" x") for kind in self._kinds) if name == job_type
        )
        if sizes:
            refuse(
                where,
                "gang",
                gang,
                f"one that {self._throughputs} has for {job_type}: {', '.join(map(str, sizes))}",
            )
        types = {kind.rpartition(" x")[0] for kind in self._kinds}
        refuse(
            where, "job type", job_type, f"one of {self._throughputs}{did_you_mean(job_type, sorted(types))}"
        )


def load_throughputs(path: Path) -> dict[tuple[str, str], float]:
    """(`<job type> x<gang>`, GPU model) → steps a second of the gang on as few servers as can be. 0: it does not run there."""
    found = {
        (kind, canonical(model)): speed
        for model, kind, speed in _speeds(path)
        if not model.endswith(UNCONSOLIDATED)
    }
    expect(bool(found), (path, 1), "throughputs", "none", SHAPE)
    return found


def load_spread(path: Path, speeds: Speeds) -> dict[tuple[str, str], float]:
    """(class, GPU model) → the part of its speed that a gang keeps over more servers than it needs: the table's `<model>_unconsolidated`, where it has it.

    `speeds`: of the table. What would be faster so is taken for as fast.
    """
    spread = {
        (kind, canonical(model.removesuffix(UNCONSOLIDATED))): speed
        for model, kind, speed in _speeds(path)
        if model.endswith(UNCONSOLIDATED)
    }
    return {
        key: min(1.0, speed / speeds[key])
        for key, speed in spread.items()
        if speed > 0 and speeds.get(key, 0.0) > 0
    }


def _speeds(path: Path) -> Iterator[tuple[str, str, float]]:
    """GPU model as the table calls it, `<job type> x<gang>`, steps a second alone on its GPUs. Raises RefusedError."""
    text = text_of(path)
    try:
        tree: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise RefusedError(f"{path}:{error.lineno}: {error.msg}; expected JSON") from None
    except RecursionError:
        raise RefusedError(f"{path}:1: nested too deeply; expected Gavel's throughputs") from None
    except ValueError as error:  # more digits than Python reads
        raise RefusedError(f"{path}: {unread(error)}; expected JSON") from None
    expect(isinstance(tree, dict) and bool(tree), (path, 1), "throughputs", type(tree).__name__, SHAPE)
    for model, kinds in tree.items():
        expect(isinstance(kinds, dict), (path, _line(text, model)), model, kinds, SHAPE)
        for kind, beside in kinds.items():
            name, gang = _kind(text, path, model, kind)
            alone = beside.get("null") if isinstance(beside, dict) else beside
            if isinstance(alone, bool) or not isinstance(alone, int | float) or not 0 <= alone <= 1e12:
                at = (path, _line(text, model, kind))
                refuse(at, f"{model}, {kind}, null", alone, "steps/s, a number of at least 0")
            yield model, f"{name} x{gang}", float(alone)


def _kind(text: str, path: Path, model: str, kind: str) -> tuple[str, int]:
    found: Any = None
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        found = ast.literal_eval(kind)
    good = isinstance(found, tuple) and len(found) == 2
    if not good or not isinstance(found[0], str) or not isinstance(found[1], int) or found[1] < 1:
        refuse((path, _line(text, model, kind)), f"{model}, job type", kind, "('name', gang)")
    return found[0], found[1]


def _line(text: str, *keys: str) -> int:
    """Of the last of these keys, each within the one before."""
    at = 0
    for key in keys:
        at = max(at, text.find(json.dumps(key, ensure_ascii=False), at))
    return text.count("\n", 0, at) + 1
