"""An elastic job trains on two GPUs, makes room for another on one, and goes on where it was, with the batch that was decided."""

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from hs_core.forms import ENOUGH_NOISE
from tests.e2e.harness import AS_LEAN, Cluster, until

NewCluster = Callable[..., Cluster]
TRAIN = [sys.executable, str(Path(__file__).resolve().parents[2] / "examples/elastic.py")]
EXAMPLES = 1_536  # of an epoch
ELASTIC = ("--torchrun", "-G", "1", "--gpus-max", "2", "--batch", "64", "--batch-max", "256", *AS_LEAN)


def curve(path: Path) -> list[dict[str, Any]]:
    """A line that is being written is left out."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def batch_of(cluster: Cluster, job: int) -> int:
    shape = cluster.view(job).shape
    return shape.gpus * shape.per_gpu * shape.parts


def test_an_elastic_job_gives_a_gpu_back_for_one_that_comes_and_trains_on_from_its_step(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster("--emulate", "V100:2:16G", "--quantum", "2", "--user", "ann", "--user", "bob")
    cluster.hsctl("policy", "set", "pollux")
    path = tmp_path / "curve"
    train = [*TRAIN, "--epochs", "40", "--step-s", "0.04", "--curve", str(path)]
    limits = ("--batch-per-gpu-max", "64", "--noise-scale", "500", "-e", "OMP_NUM_THREADS=1")
    job = cluster.submit(*ELASTIC, *limits, "--", *train, user="ann")
    until(lambda: len(curve(path)) > 30, "it trains", 180)
    assert {row["processes"] for row in curve(path)} == {2}, "both GPUs are idle but for it"
    first = batch_of(cluster, job)

    enough = tmp_path / "enough"
    waits = ["/bin/sh", "-c", f"until [ -e {enough} ]; do sleep 0.1; done"]
    comes = cluster.submit("--", *waits, user="bob")
    until(lambda: cluster.view(comes).state == "running", "the other one runs", 180)
    until(lambda: curve(path)[-1]["processes"] == 1, "it trains on one GPU", 180)
    view = cluster.view(job)
    assert (view.gpus, view.migrations, view.shape.gpus) == (1, 1, 1)
    second = batch_of(cluster, job)
    assert "now 1, " in cluster.hsctl("show", str(job)).stdout

    def told() -> list[str]:
        kinds = [line["kind"] for line in cluster.json("show", str(job))["story"]]
        return [kind for kind in kinds if kind in {"moving", "left", "reshaped"}]

    until(lambda: told() == ["moving", "left", "reshaped"], "its story says so")
    enough.touch()
    assert cluster.until_state(comes, "succeeded", "failed", within_s=180).state == "succeeded"

    ended = cluster.until_state(job, "succeeded", "failed", within_s=180)
    assert ended.state == "succeeded", ended.exit
    assert ended.lost_gpu_s == 0
    rows = curve(path)
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1)), (
        "no step was done twice, none left out"
    )
    turns = [at for at, (one, next_) in enumerate(pairwise(rows)) if one["processes"] != next_["processes"]]
    turn = turns[0]  # it may have grown again, once the other one had ended
    assert {row["batch"] for row in rows[: turn + 1]} == {first}
    assert {row["batch"] for row in rows[turn + 1 : turn + 6]} == {second}
    assert rows[turn + 1]["loss"] < rows[0]["loss"] / 2, "its weights are those that it had"
    epoch = rows[turn]["epoch"]
    trained = sum(row["batch"] for row in rows if row["epoch"] == epoch)
    assert EXAMPLES - 2 * first < trained <= EXAMPLES + 2 * first, "the epoch went on by examples"
    said = json.loads(cluster.hsctl("logs", str(job)).stdout.splitlines()[-1])
    assert said["accuracy"] > 0.85
    assert said["steps"] == len(rows)


def test_once_another_policy_is_in_office_it_goes_back_to_what_it_declared_and_trains_on_from_its_step(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster("--emulate", "V100:2:16G", "--quantum", "2", "--user", "ann")
    cluster.hsctl("policy", "set", "pollux")
    path = tmp_path / "curve"
    train = [*TRAIN, "--epochs", "1000", "--step-s", "0.04", "--curve", str(path)]
    limits = ("--batch-per-gpu-max", "64", "--noise-scale", "500", "-e", "OMP_NUM_THREADS=1")
    job = cluster.submit(*ELASTIC, *limits, "--", *train, user="ann")
    until(lambda: len(curve(path)) > 30, "it trains", 180)
    assert curve(path)[-1]["processes"] == 2

    cluster.hsctl("policy", "set", "las")
    until(lambda: curve(path)[-1]["processes"] == 1, "it trains on the GPU that it asked for", 180)
    assert (cluster.view(job).gpus, batch_of(cluster, job)) == (1, 64)
    rows = curve(path)
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1)), (
        "no step was done twice, none left out"
    )
    cluster.hsctl("cancel", str(job))


def test_a_job_on_two_ranks_measures_how_noisy_its_gradients_are(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster("--emulate", "V100:2:16G", "--quantum", "2", "--user", "ann")
    cluster.hsctl("policy", "set", "pollux")
    train = [*TRAIN, "--epochs", "1000", "--curve", str(tmp_path / "curve")]
    gpus, batch = ("-G", "2", "--gpus-max", "2", "--gpus-min", "2"), ("--batch", "64", "--batch-max", "64")
    wishes = ("--torchrun", *gpus, *batch, *AS_LEAN)
    job = cluster.submit(*wishes, "--noise-scale", "5", "-e", "OMP_NUM_THREADS=1", "--", *train, user="ann")
    assert "noise scale 5 (as declared)" in cluster.hsctl("show", str(job)).stdout
    until(lambda: cluster.view(job).noise_samples >= ENOUGH_NOISE, "it was measured often enough", 300)
    assert cluster.view(job).noise_scale > 0
    assert "(measured " in cluster.hsctl("show", str(job)).stdout
    cluster.hsctl("cancel", str(job))
    cluster.until_state(job, "cancelled", within_s=180)


def test_an_elastic_job_grows_onto_a_second_server_and_leaves_it_again_and_no_step_is_lost(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    """Started on the one that is free, then on both, then on whichever another job leaves it."""
    hosts = ("--host", "a=V100:1", "--host", "b=V100:1")
    cluster = new_cluster(*hosts, "--quantum", "2", "--user", "ann", "--user", "bob")
    cluster.hsctl("policy", "set", "pollux")
    enough = [tmp_path / "enough-0", tmp_path / "enough-1"]

    def comes(at: int) -> int:
        waits = ["/bin/sh", "-c", f"until [ -e {enough[at]} ]; do sleep 0.1; done"]
        job = cluster.submit("--", *waits, user="bob")
        until(lambda: cluster.view(job).state == "running", "the other one runs", 180)
        return job

    first = comes(0)
    path = tmp_path / "curve"
    train = [*TRAIN, "--epochs", "100000", "--step-s", "0.04", "--curve", str(path)]
    limits = ("--batch-per-gpu-max", "64", "--noise-scale", "500", "-e", "OMP_NUM_THREADS=1")
    job = cluster.submit(*ELASTIC, "--topology", "any", *limits, "--", *train, user="ann")
    until(lambda: len(curve(path)) > 10, "it trains", 180)
    alone = cluster.view(job)
    assert (len(alone.hosts), alone.gpus, curve(path)[-1]["processes"]) == (1, 1, 1)

    enough[0].touch()
    assert cluster.until_state(first, "succeeded", "failed", within_s=60).state == "succeeded"
    until(lambda: curve(path)[-1]["processes"] == 2, "it trains on both servers", 180)
    both = cluster.view(job)
    assert (sorted(both.hosts), both.shape.gpus, both.shape.nodes) == (["a", "b"], 2, 2)
    assert "now 2 on 2 servers, " in cluster.hsctl("show", str(job)).stdout

    second = comes(1)
    until(lambda: curve(path)[-1]["processes"] == 1, "it trains on one server again", 180)
    assert len(cluster.view(job).hosts) == 1
    kinds = [line["kind"] for line in cluster.json("show", str(job))["story"]]
    assert kinds.count("left") == 2
    epoch = curve(path)[-1]["epoch"]
    until(lambda: curve(path)[-1]["epoch"] > epoch, "it trains on", 180)
    assert cluster.view(second).state == "running"
    cluster.hsctl("cancel", str(job))
    ended = cluster.until_state(job, "cancelled", "failed", within_s=60)
    assert (ended.state, ended.migrations, ended.lost_gpu_s) == ("cancelled", 2, 0), ended.exit
    enough[1].touch()
    assert cluster.until_state(second, "succeeded", "failed", within_s=60).state == "succeeded"

    rows = curve(path)
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1)), (
        "no step was done twice, none left out"
    )
    turns = [at for at, (one, next_) in enumerate(pairwise(rows)) if one["processes"] != next_["processes"]]
    assert [rows[at + 1]["processes"] for at in turns] == [2, 1]
    largest = max(row["batch"] for row in rows)
    for turn in turns:
        before, after = rows[max(0, turn - 20) : turn + 1], rows[turn + 1 : turn + 6]
        worst = max(row["loss"] for row in before)
        assert min(row["loss"] for row in after) <= worst, "its weights are those that it had"
        epoch = rows[turn]["epoch"]
        examples = sum(row["batch"] for row in rows if row["epoch"] == epoch)
        assert EXAMPLES - 3 * largest < examples <= EXAMPLES + 3 * largest, "the epoch went on by examples"
