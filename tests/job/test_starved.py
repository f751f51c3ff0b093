"""Scripts that end for want of device memory say how much they would have needed."""

import os
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hs_agent import steps
from hs_job.starved import asked_bytes
from hs_job.swap import Swapper

GIB = 1 << 30
CUDA = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 15.77 GiB of which 1.69 GiB is free. "
    "Process 3012 has 7.00 GiB memory in use. Including non-PyTorch memory, this process has 7.08 GiB memory in use."
)


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (torch.OutOfMemoryError(CUDA), 5 * GIB // 2),
        (RuntimeError("HIP out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.99 GiB total)"), 20 << 20),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"), 1),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), 1),
        (Exception(f"-- Process 1 terminated:\ntorch.OutOfMemoryError: {CUDA}\n"), 5 * GIB // 2),
        (RuntimeError("DataLoader worker is out of shared memory"), 0),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), 0),
        (MemoryError("out of memory"), 0),
        (KeyError("loss"), 0),
        (None, 0),
    ],
)
def test_what_torch_says_where_device_memory_is_out_is_understood(
    error: BaseException | None, asked: int
) -> None:
    assert asked_bytes(error) == asked


@pytest.mark.parametrize("by", ["__cause__", "__context__"])
def test_it_is_found_behind_what_a_script_makes_of_it(by: str) -> None:
    error = ValueError("step 7 failed")
    setattr(error, by, torch.OutOfMemoryError(CUDA))
    assert asked_bytes(error) == 5 * GIB // 2


def test_errors_that_are_each_others_cause_are_followed_no_further() -> None:
    error, other = ValueError("one"), ValueError("other")
    error.__cause__, other.__cause__ = other, error
    assert asked_bytes(error) == 0


@pytest.mark.parametrize(("peak_gib", "needed_gib"), [(9, 9), (7, 8)])
def test_what_is_needed_is_what_it_held_at_most_or_holds_and_asks_for(peak_gib: int, needed_gib: int) -> None:
    cuda = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True,
        memory_reserved=lambda: 6 * GIB, max_memory_reserved=lambda: peak_gib * GIB,
    )  # fmt: skip
    swapper = Swapper(SimpleNamespace(cuda=cuda), list, lambda: None)
    assert swapper.needed_bytes(2 * GIB) == needed_gib * GIB


ENDS = textwrap.dedent(
    """
    import os, sys, torch
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if sys.argv[1] == "steps":
        for _ in range(3):
            model(torch.ones(2)).sum().backward()
            optimizer.step()
    failed = torch.OutOfMemoryError(sys.argv[2]) if sys.argv[2] else ValueError("no such luck")
    if len(sys.argv) < 4:
        raise failed
    try:
        raise failed
    except Exception as error:
        print(error)
        (sys.exit if sys.argv[3] == "sys.exit" else os._exit)(1)
    """
)


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("steps", CUDA), steps.Word(3, 5 * GIB // 2)),
        (("not", CUDA), steps.Word(0, 5 * GIB // 2)),
        (("steps", CUDA, "sys.exit"), steps.Word(3, 5 * GIB // 2)),
        (("steps", CUDA, "os._exit"), steps.Word(3, 5 * GIB // 2)),
        (("steps", ""), steps.Word(3, 0)),
        (("steps", "", "sys.exit"), steps.Word(3, 0)),
    ],
    ids=[
        "after-steps",
        "before-its-first",
        "caught",
        "caught-and-in-haste",
        "another-reason",
        "another-caught",
    ],
)
def test_the_agent_finds_it_noted_when_the_process_has_ended(
    agent, tmp_path: Path, args: tuple[str, ...], word: steps.Word
) -> None:
    path = tmp_path / "steps"
    steps.make(path, os.geteuid(), os.getegid())
    script = tmp_path / "train.py"
    script.write_text(ENDS)
    process = agent.run(str(script), *args, env={"HS_STEPS_FILE": str(path)})
    if args[0] == "steps":
        agent.resume()
    process.communicate()
    assert process.returncode == 1
    assert steps.noted(path) == word
