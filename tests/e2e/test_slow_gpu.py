"""One GPU of a server is slower than the other, on real processes: policy `pal` finds out whom that hurts."""

from collections.abc import Callable
from pathlib import Path

from tests.e2e.harness import Cluster, learn, learned, until

NewCluster = Callable[..., Cluster]


def test_the_job_that_feels_it_gets_the_fast_gpu_and_no_step_is_lost(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster(
        "--emulate", "V100:2:16G", "--quantum", "1", "--user", "ann", "--user", "bob", "--policy", "las",
        "--pace", "0.02", "--slowdown", "*/felt=5,1", "--slowdown", "*/even=1,1",
    )  # fmt: skip
    files = {name: tmp_path / name for name in ("felt", "even")}
    felt = cluster.submit("--class", "felt", *learn(scripts, files["felt"], 100_000, 0.0), user="ann")
    until(lambda: len(learned(files["felt"])) > 20, "it trains, on the slow GPU")
    even = cluster.submit("--class", "even", *learn(scripts, files["even"], 100_000, 0.0), user="bob")
    until(lambda: len(learned(files["even"])) > 20, "and the other on the fast one")

    def gpus() -> dict[int, int]:
        """Running job → GPU."""
        return {row["running_job"]: row["index"] for row in cluster.json("gpus") if row["running_job"]}

    assert until(lambda: g if len(g := gpus()) == 2 else None, "both run") == {felt: 0, even: 1}
    cluster.hsctl("policy", "set", "pal")
    until(lambda: gpus() == {felt: 1, even: 0}, "they have changed places, through their checkpoints")
    before = len(learned(files["felt"]))
    until(lambda: len(learned(files["felt"])) > before + 50, "it goes on")
    for job, name in ((felt, "felt"), (even, "even")):
        steps = [row.step for row in learned(files[name])]
        assert steps == list(range(1, len(steps) + 1)), "no step was lost or done twice"
        assert cluster.view(job).lost_gpu_s == 0
    slow, fast = (rate(learned(files["felt"]), process) for process in (0, -1))
    assert 3 < fast / slow < 7, "five times as fast there"


def rate(steps: list, which: int) -> float:
    """Steps a second of its first or newest process."""
    name = steps[which].process
    own = [row for row in steps if row.process == name][2:]
    return (len(own) - 1) / (own[-1].at_s - own[0].at_s)
