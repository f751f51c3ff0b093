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
    JobWentOn,
)
from hs_core.gang import GangMachine, Step
from hs_core.gang.messages import Connection, Message
from hs_core.reports import Tier

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
        pytest.param(("--zero",), id="optimizer in parts"),
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
