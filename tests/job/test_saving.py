"""What a job's checkpoint fails for, and that nothing is lost by that."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from job_stub import StubAgent
from moving import script, slow_down, start, suspend_and_resume

from hs_core.events.host import (
    CheckpointFailed,
    JobCapable,
    JobCheckpointed,
    JobHeld,
    JobProgressed,
    JobRestored,
    JobWentOn,
    SuspendFailed,
)
from hs_core.reports import Tier

TRAIN = str(Path(__file__).parent / "train.py")


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
