"""Daemons are killed under running jobs; jobs crash, hide and end at awkward moments."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.e2e.harness import Cluster, alive, until

NewCluster = Callable[..., Cluster]
TWO_GPUS = ("--emulate", "V100:2:16G", "--quantum", "0.5", "--user", "ann", "--user", "bob")


def steps(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def count_words(scripts: Path, path: Path, *, total: int = 100_000, step_s: float = 0.01) -> list[str]:
    return ["--", sys.executable, str(scripts / "count.py"), str(path), str(total), str(step_s)]


def test_jobs_go_on_fairly_sliced_while_the_controller_is_dead_and_nothing_is_forgotten(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster(*TWO_GPUS)
    files = {}
    for user in ("ann", "bob"):
        for n in range(2):
            path = tmp_path / f"{user}-{n}"
            files[cluster.submit(*count_words(scripts, path), user=user)] = path
    until(lambda: all(steps(f) > 20 for f in files.values()), "every job has trained", 180)
    before = cluster.views()

    cluster.kill("controller")
    at_kill = {job: steps(f) for job, f in files.items()}
    # Two GPUs for four jobs: each must get on by the steps of several turns of its own.
    until(
        lambda: all(steps(f) > at_kill[job] + 100 for job, f in files.items()),
        "every job goes on without a controller",
        180,
    )
    gained = {job: steps(f) - at_kill[job] for job, f in files.items()}
    assert max(gained.values()) < 3 * min(gained.values()), f"not shared: {gained}"

    cluster.up()
    after = until(lambda: v if len(v := cluster.views()) == 4 else None, "the controller knows the four jobs")
    until(
        lambda: all(v.state in {"running", "suspended"} for v in cluster.views().values()),
        "the agent is back",
    )
    for job, view in after.items():
        assert view.epoch == before[job].epoch, "no job was started again"
        assert view.user == before[job].user

    def moved_on() -> bool:
        views = cluster.views()
        return all(views[j].gpu_s > before[j].gpu_s for j in before)

    until(moved_on, "usage goes on from where it was")
    text = [f.read_text().splitlines() for f in files.values()]
    assert all([int(line.split()[0]) for line in lines] == list(range(len(lines))) for lines in text), (
        "a step was done twice"
    )


def test_usage_is_exact_to_a_report_interval_over_a_dead_controller(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster(*TWO_GPUS)
    job = cluster.submit("-G", "2", *count_words(scripts, tmp_path / "steps"), user="ann")
    until(lambda: steps(tmp_path / "steps") > 50, "the job trains")

    def reading() -> tuple[float, float]:
        """A counter that has just moved, and when."""
        old = cluster.view(job).gpu_s
        new = until(lambda: g if (g := cluster.view(job).gpu_s) != old else None, "the counter moves")
        return new, time.monotonic()

    gpu_s, at_s = reading()
    cluster.kill("controller")
    mark = steps(tmp_path / "steps")
    until(lambda: steps(tmp_path / "steps") > mark + 300, "it trains on without a controller")
    cluster.up()
    until(lambda: cluster.view(job).gpu_s > gpu_s, "the agent reports again")
    later_gpu_s, later_at_s = reading()
    expected = 2 * (later_at_s - at_s)
    interval_s = 1.0
    assert abs((later_gpu_s - gpu_s) - expected) <= 2 * (interval_s + 0.5), (
        "two GPUs, all the time, to a report interval"
    )


def test_jobs_outlive_their_agent_and_are_adopted_with_the_right_exit_codes(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster("--emulate", "V100:4:16G", "--quantum", "0.5", "--user", "ann")
    lasting = cluster.submit(*count_words(scripts, tmp_path / "lasting"), user="ann")
    go = tmp_path / "go"
    os.mkfifo(go)
    ends = cluster.submit("--", "/bin/sh", "-c", f"read x < {go}; exit 7", user="ann")
    told = tmp_path / "pid"
    shoots = f"echo $$ > {told}.new; mv {told}.new {told}; read x < {go}; kill -SEGV $$"
    shot = cluster.submit("--", "/bin/sh", "-c", shoots, user="ann")
    until(lambda: steps(tmp_path / "lasting") > 20 and told.exists(), "the jobs run")
    until(
        lambda: all(v.state == "running" for v in cluster.views().values()),
        "the controller knows that they run",
        180,  # a shell might yet start something that loads the runtime: it is waited for, for 30 s
    )
    epoch = cluster.view(lasting).epoch

    cluster.kill("agent")
    before = steps(tmp_path / "lasting")
    with go.open("w") as both:
        both.write("\n\n")
    pid = int(told.read_text())
    until(lambda: not alive(pid), "the job ended while there was no agent")
    until(lambda: steps(tmp_path / "lasting") > before + 50, "the other one trains on")

    cluster.up()
    cluster.until_state(ends, "failed", within_s=180)
    cluster.until_state(shot, "failed", within_s=180)
    assert cluster.view(ends).exit.code == 7
    assert cluster.view(shot).exit.signal == signal.SIGSEGV
    assert cluster.view(lasting).epoch == epoch
    seen = cluster.view(lasting).step
    until(lambda: cluster.view(lasting).step > seen, "the adopted job's steps are counted again")
    lines = (tmp_path / "lasting").read_text().splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(len(lines))), "it was never started again"


def test_a_cancelled_job_leaves_no_process_behind(cluster: Cluster, scripts: Path, tmp_path: Path) -> None:
    job = cluster.submit("--", sys.executable, str(scripts / "hide.py"), str(tmp_path / "pids"), user="ann")
    file = tmp_path / "pids"
    until(lambda: file.exists() and len(file.read_text().split()) == 2, "the job and its hidden child run")
    pids = file.read_text().split()
    cluster.hsctl("cancel", str(job))
    cluster.until_state(job, "cancelled")
    assert [pid for pid in pids if alive(int(pid))] == []


def test_a_crash_is_shown_with_its_code_and_the_end_of_its_log(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    job = cluster.submit("--", sys.executable, str(tmp_path / "broken.py"), user="bob")
    assert cluster.hsctl("wait", str(job), code=None).returncode == 1
    shown = cluster.hsctl("show", str(job)).stdout
    assert "ModuleNotFoundError: No module named 'nothing_of_that_name'" in shown
    detail = cluster.json("show", str(job))
    assert "ModuleNotFoundError" in str(detail)
    shot = cluster.submit("--", "/bin/sh", "-c", "kill -9 $$", user="bob")
    assert cluster.hsctl("wait", str(shot), code=None).returncode == 128 + signal.SIGKILL
    assert "signal 9" in cluster.hsctl("show", str(shot)).stdout


def test_what_cannot_be_hooked_is_frozen_in_others_turns(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster("--emulate", "V100:1:16G", "--quantum", "0.5", "--user", "ann", "--user", "bob")
    files = {}
    for user in ("ann", "bob"):
        path = tmp_path / user
        script = f"n=0; while :; do n=$((n+1)); echo $n >> {path}; sleep 0.02; done"
        files[cluster.submit("--suspend", "transparent", "--", "/bin/sh", "-c", script, user=user)] = path
    until(
        lambda: all(view.suspends > 0 for view in cluster.views().values()), "both have been frozen once", 60
    )
    views = cluster.views()  # before, one of them was alone
    since = {job: (steps(file), views[job].gpu_s) for job, file in files.items()}

    def gained() -> list[float]:
        return [cluster.views()[job].gpu_s - gpu_s for job, (_, gpu_s) in since.items()]

    until(lambda: min(gained()) > 2.0, "both get their turns on the one GPU", 120)
    received = gained()
    assert all(view.tier == "freeze" for view in cluster.views().values())
    assert all(steps(file) > since[job][0] for job, file in files.items())
    assert max(received) < 2 * min(received)


def warnings_of(cluster: Cluster, server: str) -> list[str]:
    return next(node["warnings"] for node in cluster.json("nodes") if node["name"] == server)


def test_a_server_whose_spool_cannot_be_written_is_given_no_jobs_until_it_can(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path
) -> None:
    cluster = new_cluster("--host", "a=V100:1", "--host", "b=V100:1", "--quantum", "1", "--user", "ann")
    until(lambda: cluster.is_up("a") and cluster.is_up("b"), "both servers are up")
    spool = next(path for path in cluster.state.rglob("jobs") if path.parent.name.endswith("a"))
    kept = spool.rename(spool.with_name("jobs.aside"))
    spool.write_text("in the way")

    jobs = [cluster.submit(*count_words(scripts, tmp_path / f"steps-{n}"), user="ann") for n in range(4)]
    until(lambda: "cannot start job" in cluster.hsctl("events").stdout, "it is told")
    until(lambda: all(cluster.view(job).hosts == ["b"] for job in jobs), "all live where they can run")
    until(lambda: all(steps(tmp_path / f"steps-{n}") > 5 for n in range(4)), "all train", 240)
    assert "(Not a directory" in " ".join(warnings_of(cluster, "a"))
    assert all(view.epoch <= 20 for view in cluster.views().values()), "they were not sent back and forth"

    spool.unlink()
    kept.rename(spool)
    until(lambda: "may have others again" in " ".join(warnings_of(cluster, "a")), "it is given jobs again")
    later = cluster.submit(*count_words(scripts, tmp_path / "later"), user="ann")
    until(lambda: cluster.view(later).hosts == ["a"], "and this one")
    until(lambda: "a starts jobs again" in cluster.hsctl("events").stdout, "and can start it")
    assert "could not start" not in " ".join(warnings_of(cluster, "a"))


def test_a_job_that_ended_while_the_controller_was_dead_ended_then(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster("--emulate", "V100:1:16G", "--quantum", "0.5", "--user", "ann")
    began, end = tmp_path / "began", tmp_path / "end"
    script = f"touch {began}; until [ -e {end} ]; do sleep 0.02; done"
    job = cluster.submit("--suspend", "none", "--", "sh", "-c", script, user="ann")
    cluster.until_state(job, "running")
    cluster.kill("controller")
    end.touch()
    (memory,) = cluster.state.glob("*/host.json")
    until(lambda: '"exited"' in memory.read_text(), "its agent knows that it has ended")
    assert cluster.hsctl("queue", code=None).returncode == 6, "nobody is told yet"
    back_s = time.time()
    cluster.up()
    view = cluster.until_state(job, "succeeded")
    assert end.stat().st_mtime <= view.ended_at <= back_s
