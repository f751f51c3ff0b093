"""What is around a script: its workers and children, the other ranks, and an agent that dies."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from job_stub import StubAgent
from moving import script, start, suspend_and_resume
from warm import Forked

from hs_core.events.host import (
    CheckpointFailed,
    JobCapable,
    JobHeld,
    JobHooked,
    JobProgressed,
    JobReady,
    JobWentOn,
)
from hs_core.gang import Step
from hs_core.reports import Tier

TRAIN = str(Path(__file__).parent / "train.py")

VALIDATING = """
import os, torch, threading
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 4))
train = DataLoader(data, batch_size=8, num_workers=1, multiprocessing_context="fork")
val = DataLoader(data, batch_size=16)
m = torch.nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), lr=0.01)
child = os.fork()
if child == 0:
    for (x,) in val: m(x).sum().backward(); o.step()   # a forked child counts for nothing and waits for nobody
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
beside = []
def ahead():
    for (x,) in val: beside.append(x)
thread = threading.Thread(target=ahead); thread.start(); thread.join(); assert len(beside) == 4
for epoch in range(6):
    for (x,) in train:
        o.zero_grad(); m(x).sum().backward(); o.step()
    with torch.no_grad():
        for (x,) in val: m(x)
print("done", flush=True)
"""

WITH_STARTED_WORKERS = """
import multiprocessing, os, sys, torch
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(["torch"])
    data = TensorDataset(torch.randn(64, 4))
    loader = DataLoader(data, batch_size=8, num_workers=1, persistent_workers=True, multiprocessing_context=sys.argv[1])
    m = torch.nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), lr=0.01)
    while not os.path.exists("enough"):
        for (x,) in loader:
            o.zero_grad(); m(x).sum().backward(); o.step()
    print("done", flush=True)
"""

UNEVEN = """
import os, warnings, torch
from torch.distributed.algorithms.join import Join
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
o = torch.optim.SGD(model.parameters(), lr=0.01)
with Join([model]):
    for (x,) in DataLoader(TensorDataset(torch.randn((100, 5)[rank], 4)), batch_size=1):
        o.zero_grad(); model(x).sum().backward(); o.step()
warnings.simplefilter("ignore")  # Join has them all said; torch 2.5 leaves a folder to who ends
print("done", flush=True)
torch.distributed.barrier()
os._exit(0)  # torch may hang where a process group goes while a thread of its own waits for the interpreter
"""

PIPELINE = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
dist.init_process_group("gloo")
part = torch.nn.Linear(4, 4)
o = torch.optim.SGD(part.parameters(), lr=0.01)
def first():
    for (x,) in DataLoader(TensorDataset(torch.randn(200, 4)), batch_size=1):
        out = part(x); dist.send(out.detach(), 1)
        back = torch.empty_like(out); dist.recv(back, 1)
        out.backward(back); o.step(); o.zero_grad()
def second():
    for _ in range(200):
        x = torch.empty(1, 4); dist.recv(x, 0); x.requires_grad_()
        part(x).sum().backward(); dist.send(x.grad, 0); o.step(); o.zero_grad()
(first, second)[dist.get_rank()]()
print("done", flush=True)
dist.destroy_process_group()
"""


def test_workers_forked_children_and_threads_that_fetch_ahead_are_never_held(agent: StubAgent) -> None:
    job = start(agent, script(agent, VALIDATING), fresh=True)
    suspend_and_resume(agent, Tier.HOLD)
    output, errors = job.communicate()
    assert (job.returncode, output, errors) == (0, "done\n", "")
    assert {message["pid"] for message in agent.messages("hello")} == {job.pid}


@pytest.mark.slow
@pytest.mark.parametrize("by", ["spawn", "forkserver"])
def test_a_loaders_worker_that_was_not_forked_of_its_rank_does_not_leave_by_itself(
    agent: StubAgent, by: str
) -> None:
    """Torch would raise an error in the rank that it works for, which has yet to hear that all leave. A fork server is what Python 3.14 has where a script says nothing, and that imports torch as the script does."""
    job = start(agent, script(agent, WITH_STARTED_WORKERS), by, fresh=True)
    agent.wait(JobProgressed)
    workers = [fd for _, fd, message in agent.heard if message.get("pid") not in (None, job.pid)]
    assert workers
    with agent._changed:
        agent._do(Step(tell=tuple((worker, {"type": "leave"}) for worker in workers)))
    since = agent.seen()
    agent.wait(JobProgressed, since)
    (agent.folder / "enough").touch()
    output, errors = job.communicate()
    assert (job.returncode, output, errors) == (0, "done\n", "")


