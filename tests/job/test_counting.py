"""What counts as a step of a script, and where that can be held: optimizers' steps, or those that it counts by hand."""

import pytest
from job_stub import StubAgent
from moving import script, start, suspend_and_resume
from warm import Warm

from hs_core.events.host import JobCapable, JobHeld, JobProgressed
from hs_core.reports import Tier

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


def test_switched_off_by_the_environment_the_script_runs_by_itself(agent: StubAgent) -> None:
    job = agent.run(script(agent, BY_HAND), env={"HS_HOOK": "0"}, fresh=True)
    output, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")
    assert output.startswith("0 ")
    assert agent.heard == []
