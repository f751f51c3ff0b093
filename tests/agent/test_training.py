"""Jobs that train, under hs-agent as a process."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hs_agent import procs
from hs_core.reports import Tier

TRAIN = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
while steps < int(sys.argv[1]):
    for x, y in DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        steps += 1
print(f"loss {loss.item():.9f}", flush=True)
"""


@pytest.fixture
def script(place: Path) -> str:
    path = place / "train.py"
    path.write_text(TRAIN)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("daemon", [{"pace": [{"job_class": "ada/*", "base_s": 0.02}]}], indirect=True)
def test_hooked_training_is_sliced_paced_and_survives_a_killed_agent(
    daemon, controller, job, script, wait_for
) -> None:
    daemon.start()
    count = 720  # so many that both are far from their end when the agent is killed
    command = (sys.executable, script, str(count))
    both = [job(n, *command, env={"OMP_NUM_THREADS": "1"}) for n in (1, 2)]
    controller.want(*both, quantum_s=1.0)
    for number in (1, 2):
        controller.wait_report(number, lambda r: r.suspends >= 2 and r.step > 0, "hooked and sliced", 60)
        assert controller.reports[number].tier is Tier.HOLD
    daemon.kill()
    before = {folder.key.job: folder.shim_state() for folder in daemon.folders()}
    steps = {n: controller.reports[n].step for n in (1, 2)}
    suspends = {n: controller.reports[n].suspends for n in (1, 2)}
    daemon.start()
    wait_for(lambda: len(controller.hellos) == 2, "the agent is back")
    for number in (1, 2):
        controller.wait_report(
            number, lambda r, n=number: r.suspends > suspends[n] and r.step > steps[n], "goes on", 60
        )
    assert {folder.key.job: folder.shim_state() for folder in daemon.folders()} == before
    for number in (1, 2):
        report = controller.wait_report(number, lambda r: r.exit, "an exit", 60)
        assert report.exit.ok, report
        assert report.run_s >= 0.9 * count * 0.02
    alone = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert [controller.log_of(n, request=n).decode() for n in (1, 2)] == [alone.stdout] * 2


@pytest.mark.slow
@pytest.mark.parametrize("daemon", [{"emulated": ["V100:2"]}], indirect=True)
def test_a_torchrun_gang_and_a_single_job_take_turns(daemon, controller, job, script) -> None:
    daemon.start()
    (temporary := daemon.place / "tmp").mkdir()
    env = {"OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    gang = job(1, sys.executable, script, "1000000000", gpus=2, torchrun=True, env=env)
    single = job(2, sys.executable, script, "1000000000", env=env)
    # What a job takes to come up is charged, and owed to who waits meanwhile: on a slow machine a minute of turns. So the other one comes when it is up.
    controller.want(gang)
    controller.wait_report(1, lambda r: r.step > 0, "trains", 90)
    controller.want(gang, single)
    for number in (1, 2):
        controller.wait_report(
            number, lambda r: r.suspends >= 2 and r.resumes >= 2 and r.step > 0, "takes turns", 90
        )
        assert controller.reports[number].tier is Tier.HOLD
    assert len(controller.reports[1].gpus) == 2
    controller.want(replace(gang, cancelled=True), replace(single, cancelled=True))
    for number in (1, 2):
        controller.wait_report(number, lambda r: r.exit, "an exit")
    line = f"HS_AGENT_SOCKET={daemon.place}/run/1-1.sock".encode()
    assert [who for who in procs.with_environment(line) if procs.alive(who)] == []
    assert not list(temporary.glob("torchelastic_*"))


@pytest.mark.slow
@pytest.mark.parametrize("daemon", [{"host_memory_budget": 0, "pace": [{"base_s": 0.02}]}], indirect=True)
def test_jobs_that_do_not_fit_together_leave_by_checkpoint_and_come_back_exactly(
    daemon, controller, job, handed
) -> None:
    daemon.start()
    both = [job(n, *handed.command(14), gpu_memory_bytes=10 << 30, env=handed.env) for n in (1, 2)]
    controller.want(*both, quantum_s=1.5)
    for number in (1, 2):
        report = controller.wait_report(number, lambda r: r.exit, "an exit", 180)
        assert report.exit.ok, report
    assert Tier.CHECKPOINT in {report.tier for report in controller.history}
    alone = handed.weights_alone(14)
    for number in (1, 2):
        assert controller.log_of(number, request=number).decode().splitlines()[-1] == alone
