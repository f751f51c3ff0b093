"""Scripts as people write them: moved, each ends with the bits of a run that nobody interrupted."""

import pytest
from job_stub import StubAgent
from moving import let_go, lines, move, slow_down

from hs_core.events.host import JobHeld, JobReady, JobRestored, JobWentOn
from hs_core.reports import Tier
from hs_job import advice

PREAMBLE = """
import torch, hs_job
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(1)
x = torch.randn(40, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Linear(4, 1)

def train(xs, ys):
    loss = nn.functional.mse_loss(model(xs.to(model.weight.dtype)).float(), ys)
    loss.backward()
    return loss.item()
"""


def epochs(shown: str = "", of: str = "0", first: str = "") -> str:
    """The end of a script: it hands over, and trains four epochs. `shown`: what it says of a step besides its loss, `of`: of which training it is, as in an f-string; `first`: what it does in between."""
    return f"""
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
{first}
step = state.step
for epoch in range(state.epoch, 4):
    for xs, ys in loader:
        loss = train(xs, ys)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(f"{of}:{{step}} {{loss!r}}{shown}", flush=True)
"""


def written(agent: StubAgent, body: str) -> str:
    """Path of that script."""
    path = agent.folder / "train.py"
    path.write_text(PREAMBLE + body)
    return str(path)


def undisturbed(agent: StubAgent, script: str) -> tuple[str, ...]:
    """The lines of a run that nobody interrupts."""
    job = agent.run(script)
    let_go(agent)
    output, _ = job.communicate()
    return lines(output)


BESIDE_ANOTHER_LOADER = """
other = DataLoader(data, batch_size=8)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
step = state.step
for epoch in range(state.epoch, 4):
    for (xs, ys), _ in zip(loader, other):
        loss = train(xs, ys)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(f"0:{step} {loss!r}", flush=True)
"""

EVALUATED_WITH_GRADIENTS = """
other = DataLoader(data, batch_size=20)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
""" + epochs(" {[nn.functional.mse_loss(model(a), b).item() for a, b in other]!r}")

AVERAGED_EACH_EPOCH = """
class Average:
    def __init__(self):
        self.weight = model.weight.detach().clone()

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight = state["weight"]

optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
average = Average()
state = hs_job.state(model=model, optimizer=optimizer, loader=loader, average=average)
step = state.step
for epoch in range(5):
    for xs, ys in loader:
        loss = train(xs, ys)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(f"0:{step} {loss!r} {average.weight.tolist()}", flush=True)
    average.weight.lerp_(model.weight.detach(), 0.5)
"""

WIDE_WEIGHTS = """
class Wide(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            wide = state.setdefault("wide", parameter.float().clone())
            wide.add_(parameter.grad.float(), alpha=-0.001)
            parameter.copy_(wide)

model.bfloat16()
optimizer = Wide(model.parameters(), {})
""" + epochs(" {optimizer.state[model.weight]['wide'].tolist()}")

INSIDE_ANOTHER = """
from collections import OrderedDict, deque

class Kept(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state.update(last=deque(maxlen=3), way="wide", parts=[OrderedDict(wide=parameter.float().clone(), at=torch.zeros(1, dtype=torch.int64))])
            state["last"].append(parameter.grad.float())
            part = state["parts"][0]
            part["at"] += 1
            assert (state["way"], part["at"].dtype) == ("wide", torch.int64)
            parameter.copy_(part["wide"].sub_(sum(state["last"]), alpha=0.001))

class Around(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self):
        self.inner.step()

    def state_dict(self):
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state):
        self.inner.load_state_dict(state["inner"])

model.bfloat16()
optimizer = Around(Kept(model.parameters(), {}))
""" + epochs(" {optimizer.inner.state[model.weight]['parts']}")

DICE_OF_THE_DATA = """
import random
import numpy as np

class Order(torch.utils.data.Sampler):
    def __init__(self):
        self.seeds = random.Random(4)

    def __iter__(self):
        return iter(np.random.RandomState(self.seeds.randrange(100)).permutation(40).tolist())

    def __len__(self):
        return 40

class Noise:
    def __init__(self):
        self.kept = {"torch": torch.Generator().manual_seed(3), "old": np.random.RandomState(5)}

    def __call__(self, xs):
        return xs + torch.rand(1, generator=self.kept["torch"]) + float(self.kept["old"].rand())

class Noisy(torch.utils.data.Dataset):
    def __init__(self):
        self.transforms = [Noise()]
        self.begin(0)

    def begin(self, epoch):
        self.dice = np.random.default_rng(epoch)

    def __len__(self):
        return 40

    def __getitem__(self, at):
        xs, ys = data[at]
        return self.transforms[0](xs) + float(self.dice.normal()), ys

noisy = Noisy()
loader = DataLoader(torch.utils.data.Subset(noisy, range(40)), batch_size=8, sampler=Order())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
step = state.step
for epoch in range(state.epoch, 4):
    noisy.begin(epoch)
    for xs, ys in loader:
        loss = train(xs, ys)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(f"0:{step} {loss!r}", flush=True)
"""

