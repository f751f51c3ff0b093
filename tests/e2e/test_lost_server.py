"""A server that does not come back, and jobs whose checkpoints are in a folder that other servers see as well."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from hs_proto.v1.controller_pb2 import JobView
from tests.e2e.harness import Cluster, incarnations, learned, uninterrupted, until
from tests.lean import LEAN

NewCluster = Callable[..., Cluster]
TOTAL = 400


def on_a_server_each(
    cluster: Cluster, scripts: Path, tmp_path: Path, checkpoint: str = ""
) -> dict[int, JobView]:
    """Two jobs that train, each with its server, once both have written a checkpoint."""
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "name: sweep\n"
        f"checkpoint: {{mode: interval, interval: 1s{checkpoint}}}\n"
        "sweep: {n: [1, 2]}\n"
        f"env: {LEAN}\n"
        f"run: [{sys.executable}, {scripts / 'learn.py'}, '{tmp_path}/out-{{n}}', '{TOTAL}', '0.03']\n"
    )
    jobs = list(map(int, cluster.hsctl("submit", "-f", str(file), "--parsable").stdout.split()))

    def apart() -> dict[int, JobView] | None:
        views = {job: cluster.view(job) for job in jobs}
        saved = all(view.checkpoint_step > 0 and view.state == "running" for view in views.values())
        return views if saved and {view.host for view in views.values()} == {"a", "b"} else None

    return until(apart, "each has a server, and has written a checkpoint there")


def test_a_job_of_a_dead_server_goes_on_from_the_folder_that_its_user_named_and_no_other_job_writes_there(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster("--host", "a=V100:1", "--host", "b=V100:1", "--quantum", "1")
    there = on_a_server_each(cluster, scripts, tmp_path, f", dir: {tmp_path / 'shared'}")
    first, second = there
    gone = there[first].host
    cluster.kill(f"agent-{gone}")
    os.kill(learned(tmp_path / "out-1")[-1].process, signal.SIGKILL)
    until(lambda: not cluster.is_up(gone), "the server is seen to be away")
    assert f"queued again: {first}" in cluster.hsctl("node", "remove", "--force", gone).stdout
    ended = cluster.until_state(first, "succeeded", "failed")
    assert (ended.state, ended.host) == ("succeeded", there[second].host), ended.exit

    *_, before, after = incarnations(learned(tmp_path / "out-1"))
    assert 1 < after[0].step <= before[-1].step + 1, "it went on from its newest checkpoint"
    assert after[-1].step == TOTAL
    same = {row.step: row.loss for row in uninterrupted(scripts, TOTAL)[0]}
    assert all(row.loss == same[row.step] for row in (*before, *after)), "with the very weights"

    assert cluster.until_state(second, "succeeded").lost_gpu_s == 0
    assert [row.step for row in learned(tmp_path / "out-2")] == list(range(1, TOTAL + 1))
    folders = sorted(path.name.split("-")[:2] for path in (tmp_path / "shared").iterdir())
    assert folders == [["job", str(first)], ["job", str(second)]], "each job has one of its own"


def test_an_agent_that_has_lost_its_memory_has_its_jobs_go_on_from_what_they_wrote_there(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster("--host", "a=V100:1", "--quantum", "1")
    file = tmp_path / "job.yaml"
    file.write_text(
        "checkpoint: {mode: interval, interval: 1s}\n"
        f"env: {LEAN}\n"
        f"run: [{sys.executable}, {scripts / 'learn.py'}, '{tmp_path}/out', '{TOTAL}', '0.03']\n"
    )
    job = int(cluster.hsctl("submit", "-f", str(file), "--parsable").stdout)
    until(lambda: cluster.view(job).checkpoint_step > 0, "it has written a checkpoint")
    cluster.kill("agent-a")
    (memory,) = cluster.state.glob("*/host.json")
    memory.write_text("{")
    cluster.up()
    ended = cluster.until_state(job, "succeeded", "failed")
    story = cluster.hsctl("show", str(job)).stdout
    assert ended.state == "succeeded", story
    before, after = incarnations(learned(tmp_path / "out"))
    assert 1 < after[0].step <= before[-1].step + 1, story
    assert f"it goes on from step {after[0].step - 1} on a" in story


def test_a_server_that_comes_back_with_an_empty_disk_has_its_jobs_start_afresh_and_none_trains_twice(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster("--host", "a=V100:1", "--host", "b=V100:1", "--quantum", "1")
    there = on_a_server_each(cluster, scripts, tmp_path)
    first, second = sorted(there, key=lambda job: there[job].host)
    out = tmp_path / f"out-{1 + list(there).index(first)}"
    cluster.kill("agent-a")
    (memory,) = cluster.state.glob("*a/host.json")
    memory.parent.rename(tmp_path / "elsewhere")  # jobs write into it meanwhile
    cluster.up()
    ended = cluster.until_state(first, "succeeded", "failed")
    story = cluster.hsctl("show", str(first)).stdout
    assert ended.state == "succeeded", story
    assert "it was lost: a was set up anew; no checkpoint of it is left to be had, it starts afresh" in story
    assert "it was set up anew, and what lay there is gone" in cluster.hsctl("events", "--json").stdout
    before, after = incarnations(learned(out))
    assert (after[0].step, after[-1].step) == (1, TOTAL)
    assert before[-1].step > 1
    assert cluster.until_state(second, "succeeded").lost_gpu_s == 0
