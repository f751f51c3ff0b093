"""A job on two GPUs that can be cut in two ways: Tesserae measures it in both, and it goes on in the faster one from its checkpoint."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import AS_LEAN, Cluster, alone, until

NewCluster = Callable[..., Cluster]
SCRIPT = Path(__file__).resolve().parents[2] / "examples/strategies.py"
ASKS = (
    "--torchrun",
    "-G",
    "2",
    "--strategy",
    "dp=2",
    "--strategy",
    "tp=2",
    "-e",
    "OMP_NUM_THREADS=1",
    *AS_LEAN,
)


def curve(path: Path) -> list[dict[str, Any]]:
    """A line that is being written is left out."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def test_a_job_is_measured_in_both_its_strategies_and_trains_on_in_the_faster_one(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster("--emulate", "V100:2:16G", "--quantum", "1", "--user", "ann")
    cluster.hsctl("policy", "set", "tesserae-las")
    path, epochs = tmp_path / "curve", 25
    words = [str(SCRIPT), "--epochs", str(epochs), "--curve"]
    train = [sys.executable, *words, str(path), "--step-s", "0.04"]
    job = cluster.submit(*ASKS, "--", *train, user="ann")
    until(lambda: len(curve(path)) > 5, "it trains", 120)
    assert (curve(path)[0]["dp"], curve(path)[0]["tp"]) == (2, 1), "the first that it declared comes first"
    shown = cluster.json("show", str(job))
    assert (shown["strategies"], shown["strategy"]) == (["dp=2", "tp=2"], "dp=2")

    until(lambda: curve(path)[-1]["tp"] == 2, "it was restarted in the other one", 120)
    assert "dp=2; tp=2 (now tp=2)" in cluster.hsctl("show", str(job)).stdout
    until(lambda: "as tp=2: " in cluster.hsctl("why", str(job)).stdout, "why says in which it runs", 60)

    ended = cluster.until_state(job, "succeeded", "failed", within_s=300)
    assert (ended.state, ended.lost_gpu_s) == ("succeeded", 0), ended.exit
    whole_path = tmp_path / "alone"
    alone([*words, str(whole_path)], ranks=2)
    rows, whole = curve(path), curve(whole_path)
    assert [row["step"] for row in rows] == list(range(1, len(whole) + 1)), (
        "no step was done twice, none left out"
    )
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in whole], rel=0.02, abs=1e-3)
    assert rows[-1]["tp"] == 2, "in which a step takes half as long"
    kinds = [line["kind"] for line in cluster.json("show", str(job))["story"]]
    assert kinds.count("reshaped") == 1

    kept = tmp_path / "past.yaml"
    ran = cluster.hsctl(
        "simulate", "--policy", "tesserae-las", "--since", "1h", "--json", "--keep", str(kept)
    )
    was, *found = json.loads(ran.stdout)
    assert (was["finished"], [row["finished"] for row in found]) == (1, [1])
    (asked,) = json.loads(kept.read_text())["jobs"]
    assert asked["strategies"] == ["dp=2", "tp=2"], "both were measured, and are replayed"
