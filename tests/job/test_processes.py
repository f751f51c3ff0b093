"""Scripts of all kinds, and what goes wrong around them."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from job_stub import StubAgent
from moving import slow_down, suspend_and_resume
from warm import Forked, Warm

from hs_core.events.host import (
    CheckpointFailed,
    JobCapable,
    JobCheckpointed,
    JobHeld,
    JobHooked,
    JobProgressed,
    JobReady,
    JobRestored,
    JobWentOn,
    SuspendFailed,
)
from hs_core.gang import Step
from hs_core.reports import Tier

TRAIN = str(Path(__file__).parent / "train.py")

BY_HAND = """
import torch, hs_job
torch.manual_seed(1)
w = torch.nn.Parameter(torch.zeros(4))
o = torch.optim.SGD([w], lr=0.1, momentum=0.9)
s = hs_job.state(model=torch.nn.ParameterList([w]), optimizer=o)
for i in range(s.step, 3000):
    loss = ((w - torch.randn(4)) ** 2).sum()
    o.zero_grad(); loss.backward(); o.step()
    print(i, repr(loss.item()), flush=True)
    hs_job.step()
"""

BY_HAND_ADDING_UP = """
import torch, hs_job
torch.manual_seed(1)
w = torch.nn.Parameter(torch.zeros(4))
o = torch.optim.SGD([w], lr=1e-4, momentum=0.9)
s = hs_job.state(model=torch.nn.ParameterList([w]), optimizer=o)
o.zero_grad()
for i in range(s.step, 3000):
    loss = ((w - torch.randn(4)) ** 2).sum()
    loss.backward()
    if i % 1000 == 999:
        o.step(); o.zero_grad()
    print(i, repr(loss.item()), w.tolist(), flush=True)
    hs_job.step()
"""

NO_LOADER = """
import os, torch
w = torch.nn.Parameter(torch.zeros(4)); v = torch.nn.Parameter(torch.zeros(4))
a = torch.optim.SGD([w], lr=0.1); b = torch.optim.SGD([v], lr=0.1)
i = 0
while not os.path.exists("enough"):
    (w - v - 1).square().sum().backward()
    a.step(); b.step()
    i += 1
print("done", i, flush=True)
"""

DERIVED = """
import torch
class Own(torch.optim.SGD):
    def step(self, closure=None):
        loss = super().step(closure)
        if steps == 20 and fails: raise ArithmeticError
        return loss
steps, fails = 0, True
w = torch.nn.Parameter(torch.ones(4)); v = torch.nn.Parameter(torch.ones(4))
other = torch.optim.SGD([v], lr=0.1); own = Own([w], lr=0.1)
while steps < 37:
    w.square().sum().backward()
    try:
        own.step()
    except ArithmeticError:
        fails = False
    steps += 1
"""

AT_ONCE = """
import os, torch
m = torch.nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), lr=0.01)
for _ in range(9):
    o.zero_grad(); m(torch.ones(4)).sum().backward(); o.step()
if not os.fork():
    os._exit(0)   # a forked child has nothing to say
assert os.wait()[1] == 0
os._exit(7)
"""

STUCK = """
import os, threading, hs_job
from hs_job import runtime
hs_job.step()
threading.Thread(target=runtime.current()._lock.acquire).start()   # and never lets go of it
os._exit(7)
"""

NO_TORCH = """
import os, sys, hs_job
while not os.path.exists("enough"):
    hs_job.step()
assert "torch" not in sys.modules
print("done", hs_job.should_yield())
"""

VALIDATING = """
import os, torch, threading
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 4))
train, val = DataLoader(data, batch_size=8, num_workers=1), DataLoader(data, batch_size=16)
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

