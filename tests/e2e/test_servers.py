"""Several servers played on one machine: a gang over two of them, a drain, a controller that is away."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median

from hs_client.output import Had
from tests.e2e.harness import (
    AS_LEAN,
    Cluster,
    Step,
    incarnations,
    learn,
    learned,
    learning,
    uninterrupted,
    until,
)
from tests.e2e.test_faults import count_words, steps

NewCluster = Callable[..., Cluster]
TWO_SERVERS = ("--host", "a=V100:1", "--host", "b=V100:1", "--quantum", "1", "--user", "ann", "--user", "bob")
GANG = ("-N", "2", "-G", "1", "--torchrun")
SKEW_S = 0.1


def losses(rows: list[Step]) -> list[tuple[int, str]]:
    return [(row.step, row.loss) for row in rows]


def contended(cluster: Cluster, scripts: Path, place: Path, total: int) -> int:
    """A gang over both servers, and on each a job that it takes turns with; the gang's number."""
    gang = cluster.submit(*GANG, *learn(scripts, place / "gang", total, 0.02), user="ann")
    for n in range(2):
        cluster.submit(*count_words(scripts, place / f"small-{n}"), user="bob")
    until(lambda: len(learned(place / "gang", 1)) > 5, "the gang trains on both servers", 180)
    until(lambda: all(steps(place / f"small-{n}") > 5 for n in range(2)), "so do the small jobs", 180)
    return gang


def stops(cluster: Cluster, gang: int, count: int, within_s: float = 180.0) -> list[list[tuple[int, float]]]:
    """At least so many, on each server."""

    def look() -> list[list[tuple[int, float]]] | None:
        found = [cluster.stops(f"agent-{host}", gang) for host in "ab"]
        return found if min(map(len, found)) >= count else None

    return until(look, f"the gang was stopped {count} times on both servers", within_s)


