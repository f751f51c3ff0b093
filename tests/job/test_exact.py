"""Suspended, moved, restored: bit for bit what an uninterrupted run gives."""

import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from job_stub import StubAgent
from moving import let_go, lines, move, slow_down, suspend_and_resume
from warm import Warm

from hs_core.events.host import (
    JobCheckpointed,
    JobHeld,
    JobHooked,
    JobProgressed,
    JobReady,
    JobRestored,
    JobWentOn,
)
from hs_core.gang import GangMachine, Step
from hs_core.gang.messages import Connection, Message
from hs_core.reports import Tier
from hs_job import handed, position, runtime

TRAIN = str(Path(__file__).parent / "train.py")
ADVERSARIES = str(Path(__file__).parent / "adversaries.py")
GANG = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", TRAIN, "--ddp")


SHARDS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)
Uninterrupted = Callable[..., tuple[str, ...]]


@pytest.fixture(scope="module")
def uninterrupted(warm: Warm) -> Uninterrupted:
    """Its lines, sorted by rank and step: two ranks write to one pipe."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HS_")} | {"OMP_NUM_THREADS": "1"}

    @functools.cache
    def run(*argv: str, ranks: int = 0) -> tuple[str, ...]:
        job = warm.run(argv, environment, Path.cwd(), ranks=ranks)
        output, errors = job.communicate()
        assert (job.returncode, errors) == (0, "")
        return lines(output)

    return run


def test_fifty_suspends_of_an_unchanged_script_change_no_bit(
    agent: StubAgent, uninterrupted: Uninterrupted
) -> None:
    argv = (TRAIN, "--epochs", "100")
    job = agent.run(*argv, fresh=True)
    let_go(agent)
    agent.wait(JobWentOn)
    held = [suspend_and_resume(agent, (Tier.HOLD, Tier.SWAP)[turn % 2]) for turn in range(50)]
    output, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")
    assert lines(output) == uninterrupted(*argv)
    assert {each.tier for each in held} == {Tier.HOLD, Tier.SWAP}
    assert agent.machine.malformed == 0
    assert agent.wait(JobHooked)


def test_progress_is_told_with_its_rate(agent: StubAgent) -> None:
    agent.kill()
    agent._machine_args = {"progress_s": 0.05, "pace_s": 0.01}
    agent.start()
    job = agent.run(TRAIN, "--epochs", "5")
    let_go(agent)
    assert job.wait() == 0
    progress = [event for event in agent.events if isinstance(event, JobProgressed)]
    assert progress
    assert all(0 < event.steps_per_s < 100.5 for event in progress[1:]), f"paced to 100 steps/s: {progress}"
    told = [(at_s, message["step"]) for at_s, _, message in agent.heard if message["type"] == "progress"]
    (first_s, first), (last_s, last) = told[0], told[-1]
    assert max(event.steps_per_s for event in progress) > 0.9 * (last - first) / (last_s - first_s)


@pytest.mark.parametrize(
    ("argv", "at_step"),
    [
        (("--handed", "epoch"), 47),
        (("--handed", "plain"), 47),
        (("--handed", "epoch", "--optimizer", "momentum", "--own-generator"), 39),
        (("--handed", "plain", "--optimizer", "momentum", "--own-generator"), 1),
        (("--handed", "epoch", "--workers", "2"), 33),
        (("--handed", "plain", "--workers", "2", "--own-generator"), 19),
        (("--handed", "epoch", "--evaluate"), 47),
        (("--handed", "epoch", "--evaluate", "--workers", "2"), 20),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_job_moved_to_a_new_process_goes_on_bit_for_bit(
    agent: StubAgent, uninterrupted: Uninterrupted, argv: tuple[str, ...], at_step: int
) -> None:
    assert lines(move(agent, (TRAIN, *argv), at_step)) == uninterrupted(TRAIN, *argv)


@pytest.mark.parametrize("at_step", [6, 11])
@pytest.mark.parametrize("how", ["both", "turns", "adds_up"])
def test_optimizers_that_step_in_turn_count_mini_batches_and_go_on_bit_for_bit(
    agent: StubAgent, uninterrupted: Uninterrupted, how: str, at_step: int
) -> None:
    """Also where the gradients of one add up while the other steps."""
    moved = lines(move(agent, (ADVERSARIES, how), at_step))
    assert moved == uninterrupted(ADVERSARIES, how)
    assert agent.messages("progress")[-1]["step"] == len(moved) - 1


def test_a_gang_leaves_with_the_checkpoint_that_it_wrote_while_no_agent_was_there(
    agent: StubAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(agent, 0.02)
    job = agent.run(*GANG, "--handed", "epoch", "--epochs", "10")
    let_go(agent)
    agent.wait(JobWentOn)
    deaf = GangMachine.heard

    def dies(machine: GangMachine, connection: Connection, message: Message, now_s: float) -> Step:
        """Between the ranks' last word and the answer."""
        return Step() if message["type"] == "held" else deaf(machine, connection, message, now_s)

    with monkeypatch.context() as patched:
        patched.setattr(GangMachine, "heard", dies)
        agent.suspend(Tier.CHECKPOINT)
        agent.until(lambda: len(agent.messages("held")) == 2 or None, "two that are held")
        agent.kill()
    agent.start()
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    held = agent.wait(JobHeld, since)
    assert (held.tier, held.generation) == (Tier.CHECKPOINT, 0)
    _, errors = job.communicate()
    assert job.returncode == 75 or "(exitcode: 75)" in errors, (
        "its launcher says 1 where it had not come back yet"
    )


