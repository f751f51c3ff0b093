"""The controller's disk is lost, and a backup is put back that knows nothing of what came since."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.e2e.harness import Cluster, incarnations, learn, learned, until

STEPS = 3_000
STEP_S = 0.1  # no job has ended before it is to, however slow the machine: then it hurries


def put_back(cluster: Cluster, copy: Path) -> None:
    cluster.kill("controller")
    config = str(cluster.state / "controller.toml")
    restored = subprocess.run(
        [sys.executable, "-m", "hs_controller", "restore", "--config", config, "--from", str(copy), "--force"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert restored.returncode == 0, restored.stderr
    cluster.up()


def test_a_job_that_began_anew_since_the_backup_trains_once_at_a_time_and_one_that_was_submitted_since_goes_on(
    new_cluster: Callable[..., Cluster], scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster("--emulate", "V100:1:16G", "--quantum", "0.5", "--user", "ann")
    trained, other, copy = tmp_path / "trained", tmp_path / "other", tmp_path / "copy.db"
    job = cluster.submit("--gpus", "1", "--retry", "2", *learn(scripts, trained, STEPS, STEP_S), user="ann")
    until(lambda: len(learned(trained)) > 5, "the job trains")
    cluster.hsctl("backup", str(copy))
    for epoch in (1, 2):
        process = learned(trained)[-1].process
        os.kill(process, signal.SIGKILL)
        until(lambda: learned(trained)[-1].process != process, "it was tried again")  # noqa: B023
        until(lambda: cluster.view(job).epoch == epoch, "that is known")  # noqa: B023
    since = cluster.submit("--gpus", "1", *learn(scripts, other, STEPS, STEP_S), user="ann")
    until(lambda: len(learned(other)) > 5, "the job that came since trains, too")
    submitted_at = cluster.view(since).submitted_at
    third = learned(trained)[-1].process
    put_back(cluster, copy)
    until(lambda: learned(trained)[-1].process != third, "it is taken up and begun anew")
    assert cluster.view(since).submitted_at == submitted_at
    for output in (trained, other):
        Path(f"{output}.hurry").touch()
    done = cluster.until_state(job, "succeeded")
    assert done.epoch > 1_000_000
    assert cluster.until_state(since, "succeeded").epoch == 0
    assert len(incarnations(learned(other))) == 1, "nobody ended it"
    assert learned(other)[-1].step == STEPS
    processes = [part[0].process for part in incarnations(learned(trained))]
    assert len(processes) == len(set(processes)) >= 4, "one after the other"
    assert learned(trained)[-1].step == STEPS


def test_jobs_that_waited_or_have_moved_since_the_backup_and_ended_well_are_not_trained_again(
    new_cluster: Callable[..., Cluster], scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster("--host", "a=V100:1", "--host", "b=K80:1", "--quantum", "0.5", "--user", "ann")
    models = {"a": "V100", "b": "K80"}
    trained, waited, copy = tmp_path / "trained", tmp_path / "waited", tmp_path / "copy.db"
    moves = cluster.submit(*learn(scripts, trained, STEPS, STEP_S), user="ann")
    until(lambda: len(learned(trained)) > 5, "the job trains")
    here = cluster.view(moves).host
    there = "b" if here == "a" else "a"
    cluster.hsctl("node", "drain", there)
    waits = cluster.submit("--gpu-type", models[there], *learn(scripts, waited, 5, STEP_S), user="ann")
    assert cluster.view(waits).state == "queued"
    cluster.hsctl("backup", str(copy))
    cluster.hsctl("node", "undrain", there)
    cluster.hsctl("node", "drain", here, "--wait")
    Path(f"{trained}.hurry").touch()
    for job in (waits, moves):
        assert cluster.until_state(job, "succeeded", "failed").state == "succeeded"
    before = learned(trained), learned(waited)
    assert len(incarnations(before[0])) == 2
    put_back(cluster, copy)
    for job in (waits, moves):
        assert cluster.until_state(job, "succeeded", "failed").host == there
    assert (learned(trained), learned(waited)) == before
