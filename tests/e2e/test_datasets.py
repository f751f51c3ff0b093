"""Data sets on real processes: where one was read is remembered, said, and preferred."""

import sys
from collections.abc import Callable
from pathlib import Path

from tests.e2e.harness import Cluster, until

NewCluster = Callable[..., Cluster]


def test_a_job_goes_where_another_has_read_its_data_also_after_the_controller_died(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster("--host", "a=V100:1", "--host", "b=V100:1", "--quantum", "1", "--user", "ann")
    count = ["--", sys.executable, str(scripts / "count.py"), str(tmp_path / "file")]
    reads = ("--dataset", "images", "--dataset-size", "150G")
    bad = cluster.hsctl("submit", "--dataset", "images", "--dataset-size", "-1G", *count, "3", code=2)
    assert "dataset.size" in bad.stderr
    first = cluster.submit(*count, "100000", user="ann")
    on_a = cluster.until_state(first, "running").hosts
    assert cluster.until_state(cluster.submit(*reads, *count, "30", user="ann"), "succeeded").hosts != on_a
    cluster.hsctl("cancel", str(first))
    cluster.until_state(first, "cancelled")
    cluster.kill("controller")
    cluster.up()

    def known() -> dict[str, list[str]]:
        return {node["name"]: node["datasets"] for node in cluster.json("nodes")}

    assert until(known, "the controller is back") == {"a": [], "b": ["images"]}
    until(lambda: all(node["state"] == "up" for node in cluster.json("nodes")), "and so are the agents")
    second = cluster.submit(*reads, *count, "100000", user="ann")
    assert list(cluster.until_state(second, "running").hosts) == ["b"], "a would be the first by name"
    assert "images (150G), read before on b" in cluster.hsctl("show", str(second)).stdout
    assert cluster.json("show", str(second))["dataset_hosts"] == ["b"]