WITH_SPAWNED_WORKERS = """
import os, torch
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    data = TensorDataset(torch.randn(64, 4))
    loader = DataLoader(data, batch_size=8, num_workers=1, persistent_workers=True, multiprocessing_context="spawn")
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


def script(agent: StubAgent, text: str) -> str:
    path = agent.folder / "script.py"
    path.write_text(text)
    return str(path)


def start(
    agent: StubAgent, *argv: str, env: dict[str, str] | None = None, fresh: bool = False
) -> subprocess.Popen[str] | Forked:
    since = agent.seen()
    job = agent.run(*argv, env=env, fresh=fresh)
    agent.wait(JobReady, since)
    agent.resume()
    return job


@pytest.mark.parametrize("text", [BY_HAND, BY_HAND_ADDING_UP], ids=["steps", "adds_up"])
def test_a_hand_made_loop_is_moved_exactly(agent: StubAgent, warm: Warm, text: str) -> None:
    path = script(agent, text)
    undisturbed = warm.run((path,), agent.environment(HS_AGENT_SOCKET=""), agent.folder)
    alone, errors = undisturbed.communicate()
    assert (undisturbed.returncode, errors) == (0, "")
    job = start(agent, path)
    agent.wait(JobCapable, where=lambda event: event.can_checkpoint)
    held = suspend_and_resume(agent, Tier.SWAP)
    assert held.tier is Tier.SWAP
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    held = agent.wait(JobHeld, since)
    output, errors = job.communicate()
    assert (job.returncode, errors) == (75, "")
    job = start(agent, path, env={"HS_RESTORE": str(held.generation)})
    end, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")
    assert output + end == alone


def test_a_script_without_a_loader_is_held_at_its_optimizer_step_and_two_optimizers_count_once(
    agent: StubAgent,
) -> None:
    job = start(agent, script(agent, NO_LOADER))
    steps = [suspend_and_resume(agent, Tier.HOLD).step for _ in range(5)]
    assert steps == sorted(steps)
    (agent.folder / "enough").touch()
    output, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")
    assert steps[-1] <= int(output.split()[1])


def test_a_step_that_calls_the_one_that_it_is_derived_from_is_one(agent: StubAgent) -> None:
    """Torch has hooks called for both, once there has been an optimizer of either class."""
    job = start(agent, script(agent, DERIVED))
    output, errors = job.communicate()
    assert (job.returncode, output, errors) == (0, "", "")
    assert agent.messages("progress")[-1]["step"] == 37


def test_a_script_without_torch_is_held_at_hs_job_step(agent: StubAgent) -> None:
    job = start(agent, script(agent, NO_TORCH), fresh=True)
    for _ in range(3):
        assert suspend_and_resume(agent, Tier.HOLD).tier is Tier.HOLD
    (agent.folder / "enough").touch()
    assert job.communicate() == ("done False\n", "")
    assert job.returncode == 0


def test_the_last_steps_are_told_when_the_script_ends(agent: StubAgent) -> None:
    job = start(agent, "-c", "import hs_job\nfor _ in range(37): hs_job.step()")
    assert job.wait(60) == 0
    agent.wait(JobProgressed, where=lambda event: event.step == 37)


def test_the_last_steps_are_told_when_the_script_ends_at_once(agent: StubAgent) -> None:
    job = start(agent, script(agent, AT_ONCE))
    assert job.wait(60) == 7
    agent.wait(JobProgressed, where=lambda event: event.step == 9)


def test_a_script_that_ends_at_once_does_so_whatever_holds_the_runtime_up(agent: StubAgent) -> None:
    assert start(agent, script(agent, STUCK)).wait(60) == 7


def test_workers_forked_children_and_threads_that_fetch_ahead_are_never_held(agent: StubAgent) -> None:
    job = start(agent, script(agent, VALIDATING), fresh=True)
    suspend_and_resume(agent, Tier.HOLD)
    output, errors = job.communicate()
    assert (job.returncode, output, errors) == (0, "done\n", "")
    assert {message["pid"] for message in agent.messages("hello")} == {job.pid}


@pytest.mark.slow
def test_a_loaders_worker_that_was_spawned_does_not_leave_by_itself(agent: StubAgent) -> None:
    """Torch would raise an error in the rank that it works for, which has yet to hear that all leave."""
    job = start(agent, script(agent, WITH_SPAWNED_WORKERS), fresh=True)
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


def test_switched_off_by_the_environment_the_script_runs_by_itself(agent: StubAgent) -> None:
    job = agent.run(script(agent, BY_HAND), env={"HS_HOOK": "0"}, fresh=True)
    output, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")
    assert output.startswith("0 ")
    assert agent.heard == []


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


def test_a_full_disk_fails_the_checkpoint_and_the_job_goes_on(agent: StubAgent) -> None:
    # The kernel refuses to let any file of the job grow beyond 2 KiB: what a full disk looks like, without needing root.
    text = f"import resource, runpy, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))\nsys.argv[0] = {TRAIN!r}\n"
    job = start(
        agent,
        script(agent, text + f"runpy.run_path({TRAIN!r}, run_name='__main__')"),
        "--epochs",
        "60",
        "--handed",
        "epoch",
    )
    agent.wait(JobWentOn)
    since = agent.seen()
    agent.checkpoint()
    assert "File too large" in agent.wait(CheckpointFailed, since).why
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    agent.wait(CheckpointFailed, since)
    agent.wait(SuspendFailed, since)
    assert list((agent.folder / "checkpoints").iterdir()) == [], "nothing half-done is left"
    suspend_and_resume(agent, Tier.HOLD)
    _, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")


def test_a_job_whose_state_no_checkpoint_can_hold_says_so_once_and_is_held_from_then_on(
    agent: StubAgent,
) -> None:
    lines = (
        "import torch, hs_job",
        "class Odd:",
        "    def state_dict(self): return {'f': len}",
        "    def load_state_dict(self, state): pass",
        "w = torch.nn.Parameter(torch.ones(3))",
        "optimizer = torch.optim.SGD([w], lr=0.1)",
        "state = hs_job.state(optimizer=optimizer, odd=Odd())",
        "for step in range(state.step, 400):",
        "    w.sum().backward(); optimizer.step(); hs_job.step()",
    )
    slow_down(agent, 0.01)
    job = start(agent, script(agent, "\n".join(lines)))
    agent.wait(JobWentOn)
    assert agent.wait(JobCapable).can_checkpoint
    since = agent.seen()
    agent.checkpoint()
    assert "odd['f'] is a builtins.builtin_function_or_method" in agent.wait(CheckpointFailed, since).why
    assert not agent.wait(JobCapable, since).can_checkpoint
    suspend_and_resume(agent, Tier.HOLD)
    _, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")


GROWS = """
import torch, torch.nn.utils.prune, hs_job
model = torch.nn.Sequential(torch.nn.LazyLinear(2), torch.nn.Linear(2, 2))
model.register_buffer("seen", torch.ones(0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
state = hs_job.state(model=model, optimizer=optimizer)
for step in range(state.step, 400):
    if step == 200:
        {grow}
    model(torch.ones(2)).sum().backward(); optimizer.step(); hs_job.step()
"""


@pytest.mark.parametrize(
    ("grow", "why"),
    [
        ("model.append(torch.nn.Linear(2, 2))", r"model has other parameters than before \(6, and 4 when"),
        ("torch.nn.utils.prune.identity(model[1], 'weight')", r"model has other parameters than before \(1\.weight_orig, and 1\.weight when"),
        ("optimizer.add_param_group({'params': [torch.ones(1)]})", r"optimizer .* \(5 in 2 groups, and 4 in 1 group when"),
        ("model.register_buffer('more', torch.ones(3))", r"model\.more is of shape \[3\], and was missing when"),
        ("model.seen = torch.ones(3)", r"model\.seen is of shape \[3\], and was of shape \[0\] when"),
        ("optimizer.zero_grad(); optimizer.state.clear(); model[1].weight.data = torch.ones(4, 2); model[1].bias.data = torch.ones(4)", r"model\.1\.weight is of shape \[4, 2\], and was"),
        ("model[1] = torch.nn.Linear(2, 2); optimizer.param_groups[0]['params'] = list(model.parameters())", r"optimizer keeps a state for a parameter that is in none"),
    ],
)  # fmt: skip
def test_a_job_that_has_grown_since_it_handed_over_is_held_and_not_saved(
    agent: StubAgent, grow: str, why: str
) -> None:
    """A new process would build what there was at first, and fail where it loads more."""
    slow_down(agent, 0.01)
    job = start(agent, script(agent, GROWS.format(grow=grow)))
    agent.wait(JobCapable, where=lambda event: event.can_checkpoint)
    agent.checkpoint()
    agent.wait(JobCheckpointed)
    agent.wait(JobProgressed, where=lambda event: event.step > 201)
    since = agent.seen()
    agent.checkpoint()
    assert re.search(why, agent.wait(CheckpointFailed, since).why)
    assert not agent.wait(JobCapable, since).can_checkpoint
    suspend_and_resume(agent, Tier.HOLD)
    _, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")


LOADED = """
import itertools, torch, hs_job
from hs_job import runtime
runtime._NOWHERE_S = 0.0
torch.manual_seed(1)
x = torch.randn(40, 2)
loader = torch.utils.data.DataLoader(x, batch_size=8, shuffle=True)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
early = iter(loader)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
{batches}
for xs in itertools.islice(batches, state.step, 400):
    optimizer.zero_grad(); model(xs).square().sum().backward(); optimizer.step()
print(model.weight.tolist())
"""


@pytest.mark.parametrize(
    "batches",
    ["batches = itertools.cycle(loader)", "batches = itertools.cycle((each for each in map(abs, loader)))"],
    ids=["by itself", "with others between"],
)
def test_a_loader_that_is_cycled_through_is_not_saved_and_that_is_said_before_it_matters(
    agent: StubAgent, batches: str
) -> None:
    """A new process would go round the batches that were left of the epoch."""
    slow_down(agent, 0.01)
    path = script(agent, LOADED.format(batches=batches))
    alone = agent.run(path, env={"HS_AGENT_SOCKET": ""})
    expected = alone.communicate()
    assert (alone.returncode, expected[1]) == (0, "")
    job = start(agent, path)
    assert not agent.wait(JobReady).can_checkpoint
    agent.wait(JobWentOn)
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    why = "itertools.cycle goes through the loader, and keeps the batches of its first epoch"
    assert agent.wait(CheckpointFailed, since).why.startswith(why)
    agent.resume()
    suspend_and_resume(agent, Tier.HOLD)
    output, errors = job.communicate()
    assert (job.returncode, output) == (0, expected[0])
    assert errors.startswith(f"heteroshare: the job is held, and not moved: {why}")
    assert errors.count("\n") == 1


def test_a_loop_that_is_not_cycled_is_taken_for_none(agent: StubAgent) -> None:
    body = LOADED.format(batches="batches = (each for _ in itertools.count() for each in enumerate(loader))")
    slow_down(agent, 0.01)
    job = start(
        agent, script(agent, body.replace("for xs in", "cycles = itertools.cycle([loader])\nfor _, xs in"))
    )
    agent.wait(JobProgressed, where=lambda event: event.step > 20)
    agent.checkpoint()
    agent.wait(JobCheckpointed)
    _, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")


def test_a_job_that_is_to_leave_and_trains_on_batches_of_no_loader_that_it_handed_over_says_so(
    agent: StubAgent,
) -> None:
    slow_down(agent, 0.01)
    body = LOADED.format(batches="batches = itertools.chain(early, x.split(1) * 20)")
    job = start(agent, script(agent, body))
    agent.wait(JobWentOn)
    agent.suspend(Tier.CHECKPOINT)
    why = agent.wait(CheckpointFailed).why
    assert why.startswith("it trains on batches that are not fetched from the loader handed over")
    assert not agent.wait(JobCapable, where=lambda event: not event.can_checkpoint).can_checkpoint
    agent.resume()
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    assert agent.wait(CheckpointFailed, since).why == why, "at once"
    agent.resume()
    _, errors = job.communicate()
    assert job.returncode == 0
    assert re.fullmatch(
        r"heteroshare: told to leave or to save \d+ s and 20 steps ago, and come to no place .*\n", errors
    )


def test_one_that_was_trained_on_other_batches_is_saved_once_it_comes_to_its_loader(agent: StubAgent) -> None:
    slow_down(agent, 0.01)
    body = LOADED.format(batches="batches = itertools.chain(x.split(1) * 2, *[loader] * 60)")
    job = start(agent, script(agent, body))
    agent.wait(JobWentOn)
    agent.suspend(Tier.CHECKPOINT)
    agent.wait(CheckpointFailed)
    agent.resume()
    agent.wait(JobCapable, where=lambda event: event.can_checkpoint)
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    agent.wait(JobHeld, since)
    job.communicate()
    assert job.returncode == 75


def test_a_script_that_hands_over_neither_a_loader_nor_its_steps_is_told_so_once(agent: StubAgent) -> None:
    lines = (
        "import torch, hs_job",
        "w = torch.nn.Parameter(torch.ones(3))",
        "optimizer = torch.optim.SGD([w], lr=0.1)",
        "state = hs_job.state(optimizer=optimizer)",
        "for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(200, 1))):",
        "    (w * x).sum().backward(); optimizer.step()",
    )
    slow_down(agent, 0.01)
    job = start(agent, script(agent, "\n".join(lines)))
    agent.wait(JobWentOn)
    for _ in range(2):
        suspend_and_resume(agent, Tier.HOLD)
    _, errors = job.communicate()
    assert job.returncode == 0
    assert errors.startswith(
        "heteroshare: hs_job.state was given no loader, and hs_job.step has not been called"
    )
    assert errors.count("\n") == 1


def test_one_that_evaluates_before_it_counts_its_steps_is_told_nothing(agent: StubAgent) -> None:
    lines = (
        "import torch, hs_job",
        "w = torch.nn.Parameter(torch.ones(3))",
        "optimizer = torch.optim.SGD([w], lr=0.1)",
        "state = hs_job.state(optimizer=optimizer)",
        "loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(200, 1)))",
        "for (x,) in loader:",
        "    (w * x).sum().item()",
        "for (x,) in loader:",
        "    (w * x).sum().backward(); optimizer.step(); hs_job.step()",
    )
    slow_down(agent, 0.01)
    job = start(agent, script(agent, "\n".join(lines)))
    agent.wait(JobWentOn)
    suspend_and_resume(agent, Tier.HOLD)
    _, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")


TRAINED_BY = """
import torch, hs_job
model = torch.nn.Linear(2, 1)

class Around(torch.optim.Optimizer):
    def __init__(self):
        self.inner = torch.optim.Adam(model.parameters())
        super().__init__(model.parameters(), {{}})

    def step(self):
        self.inner.step()

    def state_dict(self):
        return {{"inner": [self.inner.state_dict()]}}

    def load_state_dict(self, state):
        self.inner.load_state_dict(state["inner"][0])

optimizer = Around()
state = hs_job.state(model=model, optimizer=optimizer)
for step in range(state.step, 400):
    own = torch.ones(1, requires_grad=True)
    inner = torch.optim.Adam([own])  # for this step alone
    for _ in range(3):
        own.square().backward(); inner.step()
    {other}
    model(torch.ones(2)).sum().backward(); optimizer.step(); hs_job.step()
"""


@pytest.mark.parametrize(
    ("other", "said"),
    [("", 0), ("if step == 20: optimizer = torch.optim.Adagrad(model.parameters())", 1)],
    ids=["one that is inside another, and one for each step", "one in the place of it"],
)
def test_an_optimizer_that_trains_and_is_in_nothing_handed_over_is_told_of_once(
    agent: StubAgent, other: str, said: int
) -> None:
    slow_down(agent, 0.01)
    job = start(agent, script(agent, TRAINED_BY.format(other=other)))
    for step in (40, 80):
        agent.wait(JobProgressed, where=lambda event, step=step: event.step > step)
        since = agent.seen()
        agent.checkpoint()
        agent.wait(JobCheckpointed, since)
    _, errors = job.communicate()
    line = (
        "heteroshare: an optimizer (Adagrad) trains whose state is in nothing that was handed over to hs_job.state: "
        "it is not saved, and a new process begins it anew\n"
    )
    assert (job.returncode, errors) == (0, line * said)


def test_a_state_dict_that_fails_is_named_and_tried_again(agent: StubAgent) -> None:
    slow_down(agent, 0.01)
    mended, ends = agent.folder / "mended", agent.folder / "ends"
    grow = "saved, optimizer.state_dict = optimizer.state_dict, lambda: {}[7]"
    body = GROWS.format(grow=grow).replace("400", "1_000_000")
    body += f"    if os.path.exists({str(mended)!r}): optimizer.state_dict = saved\n"
    body += f"    if os.path.exists({str(ends)!r}): break\n"
    job = start(agent, script(agent, f"import os\n{body}"))
    agent.wait(JobProgressed, where=lambda event: event.step > 201)
    agent.checkpoint()
    why = agent.wait(CheckpointFailed).why
    assert why == "optimizer.state_dict() failed with KeyError: 7"
    mended.touch()
    asked = agent.seen()
    step = agent.wait(JobProgressed, asked).step
    agent.wait(JobProgressed, asked, where=lambda event: event.step > step)  # it has looked since
    agent.checkpoint()
    agent.wait(JobCheckpointed)
    ends.touch()
    _, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_checkpoint_on_a_full_file_system_fails_and_works_again_with_room(agent: StubAgent) -> None:
    folder = agent.folder / "checkpoints"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", folder], check=False, capture_output=True
    ).returncode:
        pytest.skip("this sandbox does not let root mount a tmpfs")
    try:
        job = start(agent, TRAIN, "--epochs", "200", "--handed", "epoch")
        agent.wait(JobWentOn)
        since = agent.seen()
        agent.checkpoint()
        assert "No space left" in agent.wait(CheckpointFailed, since).why
        subprocess.run(["mount", "-o", "remount,size=1m", folder], check=True)
        since = agent.seen()
        agent.checkpoint()
        assert agent.wait(JobCheckpointed, since).generation == 1
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_held_job_without_handed_over_state_says_that_it_cannot_be_saved_and_stays_held(
    agent: StubAgent,
) -> None:
    job = start(agent, TRAIN, "--epochs", "50")
    agent.wait(JobWentOn)
    since = agent.seen()
    agent.suspend()
    agent.wait(JobHeld, since)
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    assert "hs_job.state" in agent.wait(CheckpointFailed, since).why
    agent.wait(SuspendFailed, since)
    since = agent.seen()
    agent.resume()
    agent.wait(JobWentOn, since)
    assert job.communicate()[1] == ""
    assert job.returncode == 0


def test_a_held_job_is_saved_where_it_stands_and_a_torn_generation_is_passed_over(agent: StubAgent) -> None:
    argv = (TRAIN, "--epochs", "6", "--handed", "plain")
    job = start(agent, *argv)
    agent.wait(JobWentOn)
    since = agent.seen()
    agent.suspend(Tier.SWAP)
    step = agent.wait(JobHeld, since).step
    agent.checkpoint()
    assert agent.wait(JobCheckpointed, since).step == step
    suspend_and_resume(agent, Tier.HOLD)
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    newest = agent.wait(JobHeld, since)
    output, _ = job.communicate()
    assert newest.generation == 1
    file = agent.folder / "checkpoints" / "gen-1" / "rank0.pt"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    since = agent.seen()
    job = start(agent, *argv, env={"HS_RESTORE": "1"})
    restored = agent.wait(JobRestored, since)
    assert (restored.step, restored.generation) == (step, 0)
    assert "generation 1: rank0.pt has another SHA-256" in restored.note
    end, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")
    done_again = output.splitlines()[step:]
    assert end.splitlines()[: len(done_again)] == done_again


def test_a_process_keeps_no_copy_of_what_it_was_restored_from(agent: StubAgent) -> None:
    lines = (
        "import torch, weakref, hs_job",
        "class Weights:",
        "    loaded = weakref.ref(set())",
        "    def state_dict(self): return {'w': torch.ones(3)}",
        "    def load_state_dict(self, state): self.loaded = weakref.ref(state['w'])",
        "weights = Weights()",
        "state = hs_job.state(weights=weights)",
        "print(state.restored, weights.loaded() is None, flush=True)",
        "while not state.restored: hs_job.step()",
    )
    argv = (script(agent, "\n".join(lines)),)
    job = start(agent, *argv)
    agent.wait(JobWentOn)
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    held = agent.wait(JobHeld, since)
    assert (job.communicate()[0], held.tier) == ("False True\n", Tier.CHECKPOINT)
    job = start(agent, *argv, env={"HS_RESTORE": str(held.generation)})
    assert job.communicate() == ("True True\n", "")


def test_a_pipeline_of_which_one_rank_has_a_loader_is_ready_while_the_other_waits_for_it(
    agent: StubAgent,
) -> None:
    agent.kill()
    agent._machine_args = {"pace_s": 0.02, "progress_s": 0.05}
    agent.start()
    job = agent.run(script(agent, PIPELINE), ranks=2)
    agent.wait(JobReady)
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
    agent.kill()
    agent._machine_args = {"pace_s": 0.02, "progress_s": 0.05}
    agent.start()
    job = agent.run(script(agent, UNEVEN), ranks=2)
    agent.wait(JobReady)
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
from hs_job import runtime
runtime._NOWHERE_S = 1.0
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
    agent.kill()
    agent._machine_args = {"pace_s": 0.02, "progress_s": 0.05}
    agent.start()
    job = agent.run(script(agent, ONE_ASTRAY), ranks=2)
    agent.wait(JobReady)
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
