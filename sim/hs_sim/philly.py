"""Microsoft's Philly trace as CSV: timestamp, duration (s), num_gpus, and whose job it was (`user`, or `cluster`: the virtual cluster, a tenant)."""

import csv
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hs_core.names import UserName
from hs_sim.cluster import nodes_of
from hs_sim.files import assemble
from hs_sim.generate import TABLE_1, MiB, rates_of
from hs_sim.model import SimJob, Workload
from hs_sim.reading import Sieve, expect, number, refuse, text_of

NEEDED = ("timestamp", "duration", "num_gpus")
OWNERS = ("user", "cluster")  # whose job, by the first of these columns that there is
MEASURED_ON = "P100"  # durations are taken as those on it: the trace doesn't say which GPUs a job had
MOST_GPUS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PhillyJob:
    at_s: float  # since the first of the trace
    hour: int  # of the day
    duration_s: float
    gpus: int
    owner: str = ""
    line: int = 0


def is_philly(text: str) -> bool:
    return set(NEEDED) <= set(_header(text))


def _header(text: str) -> list[str]:
    return [word.strip() for word in next(csv.reader(text.splitlines()[:1], skipinitialspace=True), [])]


def load_philly(path: Path, sieve: Sieve | None = None) -> tuple[PhillyJob, ...]:
    """By arrival. Raises RefusedError with file, line and field."""
    sieve = sieve or Sieve()
    text = text_of(path)
    header = _header(text)
    missing = set(NEEDED) - set(header)
    expect(not missing, (path, 1), "header", ",".join(header), f"a column {', '.join(sorted(missing))}")
    for name in (*NEEDED, *OWNERS):
        expect(header.count(name) <= 1, (path, 1), "header", ",".join(header), f"a column {name} once")
    owner = next((name for name in OWNERS if name in header), "")
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    next(rows)
    read = []
    for words in rows:
        if not words:
            continue
        where = (path, rows.line_num)
        with sieve.job():
            row = dict(zip(header, (word.strip() for word in words), strict=False))
            for field in NEEDED:
                expect(field in row, where, field, "nothing", "as many fields as the header has")
            expect(len(words) == len(header), where, "line", ",".join(words), f"{len(header)} fields")
            try:
                at = datetime.fromisoformat(row["timestamp"])
            except ValueError:
                refuse(where, "timestamp", row["timestamp"], "a time such as 2017-10-03 06:48:36")
            expect(at.tzinfo is None, where, "timestamp", row["timestamp"], "a time without an offset")
            duration_s = number(where, "duration", row["duration"], above=0)
            gpus = int(number(where, "num_gpus", row["num_gpus"], least=1, whole=True))
            expect(gpus <= MOST_GPUS, where, "num_gpus", gpus, f"at most {MOST_GPUS}")
            read.append((at, duration_s, gpus, row[owner] if owner else "", where[1]))
    if not read:
        refuse((path, 1), "jobs", "none", f"one a line that is as it should be, of {len(sieve.left_out)}")
    read.sort()
    first = read[0][0]
    return tuple(
        PhillyJob(
            at_s=(at - first).total_seconds(),
            hour=at.hour,
            duration_s=duration_s,
            gpus=gpus,
            owner=whose,
            line=line,
        )
        for at, duration_s, gpus, whose, line in read
    )


def load_workload(path: Path, gpus_per_server: int = 4, sieve: Sieve | None = None) -> Workload:
    """Tenants as users, with one training model of Gandiva_fair's table 1 each, in turn: the trace doesn't say what was trained."""
    sieve = sieve or Sieve()
    rows = load_philly(path, sieve)
    users = sorted({row.owner or "philly" for row in rows})
    names = list(TABLE_1)
    model_of = {user: names[at % len(names)] for at, user in enumerate(users)}
    jobs = [_job(row, model_of[row.owner or "philly"], gpus_per_server) for row in rows]
    return assemble(
        path, path.stem, jobs, tickets={}, rates=rates_of(sorted(set(model_of.values()))), sieve=sieve
    )


def _job(row: PhillyJob, model: str, gpus_per_server: int) -> SimJob:
    nodes = nodes_of(row.gpus, gpus_per_server)
    return SimJob(
        id=0,
        user=UserName(row.owner or "philly"),
        arrival_s=row.at_s,
        steps=max(1, round(row.duration_s * TABLE_1[model].rates()[MEASURED_ON])),
        job_class=model,
        gpus=row.gpus // nodes,
        nodes=nodes,
        state_bytes=TABLE_1[model].state_mib * MiB,
        line=row.line,
    )