WITH_ARRAYS = """
import numpy as np

class Own:
    def __init__(self):
        self.kept = {
            "dice": np.random.RandomState(7).get_state(),
            "best": np.float32(9.0),
            "words": {b"": 0, b"\\xff": np.int64(1)},
            "history": np.zeros(40, [("loss", "f4"), ("at", "M8[s]")]),
            "seen": bytearray(5),
            "phase": 1j,
            "types": (torch.bool, torch.device("cpu")),
        }

    def state_dict(self):
        return self.kept

    def load_state_dict(self, kept):
        self.kept = kept

    def step(self, number, loss):
        dice = np.random.RandomState()
        dice.set_state(self.kept["dice"])
        self.kept["best"] = np.minimum(self.kept["best"] * np.float32(1.001), np.float32(loss))
        self.kept["history"][number] = (dice.rand(), number)
        self.kept["words"][b"\\xff"] += 1
        self.kept["seen"][number % 5] += 1
        self.kept["phase"] *= 1j
        self.kept["dice"] = dice.get_state()
        return {**self.kept, "history": self.kept["history"][number], "dice": dice.rand()}

own = Own()
optimizer = torch.optim.AdamW(model.parameters(), lr=np.float64(0.01))
state = hs_job.state(model=model, optimizer=optimizer, loader=loader, own=own)
step = state.step
for epoch in range(state.epoch, 4):
    for xs, ys in loader:
        loss = train(xs, ys)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(f"0:{step} {loss!r} {own.step(step, loss)!r}", flush=True)
"""

DICE_OF_ITS_OWN_CHOICE = """
import numpy as np

np.random.set_bit_generator(np.random.Philox(3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
step = state.step
for epoch in range(state.epoch, 4):
    for xs, ys in loader:
        loss = train(xs + np.random.randn(), ys)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(f"0:{step} {loss!r}", flush=True)
"""

A_STEP_FOR_EACH_EPOCH = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
for epoch in range(20):
    losses = [train(xs, ys) for xs, ys in loader]
    optimizer.step()
    optimizer.zero_grad()
    if losses:
        print(f"0:{epoch + 1} {losses!r}", flush=True)
"""

STEPS_AMID_BACKWARD = """
import threading

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizers = {each: torch.optim.AdamW([each], lr=0.01) for each in model.parameters()}
threads = set()

def steps(parameter):
    threads.add(threading.get_ident())
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()

for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(steps)

class Deeper(torch.autograd.Function):
    @staticmethod
    def forward(ctx, here, more, last):
        ctx.more, ctx.last = more, last
        return here.clone()

    @staticmethod
    def backward(ctx, _):
        with torch.enable_grad():
            backward(ctx.more - 1, ctx.last)
        return None, None, None

def backward(more, last):  # from some depth on torch takes a thread of its own, as it does for a GPU
    if more:
        Deeper.apply(torch.zeros((), requires_grad=True), more, last).backward()
    else:
        last()

state = hs_job.state(model=model, loader=loader, **{f"of{at}": each for at, each in enumerate(optimizers.values())})
step = state.step
for epoch in range(state.epoch, 4):
    for xs, ys in loader:
        loss = nn.functional.mse_loss(model(xs), ys)
        backward(61, loss.backward)
        assert threading.get_ident() not in threads
        step += 1
        print(f"0:{step} {loss.item()!r}", flush=True)
"""

EVALUATED_AHEAD = """
def worth():
    with torch.no_grad():
        return [nn.functional.mse_loss(model(a), b).item() for a, b in loader]

optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
""" + epochs(first="worth(), worth()")

OF_NO_LENGTH = """
class Order(torch.utils.data.Sampler):
    def __iter__(self):
        return iter(torch.randperm(40).tolist())

    def __len__(self):
        raise NotImplementedError

loader = DataLoader(data, batch_size=8, sampler=Order())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
""" + epochs()

LEARNS_LATER = """
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
model.weight = model[0].weight
model[0].requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
step = state.step
for epoch in range(state.epoch, 5):
    if epoch == 1:
        model[0].requires_grad_(True)
    for xs, ys in loader:
        loss = train(xs, ys)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(f"0:{step} {loss!r}", flush=True)
    if epoch == 1:
        model.eval()  # and forgets that it is
