"""Gradients of several batches add up before one step: where such a job stands still, and where it is saved."""

from collections.abc import Callable

import pytest
from job_stub import StubAgent
from moving import let_go, taken_up

from hs_core.events.host import JobHeld, JobRestored
from hs_core.reports import Tier
from hs_job import advice

WINDOW = 4
TRAIN = """
import hashlib, os, sys, time, torch, hs_job
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(1)
x = torch.randn(160, 4, generator=torch.Generator().manual_seed(2))
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
batch = state.step * 4
for epoch in range(state.epoch, 3):
    for xs, ys in loader:
        (nn.functional.mse_loss(model(xs), ys) / 4).backward()
        batch += 1
        os.write(1, f"{batch}\\n".encode())
        while sys.argv[1:] == [str(batch)] and not hs_job.should_yield():
            time.sleep(0.001)
        if batch % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
os.write(1, f"weights {digest.hexdigest()}\\n".encode())
"""


@pytest.fixture
def train(agent: StubAgent) -> Callable[..., object]:
    script = agent.folder / "train.py"
    script.write_text(TRAIN)
    return lambda *argv, **env: agent.run(str(script), *argv, env=env)


@pytest.mark.parametrize("batch", [22, 24, 40, 53])
def test_it_is_saved_between_two_steps_and_loses_no_gradient(
    agent: StubAgent, train: Callable[..., object], batch: int
) -> None:
    """Asked after each place of a window, the last batch of an epoch among them."""
    undisturbed = train()
    let_go(agent)
    expected, _ = undisturbed.communicate()
    since = agent.seen()
    job = train(str(batch))
    let_go(agent, since)
    for line in job.stdout:
        if line == f"{batch}\n":
            break
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    held = agent.wait(JobHeld, since)
    assert (held.tier, held.step) == (Tier.CHECKPOINT, -(-batch // WINDOW))
    assert job.wait() == 75
    agent.kill()
    agent.start()
    since = agent.seen()
    again = train(HS_RESTORE=str(held.generation))
    let_go(agent, since)
    assert agent.wait(JobRestored, since).step == held.step
    end, _ = again.communicate()
    assert end.splitlines()[-1] == expected.splitlines()[-1]


PAIRS = """
import os, sys, time, torch, hs_job
from torch import nn
from torch.utils.data import DataLoader
torch.set_num_threads(1)
torch.manual_seed(1)
loader = DataLoader(torch.randn(160, 4), batch_size=8, shuffle=True)
model = nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
step = state.step
for epoch in range(state.epoch, 3):
    batches = iter(loader)
    for one in batches:
        step += 1
        os.write(1, f"{step}\\n".encode())
        while sys.argv[1:] == [str(step)] and not hs_job.should_yield():
            time.sleep(0.001)
        other = next(batches)
        loss = (model(one) - model(other)).square().mean() + model(other).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        os.write(1, f"of {step} {loss.item()!r}\\n".encode())
"""


@pytest.mark.parametrize("step", [1, 14])
def test_where_a_step_is_of_two_batches_neither_is_lost(agent: StubAgent, step: int) -> None:
    """Asked when the first of them has come."""
    script = agent.folder / "train.py"
    script.write_text(PAIRS)
    undisturbed = agent.run(str(script))
    let_go(agent)
    expected, _ = undisturbed.communicate()
    since = agent.seen()
    job = agent.run(str(script), str(step))
    let_go(agent, since)
    assert job.stdout is not None
    begun = [next(line for line in job.stdout if line == f"{step}\n")]
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    held = agent.wait(JobHeld, since)
    assert (held.tier, held.step) == (Tier.CHECKPOINT, step)
    begun.append(job.communicate()[0])
    assert expected.endswith("".join(begun) + taken_up(agent, str(script), held))


COUNTED = """
import os, sys, time, torch, hs_job
from torch import nn
from torch.utils.data import DataLoader
torch.set_num_threads(1)
torch.manual_seed(1)
loader = DataLoader(torch.randn(88, 4), batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
for epoch in range(state.epoch, 3):
    for at, xs in {counted}:
        model(xs).square().mean().backward()
        if (at + 1) % 4 == 0 or at + 1 == len(loader):
            os.write(1, f"{{epoch}} {{at}} {{model.bias.item()!r}}\\n".encode())
            while sys.argv[1:] == [str(epoch), str(at)] and not hs_job.should_yield():
                time.sleep(0.001)
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("counted", "said"),
    [
        ("enumerate(loader, state.batch if epoch == state.epoch else 0)", ""),
        ("enumerate(each for each in loader)", f"heteroshare: {advice.COUNTED}\n"),
    ],
    ids=["from where it was", "from the beginning of the epoch"],
)
def test_a_script_that_knows_by_its_count_when_to_step_counts_on_or_is_told(
    agent: StubAgent, counted: str, said: str
) -> None:
    script = agent.folder / "train.py"
    script.write_text(COUNTED.format(counted=counted))
    undisturbed = agent.run(str(script))
    let_go(agent)
    expected, _ = undisturbed.communicate()
    since = agent.seen()
    job = agent.run(str(script), "1", "3")
    let_go(agent, since)
    assert job.stdout is not None
    begun = [next(job.stdout) for _ in range(4)]
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    held = agent.wait(JobHeld, since)
    assert (held.tier, held.step) == (Tier.CHECKPOINT, 4)
    job.wait()
    agent.kill()
    agent.start()
    since = agent.seen()
    again = agent.run(str(script), env={"HS_RESTORE": str(held.generation)})
    let_go(agent, since)
    end, errors = again.communicate()
    assert (again.returncode, errors) == (0, said)
    assert ("".join(begun) + end == expected) is not bool(said)


CYCLES = """
import os, sys, time, torch, hs_job
from torch import nn
from torch.utils.data import DataLoader
torch.set_num_threads(1)
torch.manual_seed(1)
loader = DataLoader(torch.randn(88, 4), batch_size=8, shuffle=True)
critic, made = nn.Linear(4, 1), nn.Linear(2, 4)
of_critic, of_made = (torch.optim.RMSprop(each.parameters(), lr=0.01) for each in (critic, made))
state = hs_job.state(critic=critic, made=made, of_critic=of_critic, of_made=of_made, loader=loader)

def forever():
    while True:
        yield from loader

batches = forever()
for cycle in range(state.step, 14):
    for turn in range(3):
        xs = next(batches)
        if turn == 1:
            os.write(1, f"{cycle}\\n".encode())
            while sys.argv[1:] == [str(cycle)] and not hs_job.should_yield():
                time.sleep(0.001)
        of_critic.zero_grad()
        (critic(xs) - critic(made(torch.randn(8, 2)).detach())).mean().backward()
        of_critic.step()
    of_made.zero_grad()
    critic(made(torch.randn(8, 2))).mean().backward()
    of_made.step()
    hs_job.step()
    os.write(1, f"of {cycle} {made.bias.tolist()}\\n".encode())
"""


def test_where_a_script_says_itself_when_a_step_of_several_batches_is_done_it_is_saved_there(
    agent: StubAgent,
) -> None:
    """Asked amid such a step, also amid the first one of a process."""
    script = agent.folder / "train.py"
    script.write_text(CYCLES)
    undisturbed = agent.run(str(script))
    let_go(agent)
    expected, _ = undisturbed.communicate()
    said, restore = "", {}
    for cycle in (4, 5):
        since = agent.seen()
        job = agent.run(str(script), str(cycle), env=restore)
        let_go(agent, since)
        assert job.stdout is not None
        for line in job.stdout:
            said += line
            if line == f"{cycle}\n":
                break
        since = agent.seen()
        agent.suspend(Tier.CHECKPOINT)
        held = agent.wait(JobHeld, since)
        assert (held.tier, held.step) == (Tier.CHECKPOINT, cycle + 1)
        said += job.communicate()[0]
        restore = {"HS_RESTORE": str(held.generation)}
        agent.kill()
        agent.start()
    since = agent.seen()
    last = agent.run(str(script), env=restore)
    let_go(agent, since)
    assert said + last.communicate()[0] == expected


def test_it_is_held_between_two_steps_and_can_leave_from_there(
    agent: StubAgent, train: Callable[..., object]
) -> None:
    job = train("22")
    let_go(agent)
    for line in job.stdout:
        if line == "22\n":
            break
    since = agent.seen()
    agent.suspend(Tier.HOLD)
    assert agent.wait(JobHeld, since).step == 6
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    assert agent.wait(JobHeld, since).tier is Tier.CHECKPOINT
    assert job.wait() == 75


@pytest.mark.parametrize("held_before", [True, False])
def test_one_whose_epochs_have_one_batch_can_leave(agent: StubAgent, held_before: bool) -> None:
    """It is held where an epoch ends, and can be saved there; one that trains is saved where the next begins."""
    one = TRAIN.replace("batch_size=8", "batch_size=160").replace("% 4", "% 1").replace("/ 4", "/ 1")
    script = agent.folder / "train.py"
    script.write_text(one.replace("state.step * 4", "state.step").replace("epoch, 3)", "epoch, 60)"))
    undisturbed = agent.run(str(script))
    let_go(agent)
    expected, _ = undisturbed.communicate()
    since = agent.seen()
    job = agent.run(str(script), "22")
    let_go(agent, since)
    assert job.stdout is not None
    assert any(line == "22\n" for line in job.stdout)
    since = agent.seen()
    if held_before:
        agent.suspend(Tier.HOLD)
        assert agent.wait(JobHeld, since).step == 22
        since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    held = agent.wait(JobHeld, since)
    assert (held.tier, held.step) == (Tier.CHECKPOINT, 22)
    assert job.wait() == 75
    assert taken_up(agent, str(script), held).splitlines()[-1] == expected.splitlines()[-1]