@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), id="copies"),
        pytest.param(
            ("--fsdp",),
            id="shards",
            marks=pytest.mark.skipif(not SHARDS, reason="torch before 2.6 has no fully_shard for the CPU"),
        ),
        pytest.param(("--slices",), id="slices"),
    ],
)
def test_a_gang_stops_at_one_step_and_goes_on_and_moves_bit_for_bit(
    agent: StubAgent, uninterrupted: Uninterrupted, more: tuple[str, ...]
) -> None:
    """Where it is copies that are trained torchrun starts them, twice; that takes ten seconds of computing, and is alike for all."""
    argv = (TRAIN, "--ddp", *more, "--handed", "epoch", "--epochs", "10")
    launched, ranks = ((*GANG, *argv[2:]), 0) if not more else (argv, 2)
    slow_down(agent, 0.02)
    job = agent.run(*launched, ranks=ranks)
    let_go(agent)
    agent.wait(JobWentOn)
    for turn in range(8):
        before = len(agent.messages("held"))
        suspend_and_resume(agent, (Tier.HOLD, Tier.SWAP)[turn % 2])
        stopped = agent.messages("held")[before:]
        assert len(stopped) == 2
        assert len({message["step"] for message in stopped}) == 1
    since = agent.seen()
    agent.checkpoint()
    assert agent.wait(JobCheckpointed, since).generation == 0
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    held = agent.wait(JobHeld, since)
    assert held.generation == 1
    output, errors = job.communicate()
    assert (job.returncode, errors) == (75, ""), "the launcher leaves in silence too"
    agent.kill()
    agent.start()
    since = agent.seen()
    job = agent.run(*launched, env={"HS_RESTORE": "1"}, ranks=ranks)
    assert let_go(agent, since).step == held.step
    end, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")
    assert lines(output + end) == uninterrupted(*argv, ranks=2)


IN_A_THREAD = """
import threading, torch, hs_job
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(1)
x = torch.randn(80, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))

def train():
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
    step = state.step
    for epoch in range(state.epoch, 4):
        for xs, ys in loader:
            loss = nn.functional.mse_loss(model(xs), ys)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(f"0:{step} {loss.item()!r}", flush=True)

thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


def test_a_job_that_trains_in_a_thread_of_its_own_is_moved_bit_for_bit(agent: StubAgent) -> None:
    (agent.folder / "train.py").write_text(IN_A_THREAD)
    argv = (str(agent.folder / "train.py"),)
    undisturbed = agent.run(*argv)
    let_go(agent)
    expected, _ = undisturbed.communicate()
    assert lines(move(agent, argv, at_step=14)) == lines(expected)


AFTER_EACH_EPOCH = """
import sys, time, torch, hs_job
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(1)
x = torch.randn(40, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
step = state.step
for epoch in range(state.epoch, 4):
    for xs, ys in loader:
        loss = nn.functional.mse_loss(model(xs), ys)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        print(f"0:{step} {loss.item()!r}", flush=True)
        while sys.argv[1:] == [str(step)] and not hs_job.should_yield():
            time.sleep(0.001)
    print(f"epoch {epoch} ended with {loss.item()!r}", flush=True)
"""


def test_what_a_script_does_once_an_epoch_has_ended_it_does_in_the_process_that_trained(
    agent: StubAgent,
) -> None:
    """A new one would have trained on no batch of that epoch: it has no last loss to tell."""
    (agent.folder / "train.py").write_text(AFTER_EACH_EPOCH)
    script = str(agent.folder / "train.py")
    undisturbed = agent.run(script)
    let_go(agent)
    expected, _ = undisturbed.communicate()
    assert lines(move(agent, (script, "10"), at_step=10)) == lines(expected)


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
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
step = state.step
for epoch in range(state.epoch, 4):
    for xs, ys in loader:
        loss = train(xs, ys)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(f"0:{step} {loss!r} {[nn.functional.mse_loss(model(a), b).item() for a, b in other]!r}", flush=True)
"""

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
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
step = state.step
for epoch in range(state.epoch, 4):
    for xs, ys in loader:
        loss = train(xs, ys)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(f"0:{step} {loss!r} {optimizer.state[model.weight]['wide'].tolist()}", flush=True)
"""

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
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
step = state.step
for epoch in range(state.epoch, 4):
    for xs, ys in loader:
        loss = train(xs, ys)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(f"0:{step} {loss!r} {optimizer.inner.state[model.weight]['parts']}", flush=True)
"""

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

OF_NO_LENGTH = """
class Order(torch.utils.data.Sampler):
    def __iter__(self):
        return iter(torch.randperm(40).tolist())

    def __len__(self):
        raise NotImplementedError

loader = DataLoader(data, batch_size=8, sampler=Order())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
step = state.step
for epoch in range(state.epoch, 4):
    for xs, ys in loader:
        loss = train(xs, ys)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(f"0:{step} {loss!r}", flush=True)
"""

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
        pytest.param(A_STEP_FOR_EACH_EPOCH, 4, id="that steps once an epoch, also where it passes that by"),
    ],
)
def test_a_script_is_moved_bit_for_bit(agent: StubAgent, body: str, at_step: int) -> None:
    (agent.folder / "train.py").write_text(PREAMBLE + body)
    script = str(agent.folder / "train.py")
    undisturbed = agent.run(script)
    let_go(agent)
    expected, _ = undisturbed.communicate()
    assert lines(move(agent, (script,), at_step)) == lines(expected)