"""

WITHOUT_A_MODULE = """
heat = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.AdamW([*model.parameters(), heat], lr=0.01)
other = torch.optim.SGD([offset := torch.zeros(1, dtype=torch.float64, requires_grad=True)], lr=0.01, momentum=0.9)
state = hs_job.state(model=model, optimizer=optimizer, other=other, loader=loader)
step = state.step
for epoch in range(5):
    for xs, ys in loader:
        loss = (nn.functional.mse_loss(model(xs) * heat.exp(), ys) + (offset - heat).square()).sum()
        loss.backward()
        for each in (optimizer, other):
            each.step()
            each.zero_grad()
        step += 1
        print(f"0:{step} {loss.item()!r} {heat.item()!r} {offset.item()!r}", flush=True)
    other.param_groups[0]["lr"] *= 0.9
"""


@pytest.mark.parametrize(
    ("body", "at_step"),
    [
        pytest.param(WITHOUT_A_MODULE, 12, id="whose optimizers have parameters that no module has"),
        pytest.param(
            LEARNS_LATER, 12, id="whose parts learn, and are in training mode, from an epoch on or until one"
        ),
        pytest.param(OF_NO_LENGTH, 7, id="whose sampler says in its own way that it knows no length"),
        pytest.param(EVALUATED_WITH_GRADIENTS, 7, id="that goes through another loader between its steps"),
        pytest.param(
            AVERAGED_EACH_EPOCH, 12, id="whose average takes up what it is loaded with, and changes it"
        ),
        pytest.param(
            INSIDE_ANOTHER,
            7,
            id="whose optimizer is inside another, and keeps more than tensors of its parameters' type",
        ),
        pytest.param(
            DICE_OF_THE_DATA, 12, id="whose sampler, dataset and transforms draw from generators of their own"
        ),
        pytest.param(WIDE_WEIGHTS, 7, id="whose optimizer keeps 32-bit weights beside 16-bit parameters"),
        pytest.param(
            WITH_ARRAYS, 7, id="whose own state holds arrays, their scalars, bytes, types and complex numbers"
        ),
        pytest.param(DICE_OF_ITS_OWN_CHOICE, 7, id="that has given numpy another generator"),
        pytest.param(EVALUATED_AHEAD, 7, id="that goes through the data without gradients ahead of training"),
        pytest.param(
            EVALUATED_AHEAD.replace("state.epoch", "0"), 7, id="that does so, and begins at epoch 0"
        ),
        pytest.param(STEPS_AMID_BACKWARD, 7, id="whose optimizers step amid the backward pass"),
        pytest.param(A_STEP_FOR_EACH_EPOCH, 4, id="that steps once an epoch, also where it passes that by"),
    ],
)
def test_a_script_is_moved_bit_for_bit(agent: StubAgent, body: str, at_step: int) -> None:
    script = written(agent, body)
    expected = undisturbed(agent, script)
    assert lines(move(agent, (script,), at_step)) == expected


PASSES_THE_END_OF_EACH_EPOCH_BY = """
import time
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
step = state.step
for epoch in range(state.epoch, 4):
    for at, (xs, ys) in enumerate(loader, state.batch if epoch == state.epoch else 0):
        if at >= 3:
            while step == 6 and not (state.restored or hs_job.should_yield()):
                time.sleep(0.01)
            continue
        loss = train(xs, ys)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(f"0:{step} {loss!r}", flush=True)
"""


def test_a_script_that_trains_on_no_batch_of_an_epoch_that_it_goes_on_with_is_told_nothing(
    agent: StubAgent,
) -> None:
    """That the loader was gone through ahead of training: so it looked to the new process."""
    output = move(agent, (written(agent, PASSES_THE_END_OF_EACH_EPOCH_BY),), at_step=6)
    assert [line.split()[0] for line in output.splitlines()] == [f"0:{step}" for step in range(1, 13)]


def test_batches_of_two_loaders_are_gone_on_with_in_the_one_handed_over_and_that_is_said(
    agent: StubAgent,
) -> None:
    script = written(agent, BESIDE_ANOTHER_LOADER)
    expected = undisturbed(agent, script)
    said = f"heteroshare: {advice.OTHER_LOADERS}\n"
    assert lines(move(agent, (script,), at_step=7, said=said)) == expected


WITH_CHECKPOINTS_OF_ITS_OWN = """
import os
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
first = 0
if os.path.exists("own.pt"):
    own = torch.load("own.pt")
    model.load_state_dict(own["model"])
    optimizer.load_state_dict(own["optimizer"])
    first = own["epoch"]
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
step = state.step
for epoch in range({begin}, 5):
    for xs, ys in loader:
        loss = train(xs, ys)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(f"0:{{step}} {{loss!r}}", flush=True)
    torch.save({{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}}, "own.pt")
