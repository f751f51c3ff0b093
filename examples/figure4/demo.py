"""The paper's figure 4 on this machine: three users' real training jobs share one 4-GPU server fairly (`make demo`).

Users A, B and C submit four 1-GPU, four 2-GPU and four 4-GPU jobs to an embedded cluster of four emulated V100s. Real processes
train real models on real data; they are suspended and resumed every couple of seconds. At the end: a table, a picture, and exit
status 1 if a user was off its share by more than 10 %, if work was lost, or if a job's result is wrong.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from examples.figure4 import report, workload
from examples.figure4.record import Recorder
from hs_client import Client

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    out: Path
    quantum_s: float
    limit_s: float
    keep: bool


def parse(argv: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="report, picture and logs go here")
    parser.add_argument("--quantum", type=float, default=2.0, metavar="S", help="length of a slice")
    parser.add_argument("--limit", type=float, default=225.0, metavar="S", help="give up after this long")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up afterwards")
    got = parser.parse_args(argv)
    return Options(out=got.out.resolve(), quantum_s=got.quantum, limit_s=got.limit, keep=got.keep)


def hsctl(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hs_client", *words], stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT
    )
    if done.returncode != 0:
        sys.exit(f"hsctl {' '.join(words)}: exit status {done.returncode}")
    return done.stdout
