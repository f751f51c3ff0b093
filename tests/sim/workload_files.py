"""Workload files of every format, as tests write them."""

import json
import os
from pathlib import Path

NO_PLACE = (
    "/proc is not writable" if os.geteuid() else "in /proc nothing can be made (no such file or directory)"
)

TABLE = {
    model: {
        str((f"ResNet-18 (batch size {batch})", gang)): {"null": speed * gang}
        for batch in (64, 128, 256)
        for gang in (1, 2, 64)
    }
    | {"('A3C', 1)": {"null": 0.0 if model == "k80" else 3.0}}
    for model, speed in (("v100", 8.0), ("k80", 2.0))
}
GAVEL_LINE = "ResNet-18 (batch size 64)\tcommand\tfolder\t-n\t1\t90000\t2\t1\t-1.0\t60"
SHOCKWAVE_LINE = "ResNet-18 (batch size 64)\tcommand\tfolder\t-n\t1\t90000\t1\tgns\t1\t-1.0\t500\t60"
CSV = "# rate net V100 8\n# rate net K80 2\nuser,arrival_s,steps,job_class,gpus,nodes\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
YAML = "rates: {net: {V100: 8, K80: 2}, stuck: {V100: 0, K80: 0}}\njobs:\n"


def put(tmp_path: Path, kind: str, body: str) -> tuple[Path, Path | None]:
    """The file, and the table beside it."""
    table = tmp_path / "table.json"
    if kind in ("gavel", "shockwave"):
        table.write_text(json.dumps(TABLE))
        path = tmp_path / f"{kind}.trace"
        path.write_text(body)
        return path, table
    path = tmp_path / f"{kind}.{'yaml' if kind == 'yaml' else 'csv'}"
    path.write_text({"csv": CSV, "philly": PHILLY, "yaml": YAML}[kind] + body)
    return path, None


def fields(line: str, **changes: object) -> str:
    names = ("type", "command", "folder", "argument", "data", "steps", "gang", "weight", "slo", "arrival")
    if line is SHOCKWAVE_LINE:
        names = (*names[:7], "mode", *names[7:9], "duration", "arrival")
    words = dict(zip(names, line.split("\t"), strict=True)) | {
        name: str(value) for name, value in changes.items()
    }
    return "\t".join(words.values()) + "\n"


GOOD = {
    "gavel": GAVEL_LINE + "\n",
    "shockwave": SHOCKWAVE_LINE + "\n",
    "csv": "ann,60,900,net,2,1\n",
    "philly": "2017-10-03 06:48:36,500.0,2,1000.0,a\n",
    "yaml": "- {user: ann, arrival_s: 60, steps: 900, job_class: net, gpus: 2}\n",
}
FIRST = {"gavel": 1, "shockwave": 1, "csv": 4, "philly": 2, "yaml": 3}  # line of the first job
