"""A job that runs out of GPU memory beside another one, with real processes."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.e2e.harness import Cluster, learn, learned, learning, uninterrupted, until
from tests.lean import LEAN

NewCluster = Callable[..., Cluster]
STEPS, SHORT_AT = 400, 150


def test_a_job_that_another_left_too_little_gpu_memory_goes_on_from_its_checkpoint_and_loses_nothing(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster("--emulate", "V100:1:16G", "--quantum", "1", "--user", "ann", "--user", "bob")
    other = cluster.submit("--gpu-mem", "6G", *learn(scripts, tmp_path / "other", 10**6, 0.02), user="bob")
    until(lambda: cluster.view(other).step, "the other one trains")
    job_file = tmp_path / "job.yaml"
    asks = {
        "run": learning(scripts, tmp_path / "job", STEPS, 0.02),
        "resources": {"gpus": 1, "gpu_memory": "6G"},
        "checkpoint": {"interval": "1s"},
        "env": LEAN | {"SHORT_AT": str(SHORT_AT)},
    }
    job_file.write_text(json.dumps(asks))
    job = cluster.submit("-f", str(job_file), user="ann")
    ended = cluster.until_state(job, "succeeded", "failed")
    assert (ended.state, ended.epoch) == ("succeeded", 1), ended.exit
    rows = {row.step: row.loss for row in learned(tmp_path / "job")}
    assert rows == {row.step: row.loss for row in uninterrupted(scripts, STEPS)[0]}

    assert "retried" not in {event["kind"] for event in cluster.json("events")}
    (fact,) = [event for event in cluster.json("events") if event["kind"] == "crowded-out"]
    needed = "it needed 12.0 GiB of each GPU, of which others held some (job 1)"
    assert fact["text"].startswith(f"crowded out of GPU memory: {needed}: it goes on from step ")
    assert fact["text"].endswith("and has 12.0 GiB of each to itself")
    assert cluster.view(other).state in {"running", "suspended"}
