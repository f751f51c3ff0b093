"""What a script should do otherwise is said to its user, once, and to nobody else."""

import re

import pytest
from job_stub import StubAgent
from moving import script, slow_down, start, suspend_and_resume

from hs_core.events.host import (
    CheckpointFailed,
    JobCapable,
    JobCheckpointed,
    JobHeld,
    JobProgressed,
    JobReady,
    JobWentOn,
)
from hs_core.reports import Tier
from hs_job import advice

LOADED = """
import itertools, torch, hs_job
from hs_job import agreement
agreement.NOWHERE_S = 0.0
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


LOOKED_THROUGH = """
import torch, hs_job
loader = torch.utils.data.DataLoader(torch.randn(40, 2), batch_size=8, shuffle=True)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
{ahead}
for epoch in range(state.epoch, 3):
    for xs in loader:
        model(xs).square().sum().backward()
    {steps}
    optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("ahead", "steps", "said"),
    [
        ("mean = sum(xs.mean() for xs in loader)", "", f"heteroshare: {advice.LOOKED_THROUGH}\n"),
        ("with torch.no_grad(): mean = sum(xs.mean() for xs in loader)", "", ""),
        ("", "if epoch == 0: continue", ""),
    ],
    ids=["with gradients", "without", "gradients add up over more than an epoch"],
)
def test_a_loader_that_is_gone_through_ahead_of_training_is_told_of_where_that_counts_as_an_epoch(
    agent: StubAgent, ahead: str, steps: str, said: str
) -> None:
    job = start(agent, script(agent, LOOKED_THROUGH.format(ahead=ahead, steps=steps)))
    _, errors = job.communicate()
    assert (job.returncode, errors) == (0, said)


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


def saved_twice(agent: StubAgent) -> None:
    """Amid its training."""
    for step in (40, 80):
        agent.wait(JobProgressed, where=lambda event, step=step: event.step > step)
        since = agent.seen()
        agent.checkpoint()
        agent.wait(JobCheckpointed, since)


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
    saved_twice(agent)
    _, errors = job.communicate()
    line = (
        "heteroshare: an optimizer (Adagrad) trains whose state is in nothing that was handed over to hs_job.state: "
        "it is not saved, and a new process begins it anew\n"
    )
    assert (job.returncode, errors) == (0, line * said)


BESIDE = """
import torch, hs_job
from torch.optim import lr_scheduler, swa_utils
model, critic = (torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1)) for _ in range(2))
optimizer = torch.optim.SGD([*model.parameters(), *critic.parameters()], lr=0.1)
parts = [lr_scheduler.ConstantLR(optimizer, 0.5, 5), lr_scheduler.ExponentialLR(optimizer, 0.99)]
scheduler = lr_scheduler.SequentialLR(optimizer, parts, [5])
plateau = lr_scheduler.ReduceLROnPlateau(optimizer)
scaler = torch.amp.GradScaler("cpu")
average = swa_utils.AveragedModel(model)

class Both:
    def state_dict(self):
        return {"average": average.state_dict(), "scaler": scaler.state_dict(), "critic": critic.state_dict()}

    def load_state_dict(self, state):
        critic.load_state_dict(state["critic"])
        average.load_state_dict(state["average"])
        scaler.load_state_dict(state["scaler"])

another = lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=0.1), 5)
never = lr_scheduler.StepLR(optimizer, 5), torch.amp.GradScaler("cpu"), swa_utils.AveragedModel(model)
state = hs_job.state(model=model, optimizer=optimizer%s)
for step in range(state.step, 400):
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 2)) - critic(torch.randn(4, 2))).square().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update(); scheduler.step(); plateau.step(loss); another.step(); average.update_parameters(model)
    hs_job.step()
"""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", ["AveragedModel", "BatchNorm1d", "GradScaler", "ReduceLROnPlateau", "SequentialLR"]),
        (", scheduler=scheduler, both=Both()", ["ReduceLROnPlateau"]),
        (", scheduler=scheduler, plateau=plateau, average=average, scaler=scaler, critic=critic", []),
    ],
    ids=["by nothing", "by some, and inside of something", "by each"],
)
def test_what_trains_along_and_is_in_nothing_handed_over_is_told_of_once(
    agent: StubAgent, given: str, said: list[str]
) -> None:
    slow_down(agent, 0.01)
    job = start(agent, script(agent, BESIDE % given))
    saved_twice(agent)
    _, errors = job.communicate()
    assert job.returncode == 0, errors
    assert sorted(re.findall(r"heteroshare: a (\w+) is in use ", errors)) == said
    assert errors.count("heteroshare:") == len(said)
