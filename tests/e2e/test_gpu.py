"""A whole cluster on a real GPU: users whose jobs do not fit into it together share it, and nobody has to say how large they are."""

import sys
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest
import torch

from hs_agent.strangers import counts_as_the_driver
from tests.e2e.harness import Cluster, until

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device, or a torch without CUDA"),
]

TRAIN = Path(__file__).parents[1] / "job" / "on_gpu.py"
USERS = ("ann", "bob", "cat")
WIDTH = 8192
OF_A_GPU = 0.36  # that each job takes: two fit, three do not


def lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def test_jobs_of_unknown_size_that_do_not_fit_together_take_turns_and_none_runs_out_of_memory(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster(
        "--devices", "nvml", "--quantum", "1", *(word for user in USERS for word in ("--user", user))
    )
    a_layer = WIDTH * WIDTH * 4 * 4  # parameters, gradients, two averages, in float32
    pynvml.nvmlInit()  # a test that computes on the GPU would be a stranger there, and nobody would have a turn
    memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total
    layers = int(OF_A_GPU * memory / a_layer)
    words = ("--width", str(WIDTH), "--layers", str(layers), "--steps", "1000000", "--times")
    environment = ("-e", "PATH", "-e", "CUBLAS_WORKSPACE_CONFIG=:4096:8")
    jobs = {
        user: cluster.submit(
            *environment, "--", sys.executable, str(TRAIN), *words, str(tmp_path / user), user=user
        )
        for user in USERS
    }

    def turns(job: int) -> int:
        view = cluster.json("show", str(job))
        assert view["state"] not in {"failed", "lost"}, view
        return int(view["resumes"])

    until(lambda: all(turns(job) >= 2 for job in jobs.values()), "each has had two turns")
    done = {user: lines(tmp_path / user) for user in USERS}
    shortest = min(map(len, done.values()))
    assert shortest > 10
    assert len({str([line[:2] for line in done[user][:shortest]]) for user in USERS}) == 1, "all train alike"
    log = (cluster.state / "agent.log").read_text()
    assert "(swap)" in log


@pytest.mark.skipif(not counts_as_the_driver(), reason="a container with processes of its own")
def test_what_a_job_without_the_hook_holds_is_known_from_the_driver(
    new_cluster: Callable[..., Cluster],
) -> None:
    cluster = new_cluster("--devices", "nvml", "--quantum", "1")
    held_bytes = 2 << 30
    script = f"import time, torch; held = torch.empty({held_bytes}, dtype=torch.uint8, device='cuda'); time.sleep(600)"
    job = cluster.submit("--suspend", "transparent", "-e", "PATH", "--", sys.executable, "-c", script)
    until(
        lambda: int(cluster.json("show", str(job))["gpu_memory_bytes"]) > held_bytes,
        "it is measured, with its context",
    )


GROWS = """
import torch, hs_job
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = hs_job.state(model=model, optimizer=optimizer)
total = torch.cuda.mem_get_info()[1]
for step in range(state.step, 200):
    scratch = torch.empty(int(0.75 * total), dtype=torch.uint8, device="cuda") if step > 100 else None
    model(torch.ones(64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    del scratch
    hs_job.step()
"""


def test_a_job_that_comes_to_need_what_another_holds_runs_out_of_memory_once_and_then_has_it(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster("--devices", "nvml", "--quantum", "1", "--user", "ann", "--user", "bob")
    a_layer = WIDTH * WIDTH * 4 * 4
    pynvml.nvmlInit()
    memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total
    words = ("--width", str(WIDTH), "--layers", str(int(OF_A_GPU * memory / a_layer)), "--steps", "1000000")
    run = ("-e", "PATH", "-e", "CUBLAS_WORKSPACE_CONFIG=:4096:8", "--", sys.executable)
    other = cluster.submit(*run, str(TRAIN), *words, str(tmp_path / "other"), user="ann")
    until(lambda: int(cluster.json("show", str(other))["resumes"]), "it trains")
    (tmp_path / "grows.py").write_text(GROWS)
    job = cluster.submit(*run, str(tmp_path / "grows.py"), user="bob")
    ended = cluster.until_state(job, "succeeded", "failed")
    assert ended.state == "succeeded", ended.exit
    (fact,) = [event for event in cluster.json("events") if event["kind"] == "crowded-out"]
    assert f"of which others held some (job {other})" in fact["text"]