def test_the_users_own_sitecustomize_still_runs_and_an_error_of_ours_never_stops_the_script(
    agent: StubAgent,
) -> None:
    own = agent.folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.mine = 1\n")
    (agent.injected / "hs_job" / "hooks.py").write_text("raise OSError('broken on purpose')\n")
    path = script(agent, "import torch; print('ran', mine)")
    job = agent.run(path, env={"PYTHONPATH": f"{agent.injected}{os.pathsep}{own}"}, fresh=True)
    output, errors = job.communicate()
    assert (job.returncode, output) == (0, "ran 1\n")
    assert errors == "heteroshare: not hooked: OSError: broken on purpose\n"


def test_an_agent_that_dies_and_comes_back_finds_the_job_as_it_was(agent: StubAgent) -> None:
    job = start(agent, TRAIN, "--epochs", "500")
    agent.wait(JobWentOn)
    since = agent.seen()
    agent.suspend(Tier.SWAP)
    held = agent.wait(JobHeld, since)
    since = agent.seen()
    agent.kill()
    agent.start()
    again = agent.wait(JobHeld, since)
    assert (again.step, again.tier) == (held.step, Tier.SWAP)
    assert agent.events[since:][0].__class__ is JobHooked
    agent.resume()
    agent.wait(JobWentOn, since)
    since = agent.seen()
    agent.kill()
    agent.start()
    assert agent.wait(JobWentOn, since).step > held.step
    assert suspend_and_resume(agent, Tier.HOLD).step > held.step
    os.killpg(job.pid, signal.SIGKILL)
    job.communicate()


def paced_gang(agent: StubAgent, text: str) -> "subprocess.Popen[str] | Forked":
    """Two ranks of it that stand at their first step, of jobs that are slowed down and tell each step."""
    agent.kill()
    agent._machine_args = {"pace_s": 0.02, "progress_s": 0.05}
    agent.start()
    job = agent.run(script(agent, text), ranks=2)
    agent.wait(JobReady)
    return job


def test_a_pipeline_of_which_one_rank_has_a_loader_is_ready_while_the_other_waits_for_it(
    agent: StubAgent,
) -> None:
    job = paced_gang(agent, PIPELINE)
    assert len(agent.messages("arrived")) == 1
    since = agent.seen()
    agent.resume()
    agent.wait(JobWentOn, since)
    agent.suspend()
    agent.wait(JobHeld, since)
    agent.resume()
    output, errors = job.communicate()
    assert (job.returncode, output.count("done"), errors) == (0, 2, "")


def test_a_gang_one_of_whose_ranks_has_run_out_of_data_goes_on_after_a_stop(agent: StubAgent) -> None:
    """It is in the collectives of the others, and never gets to the step at which these stand."""
    job = paced_gang(agent, UNEVEN)
    agent.resume()
    agent.until(
        lambda: any(message["step"] > 10 for message in agent.messages("progress")) or None,
        "ten steps of the rank that has more data",
    )
    since = agent.seen()
    agent.suspend()
    agent.until(lambda: agent.messages("held") or None, "a rank that stands")
    agent.resume()
    agent.wait(JobWentOn, since)
    output, errors = job.communicate()
    assert (job.returncode, output.count("done"), errors) == (0, 2, "")


ONE_ASTRAY = """
import itertools, os, sys, torch, hs_job
from hs_job import agreement
agreement.NOWHERE_S = 1.0
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(1)
x = torch.randn(40, 2)
loader = torch.utils.data.DataLoader(x, batch_size=8)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
others = torch.utils.data.DataLoader(x, batch_size=8)
for epoch in range(40):
    for xs in others if rank and epoch else loader:
        optimizer.zero_grad(); model(xs).square().sum().backward(); optimizer.step()
os.write(1, b"done\\n")
torch.distributed.barrier()
torch.distributed.destroy_process_group()
os._exit(0)
"""


def test_a_gang_one_of_whose_ranks_comes_to_no_place_where_it_is_saved_goes_on_once_that_one_says_so(
    agent: StubAgent,
) -> None:
    """The other stands at such a place, has written its part, and is waited for in each step of the first."""
    job = paced_gang(agent, ONE_ASTRAY)
    agent.resume()
    agent.wait(JobProgressed, where=lambda event: event.step > 8)
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    why = agent.wait(CheckpointFailed, since).why
    assert why.startswith("it trains on batches that are not fetched from the loader handed over")
    assert not agent.wait(JobCapable, since, where=lambda event: not event.can_checkpoint).can_checkpoint
    agent.wait(JobWentOn, since)
    output, errors = job.communicate()
    assert (job.returncode, output.count("done")) == (0, 2)
    assert re.fullmatch(
        r"heteroshare: told to leave or to save \d+ s and \d+ steps ago, and come to no place .*\n", errors
    )
