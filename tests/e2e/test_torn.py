"""A checkpoint is torn where its job has left it."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.e2e.harness import Cluster, incarnations, learned, uninterrupted, until
from tests.lean import LEAN

NewCluster = Callable[..., Cluster]
TOTAL = 400


def generations(cluster: Cluster, host: str, job: int) -> list[Path]:
    """Those that lie whole on that server, the newest last."""
    found = cluster.state.glob(f"*{host}/checkpoints/{job}/gen-*")
    whole = [path for path in found if (path / "manifest.json").exists()]
    return sorted(whole, key=lambda path: int(path.name.removeprefix("gen-")))


def test_its_new_server_fetches_the_one_before_and_it_goes_on_from_that(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster("--host", "a=V100:1", "--host", "b=V100:1", "--quantum", "1")
    file = tmp_path / "job.yaml"
    file.write_text(
        "checkpoint: {mode: interval, interval: 1s}\n"
        f"env: {LEAN}\n"
        f"run: [{sys.executable}, {scripts / 'learn.py'}, '{tmp_path}/out', '{TOTAL}', '0.03']\n"
    )
    job = int(cluster.hsctl("submit", "-f", str(file), "--parsable").stdout)
    here = until(lambda: cluster.view(job).host, "it has a server")
    there = {"a": "b", "b": "a"}[here]
    until(lambda: len(generations(cluster, here, job)) > 1, "it has written two checkpoints")

    agent = cluster.pid(f"agent-{there}")
    os.kill(agent, signal.SIGSTOP)  # it fetches nothing yet
    try:
        cluster.hsctl("node", "drain", here)
        until(lambda: cluster.view(job).host == there, "it has left")
        before, newest = generations(cluster, here, job)
        step = json.loads((before / "manifest.json").read_text())["step"]
        state = newest / "rank0.pt"
        data = bytearray(state.read_bytes())
        data[len(data) // 2] ^= 1
        state.write_bytes(data)
    finally:
        os.kill(agent, signal.SIGCONT)

    ended = cluster.until_state(job, "succeeded", "failed")
    story = cluster.hsctl("show", str(job)).stdout
    assert (ended.state, ended.host, ended.epoch) == ("succeeded", there, 1), story
    first, second = incarnations(learned(tmp_path / "out"))
    assert second[0].step == step + 1
    assert f"it goes on from step {step}" in story
    assert f"checkpoint {newest.name.removeprefix('gen-')} from {here}" in story
    assert 1 < second[0].step <= first[-1].step
    assert second[-1].step == TOTAL
    assert ended.lost_gpu_s > 0
    same = {row.step: row.loss for row in uninterrupted(scripts, TOTAL)[0]}
    assert all(row.loss == same[row.step] for row in (*first, *second))
