"""On a real GPU: what was swapped out, or moved to a new process, trains on as if nothing had been; what cannot be swapped is not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from job_stub import StubAgent

from hs_core.events.host import JobHeld, JobReady, JobWentOn
from hs_core.reports import Tier
from hs_job.parking import HostMemory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device, or a torch without CUDA"),
]

TRAIN = str(Path(__file__).parent / "on_gpu.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1")
ONE_WAY = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # else torch refuses to be deterministic
TURNS = 6


class Uninterrupted:
    """The same training without an agent, meanwhile."""

    def __init__(self, *argv: str) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HS_", "PYTHONPATH"))}
        more = {"PYTHONPATH": str(Path(__file__).parents[2] / "client"), "OMP_NUM_THREADS": "1"}
        self._job = subprocess.Popen(
            [sys.executable, *argv],
            env=kept | ONE_WAY | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def lines(self) -> list[str]:
        output, errors = self._job.communicate(timeout=300)
        assert self._job.returncode == 0, errors
        return output.splitlines()


def in_turns(
    agent: StubAgent, *argv: str, env: dict[str, str] | None = None
) -> tuple[list[str], list[JobHeld]]:
    """Its lines, and how it stood between two turns."""
    job = agent.run(*argv, env=ONE_WAY | (env or {}), fresh=True)
    agent.wait(JobReady)
    agent.resume()
    agent.wait(JobWentOn)
    held = []
    for _ in range(TURNS):
        since = agent.seen()
        step = agent.messages("progress")[-1]["step"] if agent.messages("progress") else 0
        agent.until(lambda at=step: any(m["step"] > at + 5 for m in agent.messages("progress")), "progress")
        agent.suspend(Tier.SWAP)
        held.append(agent.wait(JobHeld, since))
        since = agent.seen()
        agent.resume()
        agent.wait(JobWentOn, since)
    output, errors = job.communicate()
    assert job.returncode == 0, errors
    return output.splitlines(), held


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[StubAgent]:
    with StubAgent(tmp_path, progress_s=0.05) as stub:
        yield stub


@pytest.mark.parametrize(
    ("argv", "env"),
    [
        ((TRAIN,), {}),
        ((TRAIN, "--fused"), {}),
        ((TRAIN, "--amp", "--workers", "2"), {}),
        ((TRAIN, "--compile", "default"), {}),
        ((TRAIN,), {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        ((*TORCHRUN, TRAIN, "--ddp"), {}),
    ],
    ids=["plain", "fused", "float16 and workers", "compiled", "expandable segments", "nccl"],
)
def test_what_is_swapped_out_and_back_trains_on_bit_for_bit(
    agent: StubAgent, argv: tuple[str, ...], env: dict[str, str]
) -> None:
    argv = (*argv, "--pause", "0.01", "--steps", "300")
    alone = Uninterrupted(*argv)
    lines, held = in_turns(agent, *argv, env=env)
    assert {(each.tier, each.parked_bytes > 0) for each in held} == {(Tier.SWAP, True)}
    assert lines == alone.lines()


@pytest.mark.parametrize(
    "how", [("--graph",), ("--compile", "reduce-overhead")], ids=["captured", "compiled"]
)
def test_what_replays_cuda_graphs_is_held_and_trains_on_bit_for_bit(
    agent: StubAgent, how: tuple[str, ...]
) -> None:
    argv = (TRAIN, *how, "--pause", "0.01", "--steps", "300")
    alone = Uninterrupted(*argv)
    lines, held = in_turns(agent, *argv)
    assert held[-1].tier is Tier.HOLD
    assert {each.parked_bytes for each in held if each.tier is Tier.HOLD} == {0}
    assert lines == alone.lines()


def test_what_is_moved_to_a_new_process_trains_on_bit_for_bit(agent: StubAgent) -> None:
    argv = (TRAIN, "--handed", "--amp", "--pause", "0.01", "--steps", "300")
    alone = Uninterrupted(*argv)
    job = agent.run(*argv, env=ONE_WAY, fresh=True)
    agent.wait(JobReady)
    agent.resume()
    agent.until(lambda: any(message["step"] > 20 for message in agent.messages("progress")), "step 20")
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    held = agent.wait(JobHeld, since)
    first, errors = job.communicate()
    assert (held.tier, job.returncode) == (Tier.CHECKPOINT, 75), errors
    agent.kill()
    agent.start()
    since = agent.seen()
    job = agent.run(*argv, env=ONE_WAY | {"HS_RESTORE": str(held.generation)}, fresh=True)
    agent.wait(JobReady, since)
    agent.resume()
    second, errors = job.communicate()
    assert job.returncode == 0, errors
    assert (first + second).splitlines() == alone.lines()


def test_host_memory_that_cannot_be_locked_is_used_as_it_is_and_no_later_kernel_hears_of_it() -> None:
    memory = HostMemory(torch, lambda: True)
    (buffer,) = memory.take([1 << 20])
    memory._lock(buffer.data_ptr(), 1 << 20)  # it is locked already, says the driver
    assert torch.ones(8, device="cuda").sum().item() == 8.0
