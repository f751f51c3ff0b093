"""What hsctl answers: one true reason for waiting, bad input refused whole, one controller to a folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.figure4 import demo
from hs_client import address
from tests.e2e.harness import Cluster, until


def why(cluster: Cluster, job: int) -> dict[str, object]:
    return dict(cluster.json("why", str(job)))


def test_why_names_the_one_true_reason(cluster: Cluster, scripts: Path, tmp_path: Path) -> None:
    def busy(name: str, *flags: str, user: str) -> int:
        words = [sys.executable, str(scripts / "count.py"), str(tmp_path / name), "100000", "0.01"]
        return cluster.submit(*flags, "--", *words, user=user)

    whole = [busy(f"whole-{user}", "-G", "2", user=user) for user in ("ann", "bob")]
    suspended = until(
        lambda: next((j for j in whole if cluster.view(j).state == "suspended"), None), "they take turns"
    )
    answer = until(
        lambda: a if (a := why(cluster, suspended))["reason"] == "waiting-for-turn" else None,
        "it waits for its turn",
    )
    assert "in 1 of 2 quanta" in str(answer["text"])
    assert 0 <= float(str(answer["expected_wait_s"])) <= 5

    paused = busy("paused", user="ann")
    cluster.hsctl("--user", "ann", "pause", str(paused))
    assert why(cluster, paused)["reason"] == "paused"
    depends = cluster.submit("-d", f"{paused}:ok", "--", "/bin/true", user="ann")
    assert why(cluster, depends)["reason"] == "dependency"
    assert str(paused) in str(why(cluster, depends)["text"])
    ended = cluster.submit("--", "/bin/sh", "-c", "exit 3", user="bob")
    cluster.hsctl("wait", str(ended), code=3)
    assert why(cluster, ended)["reason"] == "ended:failed"
    cluster.hsctl("--user", "ann", "cancel", str(paused))
    assert cluster.until_state(depends, "cancelled").exit.why, "what can never run is not left waiting"
    cluster.hsctl("cancel", *map(str, whole))


BAD = {
    "no GPU": (["-G", "0", "--", "true"], 2, "gpus"),
    "negative GPUs": (["--gpus=-1", "--", "true"], 2, "gpus"),
    "words for GPUs": (["-G", "many", "--", "true"], 2, "many"),
    "more GPUs than any server has": (["-G", "9", "--", "true"], 3, "the largest has 2"),
    "a pinned model that is nowhere": (["--gpu-type", "H100", "--", "true"], 3, "H100"),
    "more memory than any GPU has": (["--gpu-mem", "999G", "--", "true"], 3, "16"),
    "no command": ([], 2, "command"),
    "a command that is not there": (["--", "no-such-program-here"], 2, "no-such-program-here"),
    "a folder that is not there": (["-C", "/no/such/folder", "--", "true"], 2, "/no/such/folder"),
    "an unknown user": (["--", "true"], 4, "nobody-of-that-name"),
    "a dependency on nothing": (["-d", "999", "--", "true"], 4, "999"),
    "a reserved variable": (["-e", "HS_JOB_ID=1", "--", "true"], 2, "HS_JOB_ID"),
    "an absurd duration": (["-t", "-5m", "--", "true"], 2, "-5m"),
    "several nodes": (["-N", "2", "--", "true"], 3, "nodes"),
}


def test_bad_input_is_refused_whole_with_the_field_the_value_and_the_right_code(
    cluster: Cluster, tmp_path: Path
) -> None:
    before = cluster.json("queue", "--all")
    for name, (words, code, named) in BAD.items():
        user = "nobody-of-that-name" if name == "an unknown user" else "ann"
        done = cluster.hsctl("--user", user, "submit", *words, code=None)
        assert done.returncode == code, f"{name}: {done.returncode} {done.stderr}"
        assert named in done.stderr, f"{name}: {done.stderr}"
        assert done.stdout == "", name
        assert "Traceback" not in done.stderr, name
    files = {
        "unknown field": ("run: 'true'\nresorces: {gpus: 1}\n", "resources"),
        "not YAML": ("run: [true\n", "job.yaml"),
        "twice the same key": ("run: 'true'\nname: a\nname: b\n", "name"),
        "wrong type": ("run: 'true'\nresources: {gpus: lots}\n", "gpus"),
    }
    for name, (text, named) in files.items():
        (tmp_path / "job.yaml").write_text(text)
        done = cluster.hsctl("--user", "ann", "submit", "-f", str(tmp_path / "job.yaml"), code=2)
        assert named in done.stderr, f"{name}: {done.stderr}"
    assert cluster.hsctl("submit", "-f", str(tmp_path / "absent.yaml"), code=2).stderr
    assert [row["id"] for row in cluster.json("queue", "--all")] == [row["id"] for row in before], (
        "nothing was half-done"
    )
    cluster.hsctl("show", "777", code=4)
    cluster.hsctl("cancel", "777", code=4)


def test_an_unreachable_controller_is_exit_code_6(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hs_client", "--controller", f"unix:{tmp_path}/none.sock", "queue"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 6
    assert "none.sock" in done.stderr


def test_a_second_controller_on_the_same_state_refuses_to_start(cluster: Cluster) -> None:
    configs = list(cluster.state.rglob("controller.toml"))
    assert len(configs) == 1
    done = subprocess.run(
        [sys.executable, "-m", "hs_controller", "run", "--config", str(configs[0])],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode != 0
    assert "another controller" in done.stderr.lower()
    assert cluster.json("info")["policy"] == "gandiva-fair", "the first one goes on"


def test_the_same_request_twice_is_one_job(cluster: Cluster) -> None:
    from hs_client import Job

    before = len(cluster.views())
    with cluster.client() as client:
        client.user = "ann"
        first = client.submit(Job(run=["/bin/true"]), key="once")
        again = client.submit(Job(run=["/bin/true"]), key="once")
    assert first.job_ids == again.job_ids
    assert len(cluster.views()) == before + 1


def test_every_list_speaks_json_and_run_returns_the_jobs_own_code(cluster: Cluster) -> None:
    done = cluster.process("--user", "ann", "run", "--", "/bin/sh", "-c", "echo out of the job; exit 5")
    assert (done.returncode, done.stdout) == (5, "out of the job\n"), done.stderr
    for verb in ("queue", "share", "usage", "gpus", "nodes", "events"):
        rows = (
            [json.loads(line) for line in cluster.hsctl(verb, "--jsonl").stdout.splitlines()]
            if verb == "events"
            else cluster.json(verb)
        )
        assert isinstance(rows, list)
    (usage,) = [row for row in cluster.json("usage") if row["user"] == "ann"]
    assert usage["gpu_s"] > 0
    assert len(cluster.json("gpus")) == 2
    (node,) = cluster.json("nodes")
    assert node["state"] == "up"


def test_a_job_runs_as_the_account_its_user_is_mapped_to(cluster: Cluster) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can run jobs as another account")
    cluster.hsctl("user", "set", "eve", "--run-as", "nobody")
    done = cluster.hsctl(
        "--user",
        "eve",
        "run",
        "-q",
        "-C",
        "/",
        "--",
        "/bin/sh",
        "-c",
        "id -u; id -g; grep -E 'NoNewPrivs|CapEff|CapBnd' /proc/self/status",
    )
    lines = done.stdout.split()
    assert lines[0] == "65534"
    assert lines[lines.index("NoNewPrivs:") :][:2] == ["NoNewPrivs:", "1"]
    assert int(lines[lines.index("CapEff:") + 1], 16) == 0
    assert int(lines[lines.index("CapBnd:") + 1], 16) == 0


def test_neither_these_tests_nor_the_demo_ask_a_cluster_that_the_environment_names(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is somebody's, and jobs and users would be made there."""
    monkeypatch.setenv("HS_CONTROLLER", "unix:/somebody/elses.sock")
    again = Cluster(cluster.state)
    assert again.json("info")["controller"] == f"unix:{again.socket()}"
    assert again.process("info").returncode == 0

    def client() -> None:
        raise RuntimeError(address.resolve().origin)

    monkeypatch.setenv("HS_STATE", "put back at the end")
    for name, instead in {"up": lambda *_: None, "hsctl": lambda *_: None, "Client": client}.items():
        monkeypatch.setattr(demo, name, instead)
    with pytest.raises(RuntimeError) as asked:
        demo.main(["--out", str(tmp_path / "out")])
    assert "HS_CONTROLLER" not in str(asked.value)