"""


def test_a_script_with_checkpoints_of_its_own_is_moved_bit_for_bit(agent: StubAgent) -> None:
    body = WITH_CHECKPOINTS_OF_ITS_OWN.format(begin="state.epoch if state.restored else first")
    script = written(agent, body)
    expected = undisturbed(agent, script)
    (agent.folder / "own.pt").unlink()
    assert lines(move(agent, (script,), at_step=13)) == expected


@pytest.mark.parametrize(
    ("at_step", "said"),
    [(7, [advice.LOADED_BEFORE]), (17, [advice.LOADED_BEFORE, advice.NEVER_THERE])],
    ids=["too little", "nothing"],
)
def test_a_loop_that_begins_where_the_scripts_own_checkpoint_says_is_told_that_it_trains(
    agent: StubAgent, at_step: int, said: list[str]
) -> None:
    script = written(agent, WITH_CHECKPOINTS_OF_ITS_OWN.format(begin="first"))
    slow_down(agent, 0.03)
    job = agent.run(script)
    let_go(agent)
    assert job.stdout is not None
    next(line for line in job.stdout if line.startswith(f"0:{at_step} "))
    agent.suspend(Tier.CHECKPOINT)
    held = agent.wait(JobHeld)
    job.communicate()
    agent.kill()
    agent.start()
    since = agent.seen()
    job = agent.run(script, env={"HS_RESTORE": str(held.generation)})
    agent.wait(JobRestored, since)
    if len(said) == 1:
        let_go(agent, since)
    _, errors = job.communicate()
    assert (job.returncode, errors) == (0, "".join(f"heteroshare: {line}\n" for line in said))


WARMED_UP = """
first = torch.optim.SGD(model.parameters(), lr=0.001)
for xs, ys in DataLoader(data, batch_size=8):
    train(xs, ys)
    first.step()
    first.zero_grad()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
assert state.epoch >= 0  # the loop goes by steps
batches = iter(())
for step in range(state.step, 30):
    try:
        xs, ys = next(batches)
    except StopIteration:
        batches = iter(loader)
        xs, ys = next(batches)
    loss = train(xs, ys)
    optimizer.step()
    optimizer.zero_grad()
    print(f"0:{step + 1} {loss!r}", flush=True)
"""


@pytest.mark.parametrize("at_step", [3, 12])
def test_steps_before_a_script_hands_over_are_none_of_those_that_its_loop_goes_by(
    agent: StubAgent, at_step: int
) -> None:
    script = written(agent, WARMED_UP)
    expected = undisturbed(agent, script)
    assert len(expected) == 30
    assert lines(move(agent, (script,), at_step, looks_first=True)) == expected
    assert agent.wait(JobRestored).step == agent.messages("held")[0]["step"] > at_step + 4


ONE_AFTER_THE_OTHER = """
import subprocess, sys
for turn in ("1", "2"):
    subprocess.run([sys.executable, "train.py", turn], check=True)
"""

OF_TWO = (
    """
import sys
turn = sys.argv[1]
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * int(turn))
if turn == "2":
    model.load_state_dict(torch.load("first.pt"))
"""
    + epochs(of="{int(turn) - 1}")
    + """
torch.save(model.state_dict(), "first.pt")
"""
)


def test_of_trainings_one_after_the_other_the_first_that_hands_over_is_moved_and_no_other_takes_up_its_checkpoint(
    agent: StubAgent,
) -> None:
    written(agent, OF_TWO)
    (agent.folder / "both.py").write_text(ONE_AFTER_THE_OTHER)
    script = str(agent.folder / "both.py")
    expected, errors = agent.run(script, env={"HS_AGENT_SOCKET": ""}).communicate()
    assert errors == ""
    slow_down(agent, 0.03)
    first = agent.run(script, env={"HS_EPOCH": "0"})
    let_go(agent)
    agent.wait(JobWentOn)
    agent.suspend(Tier.CHECKPOINT)
    held = agent.wait(JobHeld)
    before, _ = first.communicate()
    agent.kill()
    agent.start()
    since = agent.seen()
    second = agent.run(script, env={"HS_EPOCH": "1", "HS_RESTORE": str(held.generation)})
    assert let_go(agent, since).step == held.step > 0
    assert agent.wait(JobReady, since, lambda event: not event.can_checkpoint).step == 0
    after, errors = second.communicate()
    assert lines(before + after) == lines(expected)
    assert errors.startswith(
        "heteroshare: the job is held, and not moved: another command of this job has handed over"
    )
    assert errors.count("\n") == 1
