"""Other policies on real processes: put in office while jobs train, and back."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.harness import Cluster, learn, learned, uninterrupted, until

NewCluster = Callable[..., Cluster]
GANG = ("-N", "2", "-G", "1", "--torchrun")


def done(path: Path) -> list[int]:
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


def test_policies_change_while_jobs_train_and_no_job_is_restarted_or_forgotten(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster("--emulate", "V100:1:16G", "--quantum", "0.5", "--user", "ann", "--user", "bob")
    files: dict[int, Path] = {}
    for user, total in (("ann", 100_000), ("bob", 100_000), ("bob", 400)):
        path = tmp_path / f"{user}-{total}"
        words = [sys.executable, str(scripts / "count.py"), str(path), str(total)]
        files[cluster.submit("--steps", str(total), "--class", "count", "--", *words, user=user)] = path
    ann, bob, short = files
    until(lambda: all(len(done(path)) > 10 for path in files.values()), "all three take turns")

    assert "fft is in office, in place of gandiva-fair" in cluster.hsctl("policy", "set", "fft").stdout
    cluster.hsctl("policy", "set", "srtf")
    assert cluster.json("policy", "show")["name"] == "srtf"
    assert cluster.until_state(short, "succeeded"), "the shortest runs, whosever it is, until it has ended"
    others = {job: len(done(files[job])) for job in (ann, bob)}

    cluster.hsctl("policy", "set", "no-such-policy", code=2)
    cluster.hsctl("policy", "set", "gavel-max-min")
    until(lambda: all(len(done(files[job])) > others[job] + 20 for job in (ann, bob)), "both get time again")
    cluster.kill("controller")
    cluster.up()
    assert until(lambda: cluster.json("policy", "show")["name"], "the controller is back") == "gavel-max-min"
    cluster.hsctl("policy", "set", "gandiva-fair")
    others = {job: len(done(files[job])) for job in (ann, bob)}
    until(
        lambda: all(len(done(files[job])) > others[job] + 20 for job in (ann, bob)), "and under the first one"
    )

    for job, path in files.items():
        assert cluster.view(job).epoch == 0, "no job was started again"
        steps = done(path)  # once: two of the jobs go on training while this looks
        assert steps == list(range(len(steps))), "no step was done twice"


def test_a_gang_over_two_gpu_models_trains_as_if_alone_and_stays_when_another_policy_takes_office(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster("--host", "a=V100:1", "--host", "b=K80:1", "--quantum", "1", "--user", "ann")
    refused = cluster.hsctl("submit", *GANG, "--", "true", code=3)
    assert "asks for 2 servers of one GPU model" in refused.stderr
    cluster.hsctl("policy", "set", "hadar")
    total = 300
    words = learn(scripts, tmp_path / "gang", total, 0.02)
    gang = cluster.submit(*GANG, "--steps", str(total), *words, user="ann")
    until(lambda: len(learned(tmp_path / "gang", 1)) > 20, "it trains on both", 180)
    cluster.hsctl("policy", "set", "gandiva-fair")
    ended = cluster.until_state(gang, "succeeded", "failed", within_s=180)
    assert (ended.state, ended.epoch, ended.lost_gpu_s) == ("succeeded", 0, 0), ended.exit
    assert (sorted(ended.hosts), ended.gpu_model) == (["a", "b"], "K80+V100")
    used = {row["gpu_type"]: row["gpu_seconds"] for row in cluster.json("usage")}
    assert used["V100"] + used["K80"] == pytest.approx(ended.gpu_s, rel=0.01)
    assert min(used.values()) > ended.gpu_s / 4, (
        "both are charged; one part may have come up long before the other"
    )
    same = uninterrupted(scripts, total, ranks=2)
    for rank in range(2):
        rows = learned(tmp_path / "gang", rank)
        assert [(row.step, row.loss) for row in rows] == [(row.step, row.loss) for row in same[rank]]
