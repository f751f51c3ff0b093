"""A class that nobody measured, on real processes: measured on one GPU model after the other, in short turns."""

from collections.abc import Callable
from pathlib import Path

from tests.e2e.harness import Cluster, learn, learned, until

NewCluster = Callable[..., Cluster]
WITHIN_S = 180.0
MODELS = {"V100", "K80"}


def told(cluster: Cluster, job: int, kind: str) -> list[str]:
    with cluster.client() as client:
        return [fact.text for fact in client.job(job).story if fact.kind == kind]


def measured(cluster: Cluster, job: int) -> set[str]:
    said = told(cluster, job, "profiled")
    return {model for model in MODELS if any(f"profiled on {model}: 20 of 20" in text for text in said)}


def test_a_new_job_is_measured_on_both_gpu_models_and_loses_no_step(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster("--host", "a=V100:1", "--host", "b=K80:1", "--quantum", "20", "--user", "ann")
    cluster.hsctl("policy", "set", "fft")
    out = tmp_path / "out"
    job = cluster.submit("--steps", "9000", "--class", "net", *learn(scripts, out, 9_000, 0.05), user="ann")
    until(
        lambda: "profiled on V100: " in cluster.hsctl("why", str(job)).stdout,
        "it is said how far it is",
        WITHIN_S,
    )
    until(lambda: measured(cluster, job) == MODELS, "it was measured on both", WITHIN_S)
    assert len(told(cluster, job, "profiling")) == 2, "and only once on each"
    with cluster.client() as client:
        assert {rate.gpu_model for rate in client.job(job).rates} == MODELS
    cluster.hsctl("cancel", str(job))
    cluster.until_state(job, "cancelled", within_s=WITHIN_S)
    steps = [one.step for one in learned(out)]
    assert steps == list(range(1, len(steps) + 1)), "every mini-batch once"
