"""Results as files: JSON, CSV, pictures. Written whole or not at all; the same result gives the same bytes but for what was measured of this machine."""

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hs_core.errors import RefusedError
from hs_sim.metrics import summarize
from hs_sim.model import JobOutcome, Result

JOB_COLUMNS = (
    "id", "user", "gang", "arrival_s", "started_s", "ended_s", "jct_s", "steps", "suspends", "migrations", "restarts", "lost_gpu_s", "steps_done",
)  # fmt: skip


def run_row(result: Result, *, measured: bool = True) -> dict[str, object]:
    """The summary, with the run's jobs, series and trades."""
    return {
        **summarize(result).as_dict(measured=measured),
        "workload": result.experiment.workload.name,
        "source": result.experiment.workload.source,
        "quantum_s": result.experiment.quantum_s,
        "ended_s": result.ended_s,
        "messages": result.messages,
        "job_outcomes": [_job(job) for job in result.jobs],
        "trade_events": [dict(trade) for trade in result.trades],
        "samples": [
            {
                "at_s": sample.at_s,
                "gpus": _nested(sample.gpus),
                "entitled": _nested(sample.entitled),
                "steps_per_s": dict(sorted(sample.steps_per_s.items())),
            }
            for sample in result.samples
        ],
    }


def _job(job: JobOutcome) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(job, name) for name in JOB_COLUMNS}
    row["gpu_s"] = dict(sorted(job.gpu_s.items()))
    return row


def _nested(values: object) -> dict[str, dict[str, float]]:
    assert isinstance(values, dict)
    found: dict[str, dict[str, float]] = {}
    for (user, model), value in sorted(values.items()):
        found.setdefault(user, {})[model] = value
    return found


def write_json(path: Path, rows: Sequence[object]) -> None:
    write_text(path, json.dumps(rows, indent=1, allow_nan=False) + "\n")


def write_jobs_csv(path: Path, results: Sequence[Result]) -> None:
    models = list(dict.fromkeys(pool.model for result in results for pool in result.experiment.cluster.pools))
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["policy", "seed", *JOB_COLUMNS, *(f"gpu_s_{model}" for model in models)])
    for result in results:
        for job in result.jobs:
            cells = ["" if (value := getattr(job, name)) is None else value for name in JOB_COLUMNS]
            gpus = [job.gpu_s.get(model, 0.0) for model in models]
            table.writerow([result.experiment.policy, result.experiment.seed, *cells, *gpus])
    write_text(path, out.getvalue())


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """A line each, under the names of their fields, which are all the same."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(rows[0])
    table.writerows(["" if value is None else value for value in row.values()] for row in rows)
    write_text(path, out.getvalue())


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def scratch_of(path: Path) -> Path:
    """Where it is written before it has its name."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def write_bytes(path: Path, data: bytes) -> None:
    scratch = scratch_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes(data)
        scratch.replace(path)
    except OSError as error:
        raise RefusedError(f"{path}: {error.strerror}; expected a place that can be written") from None
    finally:  # interrupted, too
        with suppress(OSError):
            scratch.unlink()