def test_batches_of_two_loaders_are_gone_on_with_in_the_one_handed_over_and_that_is_said(
    agent: StubAgent,
) -> None:
    (agent.folder / "train.py").write_text(PREAMBLE + BESIDE_ANOTHER_LOADER)
    script = str(agent.folder / "train.py")
    undisturbed = agent.run(script)
    let_go(agent)
    expected, _ = undisturbed.communicate()
    said = f"heteroshare: {handed._OTHER_LOADERS}\n"
    assert lines(move(agent, (script,), at_step=7, said=said)) == lines(expected)


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
    (agent.folder / "train.py").write_text(PREAMBLE + body)
    script = str(agent.folder / "train.py")
    undisturbed = agent.run(script)
    let_go(agent)
    expected, _ = undisturbed.communicate()
    (agent.folder / "own.pt").unlink()
    assert lines(move(agent, (script,), at_step=13)) == lines(expected)


@pytest.mark.parametrize(
    ("at_step", "said"),
    [(7, [position._LOADED_BEFORE]), (17, [position._LOADED_BEFORE, runtime._NEVER_THERE])],
    ids=["too little", "nothing"],
)
def test_a_loop_that_begins_where_the_scripts_own_checkpoint_says_is_told_that_it_trains(
    agent: StubAgent, at_step: int, said: list[str]
) -> None:
    (agent.folder / "train.py").write_text(PREAMBLE + WITH_CHECKPOINTS_OF_ITS_OWN.format(begin="first"))
    script = str(agent.folder / "train.py")
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
    (agent.folder / "train.py").write_text(PREAMBLE + WARMED_UP)
    script = str(agent.folder / "train.py")
    undisturbed = agent.run(script)
    let_go(agent)
    expected, _ = undisturbed.communicate()
    assert len(lines(expected)) == 30
    assert lines(move(agent, (script,), at_step, looks_first=True)) == lines(expected)
    assert agent.wait(JobRestored).step == agent.messages("held")[0]["step"] > at_step + 4


ONE_AFTER_THE_OTHER = """
import subprocess, sys
for turn in ("1", "2"):
    subprocess.run([sys.executable, "train.py", turn], check=True)
"""

OF_TWO = """
import os, sys
turn = sys.argv[1]
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * int(turn))
if turn == "2":
    model.load_state_dict(torch.load("first.pt"))
state = hs_job.state(model=model, optimizer=optimizer, loader=loader)
step = state.step
for epoch in range(state.epoch, 4):
    for xs, ys in loader:
        loss = train(xs, ys)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        os.write(1, f"{int(turn) - 1}:{step} {loss!r}\\n".encode())
torch.save(model.state_dict(), "first.pt")
"""


def test_of_trainings_one_after_the_other_the_first_that_hands_over_is_moved_and_no_other_takes_up_its_checkpoint(
    agent: StubAgent,
) -> None:
    (agent.folder / "train.py").write_text(PREAMBLE + OF_TWO)
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