def test_a_gang_over_two_servers_switches_on_both_at_once_at_one_step_and_trains_as_if_alone(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster(*TWO_SERVERS)
    gang = contended(cluster, scripts, tmp_path, 500)
    ended = cluster.until_state(gang, "succeeded", "failed", within_s=180)
    assert (ended.state, ended.epoch, ended.lost_gpu_s) == ("succeeded", 0, 0), ended.exit
    assert sorted(ended.hosts) == ["a", "b"]
    # At the last step one of them may have ended as it was told to stop, and the other have stopped.
    first, second = ([stop for stop in found if stop[0] < 500] for found in stops(cluster, gang, 3))
    assert len(first) >= 2
    assert [step for step, _ in first] == [step for step, _ in second]
    skews_s = [abs(one - other) for (_, one), (_, other) in zip(first, second, strict=True)]
    assert median(skews_s) < SKEW_S, skews_s
    same = uninterrupted(scripts, 500, ranks=2)
    for rank in range(2):
        assert losses(learned(tmp_path / "gang", rank)) == losses(same[rank])


def test_without_a_controller_a_gang_over_two_servers_keeps_its_turns_in_step(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster(*TWO_SERVERS)
    gang = contended(cluster, scripts, tmp_path, 100_000)
    known = min(map(len, stops(cluster, gang, 2)))
    cluster.kill("controller")
    marks = [steps(tmp_path / f"small-{n}") for n in range(2)]
    trained = len(learned(tmp_path / "gang"))
    first, second = stops(cluster, gang, known + 3)
    assert [step for step, _ in first][: known + 3] == [step for step, _ in second][: known + 3]
    skews_s = [abs(one - other) for (_, one), (_, other) in zip(first, second, strict=False)]
    assert median(skews_s) < SKEW_S, skews_s
    until(lambda: len(learned(tmp_path / "gang")) > trained + 20, "the gang trains on")
    until(lambda: all(steps(tmp_path / f"small-{n}") > marks[n] + 20 for n in range(2)), "the others too")

    cluster.up()
    before = cluster.view(gang)
    until(lambda: cluster.view(gang).step > before.step, "its steps are counted again")
    assert cluster.view(gang).epoch == 0
    rows = learned(tmp_path / "gang", 1)
    assert [row.step for row in rows] == list(range(1, len(rows) + 1)), "no step was lost or done twice"


def test_users_with_jobs_on_two_servers_have_their_halves_and_share_on_without_a_controller(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    """All servers' turns are chosen together; each shares out its own again once nobody chooses."""
    cluster = new_cluster(*TWO_SERVERS)
    files: dict[str, list[Path]] = {"ann": [], "bob": []}
    for user, count in (("ann", 2), ("bob", 4)):
        for n in range(count):
            files[user].append(tmp_path / f"{user}-{n}")
            cluster.submit(*count_words(scripts, files[user][-1]), user=user)
    every = [*files["ann"], *files["bob"]]

    def done(user: str) -> int:
        return sum(map(steps, files[user]))

    def go_on(count: int) -> tuple[int, int]:
        """Until each has made so many more steps; how many that is, by user."""
        marks, before = [steps(file) for file in every], {user: done(user) for user in files}
        until(
            lambda: all(steps(file) >= mark + count for file, mark in zip(every, marks, strict=True)),
            "all train on",
        )
        ann, bob = (done(user) - before[user] for user in files)
        return ann, bob

    until(lambda: all(steps(file) > 20 for file in every), "every job has trained", 180)
    ann, bob = go_on(400)
    assert 0.8 < ann / bob < 1.25, (ann, bob)
    first, second = (
        [at_s for job in cluster.views() for _, at_s in cluster.stops(f"agent-{name}", job)] for name in "ab"
    )
    apart_s = [min(abs(one - other) for other in second) for one in sorted(first)[-20:]]
    assert median(apart_s) < SKEW_S, "quanta begin on both at once"
    cluster.kill("controller")
    go_on(200)
    cluster.up()
    epochs = {view.epoch for view in cluster.views().values()}
    assert epochs == {0}
    ann, bob = go_on(200)
    assert 0.7 < ann / bob < 1.4, (ann, bob)


def test_a_drained_server_is_left_by_migration_to_another_gpu_model_and_nothing_is_lost(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster("--host", "a=V100:1", "--host", "b=K80:1", "--quantum", "1", "--user", "ann")
    total = 300
    job = cluster.submit(*learn(scripts, tmp_path / "moves", total, 0.03), user="ann")
    until(lambda: len(learned(tmp_path / "moves")) > 20, "it trains", 180)
    here = until(lambda: v if (v := cluster.view(job)).step else None, "its steps are known")
    cluster.hsctl("node", "drain", here.host, "--reason", "new fans", "--wait")
    moved = cluster.view(job)
    assert (moved.host, moved.epoch) == ("b" if here.host == "a" else "a", 1)
    drained = next(node for node in cluster.json("nodes") if node["name"] == here.host)
    assert drained["jobs"] == 0
    assert "new fans" in str(drained)
    again = cluster.submit(*count_words(scripts, tmp_path / "later", total=50), user="ann")
    ended = cluster.until_state(job, "succeeded", "failed", within_s=180)
    assert (ended.state, ended.migrations, ended.lost_gpu_s) == ("succeeded", 1, 0), ended.exit
    rows = learned(tmp_path / "moves")
    assert len(incarnations(rows)) == 2
    assert losses(rows) == losses(uninterrupted(scripts, total)[0])
    assert cluster.until_state(again, "succeeded").host == moved.host, "nothing new comes to a drained server"
    cluster.hsctl("node", "undrain", here.host)


def test_a_jobs_output_is_one_text_over_all_servers_that_it_has_been_on(
    new_cluster: NewCluster, scripts: Path
) -> None:
    """Who follows it goes along, also past a controller that dies; who asks later gets all of it."""
    cluster = new_cluster("--host", "a=V100:1", "--host", "b=K80:1", "--quantum", "1")
    total = 400
    job = cluster.submit(*AS_LEAN, "--", sys.executable, str(scripts / "talk.py"), str(total), "0.03")
    followed: list[bytes] = []

    def follow() -> None:
        with cluster.client() as client:
            followed.extend(client.logs(job, follow=True))

    following = threading.Thread(target=follow, daemon=True)
    until(lambda: cluster.view(job).step > 5, "it trains")
    following.start()
    here = cluster.view(job).host
    cluster.hsctl("node", "drain", here, "--wait")
    until(lambda: cluster.view(job).state == "running" and cluster.view(job).epoch == 1, "it has moved")
    cluster.kill("controller")
    cluster.up()
    ended = cluster.until_state(job, "succeeded", "failed")
    assert (ended.state, ended.epoch, ended.host == here) == ("succeeded", 1, False), ended.exit
    following.join(60)
    said = [f"step {step}" for step in range(total)]
    assert b"".join(followed).decode().splitlines() == said
    with cluster.client() as client:
        assert b"".join(client.logs(job)).decode().splitlines() == said
        assert b"".join(client.logs(job, tail_lines=2)).decode().splitlines() == said[-2:]
        second = list(client.output(job, had=Had(epoch=1)))
    assert {chunk.epoch for chunk in second} == {1}
    lines = b"".join(chunk.data for chunk in second).decode().splitlines()
    assert 0 < len(lines) < total
    assert lines == said[-len(lines) :]
    cluster.kill(f"agent-{here}")
    until(lambda: not cluster.is_up(here), "nobody says what it said there")
    again = cluster.hsctl("logs", str(job))
    assert again.stderr == f"hsctl: what the job said on {here} is missing here: not connected\n"
    assert again.stdout.splitlines() == lines


def test_a_job_that_may_be_is_laid_over_two_servers_where_neither_has_room_for_it(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster("--host", "a=V100:3", "--host", "b=V100:3", "--quantum", "1", "--user", "ann")
    cluster.hsctl("policy", "set", "tiresias")
    fill = [cluster.submit("-G", "2", *count_words(scripts, tmp_path / name), user="ann") for name in "xy"]
    until(lambda: all(steps(tmp_path / name) > 5 for name in "xy"), "each server has one GPU left", 180)
    assert {cluster.view(job).host for job in fill} == {"a", "b"}
    total = 100
    wide = ("-G", "2", "--topology", "any", "--torchrun")
    job = cluster.submit(*wide, *learn(scripts, tmp_path / "wide", total, 0.02), user="ann")
    until(lambda: len(learned(tmp_path / "wide", 1)) > 5, "it trains", 180)
    view = cluster.view(job)
    assert (sorted(view.hosts), view.nodes, view.gpus) == (["a", "b"], 2, 2)
    until(lambda: "over 2 servers: " in cluster.hsctl("why", str(job)).stdout, "why says so", 60)
    ended = cluster.until_state(job, "succeeded", "failed", within_s=180)
    assert (ended.state, ended.lost_gpu_s) == ("succeeded", 0), ended.exit
    same = uninterrupted(scripts, total, ranks=2)
    for rank in range(2):
        assert losses(learned(tmp_path / "wide", rank)) == losses(same[rank])


def test_one_that_may_be_laid_over_servers_and_cut_in_two_ways_is_restarted_in_the_other_over_as_many(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster("--host", "a=V100:3", "--host", "b=V100:3", "--quantum", "1", "--user", "ann")
    cluster.hsctl("policy", "set", "tiresias")
    for name in "xy":
        cluster.submit("-G", "2", *count_words(scripts, tmp_path / name), user="ann")
    until(lambda: all(steps(tmp_path / name) > 5 for name in "xy"), "each server has one GPU left", 180)
    total = 1_000
    wide = ("-G", "2", "--topology", "any", "--torchrun", "--strategy", "dp=2", "--strategy", "tp=2")
    job = cluster.submit(*wide, *learn(scripts, tmp_path / "wide", total, 0.02), user="ann")
    until(lambda: len(learned(tmp_path / "wide", 1)) > 5, "it trains", 180)
    shown = cluster.json("show", str(job))
    assert (sorted(shown["hosts"]), shown["strategy"]) == (["a", "b"], "dp=2")
    cluster.hsctl("policy", "set", "tesserae-las")
    until(lambda: cluster.json("show", str(job))["strategy"] == "tp=2", "it is measured in the other", 180)
    shown = cluster.json("show", str(job))
    assert (sorted(shown["hosts"]), shown["node_count"]) == (["a", "b"], 2)
    ended = cluster.until_state(job, "succeeded", "failed", within_s=300)
    assert (ended.state, ended.lost_gpu_s) == ("succeeded", 0), ended.exit
    same = uninterrupted(scripts, total, ranks=2)
    for rank in range(2):
        assert losses(learned(tmp_path / "wide", rank)) == losses(same[rank])


def test_a_gang_that_one_server_has_no_room_to_write_trains_on_and_moves_once_there_is(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    """Its other server has written its part by then, and could not go on from that."""
    cluster = new_cluster(*TWO_SERVERS, "--host", "c=V100:1")
    total = 400
    gang = cluster.submit(*GANG, *learn(scripts, tmp_path / "gang", total, 0.05), user="ann")
    until(lambda: len(learned(tmp_path / "gang", 1)) > 5, "it trains", 180)
    here = cluster.view(gang).hosts
    (away,) = {"a", "b", "c"} - set(here)
    folders = [next(cluster.state.rglob(f"*{host}*/checkpoints/{gang}")) for host in here]
    full = [folders[1] / f"gen-{generation}" for generation in range(100)]
    for each in full:
        each.write_text("in the way")
    cluster.hsctl("node", "drain", here[1])
    until(lambda: "Not a directory" in cluster.hsctl("why", str(gang)).stdout, "why says what keeps it there")
    mark = len(learned(tmp_path / "gang"))
    until(lambda: len(learned(tmp_path / "gang")) > mark + 40, "it trains all the while")
    assert here == cluster.view(gang).hosts
    for each in full:
        each.unlink()
    moved = until(lambda: v if away in (v := cluster.view(gang)).hosts else None, "it has moved")
    assert (moved.epoch, here[1] in moved.hosts) == (1, False)
    ended = cluster.until_state(gang, "succeeded", "failed", within_s=180)
    assert (ended.state, ended.lost_gpu_s) == ("succeeded", 0), ended.exit
    for rank in range(2):
        assert [row.step for row in learned(tmp_path / "gang", rank)] == list(range(1, total + 1))


BUFFERED = """
import sys, time, torch, hs_job
from torch import distributed, nn
distributed.init_process_group("gloo")
state = hs_job.state(model=nn.Linear(2, 2))
lines = open(f"{sys.argv[1]}.{distributed.get_rank()}", "a")
much = [[n] for n in range(1_000_000)]  # among which its files are found
for step in range(state.step, 100_000):
    distributed.barrier()
    lines.write(f"{step}\\n")
    time.sleep(0.02)
    hs_job.step()
"""


def test_what_ranks_wrote_to_files_before_they_left_is_in_them(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    """Their launcher leaves before them, and their server tells them to end as soon as they are wanted elsewhere."""
    cluster = new_cluster("--host", "a=V100:2", "--host", "b=V100:2", "--quantum", "1")
    (tmp_path / "train.py").write_text(BUFFERED)
    run = ("--torchrun", "--", sys.executable, str(tmp_path / "train.py"), str(tmp_path / "lines"))
    job = cluster.submit("-G", "2", *run)
    here = until(lambda: v if (v := cluster.view(job)).step > 10 else None, "it trains").host
    cluster.hsctl("node", "drain", here)
    left = until(lambda: v if (v := cluster.view(job)).epoch == 1 else None, "it has left")
    until(lambda: not any(cluster.state.glob(f"agent-{here}/jobs/*")), "it is gone")
    assert left.checkpoint_step > 10
    for rank in range(2):
        lines = (tmp_path / f"lines.{rank}").read_text().split()
        assert lines == [str(step) for step in range(left.checkpoint_step)]
    cluster.hsctl("cancel", str(job))
    cluster.until_state(job, "cancelled")


LACKING = """
import os, runpy, sys
from pathlib import Path
lacks = f"agent-{Path(sys.argv[1]).read_text()}"
sys.argv = sys.argv[2:]
if lacks in Path(os.environ["HS_CHECKPOINT_DIR"]).parts:
    import a_library_that_is_not_there
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_gang_that_fails_at_its_start_where_a_library_is_missing_goes_on_from_its_checkpoint_elsewhere(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster(*TWO_SERVERS, "--host", "c=V100:1")
    total = 300
    (tmp_path / "lacks").write_text("none")
    (tmp_path / "lacking.py").write_text(LACKING)
    python, *words = learning(scripts, tmp_path / "gang", total, 0.05)
    lacking = (python, str(tmp_path / "lacking.py"), str(tmp_path / "lacks"))
    gang = cluster.submit(*GANG, *AS_LEAN, "--", *lacking, *words, user="ann")
    until(lambda: len(learned(tmp_path / "gang", 1)) > 5, "it trains", 180)
    here = cluster.view(gang).hosts
    (away,) = {"a", "b", "c"} - set(here)
    (tmp_path / "lacks").write_text(away)
    cluster.hsctl("node", "drain", here[1])
    until(lambda: f"it failed on {away}" in cluster.hsctl("events").stdout, "it failed there", 180)
    assert f"at its start it failed on {away} (exit code 1)" in cluster.hsctl("why", str(gang)).stdout
    cluster.hsctl("node", "undrain", here[1])
    ended = cluster.until_state(gang, "succeeded", "failed", within_s=180)
    assert (ended.state, sorted(ended.hosts)) == ("succeeded", sorted(here)), ended.exit
    same = uninterrupted(scripts, total, ranks=2)
    for rank in range(2):
        assert losses(learned(tmp_path / "gang", rank)) == losses(same[rank])
