"""Two training processes on one GPU: started beside each other, with mini-batches in parts where memory is short."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.harness import AS_LEAN, Cluster, learn, learned, uninterrupted, until
from tests.lean import LEAN

NewCluster = Callable[..., Cluster]
SCRIPT = Path(__file__).resolve().parents[2] / "examples/accumulate.py"


def losses(path: Path) -> list[float]:
    return [float(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def train(curve: Path, steps: int, step_s: float = 0.02) -> list[str]:
    words = ("--steps", str(steps), "--step-s", str(step_s), "--curve", str(curve))
    return [sys.executable, str(SCRIPT), *words]


def whole_batches(curve: Path, steps: int) -> list[float]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HS_")}
    runtime = Path(__file__).resolve().parents[2] / "client"
    subprocess.run(
        train(curve, steps, 0.0),
        env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{runtime}:{LEAN['PYTHONPATH']}"},
        capture_output=True, check=True, timeout=300,
    )  # fmt: skip
    return losses(curve)


def test_a_job_starts_beside_another_on_its_gpu_and_accumulates_to_the_gradient_of_whole_batches(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster("--emulate", "V100:1:16G", "--quantum", "0.5", "--user", "ann")
    cluster.hsctl("policy", "set", "sjf-bsbf")

    def submit(name: str, steps: int, *more: str) -> int:
        words = (
            "--class",
            "digits",
            "--gpu-mem",
            "10G",
            "--steps",
            str(steps),
            *more,
            "-e",
            "OMP_NUM_THREADS=1",
            *AS_LEAN,
        )
        return cluster.submit(*words, "--", *train(tmp_path / name, steps), user="ann")

    first = submit("first", 20_000)
    until(lambda: cluster.json("show", str(first))["rates"], "its class was measured", 180)
    rigid = submit("rigid", 5_000)
    parted = submit("parted", 500, "--gpu-mem-fixed", "2G", "--accumulation", "8")
    until(lambda: len(losses(tmp_path / "parted")) > 20, "it trains", 180)
    before = len(losses(tmp_path / "first"))
    until(lambda: len(losses(tmp_path / "first")) > before + 20, "and so does the one whose GPU it shares")
    views = cluster.views()
    assert (views[first].state, views[parted].state) == ("running", "running")
    assert views[first].gpu_ids == views[parted].gpu_ids
    assert (list(views[first].beside), list(views[parted].beside)) == ([parted], [first])
    assert views[parted].accumulation == 2, "the fewest parts with which 10 GiB fit beside 10 on 16"
    assert views[rigid].state == "queued"
    assert losses(tmp_path / "rigid") == []

    ended = cluster.until_state(parted, "succeeded", "failed", within_s=180)
    assert (ended.state, ended.epoch) == ("succeeded", 0), ended.exit
    assert '"parts": 2' in cluster.hsctl("logs", str(parted)).stdout
    assert losses(tmp_path / "parted") == pytest.approx(whole_batches(tmp_path / "whole", 500), abs=1e-4)

    used = cluster.view(first).gpu_s + ended.gpu_s
    clock = max(cluster.view(first).run_s, ended.run_s)
    assert used <= clock + 1, "both together were charged for one GPU"
    assert cluster.view(first).suspends == 0, "whose GPU is shared goes on"
    assert "gpu-claimed-twice" not in {event["kind"] for event in cluster.json("events")}


def test_tesserae_gives_a_gpu_to_two_jobs_and_each_trains_as_if_alone(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster("--emulate", "V100:1:16G", "--quantum", "1", "--user", "ann", "--user", "bob")
    cluster.hsctl("policy", "set", "tesserae-las")
    steps = 250
    jobs = {
        cluster.submit("--gpu-mem", "4G", *learn(scripts, tmp_path / name, steps, 0.02), user=user): name
        for name, user in (("one", "ann"), ("two", "ann"), ("three", "bob"))
    }

    def pair() -> bool:
        running = [view for view in cluster.views().values() if view.state == "running"]
        return len(running) == 2 and set(running[0].beside) == {running[1].id}

    until(pair, "two of them train on the GPU", 180)
    for job, name in jobs.items():
        ended = cluster.until_state(job, "succeeded", "failed", within_s=180)
        assert (ended.state, ended.lost_gpu_s) == ("succeeded", 0), ended.exit
        rows = learned(tmp_path / name)
        assert [row.step for row in rows] == list(range(1, steps + 1)), "no step was done twice"
    assert sum(view.suspends for view in cluster.views().values()) > 0, "the three took turns"
    alone = uninterrupted(scripts, steps)[0]
    for name in jobs.values():
        assert [row.loss for row in learned(tmp_path / name)] == [row.loss for row in alone]
